# SPDX-License-Identifier: MIT
"""One case on one rank: the call as a user writes it, and what came of it.

`start` loads a file, once in a process; then `play` plays one case after the other.
"""

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..ranks.oracle import values
from ..ranks.rank import join_group, place
from . import cases, truth
from .cases import Case
from .load import ADDED, Description, Loaded, kind_of, load
from .observed import Observation, Raised, as_text

OUT_OF_RANGE = 3  # a dim that the inputs do not have
GUARD = -77.0  # lies behind the one number of an expanded gradient, and must lie there afterwards
_loaded: Loaded | None = None


def start(path: str, join: bool) -> Description:
    """Load a file, and then enter the process group unless that is left to a case."""
    global _loaded
    warnings.simplefilter("ignore")
    _loaded = load(path)
    if join:
        join_group()
    return _loaded.description


def play(case: Case) -> Observation:
    """What this rank observes; whatever is raised is part of it."""
    assert _loaded is not None
    _loaded.builtins.used.clear()
    performance = _Performance(case, place().rank, getattr(_loaded.module, case.function))
    raised = None
    try:
        performance.perform()
    except BaseException as error:  # SystemExit too: the old code is what is looked at
        raised = Raised(performance.step, _bases(error), str(error))
    not_defined = _loaded.builtins.used | _loaded.builtins.used_at_import
    return Observation(performance.parts, raised, tuple(sorted(not_defined)))


def _bases(error: BaseException) -> tuple[str, ...]:
    """The names of its classes, as the parent may not have the classes."""
    return tuple(base.__name__ for base in type(error).__mro__ if base is not object)


class _Performance:
    """One case, with the parts observed so far."""

    def __init__(self, case: Case, rank: int, subject: Any) -> None:
        self.case, self.rank, self.subject = case, rank, subject
        self.is_last = rank == case.world - 1  # the one that differs where one does
        self.parts: dict[str, str] = {}
        self.step = "the call"

    def perform(self) -> None:
        case, subject = self.case, self.subject
        if case.variant == cases.SIGNATURE:
            self.parts["signature"] = as_text(signature(subject, case))
        elif case.late:
            self._perform_late()
        elif case.function in cases.VALUES:
            arguments = cases.VALUES[case.function][case.variant]
            is_of_tensors = case.function == "has_only_one_value"
            self.parts["result"] = as_text(subject(*(map(torch.tensor, arguments) if is_of_tensors else arguments)))
        elif case.function == "get_is_distributed":
            self.parts["result"] = as_text([subject(), subject(), callable(subject.cache_clear)])
        elif case.function == "split_by_rank":
            parts = [values(rank, case.shape(size), case.dtype) for rank, size in enumerate(case.sizes)]
            containers: dict[str, Callable[..., Any]] = {"tensor": torch.stack, "list": list}
            self._note(subject(containers.get(case.variant, tuple)(parts)))
        else:
            self._perform_on_a_tensor()

    def _perform_on_a_tensor(self) -> None:
        x = self._input()
        before = x.detach().clone()
        result = self._call()(x)
        self._note(result, x)
        self.parts[truth.INPUT] = _kept(x, before)
        y = result[0] if isinstance(result, tuple) else result
        if self.case.upstream != "none" and y.requires_grad:
            self.step = "the backward"
            self._differentiate(x, y)

    def _perform_late(self) -> None:
        """The same call before and after the process group came up; a module is built before."""
        call = self._call()
        for moment in ("before", "after"):
            try:
                self.parts[moment] = as_text(call(self._input()))
            except Exception as error:  # the other moment is observed as well
                self.parts[moment] = _bases(error)[0]
            if moment == "before":
                join_group()
        self.parts["called anew"] = as_text(self._call()(self._input()))

    def _note(self, result: Any, x: Tensor | None = None) -> None:
        """Note what a call returned: a tensor and sizes are two parts, anything else is one."""
        if isinstance(result, tuple) and len(result) == 2:
            self.parts["output"], self.parts["sizes"] = map(as_text, result)
        else:
            self.parts["result"] = as_text(result)
        tensors = result if isinstance(result, list | tuple) else [result]
        self.parts["requires grad"] = as_text([isinstance(t, Tensor) and t.requires_grad for t in tensors])
        self.parts["is the input itself"] = as_text([t is x for t in tensors])

    def _differentiate(self, x: Tensor, y: Tensor) -> None:
        case = self.case
        arriving = truth.arriving_at(case, self.rank, y.shape)
        if case.upstream == "second":
            (first,) = torch.autograd.grad((arriving * y * y).sum(), x, create_graph=True)
            self.parts[truth.GRADIENT] = as_text(first)
            along = truth.direction(self.rank, x.shape, case.dtype)
            self.parts[truth.SECOND] = as_text(torch.autograd.grad((first * along).sum(), x)[0])
            return
        if case.upstream == "total":
            y.sum().backward()
        else:
            memory = arriving = transposed(arriving) if case.upstream == "transposed" else arriving
            if case.upstream == "expanded":
                memory = torch.full((max(y.numel(), 1),), GUARD, dtype=y.dtype)
                memory[:1] = arriving.flatten()[:1]
                arriving = memory[:1].view((1,) * y.ndim).expand(y.shape)
            before = memory.clone()
            y.backward(arriving)
            self.parts[truth.UPSTREAM] = _kept(memory, before)
        self.parts[truth.GRADIENT] = as_text(x.grad)

    def _input(self) -> Tensor:
        case, rank = self.case, self.rank
        shape = case.shape(case.sizes[rank]) if case.sizes else ()
        dtype = case.dtype
        if case.variant == cases.ALL_DIFFERENT:
            shape, dtype = (*shape[:1], *[rank + 1] * rank), ("float32", "int64", "bool")[rank % 3]
        elif self.is_last:
            dtype = "float64" if case.variant == cases.OTHER_DTYPE else dtype
            shape = (*shape[:-1], shape[-1] + 1) if case.variant == cases.OTHER_SHAPE else shape
            shape = (*shape, 1) if case.variant == cases.OTHER_NDIM else shape
        x = values(rank, shape, dtype)
        x = transposed(x) if case.strided else x
        needs = case.upstream != "none" and (case.variant != cases.ONE_NEEDS_GRADIENT or rank == 0)
        return x.requires_grad_(needs or case.variant == cases.REQUIRES_GRAD)

    def _call(self) -> Callable[[Tensor], Any]:
        """The call, as a function of its input. A module is built here."""
        case, subject = self.case, self.subject
        is_bad = case.variant == cases.BAD_DIM or (case.variant == cases.ONE_BAD_DIM and self.is_last)
        dim = OUT_OF_RANGE if is_bad else case.dim
        sizes = {"no": None, "tensor": torch.tensor(case.sizes), "list": list(case.sizes)}[case.given]
        if case.function == "all_gather_same_dim":
            return partial(subject)
        if case.function == "gather_sizes":
            return partial(subject, dim=dim)
        if case.function == "pad_dim_to":
            return lambda x: subject(x, case.length, dim=dim)
        if case.function == "get_is_distributed":
            subject.cache_clear()
            return lambda _: subject()
        arguments = {"dim": dim, "sizes": sizes}
        if "module" in case.kind:
            subject = self._built(arguments.pop("dim"))
        elif case.has_backward:  # `apply` takes no keywords
            apply = subject if case.kind == "callable" else subject.apply
            more = [case.summed] if case.kind == "summing function" else []
            return lambda x: apply(x, dim, sizes, *more)
        if case.style == "keywords":
            return partial(subject, **arguments)
        return lambda x: subject(x, *(arguments.values() if case.style == "positional" else ()))

    def _built(self, dim: Any) -> Any:
        """The module; its attributes are noted."""
        self.step = "building the module"
        module = self.subject(dim=dim, **({ADDED: True} if self.case.summed else {}))
        self.step = "the call"
        names = sorted(name for name in vars(module) if not name.startswith("_") and name not in _ignored(self.case))
        self.parts["attributes"] = as_text([f"{name}={getattr(module, name)}" for name in names])
        return module


def _kept(memory: Tensor, before: Tensor) -> str:
    return truth.KEPT if torch.equal(memory, before) else truth.OVERWRITTEN


def transposed(x: Tensor) -> Tensor:
    """The same values in the opposite order in memory."""
    backwards = tuple(reversed(range(x.ndim)))
    return x.permute(backwards).contiguous().permute(backwards)


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
