# SPDX-License-Identifier: MIT
"""One case on one rank: the call, and what came of it.

`start` loads a file, once in a process; then `play` plays one case after the other.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..ranks.rank import join_group, place
from .cases import Case
from .load import ADDED, Builtins, Description, kind_of, load
from .truth import INPUT, as_text, gradients, inputs, kept, needs_gradient, transposed

_loaded: tuple[ModuleType, Builtins] | None = None


class Raised(NamedTuple):
    """An exception: what was being done, the names of its class and of all that this one is made from, its words."""

    step: str
    bases: tuple[str, ...]
    message: str

    @property
    def name(self) -> str:
        """Its class."""
        return self.bases[0]


class Observation(NamedTuple):
    """What one rank observed of one case: named parts, up to where something was raised."""

    parts: Mapping[str, str]
    raised: Raised | None = None
    not_defined: tuple[str, ...] = ()  # names used that the file does not define: without us, a NameError


def start(path: str, join: bool) -> Description:
    """Load a file, and then enter the process group unless that is left to a case."""
    global _loaded
    warnings.simplefilter("ignore")
    module, given, description = load(path)
    _loaded = module, given
    if join:
        join_group()
    return description


def play(case: Case) -> Observation:
    """What this rank observes; whatever is raised is part of it."""
    assert _loaded is not None
    module, given = _loaded
    given.used.clear()
    parts: dict[str, str] = {}
    raised = None
    try:
        for part, value in _observed(case, getattr(module, case.function), place().rank):
            parts[part] = as_text(value)
    except BaseException as error:  # SystemExit too: the old code is what is looked at
        is_built = "attributes" in parts or "module" not in case.kind
        step = "the backward" if INPUT in parts else "the call" if is_built else "building the module"
        raised = Raised(step, _bases(error), str(error))
    return Observation(parts, raised, tuple(sorted(given.used | given.used_at_import)))


def _bases(error: BaseException) -> tuple[str, ...]:
    """The names of its classes, as the parent may not have the classes."""
    return tuple(base.__name__ for base in type(error).__mro__ if base is not object)


def _observed(case: Case, subject: Any, rank: int) -> Iterator[tuple[str, object]]:
    if not case.call:
        yield "signature", signature(subject, case)
        return
    names = {case.function: subject, "torch": torch, "rank": rank, "is_last": rank == case.world - 1}
    names["parts"] = inputs(case)
    x = names["x"] = _input(case, rank)
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
            yield moment, _bases(error)[0]
        if moment == "before":
            join_group()
    names["gather"] = eval(case.build or "None", names)
    yield "called anew", eval(case.call, names)


def _input(case: Case, rank: int) -> Tensor:
    x = inputs(case)[rank]
    x = transposed(x) if case.strided else x
    return x.requires_grad_(needs_gradient(case, rank))


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
