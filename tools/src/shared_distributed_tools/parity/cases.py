# SPDX-License-Identifier: MIT
"""What is compared: calls of every function that both files have, generated from what the adapter offers.

world W · rank r · n_r rows of rank r along dim
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, Literal

from ..ranks.oracle import covering

Kind = Literal["module", "summing module", "function", "summing function", "callable"]
Given = Literal["no", "tensor", "list"]
# what arrives at the gathered tensor: nothing; a number for each rank and place; the same in a transposed tensor; one
# number for all places, by a stride of zero; what `y.sum().backward()` sends; a loss to be differentiated twice
Upstream = Literal["none", "ranked", "transposed", "expanded", "total", "second"]
Style = Literal["keywords", "positional", "defaults"]

DIMS = (0, 1, 2, -1, -2)
DTYPES = ("float32", "float64", "bfloat16", "int64", "bool")
FLOATING = ("float32", "float64", "bfloat16")
OTHER_DIMS = (2, 3, 4)  # a rank's shape, but for the gathered dim
LONG_ROW = 4096  # numbers a row where a write outside a tensor should reach something that matters

# variants: how a case differs from others in what its fields do not say
SIGNATURE = "signature"
BAD_DIM, ONE_BAD_DIM = "dim out of range", "dim out of range on the last rank"
OTHER_SHAPE, OTHER_DTYPE, OTHER_NDIM = "another shape", "another dtype", "another number of dims"
DISAGREEMENTS = (OTHER_SHAPE, OTHER_DTYPE, OTHER_NDIM)  # of the last rank with the others
RAISING = (BAD_DIM, ONE_BAD_DIM, *DISAGREEMENTS)
ONE_NEEDS_GRADIENT = "only rank 0 needs a gradient"
REQUIRES_GRAD = "input that requires grad"  # of a function without a backward
ALL_DIFFERENT = "ranks differ in all else"
# helpers that know nothing of ranks: what each is called with, by a word for it
VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    "exists": {"None": (None,), "zero": (0,), "an empty list": ([],)},
    "default": {"None": (None, 5), "zero": (0, 5), "both None": (None, None)},
    "divisible_by": {"6 by 3": (6, 3), "7 by 3": (7, 3), "0 by 3": (0, 3), "by zero": (1, 0)},
    "has_only_one_value": {  # lists stand for tensors
        "one value": ([2, 2, 2],),
        "two values": ([2, 3, 2],),
        "one element": ([4],),
        "no element": ([],),
        "two dims, equal rows": ([[1, 2], [1, 2]],),
        "not a number": ([float("nan")] * 2,),
    },
}


@dataclass(frozen=True)
class Case:
    """One call, the same on every rank but for the rank's own size. World 0: one process, no process group."""

    function: str
    kind: Kind
    world: int
    variant: str = ""
    sizes: tuple[int, ...] = ()
    dim: int = 0
    dtype: str = "float32"
    given: Given = "no"  # the sizes
    strided: bool = False  # the input is transposed in memory
    upstream: Upstream = "none"
    summed: bool = False  # all_reduce_grads
    style: Style = "keywords"
    other: tuple[int, ...] = OTHER_DIMS
    late: bool = False  # the process group comes up between two calls
    length: int | None = None  # what is padded to

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
        return self.late or self.upstream == "total" or self.variant in (*RAISING, ONE_NEEDS_GRADIENT)

    @property
    def may_raise_only(self) -> bool:
        """Whether every rank has to raise."""
        return self.variant in RAISING

    @property
    def depends_on_adapter(self) -> bool:
        """Whether adapters differ in what is right: alone they gather, return the input, or refuse."""
        return self.world <= 1 and self.function in ("AllGather", "all_gather") and self.variant != SIGNATURE

    def shape(self, size: int) -> tuple[int, ...]:
        """The shape with `size` at the gathered dim."""
        shape = list(self.other)
        shape[self.dim] = size
        return tuple(shape)

    @property
    def title(self) -> str:
        """The case in words, without its function: whatever is not as usual."""
        where = f"{self.world} rank{'s' if self.world > 1 else ''}" if self.world else "no process group"
        values = {field.name: getattr(self, field.name) for field in fields(self)[4:]}
        unusual = [
            f"{field.name}={values[field.name]}" for field in fields(self)[4:] if values[field.name] != field.default
        ]
        return ", ".join(filter(None, [where, self.variant, *unusual]))


def generate(api: Mapping[str, Kind], worlds: Sequence[int]) -> list[Case]:
    """Every case for the functions of `api`, world by world; first what needs no process group."""
    cases = [case for function, kind in api.items() for case in _without_a_group(Case(function, kind, 0))]
    smallest = min((world for world in worlds if world > 1), default=None)
    for world in sorted(set(worlds)):
        for function, kind in api.items():
            bare = Case(function, kind, world)
            cases += _in_a_group(bare)
            if world > 1 and (bare.has_backward or function == "get_is_distributed"):
                cases.append(replace(bare, sizes=_sizes(world)[1], late=True))
            if world == smallest:  # whoever waits for a rank that raised costs seconds: once is enough
                cases += _troubled(replace(bare, sizes=(2,) * world))
    return cases


def _without_a_group(bare: Case) -> Iterator[Case]:
    yield replace(bare, variant=SIGNATURE)
    one = replace(bare, sizes=(3,), upstream="ranked" if bare.has_backward else "none")
    if bare.function in VALUES:
        yield from (replace(bare, variant=variant) for variant in VALUES[bare.function])
    elif bare.function == "pad_dim_to":
        for length, dim in product((5, 2, 0), DIMS):
            yield replace(one, dim=dim, length=length, upstream="ranked")
            yield replace(one, dim=dim, length=length, dtype="int64")
    else:
        yield bare if bare.function == "get_is_distributed" else one
        if bare.gathers:
            yield replace(one, given="tensor", strided=True)
        if "summing" in bare.kind:
            yield replace(one, summed=True)


def _in_a_group(bare: Case) -> Iterator[Case]:
    sizes = _sizes(bare.world)
    if bare.gathers:
        yield from _gather_cases(bare, sizes)
    elif bare.function == "all_gather_same_dim":
        for dtype, strided, size in product(DTYPES, (False, True), (3, 0)):
            yield replace(bare, sizes=(size,) * bare.world, dtype=dtype, strided=strided)
        yield replace(bare, variant="0-d")
        yield replace(bare, variant=REQUIRES_GRAD)
    elif bare.function == "gather_sizes":
        for each, dim in product(sizes, DIMS):
            yield replace(bare, sizes=each, dim=dim)
        yield replace(bare, sizes=sizes[-2], variant=ALL_DIFFERENT)
    elif bare.function == "split_by_rank":
        for each, dtype, variant in product(sizes, ("float32", "int64"), ("tuple", "list")):
            yield replace(bare, sizes=each, dtype=dtype, variant=variant)
        for size in (3, 0):
            yield replace(bare, sizes=(size,) * bare.world, variant="tensor")
    elif bare.function == "get_is_distributed":
        yield bare


def _gather_cases(bare: Case, sizes: list[tuple[int, ...]]) -> Iterator[Case]:
    ways = (False, True) if "summing" in bare.kind else (False,)
    for each, dim, dtype, given, strided, summed in covering(
        (sizes, DIMS, DTYPES, ("no", "tensor"), (False, True), ways), 3
    ):
        upstream: Upstream = "ranked" if bare.has_backward and dtype in FLOATING else "none"
        here = replace(bare, sizes=each, dim=dim, dtype=dtype, upstream=upstream)
        yield replace(here, given=given, strided=strided, summed=summed)

    ragged = sizes[1] if bare.world > 1 else sizes[0]  # alone nothing is ragged, and the next would be empty
    base = replace(bare, sizes=ragged, upstream="ranked" if bare.has_backward else "none")
    for each in sizes if bare.world > 1 else ():
        yield replace(base, sizes=each, dim=-1, given="list")
    yield replace(base, other=(1,))
    yield replace(base, other=(2, 3, 1, 4), dim=2)
    yield replace(base, style="defaults")
    if "function" not in bare.kind:  # `apply` takes no keywords
        yield replace(base, style="positional", given="tensor", dim=1)
    if not bare.has_backward:
        yield replace(base, variant=REQUIRES_GRAD)
        return
    unusual: tuple[Upstream, ...] = ("transposed", "expanded", "second")
    for upstream, dim, summed in product(unusual, (0, 1, -1), ways):
        yield replace(base, upstream=upstream, dim=dim, summed=summed)
    for summed in ways:
        yield replace(base, upstream="total", other=(1, LONG_ROW), summed=summed)


def _troubled(bare: Case) -> Iterator[Case]:
    ways = {"all_gather_same_dim": DISAGREEMENTS, "gather_sizes": (BAD_DIM,)}
    for variant in RAISING if bare.gathers else ways.get(bare.function, ()):
        yield replace(bare, variant=variant)
    if bare.kind == "summing module":
        yield replace(bare, variant=ONE_NEEDS_GRADIENT, summed=True, upstream="ranked")


def _sizes(world: int) -> list[tuple[int, ...]]:
    """Even, ragged, one rank empty, all empty: those that differ at this world size."""
    ragged = tuple((3 * rank + 2) % 5 + 1 for rank in range(world))
    one_empty = (*ragged[: world // 2], 0, *ragged[world // 2 + 1 :])
    return list(dict.fromkeys([(3,) * world, ragged, one_empty, (0,) * world]))
