# SPDX-License-Identifier: MIT
"""Gathers inside what training loops put around them: wrappers, recomputation, modes, compilers."""

import importlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import shared_distributed as core
from tests.adapters.gradients import loss_of
from tests.support.calls import Outcome, attempt
from tests.support.gather import gather_by
from tests.support.old_torch import WHOLE
from tests.support.oracle import upstream, values
from tests.support.watch import slots, watched
from tests.support.world import device

Sizes = tuple[int, ...]
Gradients = dict[str, Tensor]


class Surroundings(NamedTuple):
    """What is around a gather."""

    subject: str
    wrapper: str = "DDP"
    own_group: str = ""  # who has a group of its own: "DDP", "gather", or nobody
    given: bool = False  # sizes are passed in
    no_sync: bool = False  # gradients accumulate on each rank until the last batch
    reentrant: bool | None = None  # activation checkpointing, of either kind
    amp: bool = False
    detour: tuple[int, ...] = ()  # the ranks that use a layer which the others leave out


class Scorer(nn.Module):
    """Encode own rows, gather everyone's, score them: parameters before the gather, and after it."""

    def __init__(self, around: Surroundings, gather: Callable[[Tensor, Any], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.around, self.gather = around, gather
        self.encode = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.detour = nn.Linear(3, 4) if around.detour else None
        self.score = nn.Linear(4, 2)
        self.to(torch.float32 if around.amp else torch.float64)

    def forward(self, rank: int, rows: Tensor, sizes: Any) -> Tensor:
        if self.around.reentrant is None:
            return self.scores(rank, rows, sizes)
        again: Tensor = checkpoint(self.scores, rank, rows, sizes, use_reentrant=self.around.reentrant)
        return again

    def scores(self, rank: int, rows: Tensor, sizes: Any) -> Tensor:
        scores: Tensor = self.score(self.gather(self.encoded(rank, rows), sizes))
        return scores

    def encoded(self, rank: int, rows: Tensor) -> Tensor:
        encoded: Tensor = self.encode(rows)
        return encoded + self.detour(rows) if self.detour is not None and rank in self.around.detour else encoded


def rows_of(around: Surroundings, rank: int, sizes: Sizes) -> Tensor:
    """A rank's batch."""
    return values(rank, (sizes[rank], 3), "float32" if around.amp else "float64") / 50 - 1


def loss_on(rank: int, scores: Tensor) -> Tensor:
    """A rank's loss, which looks at every rank's rows."""
    return loss_of(rank, scores.double())


def autocast(enabled: bool, kind: str = "cpu") -> AbstractContextManager[Any]:
    return torch.autocast(kind, torch.bfloat16, enabled=enabled)


def train(around: Surroundings, batches: list[Sizes]) -> tuple[Gradients, list[str]]:
    """The gradients of several batches in a row, and the collectives that the last one's backward called."""
    rank = dist.get_rank()
    group = second_group() if around.own_group else None
    gather = gather_of(around.subject, group if around.own_group == "gather" else None)
    model = wrap(Scorer(around, gather).to(device()), around, group if around.own_group == "DDP" else None)
    for i, sizes in enumerate(batches):
        rows = rows_of(around, rank, sizes).to(device()).requires_grad_()  # reentrant checkpointing asks for that
        with model.no_sync() if around.no_sync and i < len(batches) - 1 else nullcontext():
            with autocast(around.amp, device().type):
                scores = model(rank, rows, list(sizes) if around.given else None)
            with watched() as calls:
                loss_on(rank, scores).backward()
    return gradients_of(model, around.wrapper), [name for name, *_ in calls]


def train_with_large_sums(around: Surroundings, batches: list[Sizes]) -> tuple[Gradients, list[str]]:
    """As if no sum were small enough to go through one rank: then it is a collective, like DDP's own."""
    from shared_distributed import _gloo

    _gloo.SMALL_SUM = -1
    return train(around, batches)


@cache
def second_group() -> Any:
    """A second group of all ranks; made once, since gloo waits for peers when one is destroyed."""
    return dist.new_group()


def gather_of(subject: str, group: Any = None) -> Callable[[Tensor, Any], Tensor]:
    """The subject's gather along dim 0; in a group of its own for the core, which alone takes one."""
    if group is None:
        gather = gather_by(subject)
        return lambda x, sizes: gather(x, 0, sizes)[0]
    how: Any = subject.split()[1]
    return lambda x, sizes: core.all_gather(x, sizes=sizes, grad=how, group=group)[0]


def wrap(model: Scorer, around: Surroundings, group: Any) -> Any:
    """The model as the wrapper trains it."""
    if around.wrapper == "DDP":
        # small buckets: each layer's gradients travel on their own, between the gather's collectives
        unused = bool(around.detour)
        return DistributedDataParallel(
            model,
            process_group=group,
            find_unused_parameters=unused,
            bucket_cap_mb=1e-6,  # type: ignore[arg-type]
        )
    fsdp = importlib.import_module("torch.distributed.fsdp")
    if around.wrapper == "FSDP":
        return fsdp.FullyShardedDataParallel(model, device_id=device(), use_orig_params=True)
    init_device_mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    return fsdp.fully_shard(model, mesh=mesh)


def gradients_of(model: Any, wrapper: str) -> Gradients:
    """Every parameter's gradient, whole, by the name that it has in the model itself."""
    whole = type(model).summon_full_params(model, with_grads=True) if wrapper == "FSDP" else nullcontext()
    with whole:
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        whole_ones = {name: g.full_tensor() if wrapper == "fully_shard" else g for name, g in found.items()}
        return {re.sub(r"^(module|_fsdp_wrapped_module)\.", "", name): g.clone() for name, g in whole_ones.items()}


# ------------------------------------------------------------------ autocast and modes


def autocast_on_some(subject: str, enabled: list[bool], sizes: Sizes) -> tuple[Outcome, list[Any]]:
    """A layer's output gathered, with autocast on some ranks only; then a gather in which all agree."""
    rank = dist.get_rank()
    layer, rows = nn.Linear(3, 2).to(device()), torch.ones(sizes[rank], 3, device=device())
    with autocast(enabled[rank], device().type):
        outcome = attempt(lambda: gather_of(subject)(layer(rows), None).dtype)
    after = torch.full((sizes[rank],), float(rank), device=device())
    return outcome, gather_of(subject)(after, None).tolist()


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def without_gradient(subject: str, mode: str, sizes: Sizes) -> dict[str, Any]:
    """A gather in a mode that records nothing, its sizes used again there, and its result gathered outside."""
    rank = dist.get_rank()
    gather = gather_by(subject)
    x = values(rank, (sizes[rank], 3), "float32").to(device()).requires_grad_()
    with MODES[mode]():
        gathered, found = gather(x * 2, 0, None)
        again, _ = gather(x * 2, 0, found)
        mine = x * 3
    outside, _ = gather(mine, 0, None)
    return {
        "gathered": gathered,
        "again": torch.equal(gathered, again),
        "outside": outside.detach(),
        "requires_grad": (gathered.requires_grad, outside.requires_grad),
        "sizes": list(found),
    }


def modes_by_rank(subject: str, modes: list[str]) -> Outcome:
    """A gather in a mode of each rank's own; the gradient of a rank that records one."""
    rank = dist.get_rank()
    x = torch.ones(rank + 1, 2, device=device(), requires_grad=True)

    def call() -> list[float] | None:
        with MODES[modes[rank]]():
            gathered = gather_of(subject)(x, None)
        if not gathered.requires_grad:
            return None
        weights = torch.arange(1.0, len(gathered) + 1, device=device())
        (gathered * weights.unsqueeze(1)).sum().backward()
        assert x.grad is not None
        return list(x.grad[:, 0].tolist())

    return attempt(call)


def input_from_inference_mode(subject: str, on: int) -> tuple[Any, Any]:
    """One rank's input was made in inference mode, and its gradient is summed: that rank stands in for its own."""
    rank = dist.get_rank()
    with MODES["inference" if rank == on else "grad"]():
        x = torch.full((rank + 1,), float(rank), device=device(), requires_grad=rank != on)
    gathered = gather_of(subject)(x, None)
    (gathered * (rank + 1)).sum().backward()
    return gathered.tolist(), None if x.grad is None else x.grad.tolist()


# ------------------------------------------------------------------ several gathers


def losses_of_several(subject: str, sizes: Sizes) -> tuple[tuple[Tensor, ...], list[int]]:
    """Gradients of a loss over three gathers, and the bytes of each collective that they took, in order.

    Every rank puts its loss together in an order of its own.
    """
    rank = dist.get_rank()
    gather = gather_of(subject)
    a, b = (part.requires_grad_() for part in pair_of(rank, sizes))
    first, second = gather(a, sizes), gather(b, sizes)
    third = gather(mixed(rank, first, b, sizes), sizes)
    parts = [weighed(rank, gathered) for gathered in (first, second, third)]
    with watched() as calls:
        gradients = torch.autograd.grad(parts[rank % 3] + (parts[(rank + 1) % 3] + parts[(rank + 2) % 3]), (a, b))
    return gradients, [sent for _, sent, _ in calls]


def pair_of(rank: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """A rank's two inputs, one column and two: the bytes of a collective tell whose gradient it carries."""
    a, b = (values(rank + i, (sizes[rank], i + 1), "float64") / 50 for i in range(2))
    return a, b


def mixed(rank: int, first: Tensor, b: Tensor, sizes: Sizes) -> Tensor:
    """What a rank gathers third: three columns, made from what the first gather gave and from its own input."""
    return torch.cat([first.sin().split(list(sizes))[rank], b.cos()], 1)


def weighed(rank: int, gathered: Tensor) -> Tensor:
    """A rank's loss on one of its gathered tensors."""
    return (upstream(rank, gathered.shape, "float64") * gathered**2).sum()


def loss_on_one_of_two() -> list[Any]:
    """Two tensors gathered together, of which rank 0's loss looks at the first, the others' at the second."""
    rank = dist.get_rank()
    pair = tuple(torch.full((rank + 1, 2), float(i), device=device(), requires_grad=True) for i in range(2))
    gathered, _ = core.all_gather(pair)
    (gathered[min(rank, 1)].sum() * 10**rank).backward()
    return [None if t.grad is None else t.grad[:, 0].tolist() for t in pair]


def compiled_pair(given: bool, sizes: Sizes) -> tuple[list[int], bool]:
    """Two independent gathers in one region under the default compiler: their bytes in order, and like eager or not.

    Rank 0 does much with the second and little with the first: its compiler is tempted to begin with the second.
    """
    torch._dynamo.reset()
    rank = dist.get_rank()
    passed = list(sizes) if given else None

    def loss(x: Tensor, y: Tensor) -> Tensor:
        (first, _), (second, _) = core.all_gather(x, sizes=passed), core.all_gather(y, sizes=passed)
        if rank == 0:
            square = second.T @ second
            return (square @ square).mean() + first.sum()
        return (first.sin() * (rank + 1)).sum() + second.sum()

    inputs = (values(rank + width, (sizes[rank], width), "float32") / 97 for width in (12, 300))
    x, y = (t.requires_grad_() for t in inputs)
    expected = torch.autograd.grad(loss(x, y), (x, y))
    with watched() as calls, slots(0):
        value = torch.compile(loss, fullgraph=WHOLE)(x, y)
    found = torch.autograd.grad(value, (x, y))
    firsts = [nbytes for _, nbytes, _ in calls if nbytes > 64]  # rank 0's rows; smaller: headers
    return firsts, all(torch.allclose(f, e, rtol=1e-4) for f, e in zip(found, expected, strict=True))


def compiled_and_left_out(given: bool, sizes: Sizes) -> list[float]:
    """A compiled region whose gathered tensor only rank 0 looks at."""
    torch._dynamo.reset()
    rank = dist.get_rank()
    passed = list(sizes) if given else None

    def region(x: Tensor) -> Tensor:
        gathered, _ = core.all_gather(x, sizes=passed)
        return x * 2 + gathered.sum() if rank == 0 else x * 2

    run = torch.compile(region, fullgraph=WHOLE, backend="aot_eager")
    return list(run(torch.full((sizes[rank],), float(rank + 1), device=device())).tolist())
