# SPDX-License-Identifier: MIT
"""What people do besides: other orders on each rank, meshes for groups, copies of modules, a forgotten group."""

import pytest

from harness import World, Worlds


def test_async_gathers_may_be_waited_for_in_any_order(backend: str, worlds: Worlds) -> None:
    """The gradient is recorded when a gather starts, so each rank may wait in an order of its own."""
    for rank, answer in enumerate(worlds.get(backend, 2).run("ranks.robust:waited_in_other_orders")):
        assert answer == [[2.0] * (rank + 1), [200.0] * (rank + 1)]


def test_a_gathering_waited_for_twice_or_never(backend: str, worlds: Worlds) -> None:
    """The second `wait` gives the same; one that is dropped is finished; grad mode at the start decides."""
    for seen in worlds.get(backend, 3).run("ranks.robust:waited_for_twice_or_never"):
        assert seen == {"same": True, "next": [0.0, 1.0, 1.0, 2.0, 2.0, 2.0], "mode at the start": False}


@pytest.mark.parametrize("wants", [[True, False, False], [False, True, True]], ids=str)
def test_reduce_scatter_where_only_some_want_a_gradient(wants: list[bool], backend: str, worlds: Worlds) -> None:
    """The ranks agree first: all enter the gather in the backward, or none does."""
    expected = [1.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    answers = worlds.get(backend, 3).run("ranks.robust:scattered_where_some_want_it", wants)
    assert answers == [expected if want else None for want in wants]


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("other sizes", "DisagreementError", ["(2, 2)", "(2, 3)"]),
        ("wrong sizes", "BadInputError", ["(2, 3)", "(2, 2)"]),
        ("no sizes", "BadInputError", ["check=False"]),
        ("no list", "BadInputError", ["rank 1 of 2", "(2, 3)", "float"]),
        ("no list, scattered", "BadInputError", ["rank 1 of 2", "float"]),
        ("right", "", []),
    ],
)
def test_check_compares_given_sizes(how: str, error: str, words: list[str], backend: str, worlds: Worlds) -> None:
    """With `check=True` wrong sizes are one error on every rank, which prints them."""
    outcomes = worlds.get(backend, 2).run("ranks.robust:checked", how)
    assert [outcome.error for outcome in outcomes] == [error] * 2
    assert outcomes[0].message == outcomes[1].message
    assert [word for word in words if word not in outcomes[0].message] == []


def test_a_mesh_is_a_group(backend: str, worlds: Worlds) -> None:
    """A 1-d mesh, or a mesh and its dim; anything else is refused, with what to pass."""
    pytest.importorskip("torch.distributed.device_mesh", reason="this torch has no meshes")
    if backend == "nccl-rules":
        pytest.skip("a mesh makes process groups of its own, with torch's own backends")
    for seen in worlds.get(backend, 2).run("ranks.robust:meshes"):
        assert [seen[name] for name in ("flat", "flat, 0", "square, 1", "square, b")] == [(1, 2)] * 4
        for name in ("square", "a name", "ranks"):
            assert seen[name].error == "BadInputError"
            assert "get_group" in seen[name].message
        assert seen["distributed"]


def test_a_copy_of_a_module_shares_its_group(backend: str, worlds: Worlds) -> None:
    """EMA copies modules deeply. Pickling one with a group raises: the default group must not take its place."""
    for seen in worlds.get(backend, 2).run("ranks.robust:copied_and_pickled"):
        assert seen["shares"]
        assert seen["options"] == (1, "local", 1, "local", None)
        assert seen["pickled"].error == "TypeError"


def test_a_forgotten_process_group_is_warned_about() -> None:
    """Under a launcher and without `init_process_group`, every rank would silently train alone: one warning."""
    with World("gloo", 1, join=False) as world:
        ((warning,),) = world.run("ranks.robust:without_a_group_under_torchrun")
    assert "init_process_group" in warning
