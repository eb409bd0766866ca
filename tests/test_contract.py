# SPDX-License-Identifier: MIT
"""Each adapter's API, to the letter: names, signatures, fallbacks, staleness."""

import importlib
import inspect
from typing import Any

import pytest
import torch

from adapters import CONTRACTS
from conftest import ADAPTERS
from harness import World, Worlds

of_adapter = pytest.mark.parametrize("name", [pytest.param(a, marks=pytest.mark.suite(a)) for a in ADAPTERS])


def module(name: str) -> Any:
    return importlib.import_module(f"{name.replace('-', '_')}_distributed")


def signature(function: Any) -> str:
    """A signature without its annotations."""
    bare = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in bare.parameters.values()]
    return str(bare.replace(parameters=parameters, return_annotation=bare.empty))


@of_adapter
def test_exported_names_and_signatures(name: str, request: pytest.FixtureRequest) -> None:
    """Every name of the original, with its signature to the letter but for a trailing `all_reduce_grads`.

    In the contract a Function has two, its forward and backward, and a Module too, its __init__ and forward.
    """
    api = {**CONTRACTS[name]["api"], **CONTRACTS[name]["adds"]}
    assert {n for n in vars(module(name)) if n in api} == set(api)
    if not request.config.getoption("--vendored"):
        assert sorted(module(name).__all__) == sorted(api)
    for attribute, expected in api.items():
        subject = getattr(module(name), attribute)
        if isinstance(expected, list):
            is_function = issubclass(subject, torch.autograd.Function)
            assert is_function != issubclass(subject, torch.nn.Module)
            first, second = (subject.forward, subject.backward) if is_function else (subject.__init__, subject.forward)
            assert [signature(first), signature(second)] == expected
        elif expected == "AllGather.apply":
            assert subject == module(name).AllGather.apply
        else:
            assert signature(subject) == expected


@pytest.mark.parametrize(
    ("name", "function", "arity"),
    [
        pytest.param(name, function, arity, marks=pytest.mark.suite(name))
        for name, function, arity in [
            ("musiclm", "AllGatherFunction", 4),
            ("spear-tts", "AllGather", 3),
            ("mirasol", "AllGather", 3),
            ("st-moe", "AllGatherFunction", 3),
        ]
    ],
)
def test_backward_arity(name: str, function: str, arity: int, backend: str, worlds: Worlds) -> None:
    """A backward returns as many gradients as the original's."""
    assert worlds.get(backend, 2).run("ranks.calls:backward_arity", name, function) == [arity, arity]


@pytest.fixture(scope="module")
def groupless() -> Any:
    with World("gloo", 1, join=False) as world:
        yield world


@pytest.mark.suite("musiclm")
def test_musiclm_without_a_group_returns_its_input(groupless: World) -> None:
    """`(x, None)`, and it is the same x."""
    (outcome,) = groupless.run("ranks.calls:alone", "musiclm", "gather")
    same, _, sizes, gradient = outcome.value
    assert same
    assert sizes is None
    assert gradient.tolist() == [[2.0] * 3] * 2


@pytest.mark.suite("spear-tts")
def test_spear_tts_without_a_group_returns_its_values(groupless: World) -> None:
    """`(x, None)`, and the gradient flows."""
    (outcome,) = groupless.run("ranks.calls:alone", "spear-tts", "gather")
    _, out, sizes, gradient = outcome.value
    assert out.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert sizes is None
    assert gradient.tolist() == [[2.0] * 3] * 2


@pytest.mark.suite("mirasol")
def test_mirasol_without_a_group_asserts(groupless: World) -> None:
    """An AssertionError, as the original's."""
    (outcome,) = groupless.run("ranks.calls:alone", "mirasol", "gather")
    assert outcome.error == "AssertionError"


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=pytest.mark.suite(name))
        for name, hows in {
            "st-moe": [
                "gather",
                "function",
                "gather_sizes",
                "all_gather_same_dim",
                "all_gather_variable_dim",
                "split_by_rank",
            ],
            "musiclm": ["function", "all_gather_same_dim", "all_gather_variable_dim"],
            "spear-tts": ["all_gather_variable_dim"],
            "mirasol": ["all_gather_variable_dim"],
        }.items()
        for how in hows
    ],
)
def test_torchs_own_error_without_a_group(name: str, how: str, groupless: World) -> None:
    """Where the original let torch complain about the missing group, so do we."""
    (outcome,) = groupless.run("ranks.calls:alone", name, how)
    assert "Default process group has not been initialized" in outcome.message
    assert "GatherError" not in outcome.bases


@pytest.mark.suite("st-moe")
def test_st_moe_alone_in_a_group_gathers(backend: str, worlds: Worlds) -> None:
    """World size 1: a copy of the input and its size, not the input itself."""
    (outcome,) = worlds.get(backend, 1).run("ranks.calls:alone", "st-moe", "gather")
    same, out, sizes, gradient = outcome.value
    assert not same
    assert (out.tolist(), sizes) == ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [2])
    assert gradient.tolist() == [[2.0] * 3] * 2


@pytest.mark.suite("musiclm")
def test_musiclm_function_alone_in_a_group_gathers(backend: str, worlds: Worlds) -> None:
    """`AllGatherFunction.apply`, called directly, gathers at world size 1."""
    (outcome,) = worlds.get(backend, 1).run("ranks.calls:alone", "musiclm", "function")
    assert outcome.error == ""


@pytest.mark.suite("musiclm")
def test_musiclm_module_built_too_early_keeps_its_answer_and_warns_once() -> None:
    """Built before the group: `(x, None)` for ever, one warning at the first use after the group came up."""
    with World("gloo", 2, join=False) as world:
        for seen in world.run("ranks.calls:musiclm_built_too_early"):
            assert seen["before"] == []
            assert seen["first"] == ["StaleAnswerWarning at calls.py"]
            assert seen["second"] == []
            assert seen["same"]
            assert seen["fresh"] == ([1, 2], [])
            assert seen["attributes"] == (0, False, False, True)


@pytest.mark.suite("musiclm")
def test_musiclm_modules_from_old_pickles_work() -> None:
    """A module unpickled without __init__ has the original's attributes only, and that is enough."""
    with World("gloo", 2, join=False) as world:
        for seen in world.run("ranks.calls:musiclm_from_an_old_pickle"):
            assert seen == {"stale": ["StaleAnswerWarning at calls.py"], "gathered": [1.0, 1.0, 1.0], "sizes": [1, 2]}


@pytest.mark.suite("st-moe")
def test_st_moe_modules_from_old_pickles_work(backend: str, worlds: Worlds) -> None:
    """The original's had no `all_reduce_grads`: without it, as ever."""
    answers = worlds.get(backend, 2).run("ranks.calls:st_moe_from_an_old_pickle")
    assert answers == [([0.0, 1.0, 1.0], [1, 2], [rank + 1.0] * (rank + 1)) for rank in range(2)]


@pytest.mark.suite("mirasol")
def test_mirasol_remembers_its_first_answer_and_warns_once() -> None:
    """The cache outlives the arrival of the group; `cache_clear` ends it."""
    with World("gloo", 2, join=False) as world:
        for seen in world.run("ranks.calls:mirasol_asked_too_early"):
            assert seen["before"] == (False, [])
            assert seen["first"] == (False, ["StaleAnswerWarning at calls.py"])
            assert seen["second"] == (False, [])
            assert seen["refused"] == "AssertionError"
            assert seen["wrapped"] is True
            assert seen["hits"] >= 2
            assert seen["cleared"] == (True, [])
            assert seen["gathers"] == [1, 2]
            assert seen["pickled"]


@pytest.mark.suite("spear-tts")
def test_spear_tts_asks_at_every_call() -> None:
    """A group that comes up later is used."""
    with World("gloo", 2, join=False) as world:
        assert world.run("ranks.calls:spear_asks_every_time") == [(None, [1, 2])] * 2


@pytest.mark.suite("st-moe")
def test_st_moe_helpers(backend: str, worlds: Worlds) -> None:
    """Splitting by rank, sizes with a zero among them, and back through the gather."""
    for rank, seen in enumerate(worlds.get(backend, 3).run("ranks.calls:st_moe_helpers")):
        assert seen["own"] == [[float(rank)] * 2] * rank
        assert seen["sizes"] == ([0, 1, 2], True)
        assert seen["stacked"] == torch.arange(30.0).view(3, 5, 2)[rank].tolist()
        assert seen["even"] == [5, 5, 5]
        assert seen["round trip"] == ([[2.0] * 2, [6.0] * 2, [6.0] * 2], [0, 1, 2])
        assert seen["list"] == "AttributeError"
        assert seen["gather_sizes"] == [1, 2, 3]
        assert seen["same"] == [0.0, 1.0, 2.0]


@pytest.mark.suite("st-moe")
def test_st_moe_small_functions() -> None:
    """exists, default, divisible_by and has_only_one_value, as everyone knows them."""
    moe = module("st-moe")
    assert (moe.exists(0), moe.exists(None)) == (True, False)
    assert (moe.default(0, 5), moe.default(None, 5)) == (0, 5)
    assert (moe.divisible_by(6, 3), moe.divisible_by(7, 3)) == (True, False)
    one = moe.has_only_one_value(torch.tensor([2, 2]))
    assert (one.shape, one.dtype, bool(one)) == (torch.Size([]), torch.bool, True)
    assert not moe.has_only_one_value(torch.tensor([2, 3]))


@pytest.mark.parametrize("name", [pytest.param(a, marks=pytest.mark.suite(a)) for a in ("mirasol", "st-moe")])
def test_pad_dim_to_pads_and_crops(name: str) -> None:
    """Zeros at the end of any dim; a shorter length crops."""
    t = torch.arange(1.0, 7.0).view(2, 3)
    pad = module(name).pad_dim_to
    assert pad(t, 3).tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0]]
    assert pad(t, 4, 1).tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]
    assert pad(t, 4, dim=-1).tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]
    assert pad(t, 3, dim=-2).tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0]]
    assert pad(t, 2, dim=1).tolist() == [[1, 2], [4, 5]]


@of_adapter
def test_plain_gathers_carry_no_gradient(name: str, backend: str, worlds: Worlds) -> None:
    """all_gather_variable_dim and all_gather_same_dim give tensors that require none."""
    assert worlds.get(backend, 2).run("ranks.calls:variable_dim_carries_no_gradient", name) == [(False, False)] * 2


@of_adapter
@pytest.mark.parametrize("sizes", [[1, 2], (1, 2)], ids=["list", "int32 tensor"])
def test_sizes_come_back_as_a_long_tensor(name: str, sizes: Any, backend: str, worlds: Worlds) -> None:
    """Given as a list or as any integer tensor, sizes come back as int64."""
    assert worlds.get(backend, 2).run("ranks.calls:sizes_come_back", name, sizes) == [("torch.int64", [1, 2])] * 2


@of_adapter
def test_the_right_file_is_under_test(name: str, backend: str, worlds: Worlds, request: pytest.FixtureRequest) -> None:
    """With --vendored the ranks load the rendered file, and there is no core; else the package, which needs it."""
    vendored = request.config.getoption("--vendored")
    expected = (f"{name.replace('-', '_')}_distributed.py", False) if vendored else ("__init__.py", True)
    assert worlds.get(backend, 2).run("ranks.calls:in_use", name) == [expected] * 2
