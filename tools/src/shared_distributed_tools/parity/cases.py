# SPDX-License-Identifier: MIT
"""What is compared: calls of every function that both files have, written as a user writes them.

In a call `x` is the rank's input, `gather` a module that was built before, `parts` every rank's input, and `rank` and
`is_last` tell the ranks apart.

world W · rank r · n_r rows of rank r along dim
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Literal

from ..ranks.oracle import covering

Kind = Literal["module", "summing module", "function", "summing function", "callable"]
# what arrives at the gathered tensor: nothing; a number for each rank and place; the same in a transposed tensor; one
# number for all places, by a stride of zero; what `y.sum().backward()` sends; a loss to be differentiated twice; or
# the second of these, where only the input of rank 0 needs a gradient
Upstream = Literal["none", "ranked", "transposed", "expanded", "total", "second", "rank 0"]

DIMS = (0, 1, 2, -1, -2)
OUT_OF_RANGE = 3  # a dim that no input has
DTYPES = ("float32", "float64", "bfloat16", "int64", "bool")
FLOATING = ("float32", "float64", "bfloat16")
OTHER_DIMS = (2, 3, 4)  # a rank's shape, but for the gathered dim
LONG_ROW = 4096  # numbers a row where a write outside a tensor should reach something that matters

# the last rank's input in another shape, dtype and number of dims
DISAGREEING = tuple(f"{other} if is_last else x" for other in ("torch.cat([x, x], -1)", "x.double()", "x[..., None]"))
NEEDS_GRADIENT = "x.requires_grad_()"
QUESTIONS = ("get_is_distributed", "is_distributed", "get_rank", "get_world_size")  # about the process group
# what functions are called with where there is no group; first helpers that know nothing of ranks
ARGUMENTS = {
    "exists": ("None", "0", "[]"),
    "default": ("None, 5", "0, 5", "None, None"),
    "divisible_by": ("6, 3", "7, 3", "0, 3", "1, 0"),
    "has_only_one_value": tuple(
        f"torch.tensor({value})"
        for value in ("[2, 2, 2]", "[2, 3, 2]", "[4]", "[]", "[[1, 2], [1, 2]]", "[float('nan')] * 2")
    ),
    "pad_dim_to": tuple(
        f"{x}, {length}, dim={dim}" for length, dim, x in product((5, 2, 0), DIMS, ("x", "x.detach().long()"))
    ),
    "all_gather_same_dim": ("x",),
    "gather_sizes": ("x, dim=0",),
    "split_by_rank": ("tuple(parts)",),
    **dict.fromkeys(QUESTIONS, ("",)),
}


@dataclass(frozen=True)
class Case:
    """One call, the same on every rank but for the rank's own size. World 0: one process, no process group."""

    function: str
    kind: Kind
    world: int
    call: str = ""  # none: the signature is compared
    build: str = ""  # evaluated first: a module
    sizes: tuple[int, ...] = ()
    dim: int = 0
    dtype: str = "float32"
    strided: bool = False  # the input is transposed in memory
    upstream: Upstream = "none"
    summed: bool = False  # all_reduce_grads
    other: tuple[int, ...] = OTHER_DIMS
    late: bool = False  # the process group comes up between two calls
    raises: bool = False  # every rank has to raise

    @property
    def has_backward(self) -> bool:
        """Whether it is of a gather with a gradient."""
        return self.function in ("AllGather", "AllGatherFunction", "all_gather")

    @property
    def gathers(self) -> bool:
        """Whether it is of a ragged gather."""
        return self.has_backward or self.function == "all_gather_variable_dim"

    @property
    def alone(self) -> bool:
        """Whether it gets fresh ranks: it begins without a group, or may leave ranks, or memory, in disorder."""
        return self.late or self.raises or self.upstream in ("total", "rank 0")

    @property
    def depends_on_adapter(self) -> bool:
        """Whether adapters differ in what is right: alone they gather, return the input, or refuse."""
        return self.world <= 1 and self.function in ("AllGather", "all_gather") and bool(self.sizes)

    @property
    def title(self) -> str:
        """The case in words: where, the call, and whatever else is not as usual."""
        where = f"{self.world} rank{'s' if self.world > 1 else ''}" if self.world else "no process group"
        call = f"gather = {self.build}; {self.call}" if self.build else self.call or "signature"
        values = [(field, getattr(self, field.name)) for field in fields(self)[5:]]
        return ", ".join([where, call, *(f"{field.name}={value}" for field, value in values if value != field.default)])


def generate(api: Mapping[str, Kind], worlds: Sequence[int]) -> list[Case]:
    """Every case for the functions of `api`, world by world; first what needs no process group."""
    cases: list[Case] = []
    smallest = min((world for world in worlds if world > 1), default=None)
    for world, (function, kind) in product((0, *sorted(set(worlds))), api.items()):
        bare = Case(function, kind, world)
        cases += _in_a_group(bare, _sizes(world)) if world else _without_a_group(bare)
        if world == smallest:  # whoever waits for a rank that raised costs seconds: once is enough
            cases += _in_trouble(replace(bare, sizes=(2,) * world, raises=True))
    return list(dict.fromkeys(cases))  # `apply` has one way to be called where functions have three


def _without_a_group(bare: Case) -> Iterator[Case]:
    yield bare
    one = replace(bare, sizes=(3,), upstream="ranked")
    if bare.gathers:
        yield gather_call(one)
        yield gather_call(replace(one, strided=True), given="tensor")
        if "summing" in bare.kind:
            yield gather_call(replace(one, summed=True))
    for arguments in ARGUMENTS.get(bare.function, ()):
        yield called(one if "x" in arguments or "parts" in arguments else bare, arguments)


def _in_a_group(bare: Case, sizes: list[tuple[int, ...]]) -> Iterator[Case]:
    if bare.gathers:
        yield from _gather_cases(bare, sizes)
    elif bare.function == "all_gather_same_dim":
        for dtype, strided, size in product(DTYPES, (False, True), (3, 0)):
            yield called(replace(bare, sizes=(size,) * bare.world, dtype=dtype, strided=strided), "x")
        yield called(bare, "x")  # 0-d
        yield called(bare, NEEDS_GRADIENT)
    elif bare.function == "gather_sizes":
        for each, dim in product(sizes, DIMS):
            yield called(replace(bare, sizes=each, dim=dim), f"x, dim={dim}")
        yield called(
            replace(bare, sizes=sizes[-2]), "x.to((torch.float32, torch.bool)[rank % 2])[(..., *[None] * rank)], dim=0"
        )
    elif bare.function == "split_by_rank":
        for each, dtype, container in product(sizes, ("float32", "int64"), ("tuple", "list")):
            yield called(replace(bare, sizes=each, dtype=dtype), f"{container}(parts)")
        for size in (3, 0):
            yield called(replace(bare, sizes=(size,) * bare.world), "torch.stack(parts)")
    elif bare.function in QUESTIONS:
        yield called(bare, "")
        if bare.world > 1:  # some remember their answer
            forget = f"getattr({bare.function}, 'cache_clear', list)()"
            yield replace(called(bare, ""), late=True, build=forget)


def _gather_cases(bare: Case, sizes: list[tuple[int, ...]]) -> Iterator[Case]:
    ways = (False, True) if "summing" in bare.kind else (False,)
    for each, dim, dtype, given, strided, summed in covering(
        (sizes, DIMS, DTYPES, ("no", "tensor"), (False, True), ways), 3
    ):
        upstream: Upstream = "ranked" if bare.has_backward and dtype in FLOATING else "none"
        here = replace(bare, sizes=each, dim=dim, dtype=dtype, upstream=upstream)
        yield gather_call(replace(here, strided=strided, summed=summed), given)

    ragged = sizes[1] if bare.world > 1 else sizes[0]  # alone nothing is ragged, and the next would be empty
    base = replace(bare, sizes=ragged, upstream="ranked" if bare.has_backward else "none")
    for each in sizes if bare.world > 1 else ():
        yield gather_call(replace(base, sizes=each, dim=-1), given="list")
    yield gather_call(replace(base, other=(1,)))
    yield gather_call(replace(base, other=(2, 3, 1, 4), dim=2))
    yield gather_call(base, style="defaults")
    if "function" not in bare.kind:  # `apply` takes no keywords
        yield gather_call(replace(base, dim=1), given="tensor", style="positional")
    if not bare.has_backward:
        yield gather_call(base, x=NEEDS_GRADIENT)
        return
    unusual: tuple[Upstream, ...] = ("transposed", "expanded", "second")
    for upstream, dim, summed in product(unusual, (0, 1, -1), ways):
        yield gather_call(replace(base, upstream=upstream, dim=dim, summed=summed))
    for summed in ways:
        yield gather_call(replace(base, upstream="total", other=(1, LONG_ROW), summed=summed))
    if bare.world > 1:
        yield gather_call(replace(base, upstream="none", late=True))


def _in_trouble(bare: Case) -> Iterator[Case]:
    if bare.gathers:
        yield from (gather_call(bare, dim=dim) for dim in (f"{OUT_OF_RANGE}", f"{OUT_OF_RANGE} if is_last else 0"))
        yield from (gather_call(bare, x=x) for x in DISAGREEING)
    elif bare.function == "all_gather_same_dim":
        yield from (called(bare, x) for x in DISAGREEING)
    elif bare.function == "gather_sizes":
        yield called(bare, f"x, dim={OUT_OF_RANGE}")
    if bare.kind == "summing module":
        yield gather_call(replace(bare, raises=False, upstream="rank 0", summed=True))


def called(case: Case, arguments: str) -> Case:
    """With a call of its function."""
    return replace(case, call=f"{case.function}({arguments})")


def gather_call(case: Case, given: str = "no", style: str = "keywords", x: str = "x", dim: str = "") -> Case:
    """With a call of a ragged gather, by keywords where it takes them. `x` and `dim`: other than the case's."""
    sizes = {"no": "None", "list": f"{list(case.sizes)}", "tensor": f"torch.tensor({list(case.sizes)})"}[given]
    arguments = {"dim": dim or str(case.dim), "sizes": sizes}
    name, build = case.function, ""
    if "module" in case.kind:
        build = f"{name}(dim={arguments.pop('dim')}{', all_reduce_grads=True' * case.summed})"
        name = "gather"
    elif case.has_backward:  # `apply` takes no keywords
        name, style = f"{name}.apply" if "function" in case.kind else name, "positional"
        arguments |= {"summed": str(case.summed)} if "summing" in case.kind else {}
    if style == "defaults":
        arguments = {}
    given_so = [f"{key}={value}" if style == "keywords" else value for key, value in arguments.items()]
    return replace(case, build=build, call=f"{name}({', '.join([x, *given_so])})")


def _sizes(world: int) -> list[tuple[int, ...]]:
    """Even, ragged, one rank empty, all empty: those that differ at this world size."""
    ragged = tuple((3 * rank + 2) % 5 + 1 for rank in range(world))
    one_empty = (*ragged[: world // 2], 0, *ragged[world // 2 + 1 :])
    return list(dict.fromkeys([(3,) * world, ragged, one_empty, (0,) * world]))
