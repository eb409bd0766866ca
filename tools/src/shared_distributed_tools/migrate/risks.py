# SPDX-License-Identifier: MIT
"""Call sites that deserve a look, whichever stage a project is at. One rule, one function.

A rule sees the uses of the copy, with their syntax, and says where and why. These are heuristics; none of them blocks
a migration. What needs no analysis is one sentence an adapter.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from ..catalog import Adapter
from ..repo.tree import Function, Scope, Source
from ..repo.uses import Use, position
from ..scan.fingerprint import imported_names

_COLLECTIVES = frozenset({"all_gather_variable_dim", "all_gather_same_dim", "gather_sizes"})
_LOCAL = re.compile(r"(^|_)(mask|label|target)s?(_|$)", re.IGNORECASE)
_SIZE = re.compile(r"\.shape\b|\.size\(|\blen\(|^(batch_?size|batch|bsz)$")
_INDEX = re.compile(r"(^|\.)(eye|arange|range|one_hot|full|ones|zeros|tensor)$")
_RANK = re.compile(r"(^|[._])rank(\(.*\))?$")
_RANDOM = re.compile(
    r"(^|\.)(random|rand|randn|randint|randrange|bernoulli|uniform|choice|multinomial|coin_flip|prob_mask_like)$"
    r"|(^|\.)random\."
)
_EINSUM = re.compile(r"map\(lambda (\w+): einsum\('[^']*', \1, \1\), \([\w, ]+\)\)")
_IN_CORE = re.compile(rb"\bgrad\s*=\s*['\"]local['\"]")
_ABOUT_GRADIENT = (
    "local gradient: rows get only their own rank's gradient, where a loss over gathered rows under DDP needs the sum. "
    "To have it, write {}; and if the loss is multiplied by world_size to make up for it, drop that factor"
)
_Joins = ast.BinOp | ast.Subscript | ast.Call | ast.Compare  # where values meet


class Risk(NamedTuple):
    """One place, and what may be wrong with it."""

    path: str
    line: int
    rule: str
    text: str


def find_risks(uses: list[Use], adapter: Adapter, is_original: bool) -> list[Risk]:
    """Every rule, over every use; in order. is_original: whether the copy is still the project's own."""
    names = adapter.gathers | {"all_gather_variable_dim"}
    calls = [use for use in uses if use.kind == "call"]
    pairs: set[ast.AST] = {use.node for use in calls if use.owner or use.name in names}  # a tensor and the sizes
    found = {(use, use.node.lineno, "which-gradient", _which_gradient(use, adapter, is_original)) for use in uses}
    for use in calls:
        if use.node in pairs:
            found.add((use, use.node.lineno, "pair-as-tensor", _pair_as_tensor(use)))
            found |= {(use, line, "local-on-gathered", text) for line, text in _local_on_gathered(use, pairs)}
        if use.owner or use.name in adapter.gathers | _COLLECTIVES:
            found.add((use, use.node.lineno, "random-branch", _random_branch(use)))
    return sorted({Risk(use.source.path, line, rule, text) for use, line, rule, text in found if text})


def in_core(path: str, content: bytes) -> list[Risk]:
    """Local gradients in a file that is on the core already."""
    lines = [content.count(b"\n", 0, hit.start()) + 1 for hit in _IN_CORE.finditer(content)]
    return [Risk(path, line, "which-gradient", _ABOUT_GRADIENT.format("grad='sum' here")) for line in lines]


def about(adapter: Adapter) -> list[str]:
    """What is true of every project with this adapter, as long as it is not on the core."""
    said = []
    if adapter.asks_when_built:
        said.append("an AllGather remembers whether there was a process group when it was built: build models after it")
    if "get_is_distributed" in adapter.api:
        said.append("get_is_distributed() remembers its first answer: call it after the process group is up")
    return said


def _pair_as_tensor(use: Use) -> str:
    """`x = all_gather(x, 0, None)`: a gather gives a tensor and the sizes."""
    match use.source.parents[use.node]:
        case ast.BinOp() | ast.UnaryOp() | ast.Attribute():
            name = "x"
        case ast.Assign(targets=[ast.Name(id=name)]):
            apart = re.compile(rf"\b{name}\[-?\d+\]|, \w+\)? = {name}$", re.MULTILINE)  # unpacked or indexed later
            if apart.search(ast.unparse(use.source.nearest(use.node, Function))):
                return ""
        case _:
            return ""
    return f"a gather gives a pair, and this treats it as a tensor; write `{name}, _ = …`"


def _which_gradient(use: Use, adapter: Adapter, is_original: bool) -> str:
    """`all_reduce_grads` decides which gradient comes back: the loss decides which one is needed."""
    is_build = use.kind == "build" and use.name == "AllGather" and adapter.has_module
    is_apply = use.kind == "call" and use.owner is None and use.name in adapter.gathers
    if not (is_build or is_apply) or not isinstance(use.node, ast.Call):
        return ""
    flags = [word.value for word in use.node.keywords if word.arg == "all_reduce_grads"]
    flags += [] if is_build else use.node.args[3:]
    if flags and not (isinstance(flags[0], ast.Constant) and not flags[0].value):
        when = "" if isinstance(flags[0], ast.Constant) else f" where `{ast.unparse(flags[0])}` is true"
        return f"summed gradient{when}: right with DDP, for a loss of each rank and for one global loss alike"
    kept = [word for word in use.node.keywords if word.arg != "all_reduce_grads"]
    word = ast.keyword("all_reduce_grads", ast.Constant(value=True))
    summed = ast.unparse(ast.Call(use.node.func, use.node.args[: 3 if is_apply else None], [*kept, word]))
    is_new = is_original and "all_reduce_grads" not in str(adapter.api["AllGather"])
    return _ABOUT_GRADIENT.format(f"`{summed}`{', once the file is vendored' if is_new else ''}")


def _random_branch(use: Use) -> str:
    """A collective that some ranks enter and others do not: they wait for each other."""
    nodes = list(ast.walk(use.source.nearest(use.node, Function)))
    drawn: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            drawn |= dict.fromkeys((name for one in node.targets for name in _names(one)), _draw(node.value, {}))
    shared = [node for node in nodes if isinstance(node, ast.Call) and "broadcast" in ast.unparse(node.func)]
    drawn = {name: line for name, line in drawn.items() if line and not any(name in _names(one) for one in shared)}
    for node in [one for one in nodes if isinstance(one, ast.If | ast.IfExp | ast.While)]:
        leaves = isinstance(node, ast.If) and isinstance(
            node.body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise
        )
        decides = use.node in ast.walk(node) or (leaves and node.lineno < use.node.lineno)
        line = _draw(node.test, drawn) if decides and use.node not in ast.walk(node.test) else 0
        if line:
            drawn_there = f"whether it runs is drawn at random on each rank, in line {line}"
            return f"{drawn_there}: broadcast what one rank has drawn, or gather always"
    return ""


def _draw(node: ast.expr, drawn: dict[str, int]) -> int:
    """The line of the random number that an expression draws or uses; 0 if there is none, or one for all ranks."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    if any("broadcast" in ast.unparse(one.func) for one in calls):
        return 0
    lines = [one.lineno for one in calls if _RANDOM.search(ast.unparse(one.func))]
    return next(iter([*lines, *(drawn[name] for name in sorted(_names(node) & set(drawn)))]), 0)


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def fails_as_tensor(source: Source, node: ast.AST, name: str) -> bool:
    """Whether `x = all_gather(x, 0, None)` is read later by an einsum only, which no pair passes."""
    function = source.nearest(node, Scope)
    places = [place for place in source.places[name] if function in source.around(place)]
    later = [source.parents[source.parents[place]] for place in places if position(place) > position(node)[2:]]
    if not later or not isinstance(function, Function):
        return False
    bindings = [place for word in ("einsum", "map") for place in source.places[word] if not isinstance(place, ast.Name)]
    is_torchs = len(bindings) == 1 and imported_names(source.tree).get("einsum") == "torch.einsum"
    is_looped = any(isinstance(one, ast.For | ast.AsyncFor | ast.While) for one in source.around(node))
    is_plain = all(
        isinstance(place, ast.Name | ast.arg) and source.nearest(place, Scope) is function for place in places
    )
    return is_torchs and is_plain and not is_looped and all(_EINSUM.fullmatch(ast.unparse(one)) for one in later)


# ------------------------------------------------------------------ local-on-gathered


def _local_on_gathered(use: Use, calls: set[ast.AST]) -> Iterator[tuple[int, str]]:
    """A mask, label or index of this rank's rows, applied to rows of all ranks: the lines where they meet, and why."""
    function = use.source.nearest(use.node, Function)
    if not isinstance(function, Function):
        return
    names = [one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)]
    kinds = {name: "count" if _SIZE.search(name) else "local" for name in names}  # see `_kind`
    told: set[str] = set()
    nodes = [one for one in ast.walk(function) if isinstance(one, ast.Assign | _Joins)]
    for node in sorted(nodes, key=lambda one: (position(one)[2:], isinstance(one, ast.Assign))):  # as they are run
        if isinstance(node, ast.Assign):
            kind = _kind(node.value, kinds, calls)
            for target in node.targets:
                kinds |= dict.fromkeys(_names(target), kind)
                if isinstance(target, ast.Tuple) and node.value in calls:
                    kinds |= dict.fromkeys(_names(ast.Tuple(target.elts[1:])), "sizes")
            continue
        if _is_offset(node, kinds):
            yield node.lineno, "rank * batch_size is a rank's first row only if all have as many: sum(sizes[:rank])"
        for name in sorted(_meeting(node, kinds) - told) if node not in calls else ():
            told.add(name)  # once is enough
            text = (
                f"{name} has this rank's rows and meets those of all ranks here: take own rows, or gather it "
                "too, where a padded dim must have one length on every rank, or reduce before the gather"
            )
            yield node.lineno, text


def _kind(node: ast.expr, kinds: dict[str, str], calls: set[ast.AST]) -> str:
    """What a value is: rows of all ranks ("gathered"), or of this one: their "count", an "index", else "local"."""
    nodes = list(ast.walk(node))
    if any(one in calls for one in nodes) or "gathered" in {kinds.get(name) for name in _names(node)}:
        return "gathered"
    if any(_counted(one, kinds) for one in nodes):
        return "index"
    return "count" if _SIZE.search(ast.unparse(node)) else "local"


def _meeting(node: ast.expr, kinds: dict[str, str]) -> set[str]:
    """The names of this rank's rows that stand beside rows of all ranks."""
    own = {name: kinds[name] for name in _names(node) & kinds.keys()}
    if "gathered" not in own.values():
        return set()
    suspects = {name for name, kind in own.items() if kind == "index" or (kind == "local" and _LOCAL.search(name))}
    return suspects | {name for one in ast.walk(node) for name in _counted(one, kinds)}


def _counted(node: ast.AST, kinds: dict[str, str]) -> set[str]:
    """The names that an index of this rank's rows is made from."""
    own = {name: kinds[name] for name in _names(node) & kinds.keys()}
    if not (isinstance(node, ast.Call) and _INDEX.search(ast.unparse(node.func))) or "gathered" in own.values():
        return set()
    has_size = any(_SIZE.search(ast.unparse(one)) for one in node.args)
    return {name for name, kind in own.items() if kind == "count" or (has_size and kind != "sizes")}


def _is_offset(node: ast.expr, kinds: dict[str, str]) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    left, right = ast.unparse(node.left), ast.unparse(node.right)
    pairs = ((left, right), (right, left))
    return any(_RANK.search(one) and (kinds.get(other) == "count" or _SIZE.search(other)) for one, other in pairs)
