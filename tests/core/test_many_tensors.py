# SPDX-License-Identifier: MIT
"""Several tensors in one gather, and gathers under way."""

from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support import Worlds
from tests.support.calls import attempt, usable_after
from tests.support.oracle import same, values
from tests.support.watch import watched
from tests.support.world import device

# ------------------------------------------------------------------ on ranks


class Parts(NamedTuple):
    embeddings: Tensor
    labels: Tensor
    other: Tensor


def parts_of_a_batch(rank: int, rows: int) -> dict[str, Tensor]:
    """Embeddings, labels and a mask: one number of rows, three dtypes, two ranks of tensor."""
    return {
        "embeddings": values(rank, (rows, 3), "float32"),
        "labels": values(rank, (rows,), "int64"),
        "other": values(rank + 1, (rows, 2, 2), "float64"),
    }


def several(sizes: tuple[int, ...]) -> dict[str, Any]:
    """A dict, a list and a tuple of tensors; collectives of the dict's gather; gradients of two of its parts."""
    rank = dist.get_rank()
    batch = {name: part.to(device()) for name, part in parts_of_a_batch(rank, sizes[rank]).items()}
    with watched() as calls_with_sizes:
        core.all_gather(batch, sizes=sizes)
    batch["embeddings"].requires_grad_()
    if rank == 0:
        batch["other"].requires_grad_()  # the other ranks stand in
    with watched() as calls:
        gathered, found = core.all_gather(batch)
    loss = (rank + 1) * gathered["embeddings"].sum()
    if rank == 1:  # only one rank's loss looks at this part
        loss = loss + 5 * gathered["other"].sum()
    loss.backward()
    listed, _ = core.all_gather(list(batch.values()))
    paired, _ = core.all_gather(Parts(*batch.values()), grad="local")
    return {
        "gathered": {name: t.detach() for name, t in gathered.items()},
        "sizes": found,
        "calls": ([name for name, *_ in calls], [name for name, *_ in calls_with_sizes]),
        "containers": (type(gathered).__name__, type(listed).__name__, type(paired).__name__),
        "equal": all(
            torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(gathered.values(), listed, paired, strict=True)
        ),
        "requires_grad": [t.requires_grad for t in gathered.values()],
        "gradients": [batch["embeddings"].grad, batch["other"].grad],
    }


def some_tensors_want_a_gradient(wants: list[list[bool]]) -> list[bool]:
    """Which of several gathered tensors carry a gradient, where each rank wants it of tensors of its own."""
    rank = dist.get_rank()
    rows = torch.ones(rank + 1, device=device())
    gathered, _ = core.all_gather([rows.clone().requires_grad_(want) for want in wants[rank]])
    return [tensor.requires_grad for tensor in gathered]


def containers() -> list[bool]:
    """Whether each kind of container comes back as itself."""
    x = torch.ones(dist.get_rank() + 1, device=device())
    kinds: list[Any] = [[x], (x,), (x, x), {"a": x}, Parts(x, x, x)]
    return [type(core.all_gather(batch)[0]) is type(batch) for batch in kinds]


def dicts_in_other_orders() -> dict[str, Any]:
    """Two tensors of one shape, in a dict that one rank fills the other way round."""
    rank = dist.get_rank()
    batch = {key: torch.full((1, 2), start + rank, device=device()) for key, start in (("a", 0.0), ("b", 10.0))}
    a, b = (t.requires_grad_() for t in batch.values())
    gathered, _ = core.all_gather({"b": b, "a": a} if rank == 1 else {"a": a, "b": b})
    ((rank + 1) * (gathered["a"].sum() + 10 * gathered["b"].sum())).backward()
    values = {key: t.tolist() for key, t in gathered.items()}
    return {"order": list(gathered), **values, "gradients": [t.grad.tolist() for t in (a, b)]}


def several_that_clash(how: str) -> Any:
    rank = dist.get_rank()
    a, b = torch.ones(rank + 1, 2, device=device()), torch.ones(rank + 1, 3, device=device())
    if how == "sizes" and rank:
        b = torch.ones(7, 3, device=device())
    if how == "second dtype" and rank:
        b = b.double()
    if how == "second shape" and rank:
        b = torch.ones(rank + 1, 4, device=device())
    if how == "count" and rank:
        return attempt(lambda: core.all_gather([a])[1])
    if how == "empty" and rank:
        return attempt(lambda: core.all_gather([])[1])
    if how == "keys":
        return attempt(lambda: core.all_gather({"a": a, "c" if rank else "b": b})[1])
    if how == "one key":
        return attempt(lambda: core.all_gather({"b" if rank else "a": a})[1])
    if how == "one more":
        return attempt(lambda: core.all_gather([a.requires_grad_()] * (62 if rank else 61))[1])
    if how == "sizes behind the 61st":
        return usable_after(attempt(lambda: core.all_gather([a] * 61 + [torch.ones(3, device=device())])[1]))
    if how == "a list in a dict":
        return attempt(lambda: core.all_gather({"a": a, "b": [b] if rank else b})[1])
    return attempt(lambda: core.all_gather([a, b])[1])


def a_hundred_tensors() -> tuple[list[list[float]], list[float | None]]:
    """What is gathered of each, and the gradient, in whole rows, of those that this rank wants one of."""
    rank = dist.get_rank()
    xs = [torch.full((rank + 1,), i + rank / 2, device=device()) for i in range(100)]
    for i, x in enumerate(xs):
        x.requires_grad_(i % 2 == rank or i == 99)
    gathered, _ = core.all_gather(xs)
    sum((rank + 1) * (i + 1) * y.sum() for i, y in enumerate(gathered)).backward()
    return [y.tolist() for y in gathered], [None if x.grad is None else x.grad[0].item() for x in xs]


def asynchronously(rows: int) -> dict[str, Any]:
    """Two gathers started before either is waited for, the second one first; with gradients."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [rows * (r + 1) for r in range(world)]
    x = values(rank, (sizes[rank], 2), "float32").to(device()).requires_grad_()
    y = values(rank + 7, (sizes[rank], 3), "float32").to(device())
    first, second = core.all_gather_async(x, sizes=sizes), core.all_gather_async(y, sizes=sizes)
    (b, _), (a, found) = second.wait(), first.wait()
    (gradient,) = torch.autograd.grad((a * (rank + 1)).sum(), x)
    expected_a = torch.cat([values(r, (n, 2), "float32") for r, n in enumerate(sizes)])
    expected_b = torch.cat([values(r + 7, (n, 3), "float32") for r, n in enumerate(sizes)])
    return {
        "values": torch.equal(a.cpu(), expected_a) and torch.equal(b.cpu(), expected_b),
        "waited for": not (first._unfinished or second._unfinished),  # or the values came by themselves, in good time
        "sizes": found == tuple(sizes),
        "gradient": bool((gradient == sum(range(1, world + 1))).all()),
        "requires_grad": (a.requires_grad, b.requires_grad),
    }


# ------------------------------------------------------------------ tests


def test_several_tensors_share_one_exchange(backend: str, worlds: Worlds) -> None:
    """A dict, list or tuple of tensors: one header for all, with the rows; gradients where any rank wants them."""
    sizes = (2, 0, 3)
    expected = [parts_of_a_batch(rank, n) for rank, n in enumerate(sizes)]
    for rank, seen in enumerate(worlds.get(backend, 3).run(several, sizes)):
        for name, tensor in seen["gathered"].items():
            assert same(tensor, torch.cat([part[name] for part in expected]))
        assert seen["sizes"] == sizes
        even, uneven = ["send_to_first"] * 2 if backend == "gloo" else ["all_gather_single", "all_gather"]
        assert seen["calls"] == ([even], [uneven] * 3)
        assert seen["containers"] == ("dict", "list", "Parts")
        assert seen["equal"]
        assert seen["requires_grad"] == [True, False, True]
        embeddings, other = seen["gradients"]
        assert embeddings.tolist() == [[6.0] * 3] * sizes[rank]
        assert (other is None) == (rank != 0)
        assert rank != 0 or other.tolist() == [[[5.0] * 2] * 2] * sizes[rank]


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("sizes", "BadInputError", ["rank 0 of 2", "(2, 2)", "(7, 3)"]),
        ("second dtype", "DisagreementError", ["(1, 2) torch.float32", "(1, 3) torch.float32", "(2, 3) torch.float64"]),
        ("second shape", "DisagreementError", ["rank 1 of 2", "(2, 2) torch.float32", "(2, 4) torch.float32"]),
        ("count", "DisagreementError", ["rank 1 of 2", "(2, 2)"]),
        ("empty", "BadInputError", ["all_gather[0]", "expected tensors"]),
        ("keys", "DisagreementError", ["rank 1 of 2", "['a', 'b']", "['a', 'c']"]),
        ("one key", "DisagreementError", ["['a']", "['b']"]),
        ("one more", "DisagreementError", ["rank 0 of 2", "[61]", "rank 1 of 2", "[62]"]),
        ("sizes behind the 61st", "BadInputError", ["one size along dim", "[1, 3]", "[2, 3]"]),
        ("a list in a dict", "BadInputError", ["rank 1 of 2", "['a', 'b']", "list"]),
    ],
)
def test_several_tensors_that_clash_raise_everywhere(
    how: str, error: str, words: list[str], backend: str, worlds: Worlds
) -> None:
    """What differs in any of the tensors is found in the one exchange."""
    outcomes = worlds.get(backend, 2).run(several_that_clash, how)
    assert [outcome.error for outcome in outcomes] == [error] * 2
    assert outcomes[0].message == outcomes[1].message
    assert [word for word in words if word not in outcomes[0].message] == []


def test_as_many_tensors_as_one_likes(backend: str, worlds: Worlds) -> None:
    """A hundred of them, of which each rank wants the gradient of others: the flags take more than one exchange."""
    for rank, (found, gradients) in enumerate(worlds.get(backend, 2).run(a_hundred_tensors)):
        assert found == [[float(i), i + 0.5, i + 0.5] for i in range(100)]
        assert gradients == [3.0 * (i + 1) if i % 2 == rank or i == 99 else None for i in range(100)]


@pytest.mark.parametrize(
    "wants",
    [
        [[True, False, False], [False] * 3],
        [[False] * 3, [False, True, True]],
        [[True, False, False], [True, True, False]],
    ],
    ids=str,
)
def test_a_gradient_is_that_of_the_tensor_that_wants_it(wants: list[list[bool]], backend: str, worlds: Worlds) -> None:
    """Of several tensors, those that some rank wants the gradient of carry one on every rank, and no other."""
    expected = [first or second for first, second in zip(*wants, strict=True)]
    assert worlds.get(backend, 2).run(some_tensors_want_a_gradient, wants) == [expected] * 2


def test_a_container_comes_back_as_what_it_was(backend: str, worlds: Worlds) -> None:
    """A tuple is a tuple, also of one."""
    assert worlds.get(backend, 2).run(containers) == [[True] * 5] * 2


def test_dicts_go_by_their_keys(backend: str, worlds: Worlds) -> None:
    """Ranks that put the same keys into their dicts in different orders each get theirs, in their own order."""
    for rank, seen in enumerate(worlds.get(backend, 3).run(dicts_in_other_orders)):
        assert seen["order"] == (["b", "a"] if rank == 1 else ["a", "b"])
        assert seen["a"] == [[0.0] * 2, [1.0] * 2, [2.0] * 2]
        assert seen["b"] == [[10.0] * 2, [11.0] * 2, [12.0] * 2]
        assert seen["gradients"] == [[[6.0] * 2], [[60.0] * 2]]


@pytest.mark.parametrize("rows", [2, 200_000], ids=["small", "large"])
def test_an_asynchronous_gather_keeps_its_gradient(rows: int, backend: str, worlds: Worlds) -> None:
    """Started in one order, waited for in another; values and gradients as ever."""
    for seen in worlds.get(backend, 3).run(asynchronously, rows):
        assert seen["requires_grad"] == (True, False)
        assert all(seen.values())
