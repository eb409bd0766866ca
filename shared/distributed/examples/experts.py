# SPDX-License-Identifier: MIT
"""A mixture of experts on different ranks, in two ways: rows to the experts that need them, and all rows to all ranks.

    python experts.py --plot experts.svg

Every rank owns some of the experts, and draws its own number of rows, on one rank none. A router, which all ranks share
under DDP, chooses an expert for each row. Both ways are compared with one process that has all rows and all experts,
gradients included; then their step time and peak memory are measured with 2, 4 and 8 ranks. Runs on the CPU and gloo.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from shared_distributed import RowLayout, all_gather, all_to_all, reduce_scatter

WIDTH, EXPERTS = 64, 8

Way = Callable[[Tensor, Tensor, "Experts"], Tensor]


class Experts(nn.Module):
    """Some of the experts: (rows, WIDTH), (rows,) -> (rows, WIDTH), zeros in rows that chose another expert."""

    def __init__(self, first: int, count: int) -> None:
        super().__init__()
        self.first = first
        self.own = nn.ModuleList()
        for number in range(first, first + count):
            torch.manual_seed(number)
            self.own.append(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)))

    def forward(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """Each row by the expert that it chose."""
        results = torch.zeros_like(rows)
        for number, expert in enumerate(self.own, self.first):
            here = (chosen == number).nonzero().flatten()
            results = results.index_add(0, here, expert(rows[here]))
        return results


class Shared(nn.Module):
    """What all ranks have: a layer before the experts, the router, and a layer after them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(EXPERTS)
        self.before = nn.Linear(WIDTH, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.after = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, way: Way, experts: Experts) -> Tensor:
        """(rows, WIDTH) -> (rows, WIDTH)."""
        hidden = self.before(x)
        weights, chosen = self.router(hidden).softmax(-1).max(-1)
        mixed = way(hidden, chosen, experts)
        return self.after(hidden + weights.unsqueeze(-1) * mixed)


def by_all_to_all(rows: Tensor, chosen: Tensor, experts: Experts) -> Tensor:
    """Each row to the rank of its expert, and the result back."""
    order = chosen.argsort(stable=True)  # experts are numbered rank by rank
    sizes = chosen.bincount(minlength=EXPERTS).view(dist.get_world_size(), -1).sum(1).tolist()
    (their_rows, their_chosen), received = all_to_all((rows[order], chosen[order]), sizes)
    results = experts(their_rows, their_chosen)
    returned, _ = all_to_all(results, received, received=sizes)
    return torch.zeros_like(rows).index_copy(0, order, returned)


def by_gathering(rows: Tensor, chosen: Tensor, experts: Experts) -> Tensor:
    """All rows to all ranks; each rank adds the results of its own experts."""
    (all_rows, all_chosen), sizes = all_gather((rows, chosen))
    return reduce_scatter(experts(all_rows, all_chosen), sizes=sizes)


def in_one_process(rows: Tensor, chosen: Tensor, experts: Experts) -> Tensor:
    """The reference: every expert is here."""
    return experts(rows, chosen)


WAYS: dict[str, Way] = {"all_to_all": by_all_to_all, "gather everything": by_gathering}


def sizes_of(rows: int, ranks: int) -> list[int]:
    """How many rows each rank has: as many on average, unlike on each rank, none on the last of more than two."""
    weights = [2 * ranks - rank for rank in range(ranks)]
    if ranks > 2:
        weights[-1] = 0
    return [rows * ranks * weight // sum(weights) for weight in weights]


def rows_of_all(count: int, dtype: torch.dtype) -> Tensor:
    """The rows of all ranks."""
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1), dtype=dtype)


def loss_of(output: Tensor, first: int) -> Tensor:
    """The summed loss of these rows, whose first is row `first` of all."""
    weights = torch.arange(first, first + len(output), dtype=output.dtype) % 7 + 1
    return (output.square().sum(1) * weights).sum()


class OnRanks:
    """The model on this rank, and its rows."""

    def __init__(self, way: Way, rows: int, dtype: torch.dtype) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.way = way
        self.sizes = RowLayout(sizes_of(rows, world), rank=rank)
        self.x = rows_of_all(self.sizes.total, dtype)[self.sizes.rows].clone()
        self.shared = DistributedDataParallel(Shared().to(dtype))
        self.experts = Experts(rank * EXPERTS // world, EXPERTS // world).to(dtype)
        for parameter in self.experts.parameters():  # DDP divides what is shared by the number of ranks
            parameter.register_hook(lambda gradient: gradient / world)

    def step(self) -> Tensor:
        """Forward and backward; the mean loss over the rows of all ranks, after DDP's average."""
        self.shared.zero_grad()
        self.experts.zero_grad()
        output = self.shared(self.x, self.way, self.experts)
        loss = loss_of(output, self.sizes.start) * self.sizes.ddp_scale
        loss.backward()
        return loss.detach()

    def gradients(self) -> list[Tensor]:
        """Of what is shared, then of this rank's experts."""
        both = [*self.shared.parameters(), *self.experts.parameters()]
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in both]


def gradients_alone(on_ranks: OnRanks) -> list[Tensor]:
    """The same gradients, from one process that has every row and every expert."""
    dtype = on_ranks.x.dtype
    shared, experts = Shared().to(dtype), Experts(0, EXPERTS).to(dtype)
    total = on_ranks.sizes.total
    output = shared(rows_of_all(total, dtype), in_one_process, experts)
    (loss_of(output, 0) / total).backward()
    first, count = on_ranks.experts.first, len(on_ranks.experts.own)
    own = [p for expert in experts.own[first : first + count] for p in expert.parameters()]
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in [*shared.parameters(), *own]]


def largest_difference(way: Way, rows: int) -> float:
    """Between the gradients on this rank and those of one process, relative to the largest of each parameter."""
    on_ranks = OnRanks(way, rows, torch.float64)
    on_ranks.step()
    differences = [0.0]
    for found, expected in zip(on_ranks.gradients(), gradients_alone(on_ranks), strict=True):
        scale = expected.abs().max().clamp(min=1e-12)
        differences.append(float((found - expected).abs().max() / scale))
    return max(differences)


def milliseconds(on_ranks: OnRanks, steps: int) -> float:
    """The median step on the slowest rank."""
    spent = []
    for _ in range(steps):
        dist.barrier()
        start = time.perf_counter()
        on_ranks.step()
        spent.append(1e3 * (time.perf_counter() - start))
    return sorted(spent)[steps // 2]


def peak_mib(on_ranks: OnRanks) -> float:
    """The most that torch has allocated at one time during a step, over what there was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        on_ranks.step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    memory = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    changes = [change for _, change in sorted(memory)]
    return max(accumulate(changes, initial=0)) / 2**20


def on_rank(rank: int, ranks: int, rows: int, steps: int, folder: str) -> None:
    """What each process does; the first one writes the largest numbers of all ranks into the folder."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    found = {}
    for name, way in WAYS.items():
        difference = largest_difference(way, rows=40)
        on_ranks = OnRanks(way, rows, torch.float32)
        on_ranks.step()
        numbers = torch.tensor([milliseconds(on_ranks, steps), peak_mib(on_ranks), difference], dtype=torch.float64)
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        found[name] = numbers.tolist()
        del on_ranks  # DDP's threads end before the group does
    dist.barrier()
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measure(ranks: int, rows: int, steps: int) -> dict[str, list[float]]:
    """For each way: milliseconds of a step, MiB at its peak, the largest difference of a gradient."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(on_rank, (ranks, rows, steps, folder), nprocs=ranks)
        found: dict[str, list[float]] = json.loads(Path(folder, "found.json").read_text())
    return found


def plot(found: dict[int, dict[str, list[float]]], file: Path) -> None:
    """Step time and peak memory of both ways, by the number of ranks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    both_axes = figure.subplots(1, 2)
    for number, label in enumerate(["ms per step, slowest rank", "MiB at the peak of a step, largest rank"]):
        axes = both_axes[number]
        for name, color in zip(WAYS, ["#2b8a3e", "#e8590c"], strict=True):
            axes.plot(list(found), [ways[name][number] for ways in found.values()], "o-", color=color, label=name)
        axes.set(xlabel="ranks", ylabel=label, xticks=list(found), ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    both_axes[0].legend(frameon=False)
    figure.savefig(file)


def main() -> int:
    """Compare, measure, plot; exit code 1 if a gradient is wrong."""
    parser = argparse.ArgumentParser(description="A mixture of experts on different ranks, in two ways.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="each divides the number of experts")
    parser.add_argument("--rows", type=int, default=2048, help="rows per rank, on average")
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--plot", type=Path, help="draw both into this file (needs matplotlib)")
    options = parser.parse_args()

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of memory from before it began
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    found = {ranks: measure(ranks, options.rows, options.steps) for ranks in options.ranks}
    print(f"{EXPERTS} experts, {options.rows} rows of {WIDTH} numbers per rank")
    print("ranks  way                ms per step  MiB at peak  gradients differ by")
    for ranks, ways in found.items():
        for name, (spent, peak, difference) in ways.items():
            print(f"{ranks:5}  {name:18} {spent:11.1f}  {peak:11.1f}  {difference:.0e}")
    if options.plot:
        plot(found, options.plot)
        print(f"plot: {options.plot}")
    worst = max(difference for ways in found.values() for *_, difference in ways.values())
    return int(worst > 1e-9)


if __name__ == "__main__":
    sys.exit(main())
