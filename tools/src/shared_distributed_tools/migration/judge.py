# SPDX-License-Identifier: MIT
"""What every use of the copy becomes in the core, or why a person has to look. Decides; `rewrite` does it.

Three things differ between an adapter and the core, and each has a rule here:

    sizes      a LongTensor, or None without other ranks   ->  a tuple of ints, always
    gradient   local, unless `all_reduce_grads`            ->  summed, unless `grad = 'local'`
    the world  remembered by the object or the process     ->  asked at every call

Sizes are followed inside the function that gathers. Where they go elsewhere, or where a use has no exact
counterpart, the answer is "by hand", with the line and what to write: nothing is guessed.
"""

import ast
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ..catalog import Adapter
from .hidden import Remark, broken, escaped, named_in_strings
from .sites import Use, find_uses
from .syntax import bound_names
from .tree import Source, SourceTree

# an adapter's name with the same arguments and the same result in the core
SAME_IN_CORE = frozenset(
    {
        "all_gather_same_dim",
        "all_gather_variable_dim",
        "gather_sizes",
        "has_only_one_value",
        "pad_dim_to",
        "split_by_rank",
    }
)
# one with the same meaning under another name
RENAMED_IN_CORE = {"get_is_distributed": "is_distributed"}

_REDUCTIONS = {"sum": "sum", "amax": "max", "max": "max", "amin": "min", "min": "min"}
_AS_LIST = "take `.tolist()` of the sizes right after the gather, use that list, and run this again"
_ASK = "is_distributed"


class Span(NamedTuple):
    """An expression's place: lines from 1, columns from 0, in characters."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Replace:
    """An expression becomes this code."""

    code: str


@dataclass(frozen=True)
class Arguments:
    """A call's arguments, as the core wants them: `grad`, and sizes by keyword."""

    flag: int | None = None  # the argument `all_reduce_grads`, which becomes `grad`
    no_sizes: int | None = None  # an argument `None` for the sizes, whose place `grad` takes
    sizes: int | None = None  # sizes by position, which become a keyword


@dataclass(frozen=True)
class Imports:
    """An import of the copy becomes one of the core."""

    of_module: bool  # and not of its names
    more: tuple[str, ...] = ()  # names that the file needs besides


Edit: TypeAlias = Replace | Arguments | Imports


@dataclass
class Verdict:
    """What happens to a tree when the copy goes."""

    uses: list[Use]
    edits: dict[str, dict[Span, Edit]] = field(default_factory=dict)  # path -> what changes there
    by_hand: list[Remark] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)


def judge(tree: SourceTree, copy: str, adapter: Adapter) -> Verdict:
    """Look at every use of the copy in a tree."""
    verdict = Verdict(find_uses(tree, copy, adapter.api))
    by_file: dict[str, list[Use]] = {}
    for use in verdict.uses:
        by_file.setdefault(use.source.path, []).append(use)
    has_exists = any(_defines_exists(tree, path) for path in tree.contents)
    for uses in by_file.values():
        if uses[0].source.path != copy:
            _Judge(uses, adapter, verdict, has_exists=has_exists).run()
    verdict.by_hand += escaped(tree, verdict.uses)
    verdict.by_hand += named_in_strings(tree, copy)
    verdict.by_hand += broken(tree, copy)
    verdict.by_hand.sort()
    return verdict


class _Judge:
    """One file."""

    def __init__(self, uses: list[Use], adapter: Adapter, verdict: Verdict, *, has_exists: bool) -> None:
        self.source, self.uses, self.adapter, self.verdict = uses[0].source, uses, adapter, verdict
        self.has_exists = has_exists
        self.edits: dict[Span, Edit] = {}
        self.more: set[str] = set()
        self.left_alone: set[ast.AST] = set()  # imports that stay as they are

    def run(self) -> None:
        for use in self.uses:
            getattr(self, f"_{use.kind}")(use)
        self._add_imports()
        if self.edits:
            self.verdict.edits[self.source.path] = self.edits

    def _by_hand(self, node: ast.AST, text: str) -> None:
        remark = Remark(self.source.path, getattr(node, "lineno", 1), text)
        if remark not in self.verdict.by_hand:
            self.verdict.by_hand.append(remark)
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.left_alone.add(node)

    def _edit(self, node: ast.AST, edit: Edit) -> None:
        self.edits[span_of(self.source, node)] = edit

    def _code(self, node: ast.expr) -> str:
        return ast.get_source_segment(self.source.text, node) or ast.unparse(node)

    # ---------------------------------------------------------------- imports

    def _import(self, use: Use) -> None:
        node, name = use.node, use.name
        assert isinstance(node, ast.Import | ast.ImportFrom)
        if not use.direct:
            what = "names of the copy come" if name == "*" else f"{name} comes"
            self._by_hand(node, f"{what} here through another module; import from the copy's own module, then go on")
        elif name == "*":
            self._by_hand(node, "a star import; name what you use")
        elif self.source.path.endswith("__init__.py"):
            self._by_hand(
                node, "others may import from this package what it imports here; take it out, or keep the file"
            )
        elif name == "":
            if "." in use.local:
                self._by_hand(node, f"write `import {use.local} as …`, or import the names that you use")
            elif len(node.names) > 1:
                self._by_hand(node, "give the copy's module an import statement of its own")
        elif name not in self.adapter.api:
            self._by_hand(node, f"{self.adapter.distribution} has no {name}; keep your own in another file")
        elif remedy := self._no_counterpart(name):
            self._by_hand(node, f"the core has no {name}; {remedy}")
        elif use.local == name and name in RENAMED_IN_CORE:
            self._refuse_clash(node, RENAMED_IN_CORE[name])

    def _no_counterpart(self, name: str) -> str:
        if name == "AllGather" and not self.adapter.has_module:
            return "write `all_gather(x, dim, sizes)` for `AllGather.apply(x, dim, sizes)`: it is the same"
        if name == "AllGatherFunction":
            return "build an `AllGather` and call that"
        if name in SAME_IN_CORE or name in RENAMED_IN_CORE or name in self.adapter.gathers:
            return ""
        return "define it in a file of your own"

    def _refuse_clash(self, node: ast.AST, name: str) -> None:
        scopes = [self.source.tree, *(n for n in ast.walk(self.source.tree) if isinstance(n, _NAMESPACES))]
        if any(name in bound_names(scope) for scope in scopes):
            self._by_hand(
                node, f"{name} of the core is needed here, and this file has a {name} of its own: rename that"
            )

    def _ask(self, node: ast.AST) -> str:
        """How this file can ask whether there are other ranks."""
        tops = [use for use in self.uses if use.kind == "import" and use.direct and self._always_runs(use.node)]
        modules = [use.local for use in tops if use.name == ""]
        if any(use.name for use in tops):
            self.more.add(_ASK)
            self._refuse_clash(node, _ASK)
        elif modules:
            return f"{modules[0]}.{_ASK}()"
        else:
            self._by_hand(node, "import from the copy at the top of the file: `is_distributed` has to go there too")
        return f"{_ASK}()"

    def _is_at_top(self, node: ast.AST) -> bool:
        return not any(isinstance(around, _NAMESPACES) for around in self.source.around(node))

    def _always_runs(self, node: ast.AST) -> bool:
        """Whether an import holds for the whole file: in no function, and under no `if TYPE_CHECKING`."""
        return all(isinstance(around, ast.Module | ast.Try) for around in self.source.around(node))

    def _add_imports(self) -> None:
        imports = [use for use in self.uses if use.kind == "import" and use.node not in self.left_alone]
        statements = {use.node: use.name == "" for use in imports}
        imported = {use.name for use in imports if self._always_runs(use.node)}
        more = sorted(self.more - {RENAMED_IN_CORE.get(name, name) for name in imported})
        for node, of_module in statements.items():
            takes_more = not of_module and self._always_runs(node)
            self._edit(node, Imports(of_module, tuple(more) if takes_more else ()))
            more = [] if takes_more else more

    # ---------------------------------------------------------------- builds, calls, references

    def _build(self, use: Use) -> None:
        call = use.node
        assert isinstance(call, ast.Call)
        if not self.adapter.has_module or use.name != "AllGather":
            return  # said at the import
        if _has_stars(call):
            self._by_hand(call, "arguments by `*` or `**`; write them out")
        parent = self.source.parents[call]
        is_called = isinstance(parent, ast.Call) and parent.func is call
        if not is_called and not self._is_kept(call, parent):
            self._by_hand(call, "the object goes out of sight; keep it in `self.…`, or in a variable of the function")
        flag = next((i for i, word in enumerate(call.keywords) if word.arg == "all_reduce_grads"), None)
        self._edit(call, Arguments(flag=None if flag is None else len(call.args) + flag))

    def _is_kept(self, call: ast.Call, parent: ast.AST) -> bool:
        if not isinstance(parent, ast.Assign | ast.AnnAssign):
            return False
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        if len(targets) != 1:
            return False
        if isinstance(targets[0], ast.Name):
            return not self._is_at_top(call) and not isinstance(self.source.parents[parent], ast.ClassDef)
        return isinstance(targets[0], ast.Attribute) and ast.unparse(targets[0].value) == "self"

    def _call(self, use: Use) -> None:
        call, name = use.node, use.name
        assert isinstance(call, ast.Call)
        if use.owner is not None:
            self._pair(call)
        elif name in RENAMED_IN_CORE:
            self._rename(call.func, name)
        elif name == "all_gather":
            self._gather(call)

    def _gather(self, call: ast.Call) -> None:
        if _has_stars(call) or call.keywords or len(call.args) != 3:
            self._by_hand(call, "the three arguments of `all_gather(x, dim, sizes)` have to be written out")
            return
        sizes = call.args[2]
        is_none = isinstance(sizes, ast.Constant) and sizes.value is None
        self._edit(call, Arguments(no_sizes=2) if is_none else Arguments(sizes=2))
        self._pair(call)

    def _rename(self, function: ast.expr, name: str) -> None:
        if isinstance(function, ast.Attribute):
            self._edit(function, Replace(f"{self._code(function.value)}.{RENAMED_IN_CORE[name]}"))
        elif isinstance(function, ast.Name) and function.id == name:
            self._edit(function, Replace(RENAMED_IN_CORE[name]))

    def _reference(self, use: Use) -> None:
        node = use.node
        if use.owner is not None:
            self._of_object(node)
        elif use.name == "":
            self._by_hand(node, "the copy's module goes out of sight; use its names one by one")
        elif use.name not in SAME_IN_CORE and not self._no_counterpart(use.name):
            self._by_hand(node, f"{use.name} is not called here but handed on; call it in place")

    def _of_object(self, node: ast.AST) -> None:
        attribute = node.attr if isinstance(node, ast.Attribute) else ""
        if attribute == "is_distributed" and self.adapter.asks_when_built:
            self._edit(node, Replace(self._ask(node)))
        elif attribute == "all_reduce_grads":
            self._by_hand(node, "the core's module has `grad`, 'sum' or 'local', instead; keep the flag yourself")
        elif attribute != "dim":
            self._by_hand(node, "the object goes out of sight here, with sizes that become a tuple; call it in place")

    # ---------------------------------------------------------------- a tensor and the sizes

    def _pair(self, call: ast.Call) -> None:
        """What is done with the result of a gather."""
        parent = self.source.parents[call]
        if isinstance(parent, ast.Expr):
            return
        if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant) and parent.slice.value == 0:
            return
        target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
        if isinstance(target, ast.Tuple) and len(target.elts) == 2:
            if isinstance(target.elts[1], ast.Name):
                self._sizes(target.elts[1].id, call)
            else:
                self._by_hand(call, "the sizes are kept where they cannot be followed; unpack them into a variable")
        elif isinstance(target, ast.Name) and call.args and ast.dump(call.args[0]) == ast.dump(_loaded(target)):
            text = f"a pair is assigned as if it were a tensor; left as it is. Write `{target.id}, _ = …`"
            self.verdict.notes.append(Remark(self.source.path, call.lineno, text))
        else:
            self._by_hand(call, "the pair is handed on, and its sizes become a tuple; write `x, sizes = …` in place")

    def _sizes(self, name: str, call: ast.Call) -> None:
        """Every use of the sizes, in the function that got them."""
        scope = next((n for n in self.source.around(call) if isinstance(n, _FUNCTIONS)), self.source.tree)
        loads = [n for n in ast.walk(scope) if _is_load(n, name)]
        if not loads:
            return
        if not self._is_bound_by_gathers_only(scope, name):
            self._by_hand(call, f"{name} is bound elsewhere in this function too; give these sizes a name of their own")
            return
        for load in loads:
            assert isinstance(load, ast.Name)
            self._one_size_use(load)

    def _is_bound_by_gathers_only(self, scope: ast.AST, name: str) -> bool:
        calls = {use.node for use in self.uses if use.kind == "call"}
        for node in ast.walk(scope):
            if isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
                return False
            if isinstance(node, ast.arg) and node.arg == name:
                return False
            if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
                around = self.source.parents[node]
                statement = self.source.parents[around]
                if not (isinstance(statement, ast.Assign) and statement.value in calls):
                    return False
        return True

    def _one_size_use(self, load: ast.Name) -> None:
        parents = [load, *self.source.around(load)]
        above = parents[1]
        if isinstance(above, ast.Attribute):
            self._method(load, parents)
        elif isinstance(above, ast.Subscript) and above.value is load and _is_call_of(parents[2:4], "item"):
            self._edit(parents[3], Replace(self._code(above)))
        elif isinstance(above, ast.Compare) and _compares_with_none(above):
            if self.adapter.sizes_may_be_none:
                is_none = isinstance(above.ops[0], ast.Is)
                self._edit(above, Replace(("not " if is_none else "") + self._ask(above)))
        elif isinstance(above, ast.Call) and ast.unparse(above.func) == "exists" and self.has_exists:
            if self.adapter.sizes_may_be_none:
                self._edit(above, Replace(self._ask(above)))
        elif not self._takes_a_tuple(load, above, parents[2]):
            self._by_hand(load, f"{load.id} becomes a tuple of ints, and this use wants a tensor; {_AS_LIST}")

    def _method(self, load: ast.Name, parents: list[ast.AST]) -> None:
        attribute = parents[1]
        assert isinstance(attribute, ast.Attribute)
        if attribute.attr in ("tolist", "numel") and _is_call_of(parents[1:3], attribute.attr):
            function = {"tolist": "list", "numel": "len"}[attribute.attr]
            self._edit(parents[2], Replace(f"{function}({load.id})"))
        elif attribute.attr in _REDUCTIONS and _is_call_of(parents[1:3], attribute.attr) and _is_call_of(
            parents[3:5], "item"
        ):  # fmt: skip
            self._edit(parents[4], Replace(f"{_REDUCTIONS[attribute.attr]}({load.id})"))
        else:
            text = f"{load.id} becomes a tuple of ints, which has no such `.{attribute.attr}`; {_AS_LIST}"
            self._by_hand(load, text)

    def _takes_a_tuple(self, load: ast.Name, above: ast.AST, beyond: ast.AST) -> bool:
        """Whether sizes are passed to something that takes a tuple as well: `len`, or another gather."""
        if isinstance(above, ast.Call):
            if ast.unparse(above.func) == "len":
                return True
            return any(use.node is above for use in self.uses) and load in above.args[1:]
        return isinstance(above, ast.keyword) and above.arg == "sizes" and any(use.node is beyond for use in self.uses)


_NAMESPACES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def span_of(source: Source, node: ast.AST) -> Span:
    """A node's place, in characters; `ast` counts bytes."""
    line, end_line = getattr(node, "lineno", 1), getattr(node, "end_lineno", 1)
    column, end_column = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
    return Span(line, _characters(source, line, column), end_line, _characters(source, end_line, end_column))


def _characters(source: Source, line: int, count: int) -> int:
    return len(source.lines[line - 1].encode()[:count].decode())


def _has_stars(call: ast.Call) -> bool:
    return any(isinstance(arg, ast.Starred) for arg in call.args) or any(word.arg is None for word in call.keywords)


def _is_load(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _loaded(target: ast.Name) -> ast.Name:
    return ast.Name(target.id, ast.Load())


def _compares_with_none(node: ast.Compare) -> bool:
    other = node.comparators[0]
    is_none = isinstance(other, ast.Constant) and other.value is None
    return len(node.ops) == 1 and isinstance(node.ops[0], ast.Is | ast.IsNot) and is_none


def _is_call_of(parents: list[ast.AST], method: str) -> bool:
    """Whether an attribute and what is around it are `.method()`."""
    if len(parents) != 2:
        return False
    attribute, call = parents
    is_method = isinstance(attribute, ast.Attribute) and attribute.attr == method
    return is_method and isinstance(call, ast.Call) and call.func is attribute and not call.args and not call.keywords


def _defines_exists(tree: SourceTree, path: str) -> bool:
    """Whether a file has these projects' `def exists(val): return val is not None`."""
    if b"def exists(" not in tree.contents[path]:
        return False
    source = tree.source(path)
    return source is not None and any(
        isinstance(node, ast.FunctionDef)
        and node.name == "exists"
        and isinstance(node.body[-1], ast.Return)
        and node.body[-1].value is not None
        and ast.unparse(node.body[-1].value) == f"{node.args.args[0].arg if node.args.args else ''} is not None"
        for node in source.tree.body
    )
