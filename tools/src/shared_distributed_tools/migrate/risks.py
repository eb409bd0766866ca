# SPDX-License-Identifier: MIT
"""Call sites that deserve a look, whichever stage a project is at, on the core too. One rule, one function.

A rule sees a function with the uses in it, and says where and why. These are heuristics; none of them blocks a
migration. What needs no analysis is one sentence an adapter.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..catalog import Adapter
from ..repo.tree import Function, Scope, Source
from ..repo.uses import Use, position
from ..scan.fingerprint import imported_names

CORE_GATHERS = frozenset({"AllGather", "all_gather"})
_COLLECTIVES = frozenset({"all_gather_variable_dim", "all_gather_same_dim", "gather_sizes"})
_LOCAL = re.compile(r"(^|_)(mask|label|target)s?(_|$)", re.IGNORECASE)
_COUNTS = frozenset({"batchsize", "batch_size", "batch", "bsz"})
_INDEX = frozenset({"eye", "arange", "range", "one_hot", "full", "ones", "zeros", "tensor"})
_RANDOM = frozenset(
    {"random", "rand", "randn", "randint", "randrange", "bernoulli", "uniform", "choice", "multinomial"}
)
_RANDOM |= {"coin_flip", "prob_mask_like"}
_EINSUM = re.compile(r"map\(lambda (\w+): einsum\('[^']*', \1, \1\), \([\w, ]+\)\)")
_ABOUT_GRADIENT = (
    "local gradient: rows get only their own rank's gradient, where a loss over gathered rows under DDP needs the sum. "
    "To have it, write {}; and if the loss is multiplied by world_size to make up for it, drop that factor"
)
_OFFSET = "rank * batch_size is a rank's first row only if all have as many: sum(sizes[:rank])"
Gradient = Callable[[Use], str]  # what is to be said about the gradient at a place


class Risk(NamedTuple):
    """One place, and what may be wrong with it."""

    path: str
    line: int
    rule: str
    text: str


def risks_of_copy(uses: Sequence[Use], adapter: Adapter, is_original: bool) -> list[Risk]:
    """Every rule, over the uses of a copy. is_original: whether the copy is still the project's own."""
    return _find_risks(uses, adapter.gathers, lambda use: _gradient_of_copy(use, adapter, is_original))


def risks_of_core(uses: Sequence[Use]) -> list[Risk]:
    """Every rule, over the uses of the core."""
    return _find_risks(uses, CORE_GATHERS, _gradient_of_core)


def _find_risks(uses: Sequence[Use], gathers: frozenset[str], gradient: Gradient) -> list[Risk]:
    found: set[Risk] = set()
    functions: dict[tuple[Source, ast.AST], list[tuple[Use, ast.expr]]] = defaultdict(list)
    for use in uses:
        text = gradient(use)
        if text:
            found.add(Risk(use.source.path, use.node.lineno, "which-gradient", text))
        node = use.node
        if use.kind == "call" and isinstance(node, ast.expr) and (use.owner or use.name in gathers | _COLLECTIVES):
            functions[use.source, use.source.nearest(node, Function)].append((use, node))
    for (source, function), calls in functions.items():
        pairs = [node for use, node in calls if use.owner or use.name in gathers | {"all_gather_variable_dim"}]
        for rule, places in (
            ("pair-as-tensor", _pairs_as_tensors(source, function, pairs)),
            ("random-branch", _random_branches(function, [node for _, node in calls])),
            ("local-on-gathered", _local_on_gathered(function, pairs)),
        ):
            found |= {Risk(source.path, line, rule, text) for line, text in places}
    return sorted(found)


def about(adapter: Adapter) -> list[str]:
    """What is true of every project with this adapter, as long as it is not on the core."""
    said = []
    if adapter.asks_when_built:
        said.append("an AllGather remembers whether there was a process group when it was built: build models after it")
    if "get_is_distributed" in adapter.api:
        said.append("get_is_distributed() remembers its first answer: call it after the process group is up")
    return said


Places = Iterator[tuple[int, str]]  # lines, and what may be wrong there


# ------------------------------------------------------------------ pair-as-tensor


def _pairs_as_tensors(source: Source, function: ast.AST, pairs: Iterable[ast.expr]) -> Places:
    """`x = all_gather(x, 0, None)`: a gather gives a tensor and the sizes."""
    for node in pairs:
        match source.parents[node]:
            case ast.BinOp() | ast.UnaryOp() | ast.Attribute():
                name = "x"
            case ast.Assign(targets=[ast.Name(id=name)]):
                if _is_taken_apart(source, function, name):
                    continue
            case _:
                continue
        yield node.lineno, f"a gather gives a pair, and this treats it as a tensor; write `{name}, _ = …`"


def _is_taken_apart(source: Source, function: ast.AST, name: str) -> bool:
    """Whether a pair is unpacked or indexed in its function."""
    for place in source.places[name]:
        match source.parents.get(place):
            case ast.Subscript(slice=ast.Constant(value=int()) | ast.UnaryOp()) | ast.Assign(targets=[ast.Tuple()]):
                if function is source.tree or function in source.around(place):
                    return True
    return False


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


# ------------------------------------------------------------------ which-gradient


def _gradient_of_core(use: Use) -> str:
    for word in getattr(use.node, "keywords", ()):
        if word.arg == "grad" and isinstance(word.value, ast.Constant) and word.value.value == "local":
            return _ABOUT_GRADIENT.format("grad='sum' here")
    return ""


def _gradient_of_copy(use: Use, adapter: Adapter, is_original: bool) -> str:
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


# ------------------------------------------------------------------ random-branch


def _random_branches(function: ast.AST, calls: Iterable[ast.expr]) -> Places:
    """A collective that some ranks enter and others do not: they wait for each other."""
    nodes = list(ast.walk(function))
    shared: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call) and "broadcast" in _last_name(node.func):
            shared |= _names(node)
    drawn: dict[str, int] = {}  # names, and the line in which each is drawn
    for node in nodes:
        if isinstance(node, ast.Assign):
            line = _draw(node.value, {})
            for target in node.targets:
                drawn |= dict.fromkeys(_names(target) - shared, line)
    drawn = {name: line for name, line in drawn.items() if line}
    branches = []
    for node in nodes:
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            line = _draw(node.test, drawn)
            if line:
                branches.append((node, line))
    for call in calls:
        for node, line in branches:
            if _decides(node, call):
                said = f"whether it runs is drawn at random on each rank, in line {line}"
                yield call.lineno, f"{said}: broadcast what one rank has drawn, or gather always"
                break


def _decides(node: ast.If | ast.IfExp | ast.While, call: ast.expr) -> bool:
    """Whether a branch decides if a call is made."""
    if _is_inside(call, node):
        return not _is_inside(call, node.test)
    leaving = ast.Return | ast.Continue | ast.Break | ast.Raise
    return isinstance(node, ast.If) and isinstance(node.body[-1], leaving) and node.lineno < call.lineno


def _is_inside(inner: ast.AST, outer: ast.AST) -> bool:
    return position(outer)[:2] <= position(inner)[:2] and position(inner)[2:] <= position(outer)[2:]


def _draw(node: ast.expr, drawn: dict[str, int]) -> int:
    """The line of the random number that an expression draws or uses; 0 if there is none, or one for all ranks."""
    lines = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            name = _last_name(call.func)
            if "broadcast" in name:
                return 0
            if name in _RANDOM or _last_name(getattr(call.func, "value", None)) == "random":
                lines.append(call.lineno)
    lines += [drawn[name] for name in sorted(_names(node) & drawn.keys())]
    return lines[0] if lines else 0


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _last_name(node: ast.AST | None) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


# ------------------------------------------------------------------ local-on-gathered


def _local_on_gathered(function: ast.AST, pairs: Iterable[ast.expr]) -> Places:
    """A mask, label or index of this rank's rows, applied to rows of all ranks: the lines where they meet, and why."""
    if isinstance(function, Function) and pairs:
        yield from _Rows(function, pairs).meetings()


class _Rows:
    """Whose rows each name of a function has, statement by statement.

    "gathered" of all ranks · "sizes" how many each rank has · "count" how many this one has · "index" made from that
    "local" everything else
    """

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef, pairs: Iterable[ast.expr]) -> None:
        self.function, self.pairs = function, set(pairs)
        names = [one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)]
        self.kinds = {name: "count" if name in _COUNTS else "local" for name in names}
        self.told: set[str] = set()

    def meetings(self) -> Places:
        """Where rows of this rank meet rows of all."""
        for statement in _in_order(self.function.body):
            values = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
            if isinstance(statement, ast.With | ast.AsyncWith):
                values = [item.context_expr for item in statement.items]
            for value in values:
                self._follow_comprehensions(value)
            if isinstance(statement, ast.AugAssign):
                yield from self._meetings(statement)
            for value in values:
                yield from self._meetings(value)
            self._assign(statement)

    def _assign(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, value)
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                self._bind(target, value)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars:
                        self._bind(item.optional_vars, item.context_expr)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._bind(one, other)
            return
        self.kinds |= dict.fromkeys(_names(target), self._kind(value))
        if isinstance(target, ast.Tuple) and value in self.pairs:
            self.kinds |= dict.fromkeys(_names(ast.Tuple(target.elts[1:])), "sizes")

    def _follow_comprehensions(self, value: ast.expr) -> None:
        for node in ast.walk(value):
            if isinstance(node, ast.comprehension):
                self._bind(node.target, node.iter)

    def _kind(self, value: ast.expr) -> str:
        """What a value is, by what it is made from."""
        nodes = list(ast.walk(value))
        kinds = {self.kinds[node.id] for node in nodes if isinstance(node, ast.Name) and node.id in self.kinds}
        if "gathered" in kinds or any(node in self.pairs for node in nodes):
            return "gathered"
        if any(self._counted(node) for node in nodes):
            return "index"
        if "sizes" in kinds:
            return "sizes"
        return "count" if _is_size(value) else "local"

    def _meetings(self, whole: ast.expr | ast.stmt) -> Places:
        """The names of this rank's rows in an expression that has rows of all ranks too; each is told once."""
        if whole in self.pairs:
            return
        own = {name: self.kinds[name] for name in _names(whole) & self.kinds.keys()}
        gathered = sorted(name for name, kind in own.items() if kind == "gathered")
        counted: set[str] = set()
        for node in ast.walk(whole):
            counted |= self._counted(node)
            if isinstance(node, ast.BinOp) and self._is_offset(node):
                yield node.lineno, _OFFSET
        for name, kind in sorted(own.items()) if gathered and isinstance(whole, _JOINS) else ():
            text = ""
            if kind == "index" or name in counted:
                count = f"count the gathered rows, `{gathered[0]}.shape[0]` or sum(sizes)"
                text = f"{name} counts this rank's rows and meets those of all ranks here: {count}"
            elif kind == "local" and _LOCAL.search(name):
                text = (
                    f"{name} has this rank's rows and meets those of all ranks here: take own rows, or gather it too, "
                    "where a padded dim must have one length on every rank, or reduce before the gather"
                )
            if text and name not in self.told:
                self.told.add(name)
                yield self._line(whole, name, gathered), text

    def _line(self, whole: ast.AST, name: str, gathered: list[str]) -> int:
        """Of the smallest part of an expression in which a name and gathered rows meet."""
        smallest = whole
        for node in ast.walk(whole):
            names = _names(node) if isinstance(node, _JOINS) else set()
            if name in names and names & {*gathered}:
                smallest = node
        return int(getattr(smallest, "lineno", 0))

    def _counted(self, node: ast.AST) -> set[str]:
        """The names that an index of this rank's rows is made from."""
        if not isinstance(node, ast.Call) or _last_name(node.func) not in _INDEX:
            return set()
        names = {name for one in node.args for name in _names(one)}
        own = {name: self.kinds[name] for name in names & self.kinds.keys()}
        if "gathered" in own.values():
            return set()
        has_size = any(_is_size(one) for one in node.args)
        return {name for name, kind in own.items() if kind == "count" or (has_size and kind != "sizes")}

    def _is_offset(self, node: ast.BinOp) -> bool:
        """Whether it is `rank * batch_size`."""
        if not isinstance(node.op, ast.Mult):
            return False
        for one, other in ((node.left, node.right), (node.right, node.left)):
            name = _last_name(one.func if isinstance(one, ast.Call) else one)
            is_rank = name == "rank" or name.endswith("_rank")
            if is_rank and (_is_size(other) or self.kinds.get(_last_name(other)) == "count"):
                return True
        return False


_JOINS = ast.BinOp | ast.Subscript | ast.Call | ast.Compare | ast.AugAssign  # where values meet


def _in_order(statements: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Statements, and those in the blocks below them, as they stand in the file."""
    for node in statements:
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _in_order(ast.iter_child_nodes(node))


def _is_size(node: ast.expr) -> bool:
    """Whether an expression asks for the size of something, or is a name for that."""
    if isinstance(node, ast.Name):
        return node.id in _COUNTS
    for one in ast.walk(node):
        called = _last_name(one.func) if isinstance(one, ast.Call) else ""
        if called in ("size", "len") or (isinstance(one, ast.Attribute) and one.attr == "shape"):
            return True
    return False
