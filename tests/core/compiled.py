# SPDX-License-Identifier: MIT
"""Calls under torch.compile, beside the same calls without."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.utils import counters

import shared_distributed as core
from tests.support.adapters import adapter
from tests.support.calls import Outcome, attempt
from tests.support.gather import gather_by
from tests.support.old_torch import WHOLE
from tests.support.oracle import upstream, values
from tests.support.world import device


def compiled_like_eager(
    subject: str, compiler: str, given: str, rounds: list[tuple[int, ...]]
) -> tuple[list[str], int]:
    """Differences between compiled and eager over several sets of sizes, and how many graphs that took."""
    torch._dynamo.reset()
    counters.clear()
    gather, rank = gather_by(subject), dist.get_rank()
    scale = torch.tensor(rank + 1.0, device=device())  # no number in the code: ranks share what inductor compiles

    def loss(x: Tensor, sizes: Any) -> tuple[Tensor, Any]:
        gathered, found = gather(x, 0, sizes)
        weight = torch.arange(1.0, gathered.shape[0] + 1, device=x.device).unsqueeze(1) * scale
        return (gathered.sin() * weight).sum(), found

    compiled = torch.compile(loss, fullgraph=WHOLE, backend=compiler)
    wrong = []
    for sizes in rounds:
        x = (values(rank, (sizes[rank], 3), "float32") / 50).to(device()).requires_grad_()
        passed = {"no": None, "list": list(sizes), "tensor": torch.tensor(sizes, device=device())}[given]
        expected, expected_sizes = loss(x, passed)
        (expected_gradient,) = torch.autograd.grad(expected, x)
        value, found = compiled(x, passed)
        (gradient,) = torch.autograd.grad(value, x)
        if not torch.allclose(value, expected) or not torch.allclose(gradient, expected_gradient):
            wrong.append(f"{sizes}: {value} {gradient} instead of {expected} {expected_gradient}")
        if list(found) != list(expected_sizes):
            wrong.append(f"{sizes}: found {found}")
    return wrong, int(counters["stats"]["unique_graphs"])


def compiled_reduce_scatter(compiler: str, rounds: list[tuple[int, ...]]) -> list[bool]:
    torch._dynamo.reset()
    rank = dist.get_rank()

    def loss(x: Tensor, sizes: list[int]) -> Tensor:
        return (core.reduce_scatter(x, sizes=sizes).cos() * (rank + 1)).sum()

    compiled = torch.compile(loss, fullgraph=WHOLE, backend=compiler)
    right = []
    for sizes in rounds:
        x = upstream(rank, (sum(sizes), 2), "float32").to(device()).requires_grad_()
        (expected,) = torch.autograd.grad(loss(x, list(sizes)), x)
        (gradient,) = torch.autograd.grad(compiled(x, list(sizes)), x)
        right.append(torch.allclose(gradient, expected))
    return right


def compiled_group(members: list[int]) -> Any:
    torch._dynamo.reset()
    rank, group = dist.get_rank(), dist.new_group(members)
    if rank not in members:
        return None
    x = torch.full((rank + 1,), float(rank), device=device(), requires_grad=True)
    run = torch.compile(lambda x: core.all_gather(x, group=group), fullgraph=WHOLE, backend="aot_eager")
    gathered, sizes = run(x)
    (gathered * gathered).sum().backward()
    return gathered.tolist(), list(sizes), x.grad.tolist()  # type: ignore[union-attr]


def compiled_disagreement() -> Outcome:
    """The same error as eager, on every rank, out of a compiled region."""
    torch._dynamo.reset()
    run = torch.compile(lambda x: core.all_gather(x)[0], fullgraph=WHOLE, backend="aot_eager")
    return attempt(lambda: run(torch.ones(2, 3 + dist.get_rank(), device=device())))


def compiled_clash_in_a_dict(how: str) -> Outcome:
    """A dict whose second tensor, or its key, or its gradient is another on the last rank."""
    torch._dynamo.reset()
    run = torch.compile(lambda batch: core.all_gather(batch)[0]["a"], fullgraph=WHOLE, backend="aot_eager")
    last = dist.get_rank() == dist.get_world_size() - 1
    second = torch.ones(2, 4 if how == "shape" and last else 3, requires_grad=not (how == "gradient" and last))
    key = "c" if how == "key" and last else "b"
    batch = {"a": torch.ones(2, device=device(), requires_grad=True), key: second.to(device())}
    return attempt(lambda: run(batch).requires_grad)


def some_ranks_compiled_with_a_dict() -> list[float]:
    """As below, for two tensors in a dict, filled the other way round on one rank."""
    torch._dynamo.reset()
    rank = dist.get_rank()

    def total(a: Tensor, b: Tensor) -> Tensor:
        gathered, _ = core.all_gather({"b": b, "a": a} if rank == 1 else {"a": a, "b": b})
        return gathered["a"] + 10 * gathered["b"]

    a, b = (torch.full((rank + 1,), start + rank, device=device(), requires_grad=True) for start in (0.0, 5.0))
    run = torch.compile(total, fullgraph=WHOLE, backend="aot_eager") if rank == 0 else total
    out = run(a, b)
    gradients = torch.autograd.grad((rank + 1) * out.sum(), (a, b))
    return [*out.tolist(), *gradients[0].tolist(), *gradients[1].tolist()]


def compiled_wants(wants: list[bool]) -> Outcome:
    torch._dynamo.reset()
    run = torch.compile(lambda x: core.all_gather(x)[0], fullgraph=WHOLE, backend="aot_eager")
    x = torch.ones(2, 3, device=device(), requires_grad=wants[dist.get_rank()])
    return attempt(lambda: run(x).requires_grad)


def compiled_wrong_sizes() -> Outcome:
    torch._dynamo.reset()
    run = torch.compile(lambda x, sizes: core.all_gather(x, sizes=sizes)[0], fullgraph=WHOLE, backend="aot_eager")
    return attempt(lambda: run(torch.ones(2, 3, device=device()), [5, 5]))


def some_ranks_compiled(subject: str) -> list[float]:
    """One rank compiled, the others eager, as after a recompile limit: they must meet in the same collectives."""
    torch._dynamo.reset()
    gather, rank = gather_by(subject), dist.get_rank()

    def total(x: Tensor) -> Tensor:
        return gather(x, 0, None)[0] * 2

    x = torch.full((rank + 1,), float(rank), device=device(), requires_grad=True)
    run = torch.compile(total, fullgraph=WHOLE, backend="aot_eager") if rank == 0 else total
    out = run(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    return [*out.tolist(), *gradient.tolist()]


def stale_answers_while_compiling() -> dict[str, Any]:
    """No warning in a compiled region; mirasol's answer is fresh there."""
    torch._dynamo.reset()
    ask = adapter("mirasol").get_is_distributed
    ask.cache_clear()
    run = torch.compile(lambda x: x + 1 if ask() else x, fullgraph=WHOLE, backend="aot_eager")
    return {"asked": run(torch.zeros(1, device=device())).item()}
