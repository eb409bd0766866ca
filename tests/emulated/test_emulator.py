# SPDX-License-Identifier: MIT
"""The emulation itself: each of its checks is broken once, so that no other test passes because it sees nothing."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.emulated.calls import counted, settings
from tests.support import World, WorldFailure
from tests.support.world import device, join_group

NCCL = ["nccl", "nccl-legacy"]

# ------------------------------------------------------------------ on ranks


def ones(count: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(count, dtype=dtype, device=device())


def swapped_order() -> None:
    """Rank 1 broadcasts first and sums afterwards, the others the other way round."""
    steps: list[Callable[[], object]] = [lambda: dist.all_reduce(ones()), lambda: dist.broadcast(ones(), 0)]
    for step in reversed(steps) if dist.get_rank() == 1 else steps:
        step()
    torch.cuda.synchronize()


def other_count() -> None:
    dist.all_reduce(ones(4 + dist.get_rank()))
    torch.cuda.synchronize()


def other_dtype() -> None:
    """As many bytes on every rank."""
    dist.all_reduce(ones(4, torch.float32 if dist.get_rank() == 0 else torch.int32))
    torch.cuda.synchronize()


def other_root() -> None:
    dist.broadcast(ones(), dist.get_rank())
    torch.cuda.synchronize()


def other_reduction() -> None:
    dist.all_reduce(ones(), dist.ReduceOp.SUM if dist.get_rank() == 0 else dist.ReduceOp.MAX)
    torch.cuda.synchronize()


def other_length_of_message() -> None:
    """Rank 0 sends three numbers, rank 1 expects four."""
    sent, received = ([0, 3], [0, 0]) if dist.get_rank() == 0 else ([0, 0], [4, 0])
    dist.all_to_all_single(ones(sum(received)), ones(sum(sent)), received, sent)
    torch.cuda.synchronize()


def messages_past_one_rank() -> tuple[list[float], float]:
    """Ranks 0 and 2 send to each other, twice, rank 1 to nobody; then all sum."""
    rank = dist.get_rank()
    splits = [0, 0, 0] if rank == 1 else [0, 0, 2] if rank == 0 else [2, 0, 0]
    found = []
    for turn in range(2):
        sent = ones(sum(splits)) * (10 * turn + rank + 1)
        received = torch.zeros_like(sent)
        dist.all_to_all_single(received, sent, splits, splits)
        found += received.tolist()
    total = ones(1) * rank
    dist.all_reduce(total)
    return found, total.item()


def one_stays_away() -> None:
    settings(patience=2)
    join_group()
    dist.all_reduce(ones())
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        dist.all_reduce(ones())
    torch.cuda.synchronize()


def one_device_for_all() -> None:
    torch.cuda.set_device(0)
    dist.all_reduce(ones())
    torch.cuda.synchronize()


def wrong_after_reuse(keeps: bool, turns: int) -> int:
    """How often a copy on another stream sees bytes that were written after their tensor was freed.

    keeps: `record_stream`, as is right.
    """
    settings(kernel_delay=500)
    making, using = torch.cuda.Stream(), torch.cuda.Stream()
    wrong = 0
    for _ in range(turns):
        with torch.cuda.stream(making):
            x = torch.full((1000,), 1.0, device="cuda")
        using.wait_stream(making)
        with torch.cuda.stream(using):
            for _ in range(8):  # keeps the stream busy
                torch.zeros(1, device="cuda")
            copy = x.clone()
        if keeps:
            x.record_stream(using)
        del x
        with torch.cuda.stream(making):
            torch.full((1000,), -7.0, device="cuda")
        using.synchronize()
        wrong += bool((copy != 1).any())
    return wrong


def seen_too_early(waits: bool) -> bool:
    """Whether a gather's result is looked at before it is there: on another stream, without `wait()`."""
    settings(nccl_delay=100_000)
    join_group()
    dist.all_reduce(ones())  # a communicator is made
    torch.cuda.synchronize()
    out = torch.zeros(4 * dist.get_world_size(), device=device())
    work = dist.all_gather_into_tensor(out, ones(), async_op=True)
    if waits:
        work.wait()
    seen = out.clone()
    torch.cuda.synchronize()
    return bool((seen != 1).any())


def right_sums(dtype: torch.dtype) -> bool:
    """A sum over ranks of every position, next to one on the CPU."""
    world, positions = dist.get_world_size(), torch.arange(9) % 5
    total = (positions + dist.get_rank()).to(dtype).to(device())
    dist.all_reduce(total)
    expected = torch.stack([(positions + rank).to(dtype) for rank in range(world)]).sum(0).to(dtype)
    return torch.equal(total.cpu(), expected)


def what_is_counted() -> dict[str, tuple[int, ...]]:
    x = ones(8)
    pinned = torch.ones(8, pin_memory=True)
    out = torch.empty(8 * dist.get_world_size(), device=device())
    calls = {
        "read": lambda: x[0].item(),
        "blocking copy": lambda: torch.ones(8).to(device()),
        "copy from pinned memory": lambda: pinned.to(device(), non_blocking=True),
        "kernel": lambda: x.fill_(2),
        "gather": lambda: dist.all_gather_into_tensor(out, x),
        "sync": torch.cuda.synchronize,
    }
    found: dict[str, tuple[int, ...]] = {}
    for name, call in calls.items():
        counts = counted(call)
        found[name] = (counts.kernels, counts.host_to_device, counts.device_to_host, counts.syncs, counts.nccl_launches)
    return found


def kernel_without_emulation() -> str:
    try:
        torch.cuda._sleep(1000)
    except Exception as error:  # whatever torch makes of it
        return str(error)
    return ""


def graph_replayed() -> list[float]:
    """A sum over ranks in a CUDA graph, replayed with other values."""
    x, graph = ones(), torch.cuda.CUDAGraph()
    dist.all_reduce(x.clone())
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        total = x.clone()
        dist.all_reduce(total)
    sums = []
    for value in (1.0, 5.0):
        x.fill_(value + dist.get_rank())
        graph.replay()
        sums.append(total[0].item())
    return sums


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize("name", NCCL)
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (swapped_order, ["AllReduce", "Broadcast"]),
        (other_count, ["count 4", "count 5"]),
        (other_dtype, ["dtype 7", "dtype 2"]),
        (other_root, ["root or peer 0", "root or peer 1"]),
        (other_reduction, ["reduction 0", "reduction 2"]),
        (other_length_of_message, ["Recv(count 4", "Send(count 3"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_ranks_that_part_ways_are_ended(broken: Callable[[], None], words: list[str], name: str, backend: str) -> None:
    """Where NCCL hangs or mixes up data, each rank ends with what the others do."""
    with World(2, name) as world, pytest.raises(WorldFailure) as failure:
        world.run(broken)
    told = "\n".join(failure.value.by_rank.values())
    assert "EMULATED NCCL: MISMATCH" in told
    assert [word for word in words if word not in told] == []


@pytest.mark.parametrize("name", NCCL)
def test_messages_concern_two_ranks_only(name: str, backend: str) -> None:
    """A rank that neither sends nor receives takes no part, and meets the others in the next collective."""
    with World(3, name) as world:
        first, idle, last = world.run(messages_past_one_rank)
    assert first == ([3.0, 3.0, 13.0, 13.0], 3.0)
    assert idle == ([], 3.0)
    assert last == ([1.0, 1.0, 11.0, 11.0], 3.0)


def test_a_rank_that_stays_away_is_named(backend: str) -> None:
    """Who waits, for whom, and in what."""
    with (
        World(2, join=False, backend="nccl") as world,
        pytest.raises(WorldFailure, match="HANG: rank 0 of 2 waits for"),
    ):
        world.run(one_stays_away)


def test_two_ranks_cannot_have_one_device(backend: str) -> None:
    """NCCL's own error."""
    with World(2, "nccl-legacy") as world, pytest.raises(WorldFailure, match="Duplicate GPU"):
        world.run(one_device_for_all)


def test_memory_that_is_freed_too_early_has_other_bytes(backend: str) -> None:
    """Without `record_stream` the caching allocator gives it away while a stream still reads it."""
    with World(1, "nccl", join=False) as world:
        assert world.run(wrong_after_reuse, False, 20)[0] > 0
    with World(1, "nccl", join=False) as world:
        assert world.run(wrong_after_reuse, True, 20) == [0]


@pytest.mark.parametrize("name", NCCL)
def test_results_are_there_after_wait_only(name: str, backend: str) -> None:
    """A stream that did not wait for the work reads old bytes."""
    for waits in (True, False):
        with World(2, name, join=False) as world:
            assert world.run(seen_too_early, waits) == [not waits] * 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"])
def test_sums_are_right(dtype: str, backend: str) -> None:
    """Every dtype that NCCL sums."""
    with World(3, "nccl") as world:
        assert world.run(right_sums, getattr(torch, dtype)) == [True] * 3


def test_what_is_counted(backend: str) -> None:
    """Kernels, copies to the device and from it, waits of the host, launches of NCCL."""
    with World(2, "nccl") as world:
        for found in world.run(what_is_counted):
            assert found == {
                "read": (0, 0, 1, 1, 0),
                "blocking copy": (0, 1, 0, 1, 0),
                "copy from pinned memory": (0, 1, 0, 0, 0),
                "kernel": (1, 0, 0, 0, 0),
                "gather": (0, 0, 0, 0, 1),
                "sync": (0, 0, 0, 1, 0),
            }


def test_a_kernel_that_is_not_emulated_is_an_error(backend: str) -> None:
    """It is not passed over in silence."""
    with World(1, "nccl") as world:
        assert "CUDA error" in world.run(kernel_without_emulation)[0]


@pytest.mark.parametrize("name", NCCL)
def test_a_graph_runs_again_on_other_values(name: str, backend: str) -> None:
    """What was captured, collectives too, runs at each replay."""
    with World(2, name) as world:
        assert world.run(graph_replayed) == [[3.0, 11.0]] * 2
