# SPDX-License-Identifier: MIT
"""One case: what a rank observes of it, and what it should observe, computed in one process.

Both are named parts, as text that can be sent, compared and shown.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..ranks.oracle import numbers, upstream, values
from ..ranks.rank import join_group, place
from .cases import Case
from .load import ADDED, kind_of, load

GRADIENT, SECOND, INPUT, UPSTREAM = "gradient", "second derivative", "input", "upstream gradient"
KEPT, OVERWRITTEN = "left alone", "overwritten"  # of the last two
GUARD = -77.0  # lies behind the one number of an expanded gradient, and must lie there afterwards


class Observation(NamedTuple):
    """What one rank observed of one case: named parts, up to where something was raised.

    raised:       the names of an exception's class and its bases, each with the step, as in "ValueError in the call"
    message:      the exception's; or what is known about a hang
    not_defined:  names that the file uses and does not define: without us, a NameError
    broken:       how the ranks ended if not all of them answered ("hung", "crashed …"); the same on every rank
    """

    parts: dict[str, str]
    raised: tuple[str, ...] = ()
    message: str = ""
    not_defined: tuple[str, ...] = ()
    broken: str = ""


def play(file: str, case: Case) -> Observation:
    """What this rank observes with a file; whatever is raised is part of it. Runs on ranks only."""
    module = load(file)
    given = vars(module)["__builtins__"]
    given.used = set(given.used_at_import)
    parts: dict[str, str] = {}
    try:
        for part, value in _observed(case, getattr(module, case.function), place().rank):
            parts[part] = as_text(value)
    except BaseException as error:  # SystemExit too: the old code is what is looked at
        is_built = "attributes" in parts or "module" not in case.kind
        step = "the backward" if INPUT in parts else "the call" if is_built else "building the module"
        raised = tuple(f"{base.__name__} in {step}" for base in type(error).__mro__[:-1])
        return Observation(parts, raised, str(error), tuple(sorted(given.used)))
    return Observation(parts, not_defined=tuple(sorted(given.used)))


def _observed(case: Case, subject: Any, rank: int) -> Iterator[tuple[str, object]]:
    if not case.call:
        yield "signature", signature(subject, case)
        return
    names = {case.function: subject, "torch": torch, "rank": rank, "is_last": rank == case.world - 1}
    names["parts"] = inputs(case)
    mine = inputs(case)[rank]
    x = names["x"] = (transposed(mine) if case.strided else mine).requires_grad_(needs_gradient(case, rank))
    if case.build:
        module = names["gather"] = eval(case.build, names)
        if isinstance(module, nn.Module):
            public = sorted(name for name in vars(module) if name not in _ignored(case) and name[0] != "_")
            yield "attributes", [f"{name}={getattr(module, name)}" for name in public]
    if case.late:
        yield from _before_and_after(case, names)
        return
    before = x.detach().clone()
    result = eval(case.call, names)
    is_pair = isinstance(result, tuple) and len(result) == 2
    yield from zip(("output", "sizes"), result, strict=True) if is_pair else [("result", result)]
    tensors = result if isinstance(result, list | tuple) else [result]
    yield "requires grad", [isinstance(t, Tensor) and t.requires_grad for t in tensors]
    yield "is the input itself", [t is x for t in tensors]
    yield INPUT, kept(x, before)
    y = result[0] if isinstance(result, tuple) else result
    if case.upstream != "none" and isinstance(y, Tensor) and y.requires_grad:
        yield from gradients(case, rank, x, y, [rank])


def _before_and_after(case: Case, names: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """The same call before and after the process group came up; a module was built before, and is built anew."""
    for moment in ("before", "after"):
        try:
            yield moment, eval(case.call, names)
        except Exception as error:  # the other moment is observed as well
            yield moment, type(error).__name__
        if moment == "before":
            join_group()
    names["gather"] = eval(case.build or "None", names)
    yield "called anew", eval(case.call, names)


def _ignored(case: Case) -> tuple[str, ...]:
    """Parameters that do not count: what the adapter has beyond an original without it."""
    return () if "summing" in case.kind else (ADDED,)


def signature(value: Any, case: Case) -> list[str]:
    """How a public name is called, without annotations. `apply` has no names: of it, how many arguments it takes."""

    def parameters(function: Any) -> list[inspect.Parameter]:
        found = inspect.signature(function).parameters.values()
        return [one.replace(annotation=one.empty) for one in found if one.name not in _ignored(case)]

    kind = kind_of(value).removeprefix("summing ")
    if kind == "module":
        return [kind, *(str(inspect.Signature(parameters(one))) for one in (value.__init__, value.forward))]
    if case.has_backward:  # a Function, its `apply`, or a function around that
        owner = value if kind == "function" else getattr(value, "__self__", None)
        count = len(parameters(value)) if owner is None else len(parameters(owner.forward)) - 1
        return [f"{kind} of {count} arguments"]
    return [str(inspect.Signature(parameters(value)))]


def truth(case: Case, rank: int, alone: str) -> dict[str, str] | None:
    """The right answer, part by part as a rank observes it; None where there is none, or it is an exception.

    alone: what the adapter's contract has for a gather without other ranks: "input", "gathers" or "raises".
    """
    returns_input = case.depends_on_adapter and alone == "input"
    raises = case.raises or (case.depends_on_adapter and alone == "raises")
    if raises or case.late or not case.sizes or not (case.world or returns_input):
        return None
    everyone, sizes = inputs(case), torch.tensor(case.sizes, dtype=torch.long)
    right: dict[str, object]
    if case.gathers:
        right = {"output": torch.cat(everyone, case.dim), "sizes": None if returns_input else sizes, INPUT: KEPT}
        if needs_gradient(case, rank):
            x = everyone[rank].requires_grad_()
            ranks = range(len(case.sizes)) if case.summed else [rank]
            right |= dict(gradients(case, rank, x, torch.cat(everyone, case.dim), ranks))
    elif case.function == "all_gather_same_dim":
        right = {"result": everyone, INPUT: KEPT}
    elif case.function == "gather_sizes":
        right = {"result": sizes, INPUT: KEPT}
    elif case.call == "split_by_rank(tuple(parts))":
        right = {"output": everyone[rank], "sizes": sizes}
    else:
        return None
    return {part: as_text(value) for part, value in right.items()}


def inputs(case: Case) -> list[Tensor]:
    """Every rank's input: `(… n_r …)`, or 0-d where the case has no sizes."""
    along = case.dim % len(case.other)
    shapes = [[*case.other[:along], size, *case.other[along + 1 :]] for size in case.sizes]
    return [values(rank, shape, case.dtype) for rank, shape in enumerate(shapes or [[]] * max(case.world, 1))]


def needs_gradient(case: Case, rank: int) -> bool:
    """Whether a rank's input requires grad."""
    return case.upstream != "none" and (case.upstream != "rank 0" or rank == 0)


def gradients(case: Case, rank: int, x: Tensor, y: Tensor, ranks: Sequence[int]) -> Iterator[tuple[str, object]]:
    """What a rank's input gets, where the losses of `ranks` arrive at the gathered tensor: `(… n_r …)`."""
    arriving = memory = torch.stack([upstream(r, y.shape, case.dtype) for r in ranks]).sum(0)
    if case.upstream == "second":
        (first,) = torch.autograd.grad((arriving * y * y).sum(), x, create_graph=True)
        yield GRADIENT, first
        along = numbers(rank, 2, 5, x.shape, case.dtype, shift=-1)  # whole numbers from 1 to 5
        yield SECOND, torch.autograd.grad((first * along).sum(), x)[0]
        return
    if case.upstream == "total":
        (len(ranks) * y.sum()).backward()
    else:
        if case.upstream == "transposed":
            arriving = memory = transposed(arriving)
        elif case.upstream == "expanded":
            memory = torch.full((y.numel(),), GUARD, dtype=y.dtype)
            memory[0] = sum(r + 2 for r in ranks)
            arriving = memory[:1].view((1,) * y.ndim).expand(y.shape)
        before = memory.clone()
        y.backward(arriving)
        yield UPSTREAM, kept(memory, before)
    yield GRADIENT, x.grad


def transposed(x: Tensor) -> Tensor:
    """The same values in the opposite order in memory."""
    backwards = tuple(reversed(range(x.ndim)))
    return x.permute(backwards).contiguous().permute(backwards)


def kept(memory: Tensor, before: Tensor) -> str:
    """Whether somebody's memory is as it was."""
    return KEPT if torch.equal(memory, before) else OVERWRITTEN


def as_text(value: object) -> str:
    """A value in full: two texts are equal if the values are, to the last bit. A list is no tuple."""
    if isinstance(value, Tensor):
        numbers = " ".join(map(str, value.detach().flatten().tolist()))
        return f"{str(value.dtype).removeprefix('torch.')} tensor {tuple(value.shape)}: {numbers}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {', '.join(map(as_text, value)) or 'nothing'}"
    if value is None or isinstance(value, str):
        return str(value)
    return f"{type(value).__name__} {value if isinstance(value, bool | int | float) else '…'}"
