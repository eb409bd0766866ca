# SPDX-License-Identifier: MIT
"""NCCL's rules without a GPU: a process group that keeps to them over gloo, with real data.

| rule                                            | NCCL, where it is broken             | here                  |
|-------------------------------------------------|--------------------------------------|-----------------------|
| dense, contiguous tensors, no lazy views        | raises on that rank, the others hang | raises on every rank  |
|                                                 | (unchecked in uneven lists: astray)  |                       |
| only dtypes that NCCL has; no sums of fp8       | raises on that rank, the others hang | raises on every rank  |
| numels and dtypes agree, in a call and by rank  | raises, hangs, or mixes up data      | raises on every rank  |
| one order of operations on every rank           | hangs, or mixes up data              | raises on every rank  |
| nothing is asked for that NCCL has no kernel of | raises                               | raises                |
| results are there after `wait()`                | are overtaken by who looks before    | written in `wait()`   |

They are what ProcessGroupNCCL checks, and what it does not check but hands to kernels that take a pointer and a
count. Uneven lists travel as it sends them: as a broadcast from each rank, or a reduce to each. Every operation starts
with an exchange of what each rank is about to do, so that all hear of a broken rule, and of ranks that part ways.

Not shown: kernels, streams, memory of any device but the CPU, how NCCL times out.
"""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

NAME = "nccl-rules"

FP8 = {torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
DTYPES = FP8 | {
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip
BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)

_LACKING = ("allgather_coalesced", "monitored_barrier", "recv_anysource")
_NOT_CARRIED = (
    "all_gather_single_coalesced", "allreduce_coalesced", "alltoall", "gather", "recv", "reduce",
    "reduce_scatter_single_coalesced", "scatter", "send",
)  # fmt: skip
_CLAIM_BYTES = 512


class RuleBroken(AssertionError):
    """A rule of NCCL's was broken. Not a RuntimeError: the core must not take it for a rank that died."""


def register() -> None:
    """Make the backend known to torch. The core takes it for NCCL by the "nccl" in its name."""
    dist.Backend.register_backend(NAME, NcclRules, devices=["cpu"])


class Started(dist.Work):
    """An operation under way. Its outputs are written in `wait`, as nobody may look at them before."""

    def __init__(self, works: Sequence[dist.Work], deliver: Callable[[], object]) -> None:
        super().__init__()
        self._works, self._deliver = works, deliver

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the results are there."""
        for work in self._works:
            work.wait()
        with torch.no_grad():
            self._deliver()
        return True


class NcclRules(dist.ProcessGroup):
    """The collectives that the core's NCCL rows use, and those that tests use beside them."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.log: deque[str] = deque(maxlen=100)  # what was done last, and agreed on by every rank

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Started:  # type: ignore[override]
        """A list, which may be uneven: a broadcast from each rank. Even ones NCCL takes through a buffer of its own."""
        (parts,), (mine,) = outputs, inputs
        uneven = len({part.shape for part in parts}) > 1
        problems = [_problem(mine), *(_problem(part, contiguous=uneven) for part in parts)]
        problems.append(_misfit(mine, parts[self.rank()].numel(), parts[0].dtype))
        self._meet("all_gather", parts, problems)
        return self._broadcasts(mine, parts)

    def all_gather_single(self, output: Tensor, mine: Tensor, opts: Any = None) -> Started:
        """Even only."""
        problems = [_problem(mine), _problem(output), _misfit(output, self.size() * mine.numel(), mine.dtype)]
        self._meet("all_gather_single", [mine, output], problems)
        return self._broadcasts(mine, list(output.view(self.size(), mine.numel())))

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Started:  # type: ignore[override]
        """From one rank, in place."""
        (tensor,) = tensors
        self._meet(f"broadcast from rank {opts.rootRank}", [tensor], [_problem(tensor)])
        staged = _as_bytes(tensor).clone()
        return Started([self._start_broadcast(staged, opts.rootRank)], lambda: _as_bytes(tensor).copy_(staged))

    def allreduce(self, tensors: Sequence[Tensor], opts: Any) -> Started:  # type: ignore[override]
        """In place."""
        (tensor,) = tensors
        self._meet("all_reduce", [tensor], [_problem(tensor, summed=opts)])
        staged = tensor.clone()
        return Started([self._gloo.allreduce([staged], opts)], lambda: tensor.copy_(staged))

    def reduce_scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Started:  # type: ignore[override]
        """A list, which may be uneven: a reduce to each rank. Even ones NCCL takes through a buffer of its own."""
        (own,), (parts,) = outputs, inputs
        uneven = len({part.shape for part in parts}) > 1
        problems = [_problem(own, summed=opts), *(_problem(part, contiguous=uneven) for part in parts)]
        problems.append(_misfit(own, parts[self.rank()].numel(), parts[0].dtype))
        self._meet("reduce_scatter", parts, problems)
        return self._reduces(own, parts, opts)

    def reduce_scatter_single(self, own: Tensor, whole: Tensor, opts: Any) -> Started:
        """Even only. (ProcessGroupNCCL forgets to look at contiguity here, and its kernel then reads astray.)"""
        problems = [_problem(own, summed=opts), _problem(whole), _misfit(whole, self.size() * own.numel(), own.dtype)]
        self._meet("reduce_scatter_single", [own, whole], problems)
        return self._reduces(own, list(whole.view(self.size(), own.numel())), opts)

    def all_to_all_single(
        self, output: Tensor, mine: Tensor, received: Sequence[int], sent: Sequence[int], opts: Any = None
    ) -> Started:
        """Uneven too: a message to each rank. Counts that do not match hang NCCL, or mix up data."""
        world = self.size()
        sent = list(sent) or [len(mine) // world] * world
        received = list(received) or [len(output) // world] * world
        problems = [_problem(mine), _problem(output), _misfit(output, output.numel(), mine.dtype)]
        for whole, counts in ((mine, sent), (output, received)):
            if len(counts) != world or sum(counts) != len(whole):
                problems.append(f"counts {counts} of {len(whole)} rows for {world} ranks")
        self._meet("all_to_all_single", [mine.new_empty(0), output.new_empty(0)], problems)
        announced = torch.tensor(sent)
        self._gloo.alltoall_base(announced, torch.tensor(sent), [], [], dist.AllToAllOptions()).wait()
        if announced.tolist() != received:
            problems.append(f"received counts {received}, but the ranks send {announced.tolist()}")
        self._meet("counts of all_to_all_single", [], problems)
        row = mine.element_size() * (mine.numel() // max(len(mine), 1))
        staged = torch.empty(output.numel() * output.element_size(), dtype=torch.uint8)
        row = row or staged.numel() // max(len(output), 1)
        bytes_received = [count * row for count in received]
        bytes_sent = [count * row for count in sent]
        own = _as_bytes(mine).clone()
        work = self._gloo.alltoall_base(staged, own, bytes_received, bytes_sent, dist.AllToAllOptions())
        return Started([work], lambda: _as_bytes(output).copy_(staged))

    alltoall_base = all_to_all_single  # type: ignore[assignment]  # its name in older torch

    def barrier(self, opts: Any = None) -> Started:
        """An exchange, and nothing more."""
        self._meet("barrier", [], [])
        return Started([], lambda: None)

    def _broadcasts(self, mine: Tensor, parts: Sequence[Tensor]) -> Started:
        staged = [torch.empty(part.numel() * part.element_size(), dtype=torch.uint8) for part in parts]
        staged[self.rank()].copy_(_as_bytes(mine))
        works = [self._start_broadcast(block, rank) for rank, block in enumerate(staged) if block.numel() > 0]

        def deliver() -> None:
            for part, block in zip(parts, staged, strict=True):
                with torch.inference_mode(part.is_inference()):  # as where the call started
                    part.copy_(block.view(part.dtype).view(part.shape))

        return Started(works, deliver)

    def _start_broadcast(self, block: Tensor, root: int) -> dist.Work:
        options = dist.BroadcastOptions()
        options.rootRank = root
        work: dist.Work = self._gloo.broadcast([block], options)
        return work

    def _reduces(self, own: Tensor, parts: Sequence[Tensor], opts: Any) -> Started:
        # one all-reduce of all parts is what a reduce to each rank gives, and over gloo it takes a third of the time
        staged, options = torch.cat([part.reshape(-1) for part in parts]), dist.AllreduceOptions()
        options.reduceOp = opts.reduceOp
        mine = staged.split([part.numel() for part in parts])[self.rank()]
        return Started([self._gloo.allreduce([staged], options)], lambda: own.copy_(mine.view(own.shape)))

    def _meet(self, operation: str, tensors: Sequence[Tensor], problems: Sequence[str]) -> None:
        """Tell the others what comes; go on if all say the same and nobody broke a rule, else raise on every rank."""
        dtypes = sorted({str(tensor.dtype) for tensor in tensors})
        claim = f"{operation} of {' and '.join(dtypes)}, numels {[tensor.numel() for tensor in tensors]}"
        problem = next(filter(None, problems), "two dtypes in one call" if len(dtypes) > 1 else "")
        claims = self._exchange(f"{claim}: {problem}" if problem else claim)
        if len(set(claims)) > 1 or problem:
            lines = [f"  rank {rank} of {self.size()}: {text}" for rank, (_, text) in enumerate(claims)]
            raise RuleBroken("\n".join(["this breaks a rule of NCCL's", *lines]))
        self.log.append(claim)

    def _exchange(self, claim: str) -> list[tuple[int, str]]:
        """Every rank's claim, by its checksum and by as much of it as fits."""
        checksum, text = crc32(claim.encode()), claim.encode()[: _CLAIM_BYTES - 4]
        mine = bytearray(checksum.to_bytes(4, "big") + text.ljust(_CLAIM_BYTES - 4))
        everyones = torch.frombuffer(mine, dtype=torch.uint8).repeat(self.size())
        self._gloo.alltoall_base(everyones, everyones.clone(), [], [], dist.AllToAllOptions()).wait()
        rows = [bytes(row.tolist()) for row in everyones.view(self.size(), -1)]
        return [(int.from_bytes(row[:4], "big"), row[4:].decode(errors="replace").rstrip()) for row in rows]


def _refuse(name: str, why: str) -> Callable[..., None]:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuleBroken(f"{name}: {why}")

    return refuse


for _name in _LACKING:
    setattr(NcclRules, _name, _refuse(_name, "gloo has it, NCCL has not"))
for _name in _NOT_CARRIED:
    setattr(NcclRules, _name, _refuse(_name, "NCCL has it; nothing here needed it yet, so that it is not carried"))


def _problem(tensor: Tensor, *, contiguous: bool = True, summed: Any = None) -> str:
    """The first rule that a tensor breaks by itself, or nothing. `summed`: the options of a reduction."""
    what = f"{str(tensor.dtype).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)}"
    if tensor.layout != torch.strided:
        return f"a {tensor.layout} tensor: NCCL moves dense ones only"
    if tensor.dtype not in DTYPES:
        return f"a {what}: NCCL does not know this dtype"
    if summed is not None and (tensor.dtype in FP8 or any(summed.reduceOp == bitwise for bitwise in BITWISE)):
        return f"a {what}: NCCL does not reduce this dtype, or not by this operation"
    if tensor.is_conj() or tensor.is_neg():
        return f"a {what}, lazily conjugated or negated: NCCL moves memory as it is"
    if contiguous and not tensor.is_contiguous():
        return f"a non-contiguous {what}, strides {tensor.stride()}: NCCL moves memory as it is"
    return ""


def _misfit(tensor: Tensor, numel: int, dtype: torch.dtype) -> str:
    """What is wrong with a tensor's place beside the others of its call, or nothing."""
    fits = tensor.numel() == numel and tensor.dtype == dtype
    return "" if fits else f"{tensor.numel()} elements of {tensor.dtype} where {numel} of {dtype} have their place"


def _as_bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory."""
    return tensor.view(-1).view(torch.uint8)
