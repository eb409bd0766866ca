# SPDX-License-Identifier: MIT
"""One case on one rank: the call as a user writes it, and what came of it.

`start` loads a subject, once in a process; then `play` plays one case after the other.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ranks.oracle import values
from ..ranks.rank import join_group, place
from . import cases, truth
from .cases import Case, carries_gradient
from .load import Description, Loaded, Subject, kind_of, load
from .observed import Observation, Raised, as_data

OUT_OF_RANGE = 3  # a dim that the inputs do not have
GUARD = -77.0  # lies behind the one number of an expanded gradient, and must lie there afterwards
ADDED = "all_reduce_grads"  # every adapter takes it, beyond what its original takes
_loaded: Loaded | None = None


def start(subject: Subject, join: bool) -> Description:
    """Load a subject, and then enter the process group unless that is left to a case."""
    global _loaded
    warnings.simplefilter("ignore")
    _loaded = load(subject)
    if join:
        join_group()
    return _loaded.describe()


def play(case: Case) -> Observation:
    """What this rank observes; whatever is raised is part of it."""
    assert _loaded is not None
    _loaded.builtins.used.clear()
    performance = _Performance(case, place().rank, _loaded.module)
    raised = None
    try:
        performance.perform()
    except BaseException as error:  # SystemExit too: the old code is what is looked at
        raised = Raised(performance.step, *in_names(error))
    not_defined = _loaded.builtins.used | _loaded.builtins.used_at_import
    return Observation(performance.parts, raised, tuple(sorted(not_defined)))


def in_names(error: BaseException) -> tuple[tuple[str, ...], str]:
    """An exception without its class object, which the parent may not have."""
    return tuple(base.__name__ for base in type(error).__mro__ if base is not object), str(error)


class _Performance:
    """One case, with the parts observed so far."""

    def __init__(self, case: Case, rank: int, module: Any) -> None:
        self.case, self.rank = case, rank
        self.subject = getattr(module, case.function)
        self.parts: dict[str, Any] = {}
        self.step = "the call"

    def perform(self) -> None:
        case = self.case
        if case.variant == cases.SIGNATURE:
            self.parts["signature"] = as_data(signature(self.subject, case))
        elif case.late:
            self._perform_late()
        elif case.function in cases.VALUES:
            self.parts["result"] = as_data(self.subject(*self._plain_arguments()))
        elif case.function == "get_is_distributed":
            self.parts["result"] = as_data([self.subject(), self.subject(), callable(self.subject.cache_clear)])
        elif case.function == "split_by_rank":
            self._note(self.subject(self._everyones_input()))
        else:
            self._perform_on_a_tensor()

    def _perform_on_a_tensor(self) -> None:
        x = self._input()
        before = x.detach().clone()
        result = self._calling()(x)
        self._note(result, x)
        self.parts[truth.INPUT] = as_data(_kept(x, before))
        y = result[0] if isinstance(result, tuple) else result
        if self.case.upstream != "none" and y.requires_grad:
            self.step = "the backward"
            self._differentiate(x, y)

    def _perform_late(self) -> None:
        """The same call before and after the process group came up; a module is built before."""
        case = self.case
        if case.function == "get_is_distributed":
            self.parts["before"] = as_data(self.subject())
            join_group()
            self.parts["after"] = as_data(self.subject())
            self.subject.cache_clear()
            self.parts["after cache_clear"] = as_data(self.subject())
            return
        call = self._calling()  # builds the module
        for moment in ("before", "after"):
            try:
                result = call(self._input())
                self.parts[moment] = as_data(result)
            except Exception as error:  # the other moment is observed as well
                self.parts[moment] = as_data(in_names(error)[0][0])
            if moment == "before":
                join_group()
        self.parts["called anew"] = as_data(self._calling()(self._input()))

    def _note(self, result: Any, x: Tensor | None = None) -> None:
        """Note what a call returned: a tensor and sizes are two parts, anything else is one."""
        if isinstance(result, tuple) and len(result) == 2:
            self.parts["output"], self.parts["sizes"] = map(as_data, result)
        else:
            self.parts["result"] = as_data(result)
        tensors = result if isinstance(result, list | tuple) else [result]
        self.parts["requires grad"] = as_data([isinstance(t, Tensor) and t.requires_grad for t in tensors])
        self.parts["is the input itself"] = as_data([t is x for t in tensors])

    def _differentiate(self, x: Tensor, y: Tensor) -> None:
        case = self.case
        arriving = truth.arriving_at(case, self.rank, y.shape)
        if case.upstream == "total":
            y.sum().backward()
        elif case.upstream == "second":
            (first,) = torch.autograd.grad((arriving * y * y).sum(), x, create_graph=True)
            self.parts[truth.GRADIENT] = as_data(first)
            along = truth.direction(self.rank, x.shape, case.dtype)
            self.parts[truth.SECOND] = as_data(torch.autograd.grad((first * along).sum(), x)[0])
            return
        else:
            memory = torch.full((max(y.numel(), 1),), GUARD, dtype=y.dtype)
            if case.upstream == "expanded":
                memory[:1] = arriving.flatten()[:1]
                arriving = memory[:1].view((1,) * y.ndim).expand(y.shape)
            else:
                if case.upstream == "transposed":
                    arriving = transposed(arriving)
                memory = arriving
            before = memory.clone()
            y.backward(arriving)
            self.parts[truth.UPSTREAM] = as_data(_kept(memory, before))
        self.parts[truth.GRADIENT] = as_data(x.grad)

    def _input(self) -> Tensor:
        case, rank = self.case, self.rank
        odd_one_out = rank == case.world - 1
        shape = case.shape(case.sizes[rank]) if case.sizes else ()
        dtype = case.dtype
        if case.variant == cases.OTHER_DTYPE and odd_one_out:
            dtype = "float64"
        elif case.variant == cases.OTHER_SHAPE and odd_one_out:
            shape = (*shape[:-1], shape[-1] + 1)
        elif case.variant == cases.OTHER_NDIM and odd_one_out:
            shape = (*shape, 1)
        elif case.variant == "ranks differ in all else":
            shape, dtype = (*shape[:1], *[rank + 1] * rank), ("float32", "int64", "bool")[rank % 3]
        x = values(rank, shape, dtype)
        if case.strided:
            x = transposed(x)
        needs = case.upstream != "none" and (case.variant != cases.ONE_NEEDS_GRADIENT or rank == 0)
        return x.requires_grad_(needs or case.variant == "input that requires grad")

    def _everyones_input(self) -> Any:
        case = self.case
        parts = [values(rank, case.shape(size), case.dtype) for rank, size in enumerate(case.sizes)]
        return torch.stack(parts) if case.variant == "tensor" else (list if case.variant == "list" else tuple)(parts)

    def _plain_arguments(self) -> tuple[Any, ...]:
        arguments = cases.VALUES[self.case.function][self.case.variant]
        return tuple(map(torch.tensor, arguments)) if self.case.function == "has_only_one_value" else arguments

    def _calling(self) -> Callable[[Tensor], Any]:
        """The call, as a function of its input. A module is built here."""
        case, subject = self.case, self.subject
        is_bad = case.variant == cases.BAD_DIM or (case.variant == cases.ONE_BAD_DIM and self.rank == case.world - 1)
        dim = OUT_OF_RANGE if is_bad else case.dim
        sizes = {"no": None, "tensor": torch.tensor(case.sizes), "list": list(case.sizes)}[case.given]
        if case.function == "all_gather_same_dim":
            return lambda x: subject(x)
        if case.function == "gather_sizes":
            return lambda x: subject(x, dim=dim)
        if case.function == "pad_dim_to":
            return lambda x: subject(x, case.length, dim=dim)
        if case.kind in ("module", "summing module"):
            self.step = "building the module"
            module = subject(dim=dim, **({"all_reduce_grads": True} if case.summed else {}))
            self.step = "the call"
            attributes = {name: value for name, value in vars(module).items() if name not in _ignored(case)}
            public = [f"{name}={value}" for name, value in sorted(attributes.items()) if not name.startswith("_")]
            self.parts["attributes"] = as_data(public)
            return self._with_sizes(module, sizes)
        if case.kind == "callable" and not carries_gradient(case.function):
            if case.style == "keywords":
                return self._with_sizes(lambda x, **named: subject(x, dim=dim, **named), sizes)
            return self._with_sizes(lambda x, *more: subject(x, *([dim] if more else []), *more), sizes)
        apply = subject if case.kind == "callable" else subject.apply
        return lambda x: apply(x, dim, sizes, *([case.summed] if case.kind == "summing function" else []))

    def _with_sizes(self, call: Callable[..., Any], sizes: Any) -> Callable[[Tensor], Any]:
        style = self.case.style
        if style == "defaults":
            return lambda x: call(x)
        return (lambda x: call(x, sizes=sizes)) if style == "keywords" else (lambda x: call(x, sizes))


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
    kind, ignored = kind_of(value), _ignored(case)
    if kind in ("function", "summing function"):
        return [f"Function of {len(_parameters(value.forward, ignored)) - 1} arguments"]
    if kind in ("module", "summing module"):
        return ["module", _bare(value.__init__, ignored), _bare(value.forward, ignored)]
    if carries_gradient(case.function):  # `AllGather.apply`, or a function around it
        function = getattr(value, "__self__", None)
        count = len(_parameters(value if function is None else function.forward, ignored))
        return [f"{count if function is None else count - 1} arguments"]
    return [_bare(value, ignored)]


def _parameters(function: Any, ignored: tuple[str, ...]) -> list[inspect.Parameter]:
    found = inspect.signature(function).parameters.values()
    return [parameter.replace(annotation=parameter.empty) for parameter in found if parameter.name not in ignored]


def _bare(function: Any, ignored: tuple[str, ...]) -> str:
    return str(inspect.Signature(_parameters(function, ignored)))
