# SPDX-License-Identifier: MIT
"""Each adapter's API, to the letter: names, signatures, fallbacks, staleness."""

import inspect
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from shared_distributed_tools.scan.fingerprint import known_originals
from tests.support import World, Worlds
from tests.support.adapters import (
    ADAPTERS,
    CONTRACTS,
    adapter,
    arguments_of,
    core,
    family,
    function_of,
    marked,
    of_adapter,
    those_that_take,
)
from tests.support.calls import Outcome, attempt
from tests.support.gather import gather_by
from tests.support.world import device, join_group, place

# ------------------------------------------------------------------ on ranks


def alone(name: str, how: str) -> Outcome:
    """An adapter's gather in a process that has no group (or is alone in it), and whether it gave `x` itself."""
    x = torch.arange(6.0, device=device()).view(2, 3).requires_grad_()

    def call() -> Any:
        out, sizes = gather_by(f"{name} local")(x, 0, None) if how == "gather" else direct(name, how, x)
        if how != "gather":
            return None
        (gradient,) = torch.autograd.grad(out, x, 2 * torch.ones_like(out))
        return out is x, out, None if sizes is None else sizes.tolist(), gradient

    return attempt(call)


def direct(name: str, how: str, x: torch.Tensor) -> Any:
    if how == "function":
        return getattr(adapter(name), function_of(name)).apply(x, 0, None, *[False] * (arguments_of(name) - 3))
    if how == "split_by_rank":
        return adapter(name).split_by_rank(x), None
    if how == "gather_sizes":
        return adapter(name).gather_sizes(x, dim=0), None
    return getattr(adapter(name), how)(x), None


def warned_about(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """A call's result, and its warnings with the file that each points at."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = call()
    return value, [f"{type(w.message).__name__} at {Path(w.filename).name}" for w in caught]


def musiclm_built_too_early() -> dict[str, Any]:
    """A module from before the group: it keeps its answer, and warns once, at the first use after."""
    gather = adapter("musiclm").AllGather(dim=0)
    x = torch.ones(place().rank + 1)
    _, early = warned_about(lambda: gather(x))
    join_group()
    (value, sizes), first = warned_about(lambda: gather(x))
    _, second = warned_about(lambda: gather(x))
    fresh = adapter("musiclm").AllGather(dim=0)
    return {
        "before": early,
        "first": first,
        "second": second,
        "same": value is x and sizes is None,
        "fresh": warned_about(lambda: fresh(x)[1].tolist()),
        "attributes": (gather.dim, gather.all_reduce_grads, gather.is_distributed, fresh.is_distributed),
    }


def musiclm_from_an_old_pickle() -> dict[str, Any]:
    """A module as the original pickled it: nn.Module's own state and three attributes, no __init__."""
    cls = adapter("musiclm").AllGather
    blank = nn.Module()
    state = {**blank.__dict__, "dim": 0, "all_reduce_grads": True, "is_distributed": False}
    old = cls.__new__(cls)
    old.__setstate__(pickle.loads(pickle.dumps(state)))
    join_group()
    x = torch.full((place().rank + 1,), 1.0)
    _, stale = warned_about(lambda: old(x))
    old.is_distributed = True
    again = pickle.loads(pickle.dumps(old))
    return {"stale": stale, "gathered": again(x)[0].tolist(), "sizes": again(x)[1].tolist()}


def st_moe_from_an_old_pickle(name: str) -> tuple[list[float], list[int], list[float]]:
    """The same for those like st-moe, whose originals knew their dim only: the gradient is the original's own slice."""
    cls, rank = adapter(name).AllGather, dist.get_rank()
    old = cls.__new__(cls)
    old.__setstate__(pickle.loads(pickle.dumps({**nn.Module().__dict__, "dim": 0})))
    again = pickle.loads(pickle.dumps(old))
    x = torch.full((rank + 1,), float(rank), device=device(), requires_grad=True)
    gathered, sizes = again(x)
    (gathered * (rank + 1)).sum().backward()
    return gathered.tolist(), sizes.tolist(), x.grad.tolist()  # type: ignore[union-attr]


def asked_too_early(name: str, question: str) -> dict[str, Any]:
    """A remembered answer: kept, warned about once, and forgotten on request."""
    ask = getattr(adapter(name), question)
    before = warned_about(ask)
    join_group()
    first, second = warned_about(ask), warned_about(ask)
    fresh = ask.__wrapped__()
    hits = ask.cache_info().hits
    ask.cache_clear()
    return {
        "before": before,
        "first": first,
        "second": second,
        "wrapped": fresh,
        "hits": hits,
        "cleared": warned_about(ask),
        "pickled": pickle.loads(pickle.dumps(ask)) is ask,
    }


def mirasol_gathers_too_early() -> tuple[str, list[int]]:
    """What a gather does with the remembered answer, and once it is forgotten."""
    ask, x = adapter("mirasol").get_is_distributed, torch.ones(place().rank + 1)
    ask()
    join_group()
    refused = attempt(lambda: adapter("mirasol").all_gather(x, 0, None)).error
    ask.cache_clear()
    return refused, adapter("mirasol").all_gather(x, 0, None)[1].tolist()


def asks_every_time(name: str) -> tuple[Any, list[int]]:
    """No answer is remembered: a group that comes up later is seen."""
    gather, x = adapter(name).all_gather, torch.ones(place().rank + 1)
    before = attempt(lambda: gather(x, 0, None)[1])
    join_group()
    return before.error or before.value, gather(x, 0, None)[1].tolist()


def contrastive_rl_asks_every_time() -> tuple[bool, bool]:
    """Its `is_distributed` before the group, and with it."""
    ask = adapter("contrastive-rl").is_distributed
    before = ask()
    join_group()
    return before, ask()


def soft_moe_splits() -> tuple[list[Any], list[Any], list[Any]]:
    """This rank's part alone, of a tuple, of a list and of a tensor."""
    split, world = adapter("soft-moe").split_by_rank, dist.get_world_size()
    parts = tuple(torch.full((n,), float(n), device=device()) for n in range(world))
    stacked = torch.arange(world * 2.0, device=device()).view(world, 2)
    return split(parts).tolist(), split(list(parts)).tolist(), split(stacked).tolist()


def ring_attention_gathers_masks() -> tuple[str, list[bool], list[int]]:
    """A bool tensor through `all_gather`, which its original sends as ints."""
    rank = dist.get_rank()
    mask = torch.arange(rank + 1, device=device()) % 2 == rank % 2
    gathered, sizes = adapter("ring-attention").all_gather(mask, 0, None)
    return str(gathered.dtype), gathered.tolist(), sizes.tolist()


def backward_arity(name: str, function: str) -> int:
    """How many gradients an adapter's backward returns."""
    cls = getattr(adapter(name), function)
    last = [False] * (arguments_of(name) - 3)
    arguments = (torch.ones(dist.get_rank() + 1, device=device()), 0, None, *last)
    ctx = SimpleNamespace(needs_input_grad=[True, *[False] * (len(arguments) - 1)])
    gathered, _ = cls.forward(ctx, *arguments)
    return len(cls.backward(ctx, torch.ones_like(gathered), None))


def st_moe_helpers(name: str) -> dict[str, Any]:
    moe, rank, world = adapter(name), dist.get_rank(), dist.get_world_size()
    parts = tuple(torch.full((n, 2), float(n), device=device()) for n in range(world))  # sizes with a zero among them
    own, sizes = moe.split_by_rank(parts)
    stacked, even = moe.split_by_rank(torch.arange(world * 10.0, device=device()).view(world, 5, 2))
    out, again = moe.AllGather(dim=0)(own * (rank + 1), sizes=sizes)
    same = moe.all_gather_same_dim(torch.tensor(float(rank), device=device()))
    return {
        "own": own.tolist(),
        "sizes": (sizes.tolist(), sizes.dtype == torch.int64),
        "stacked": stacked.tolist(),
        "even": even.tolist(),
        "round trip": (out.tolist(), again.tolist()),
        "list": attempt(lambda: moe.split_by_rank(list(parts))).error,
        "gather_sizes": moe.gather_sizes(torch.ones(2, rank + 1, device=device()), dim=-1).tolist(),
        "same": [(t.item(), t.untyped_storage().nbytes()) for t in same],
    }


def variable_dim_carries_no_gradient(name: str) -> tuple[bool, bool]:
    x = torch.ones(dist.get_rank() + 1, device=device(), requires_grad=True)
    same = getattr(adapter(name), "all_gather_same_dim", None)
    return (
        adapter(name).all_gather_variable_dim(x)[0].requires_grad,
        any(t.requires_grad for t in same(x[:1])) if same else False,
    )


def sizes_come_back(name: str, sizes: Any) -> tuple[str, list[int]]:
    x = torch.ones(dist.get_rank() + 1, device=device())
    given = torch.tensor(sizes, dtype=torch.int32, device=device()) if isinstance(sizes, tuple) else sizes
    back = adapter(name).all_gather_variable_dim(x, 0, given)[1]
    return str(back.dtype), back.tolist()


def in_use(name: str) -> tuple[str, bool]:
    """Which file an adapter was loaded from, and whether the core can be imported beside it."""
    return Path(adapter(name).__file__).name, attempt(core).error == ""


# ------------------------------------------------------------------ tests


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
    assert {n for n in vars(adapter(name)) if n in api} == set(api)
    if not request.config.getoption("--vendored"):
        assert sorted(adapter(name).__all__) == sorted(api)
    for attribute, expected in api.items():
        subject = getattr(adapter(name), attribute)
        if isinstance(expected, list):
            is_function = issubclass(subject, torch.autograd.Function)
            assert is_function != issubclass(subject, torch.nn.Module)
            first, second = (subject.forward, subject.backward) if is_function else (subject.__init__, subject.forward)
            assert [signature(first), signature(second)] == expected
        elif expected.endswith(".apply"):
            assert subject == getattr(adapter(name), expected.removesuffix(".apply")).apply
        else:
            assert signature(subject) == expected


@of_adapter
def test_the_contract_has_every_name_of_the_original(name: str) -> None:
    """Helpers too: whoever imports one from the original's file finds it in the adapter."""
    assert known_originals().get(name, {}).keys() <= CONTRACTS[name]["api"].keys()


@of_adapter
def test_backward_arity(name: str, backend: str, worlds: Worlds) -> None:
    """A backward returns as many gradients as the original's."""
    arity = arguments_of(name)
    assert worlds.get(backend, 2).run(backward_arity, name, function_of(name)) == [arity, arity]


@pytest.fixture(scope="module")
def groupless() -> Any:
    with World(1, join=False) as world:
        yield world


@pytest.mark.suite("musiclm")
def test_musiclm_without_a_group_returns_its_input(groupless: World) -> None:
    """`(x, None)`, and it is the same x."""
    (outcome,) = groupless.run(alone, "musiclm", "gather")
    same, _, sizes, gradient = outcome.value
    assert same
    assert sizes is None
    assert gradient.tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("name", marked(family("spear-tts")))
def test_spear_tts_without_a_group_returns_a_view(name: str, groupless: World) -> None:
    """`(x, None)`, as the original's Function gives it: not the same x, but a view, and the gradient flows."""
    (outcome,) = groupless.run(alone, name, "gather")
    same, out, sizes, gradient = outcome.value
    assert not same
    assert out.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert sizes is None
    assert gradient.tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("name", marked([name for name in ADAPTERS if CONTRACTS[name]["alone"] == "raises"]))
def test_without_a_group_mirasol_and_x_clip_assert(name: str, groupless: World) -> None:
    """An AssertionError, as the originals'."""
    (outcome,) = groupless.run(alone, name, "gather")
    assert outcome.error == "AssertionError"


def needs_a_group(name: str) -> list[str]:
    """What of an adapter lets torch complain about a missing process group."""
    api, gathers = CONTRACTS[name]["api"], CONTRACTS[name]["alone"] == "gathers"
    plain = ("gather_sizes", "all_gather_same_dim", "all_gather_variable_dim", "split_by_rank")
    whole = ["gather"] if gathers else []
    whole += ["function"] if "AllGatherFunction" in api else []
    return [*whole, *(function for function in plain if function in api)]


@pytest.mark.parametrize(
    ("name", "how"),
    [pytest.param(name, how, marks=pytest.mark.suite(name)) for name in ADAPTERS for how in needs_a_group(name)],
)
def test_torchs_own_error_without_a_group(name: str, how: str, groupless: World) -> None:
    """Where the original let torch complain about the missing group, so do we."""
    (outcome,) = groupless.run(alone, name, how)
    assert "Default process group has not been initialized" in outcome.message
    assert "GatherError" not in outcome.bases


@pytest.mark.parametrize("name", marked(family("st-moe")))
def test_st_moe_alone_in_a_group_gathers(name: str, backend: str, worlds: Worlds) -> None:
    """World size 1: a copy of the input and its size, not the input itself."""
    (outcome,) = worlds.get(backend, 1).run(alone, name, "gather")
    same, out, sizes, gradient = outcome.value
    assert not same
    assert (out.tolist(), sizes) == ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [2])
    assert gradient.tolist() == [[2.0] * 3] * 2


@pytest.mark.suite("musiclm")
def test_musiclm_function_alone_in_a_group_gathers(backend: str, worlds: Worlds) -> None:
    """`AllGatherFunction.apply`, called directly, gathers at world size 1."""
    (outcome,) = worlds.get(backend, 1).run(alone, "musiclm", "function")
    assert outcome.error == ""


@pytest.mark.suite("musiclm")
def test_musiclm_module_built_too_early_keeps_its_answer_and_warns_once() -> None:
    """Built before the group: `(x, None)` for ever, one warning at the first use after the group came up."""
    with World(2, join=False) as world:
        for seen in world.run(musiclm_built_too_early):
            assert seen["before"] == []
            assert seen["first"] == ["StaleAnswerWarning at test_contract.py"]
            assert seen["second"] == []
            assert seen["same"]
            assert seen["fresh"] == ([1, 2], [])
            assert seen["attributes"] == (0, False, False, True)


@pytest.mark.suite("musiclm")
def test_musiclm_modules_from_old_pickles_work() -> None:
    """A module unpickled without __init__ has the original's attributes only, and that is enough."""
    with World(2, join=False) as world:
        for seen in world.run(musiclm_from_an_old_pickle):
            assert seen == {
                "stale": ["StaleAnswerWarning at test_contract.py"],
                "gathered": [1.0, 1.0, 1.0],
                "sizes": [1, 2],
            }


@pytest.mark.parametrize("name", marked(family("st-moe")))
def test_st_moe_modules_from_old_pickles_work(name: str, backend: str, worlds: Worlds) -> None:
    """The original's had no `all_reduce_grads`: without it, as ever."""
    answers = worlds.get(backend, 2).run(st_moe_from_an_old_pickle, name)
    assert answers == [([0.0, 1.0, 1.0], [1, 2], [rank + 1.0] * (rank + 1)) for rank in range(2)]


# an adapter, a question whose answer it remembers, and the answers of rank 1 without a group and in one of two ranks
REMEMBERED = [
    ("mirasol", "get_is_distributed", False, True),
    ("ring-attention", "is_distributed", False, True),
    ("ring-attention", "get_world_size", 1, 2),
    ("ring-attention", "get_rank", 0, 1),
]


@pytest.mark.parametrize(
    ("name", "question", "alone", "together"),
    [pytest.param(*row, marks=pytest.mark.suite(row[0])) for row in REMEMBERED],
)
def test_a_first_answer_is_remembered_and_warned_about_once(
    name: str, question: str, alone: object, together: object
) -> None:
    """The cache outlives the arrival of the group; `cache_clear` ends it. Rank 0 stays rank 0: nothing to warn of."""
    with World(2, join=False) as world:
        for rank, seen in enumerate(world.run(asked_too_early, name, question)):
            in_group = together if rank == 1 or question != "get_rank" else 0
            warning = ["StaleAnswerWarning at test_contract.py"] if in_group != alone else []
            assert seen["before"] == (alone, [])
            assert seen["first"] == (alone, warning)
            assert seen["second"] == (alone, [])
            assert seen["wrapped"] == in_group
            assert seen["hits"] >= 2
            assert seen["cleared"] == (in_group, [])
            assert seen["pickled"]


@pytest.mark.suite("mirasol")
def test_mirasol_gathers_by_its_remembered_answer() -> None:
    """It refuses for as long as it takes itself for alone."""
    with World(2, join=False) as world:
        assert world.run(mirasol_gathers_too_early) == [("AssertionError", [1, 2])] * 2


@pytest.mark.parametrize(
    ("name", "before"),
    [
        *(pytest.param(name, None, marks=pytest.mark.suite(name)) for name in family("spear-tts")),
        pytest.param("x-clip", "AssertionError", marks=pytest.mark.suite("x-clip")),
    ],
)
def test_spear_tts_and_x_clip_ask_at_every_call(name: str, before: str | None) -> None:
    """A group that comes up later is used."""
    with World(2, join=False) as world:
        assert world.run(asks_every_time, name) == [(before, [1, 2])] * 2


@pytest.mark.suite("contrastive-rl")
def test_contrastive_rl_asks_at_every_call() -> None:
    """Its `is_distributed` remembers nothing."""
    with World(2, join=False) as world:
        assert world.run(contrastive_rl_asks_every_time) == [(False, True)] * 2


@pytest.mark.suite("soft-moe")
def test_soft_moe_splits_without_sizes(backend: str, worlds: Worlds) -> None:
    """`split_by_rank` gives this rank's part alone, of a list too."""
    answers = worlds.get(backend, 3).run(soft_moe_splits)
    assert answers == [([float(r)] * r, [float(r)] * r, [2.0 * r, 2.0 * r + 1]) for r in range(3)]


@pytest.mark.suite("ring-attention")
def test_ring_attention_gathers_masks(backend: str, worlds: Worlds) -> None:
    """Bool in, bool out, through its `all_gather`."""
    mask = [True, False, True, True, False, True]
    answers = worlds.get(backend, 3).run(ring_attention_gathers_masks)
    assert answers == [("torch.bool", mask, [1, 2, 3])] * 3


@pytest.mark.parametrize("name", marked(those_that_take("split_by_rank")))
def test_st_moe_helpers(name: str, backend: str, worlds: Worlds) -> None:
    """Splitting by rank, sizes with a zero among them, and back through the gather."""
    for rank, seen in enumerate(worlds.get(backend, 3).run(st_moe_helpers, name)):
        assert seen["own"] == [[float(rank)] * 2] * rank
        assert seen["sizes"] == ([0, 1, 2], True)
        assert seen["stacked"] == torch.arange(30.0).view(3, 5, 2)[rank].tolist()
        assert seen["even"] == [5, 5, 5]
        assert seen["round trip"] == ([[2.0] * 2, [6.0] * 2, [6.0] * 2], [0, 1, 2])
        assert seen["list"] == "AttributeError"
        assert seen["gather_sizes"] == [1, 2, 3]
        assert seen["same"] == [(0.0, 4), (1.0, 4), (2.0, 4)], "no views, of which one keeps all in memory"


@pytest.mark.parametrize("name", marked(those_that_take("divisible_by")))
def test_st_moe_small_functions(name: str) -> None:
    """exists, default, divisible_by and has_only_one_value, as everyone knows them."""
    moe = adapter(name)
    assert (moe.exists(0), moe.exists(None)) == (True, False)
    assert (moe.default(0, 5), moe.default(None, 5)) == (0, 5)
    assert (moe.divisible_by(6, 3), moe.divisible_by(7, 3)) == (True, False)
    one = moe.has_only_one_value(torch.tensor([2, 2]))
    assert (one.shape, one.dtype, bool(one)) == (torch.Size([]), torch.bool, True)
    assert not moe.has_only_one_value(torch.tensor([2, 3]))


@pytest.mark.parametrize("name", marked(those_that_take("pad_dim_to")))
def test_pad_dim_to_pads_and_crops(name: str) -> None:
    """Zeros at the end of any dim; a shorter length crops."""
    t = torch.arange(1.0, 7.0).view(2, 3)
    pad = adapter(name).pad_dim_to
    assert pad(t, 3).tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0]]
    assert pad(t, 4, 1).tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]
    assert pad(t, 4, dim=-1).tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]
    assert pad(t, 3, dim=-2).tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0]]
    assert pad(t, 2, dim=1).tolist() == [[1, 2], [4, 5]]


@of_adapter
def test_plain_gathers_carry_no_gradient(name: str, backend: str, worlds: Worlds) -> None:
    """all_gather_variable_dim and all_gather_same_dim give tensors that require none."""
    assert worlds.get(backend, 2).run(variable_dim_carries_no_gradient, name) == [(False, False)] * 2


@of_adapter
@pytest.mark.parametrize("sizes", [[1, 2], (1, 2)], ids=["list", "int32 tensor"])
def test_sizes_come_back_as_a_long_tensor(name: str, sizes: Any, backend: str, worlds: Worlds) -> None:
    """Given as a list or as any integer tensor, sizes come back as int64."""
    assert worlds.get(backend, 2).run(sizes_come_back, name, sizes) == [("torch.int64", [1, 2])] * 2


@of_adapter
def test_the_right_file_is_under_test(name: str, backend: str, worlds: Worlds, request: pytest.FixtureRequest) -> None:
    """With --vendored the ranks load the rendered file, and there is no core; else the package, which needs it."""
    vendored = request.config.getoption("--vendored")
    expected = (f"{name.replace('-', '_')}_distributed.py", False) if vendored else ("__init__.py", True)
    assert worlds.get(backend, 2).run(in_use, name) == [expected] * 2
