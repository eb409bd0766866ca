# SPDX-License-Identifier: MIT
"""Call sites that deserve a look, whichever stage a project is at. One rule, one function.

A rule sees the uses of the copy, with their syntax, and says where and why. These are heuristics; none of them blocks
a migration.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..catalog import Adapter
from ..repo.tree import Source
from ..repo.uses import Use

_COLLECTIVES = frozenset({"all_gather_variable_dim", "all_gather_same_dim", "gather_sizes"})
_LOCAL = re.compile(r"(^|_)(mask|label|target)s?(_|$)", re.IGNORECASE)
_RANDOM = re.compile(
    r"(^|\.)(random|rand|randn|randint|randrange|bernoulli|uniform|choice|multinomial|coin_flip|prob_mask_like)$"
    r"|(^|\.)random\."
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Risk(NamedTuple):
    """One place, and what may be wrong with it."""

    path: str
    line: int
    rule: str
    text: str


Found = tuple[str, int, str]  # path, line, what may be wrong
Rule = Callable[[list[Use], Adapter], Iterator[Found]]


def find_risks(uses: list[Use], adapter: Adapter) -> list[Risk]:
    """Every rule, over every use; in order."""
    return sorted(
        Risk(path, line, name, text) for name, rule in RULES.items() for path, line, text in set(rule(uses, adapter))
    )


def pair_as_tensor(uses: list[Use], adapter: Adapter) -> Iterator[Found]:
    """`x = all_gather(x, 0, None)`: a gather gives a tensor and the sizes."""
    for use in _pairs(uses, adapter):
        parent = use.source.parents[use.node]
        is_operand = isinstance(parent, ast.BinOp | ast.UnaryOp | ast.Attribute)
        target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
        if is_operand or (isinstance(target, ast.Name) and not _is_taken_apart(use, target.id)):
            name = target.id if isinstance(target, ast.Name) else "x"
            yield _at(use, f"a gather gives a pair, and this treats it as a tensor; write `{name}, _ = …`")


def built_before_group(uses: list[Use], adapter: Adapter) -> Iterator[Found]:
    """A module that asks "are we distributed?" when it is built keeps the answer."""
    for use in uses if adapter.asks_when_built else ():
        if use.kind != "build" or use.name != "AllGather":
            continue
        function = _function_around(use.source, use.node)
        if function is None:
            yield _at(use, "built when the file is imported, before any process group: it never gathers")
        elif function.name == "__init__":
            yield _at(
                use, "remembers whether there was a process group when it was built: build the model after the group"
            )


def cached_answer(uses: list[Use], adapter: Adapter) -> Iterator[Found]:
    """`get_is_distributed()` and `.is_distributed` are remembered; the core asks at every call."""
    for use in uses:
        if use.name == "get_is_distributed" and use.kind == "call":
            early = _function_around(use.source, use.node) is None
            when = "asked when the file is imported, so it is always no" if early else "asked once in a process"
            yield _at(use, f"{when}: call it after the process group is up, or clear its cache then")
        elif use.owner is not None and isinstance(use.node, ast.Attribute) and use.node.attr == "is_distributed":
            yield _at(use, "answered when the module was built, and not asked again")


def which_gradient(uses: list[Use], adapter: Adapter) -> Iterator[Found]:
    """`all_reduce_grads` decides which gradient comes back: the loss decides which one is needed."""
    seen: set[ast.AST | None] = set()
    for use in uses:
        is_build = use.kind == "build" and use.name == "AllGather" and adapter.has_module
        is_apply = use.kind == "call" and use.owner is None and use.name in adapter.gathers
        function = _function_around(use.source, use.node)
        if not (is_build or is_apply) or (is_apply and function in seen):
            continue
        assert isinstance(use.node, ast.Call)
        seen.add(function)
        flag = next((word.value for word in use.node.keywords if word.arg == "all_reduce_grads"), None)
        if flag is None or (isinstance(flag, ast.Constant) and not flag.value):
            text = (
                "local gradient: rows get only their own rank's gradient. With DDP a loss that looks at gathered rows "
                "needs the sum (`all_reduce_grads`, or grad='sum' in the core), unless it was tuned without"
            )
            yield _at(use, text)
        else:
            yield _at(use, "summed gradient: right with DDP, for a loss of each rank and for one global loss alike")


def local_on_gathered(uses: list[Use], adapter: Adapter) -> Iterator[Found]:
    """A mask or label with this rank's rows, applied to rows of all ranks."""
    functions: dict[_Function, list[Use]] = {}
    for use in _pairs(uses, adapter):
        function = _function_around(use.source, use.node)
        if function is not None:
            functions.setdefault(function, []).append(use)
    for function, gathers in functions.items():
        for name, line in _mixed(function, gathers):
            text = f"{name} has this rank's rows and meets those of all ranks here: gather it too, or take own rows"
            yield gathers[0].source.path, line, text


def random_branch(uses: list[Use], adapter: Adapter) -> Iterator[Found]:
    """A collective that some ranks enter and others do not: they wait for each other."""
    for use in uses:
        is_collective = use.owner is not None or use.name in adapter.gathers | _COLLECTIVES
        function = _function_around(use.source, use.node)
        if use.kind == "call" and is_collective and _hangs_on_chance(use, function):
            yield _at(
                use, "whether it runs is drawn at random on each rank: draw once and broadcast it, or gather always"
            )


RULES: dict[str, Rule] = {
    "pair-as-tensor": pair_as_tensor,
    "built-before-group": built_before_group,
    "cached-answer": cached_answer,
    "which-gradient": which_gradient,
    "local-on-gathered": local_on_gathered,
    "random-branch": random_branch,
}


def _at(use: Use, text: str) -> Found:
    return use.source.path, use.node.lineno, text


def _pairs(uses: list[Use], adapter: Adapter) -> list[Use]:
    """Calls that give a tensor and the sizes."""
    names = adapter.gathers | {"all_gather_variable_dim"}
    return [use for use in uses if use.kind == "call" and (use.owner is not None or use.name in names)]


def _function_around(source: Source, node: ast.AST) -> _Function | None:
    """The function whose body runs a node; None where the file's import does. Defaults are run by that too."""
    inner = node
    for around in source.around(node):
        if isinstance(around, _Function) and inner in around.body:
            return around
        inner = around
    return None


def _is_taken_apart(use: Use, name: str) -> bool:
    """Whether a pair in one variable is unpacked or indexed later."""
    scope = _function_around(use.source, use.node) or use.source.tree
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            parent = use.source.parents[node]
            if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.slice, ast.Constant):
                return True
            if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
                return True
    return False


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


# ------------------------------------------------------------------ local-on-gathered


def _mixed(function: _Function, gathers: list[Use]) -> Iterator[tuple[str, int]]:
    """Local masks and labels in one expression with gathered rows: their names, and the lines."""
    calls: set[ast.AST] = {use.node for use in gathers}
    gathered: set[str] = set()
    local = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    for statement in _statements(function.body):
        expressions = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]
        for expression in expressions:
            for node in ast.walk(expression):
                if isinstance(node, ast.BinOp | ast.Subscript | ast.Call | ast.Compare) and node not in calls:
                    names = _names(node)
                    for name in sorted(names & local) if names & gathered else ():
                        if _LOCAL.search(name):
                            local.discard(name)  # once is enough
                            yield name, node.lineno
        if isinstance(statement, ast.Assign):
            has_gathered = bool(_names(statement.value) & gathered)
            _assign(statement, calls, gathered, local, has_gathered=has_gathered)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in order, with those inside of ifs and loops, and without those of nested definitions."""
    for statement in body:
        yield statement
        if not isinstance(statement, _Function | ast.ClassDef):
            for name in ("body", "handlers", "orelse", "finalbody", "cases"):
                for inner in getattr(statement, name, ()):
                    yield from _statements([inner] if isinstance(inner, ast.stmt) else inner.body)


def _assign(
    statement: ast.Assign, calls: set[ast.AST], gathered: set[str], local: set[str], *, has_gathered: bool
) -> None:
    is_gather = any(node in calls for node in ast.walk(statement.value))
    for target in statement.targets:
        first, *others = target.elts if isinstance(target, ast.Tuple) else [target]
        made = _names(first) if is_gather else _names(target)
        sizes = {name for other in others for name in _names(other)} if is_gather else set()
        local -= made | sizes
        gathered -= made | sizes
        if is_gather or has_gathered:
            gathered |= made
        else:
            local |= made


# ------------------------------------------------------------------ random-branch


def _hangs_on_chance(use: Use, function: ast.AST | None) -> bool:
    scope = function or use.source.tree
    drawn = {
        name
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and _draws(node.value, set())
        for target in node.targets
        for name in _names(target)
    }
    inner: ast.AST = use.node
    for around in use.source.around(use.node):
        if (
            isinstance(around, ast.If | ast.IfExp | ast.While)
            and inner is not around.test
            and _draws(around.test, drawn)
        ):
            return True
        if around is scope:
            break
        inner = around
    return any(
        isinstance(node, ast.If)
        and node.lineno < use.node.lineno
        and isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)
        and _draws(node.test, drawn)
        for node in ast.walk(scope)
    )


def _draws(node: ast.AST, drawn: set[str]) -> bool:
    """Whether an expression draws a random number, or uses one that was drawn."""
    calls = (ast.unparse(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return any(_RANDOM.search(call) for call in calls) or bool(_names(node) & drawn)
