# SPDX-License-Identifier: MIT
"""One file that uses the copy: what each use becomes in the core, if it has one of a few proven forms.

    from .distributed import AllGather     from shared_distributed import AllGather
    AllGather(dim = 2)                     AllGather(dim = 2, grad = 'local'); 'sum' for `all_reduce_grads = True`
    all_gather(x, 0, sizes)                all_gather(x, 0, sizes = sizes, grad = 'local')
    get_is_distributed(), gather.is_distributed, exists(sizes), sizes is not None       is_distributed()
    sizes.tolist(), sizes.sum().item()     list(sizes), sum(sizes)

The proof goes by spelling. It counts bindings of every kind and knows no scopes: a name of the copy is bound once in
its file, a gather once in its function or class, sizes once in their function. Everything else is left to a person.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from ..catalog import CORE, CORE_FOLDER, Adapter, root
from ..render.verify import undefined_names
from ..repo.tree import Function, Scope
from ..repo.uses import Site, Use, is_of_self, position
from ..scan.fingerprint import imported_names

UNCHANGED, BY_HAND = "unchanged", "by hand: "
LACKING = frozenset({"is_distributed", "all_reduce_grads"})  # attributes of an old AllGather that the core's lacks
_ASK = "is_distributed()"
_GATHERS = ("AllGather", "all_gather", "get_is_distributed")  # the core has others of these names
_REFLECTION = frozenset({"locals", "globals", "vars", "exec", "eval"})
_WALKS = frozenset({"children", "named_children", "modules", "named_modules", "_modules", "__dict__"})
_NONE_CHECK = re.compile(r"def (\w+)\((\w+)\):\s+return \2 is not None")
_EINSUM = re.compile(r"map\(lambda (\w+): einsum\('[^']*', \1, \1\), \([\w, ]+\)\)")
# arguments, as `ast.unparse` writes them
_BUILD = r"(?:(?:dim=)?[^,*=]+)?(?:(?:^|, )all_reduce_grads=(?P<flag>True|False))?"
_GIVEN = r"(?P<sizes>(?!True|False)(?:self\.)?[^\W\d]\w*)"
_CALL = rf"(?:(?:sizes=)?{_GIVEN})?(?P<flag>)"
_CALL_OF_FUNCTION = rf"{_GIVEN}(?:, (?:all_reduce_grads=)?(?P<flag>True|False))?"
_KEEP = "keep it in a variable of the function that calls it, or in `self`"
_WRITE_OUT = "write the arguments out: dim, sizes in a variable, grad='sum' or 'local'"
_SIZES = "sizes are a tuple of ints in the core, never None: list(sizes), sum(sizes), torch.tensor(sizes)"
_LAYOUT = "its layout cannot be edited safely; put each use on a line of its own"


class Row(NamedTuple):
    """A place, and the code for it in the core, "unchanged" or "by hand: …"."""

    site: Site
    core: str
    node: ast.AST

    @property
    def is_by_hand(self) -> bool:
        """Whether a person has to change it."""
        return self.core.startswith(BY_HAND)


class _ByHandError(Exception):
    """A place that is left to a person: what to do there."""


def _need(is_so: object, advice: str) -> None:
    if not is_so:
        raise _ByHandError(advice)


def _bound(node: ast.AST) -> list[str]:
    """The names that a node itself binds, in whatever way."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name) | ast.MatchMapping(rest=str(name)):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name.partition(".")[0] for alias in aliases]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return names
        case ast.alias():
            return []
    own = getattr(node, "name", None)  # def, class, except, `case … as`, `case [*…]`, type parameters
    return [own] if isinstance(own, str) else []


def _bindings(node: ast.AST) -> Counter[str]:
    return Counter(name for inner in ast.walk(node) for name in _bound(inner))


def _reads(node: ast.AST, name: str) -> list[ast.Name]:
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == name]
    return [one for one in names if isinstance(one.ctx, ast.Load)]


def _movable_names(adapter: Adapter) -> set[str]:
    """The names that the core has: what is rewritten, and what the adapter re-exports from there."""
    paths = (adapter.source, f"{CORE_FOLDER}/src/{CORE}/__init__.py")
    trees = [ast.parse((root() / path).read_bytes()).body for path in paths]
    own, core = ({name for node in tree if isinstance(node, ast.ImportFrom) for name in _bound(node)} for tree in trees)
    rewritten = {"AllGather" if adapter.has_module else "all_gather", "get_is_distributed"}
    return set(adapter.api) & (rewritten | (own & core))


class File:
    """One file that uses the copy. Each question about a place is answered with code for it, or with "unchanged"."""

    def __init__(self, uses: list[Use], adapter: Adapter) -> None:
        self.uses, self.adapter, self.source = uses, adapter, uses[0].source
        self.tree = self.source.tree
        self.rows: list[Row] = []
        self.holders: dict[str, set[str]] = {}  # `self.` attributes with a gather: their classes
        self._encoded = self.source.text.encode()  # ast counts columns in UTF-8
        self._starts = [0, *accumulate(map(len, self._encoded.splitlines(keepends=True)))]  # of the lines in it
        self._counts, self._movable = _bindings(self.tree), _movable_names(adapter)
        self._asks = False  # whether the file comes to need `is_distributed`
        self._sizes: list[ast.Name] = []  # where sizes are read
        self._given: set[ast.AST] = set()  # sizes passed to a gather, whose row has them
        imports = [use for use in uses if use.kind == "import"]
        for use in uses:
            if use not in imports:
                self._row(use.node, use.kind, use.name, self._used, use)
        for read in self._sizes:
            if read not in self._given:
                node, code = self._form(read)
                self._row(node, "sizes", read.id, self._with, code, _SIZES)
        for node in ast.walk(self.tree):
            if self._is_obstacle(node):
                self._row(node, "other", "", _need, False, "what this may reach or bind cannot be followed")
        for use in imports:
            self._row(use.node, use.kind, use.name, self._imported, use)
        self.rows.sort(key=lambda row: row.site.line)
        self.stays = ""  # why the file stays although every row is proven
        self.stays = self._second_look() if self.is_proven else ""

    @property
    def is_proven(self) -> bool:
        """Whether it can be moved."""
        return not self.stays and not any(row.is_by_hand for row in self.rows)

    @property
    def result(self) -> str:
        """The file's text on the core."""
        text, edits = self._encoded, self._edits
        for node in sorted(edits, key=position, reverse=True):
            start, end = self._span(node)
            text = text[:start] + edits[node].encode() + text[end:]
        return text.decode()

    @property
    def _edits(self) -> dict[ast.AST, str]:
        return {row.node: row.core for row in self.rows if row.core != UNCHANGED and not row.is_by_hand}

    def _span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends in the encoded text."""
        row, column, last_row, last_column = position(node)
        return self._starts[row - 1] + column, self._starts[last_row - 1] + last_column

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._encoded[start:end].decode(errors="replace")  # in an f-string ast may count otherwise

    def _row(self, node: ast.AST, kind: str, name: str, question: Callable[..., str | None], *about: object) -> None:
        try:
            core = question(*about) or UNCHANGED
        except _ByHandError as error:
            core = f"{BY_HAND}{error}"
        line: int = node.lineno  # type: ignore[attr-defined]
        self.rows.append(Row(Site(self.source.path, line, kind, name, self.source.lines[line]), core, node))

    def _with(self, code: str, advice: str = "") -> str:
        """Code with names that nothing else in the file may bind. advice: for a place that there is no code for."""
        _need(code, advice)
        for name in re.findall(r"\b(?:list|sum|is_distributed)\b", code):
            _need(not self._counts[name], f"{code}, but `{name}` means something else in this file: rename that first")
            self._asks = self._asks or name == "is_distributed"
        return code

    def _used(self, use: Use) -> str:
        node, adapter = use.node, self.adapter
        _need(not use.through, f"import it from the copy, not through {use.through}")
        match node, use.kind, use.name:
            case ast.Call(), "call", name if use.owner or (name == "all_gather" and not adapter.has_module):
                return self._called(node, use)
            case ast.Call(), "build", "AllGather" if adapter.has_module:
                return self._built(node)
            case ast.Attribute(attr="is_distributed"), _, _ if use.owner and adapter.asks_when_built:
                return self._with(_ASK)
            case ast.Call(args=[], keywords=[]), _, "get_is_distributed" as name:
                return self._with(_ASK) if self._text(node.func) == name else UNCHANGED
        _need(not use.owner, "a gather that is passed on cannot be followed")
        is_same = use.name in self._movable and use.name not in _GATHERS
        _need(is_same, f"{use.name or 'the module'} is not the core's: import and call what the core has")
        return UNCHANGED

    def _imported(self, use: Use) -> str:
        node = use.node
        _need(not use.through, f"import it from the copy, not through {use.through}")
        is_plain = isinstance(node, ast.ImportFrom) and use.name != "*" and "" not in use.bound.values()
        _need(is_plain, "import the names that you use, one by one")
        _need(node in self.tree.body, "import it at the top of the file, without a condition")
        for local, name in use.bound.items():
            _need(name in self._movable, f"the core has no {name}; write what the core has, or use it in another file")
            _need(self._counts[local] == 1, f"`{local}` is bound again in this file: rename one of the two")
        names = re.sub(r"\bget_is_distributed\b", "is_distributed", self._text(node).partition("import")[2])
        if "get_is_distributed" in use.bound:
            return self._with(f"from {CORE} import{names}")
        if self._asks and not any("get_is_distributed" in one.bound for one in self.uses):
            self._asks = False  # the first import brings it
            before, last, after = names.rpartition(self._text(node.names[-1]))  # type: ignore[union-attr]
            names = f"{before}{last}, is_distributed{after}"
        return f"from {CORE} import{names}"

    # ------------------------------------------------------------------ gathers

    def _arguments(self, node: ast.Call, fixed: int, form: str) -> tuple[str, str]:
        """The sizes and the gradient that a call gives, behind its first arguments; by hand if it has another form."""
        texts = [ast.unparse(one) for one in (*node.args, *node.keywords)]
        found = re.fullmatch(form, ", ".join(texts[fixed:]))
        if found is None or len(node.args) < fixed or any(text.startswith("*") for text in texts):
            raise _ByHandError(_WRITE_OUT)
        sizes = found.groupdict().get("sizes")
        return "" if sizes in (None, "None") else sizes, "sum" if found["flag"] == "True" else "local"

    def _built(self, node: ast.Call) -> str:
        _, gradient = self._arguments(node, 0, _BUILD)
        match self.source.parents[node]:
            case ast.Assign(targets=[target]):
                self._keep(target)
            case around:
                _need(isinstance(around, ast.Call) and around.func is node, _KEEP)
        flags = [word for word in node.keywords if word.arg == "all_reduce_grads"]
        return self._edited(node, flags, f"grad = '{gradient}'")

    def _edited(self, node: ast.Call, old: Sequence[ast.AST], new: str) -> str:
        """A call with an argument in the place of others, or after the last one."""
        text, (begin, end) = self._text(node), self._span(node)
        is_dense = re.search(r"\w=[^=\s]", text) or (" = " not in text and re.search(r"\(\w+=\w", self.source.text))
        new = new.replace(" = ", "=") if is_dense else new
        stop = max([self._span(one)[1] for one in [*node.args, *node.keywords]], default=end - 1)
        if b")" in self._encoded[stop : end - 1]:  # the last argument is in parentheses
            stop = end - 1
        start = self._span(old[0])[0] if old else stop
        comma = ", " if not old and (node.args or node.keywords) else ""
        edited = self._encoded[begin:start] + f"{comma}{new}".encode() + self._encoded[stop:end]
        return edited.decode(errors="replace")

    def _keep(self, target: ast.expr) -> None:
        """By hand, unless a gather can be followed from here to its calls."""
        function, own = self.source.nearest(target, Scope), self.source.nearest(target, ast.ClassDef)
        if isinstance(target, ast.Name) and isinstance(function, Function):
            _need(_bindings(function)[target.id] == 1, f"`{target.id}` is bound again in this function")
        elif is_of_self(target) and isinstance(own, ast.ClassDef) and function in own.body:
            self.holders.setdefault(target.attr, set()).add(own.name)
            kept = [one for one in ast.walk(own) if is_of_self(one) and one.attr == target.attr]
            is_once = sum(not isinstance(one.ctx, ast.Load) for one in kept) == 1 and not _bindings(own)[target.attr]
            _need(is_once, f"`self.{target.attr}` is bound again in this class")
        else:
            raise _ByHandError(_KEEP)

    def _called(self, node: ast.Call, use: Use) -> str:
        fixed, form = (1, _CALL) if use.owner else (2, _CALL_OF_FUNCTION)
        sizes, gradient = self._arguments(node, fixed, form)
        self._unpack(node)
        rest = [*node.args[fixed:], *node.keywords]
        given = next((one.value if isinstance(one, ast.keyword) else one for one in rest), node)
        passed = sizes
        if sizes and self.adapter.sizes_may_be_none:  # without other ranks the original ignores them
            passed = self._with(f"{sizes} if {_ASK} else None")
        self._given |= {given} if sizes else set()
        if use.owner is None:
            named = f"sizes = {passed}, " if sizes else ""
            return self._edited(node, rest, f"{named}grad = '{gradient}'")
        if passed != sizes:
            self._row(given, "sizes", "", str, passed)
        return UNCHANGED

    def _unpack(self, node: ast.Call) -> None:
        """By hand, unless it is known where the sizes go."""
        function = self.source.nearest(node, Scope)
        match self.source.parents[node]:
            case ast.Subscript(slice=ast.Constant(value=0), ctx=ast.Load()):
                pass
            case ast.Assign(targets=[ast.Name(id=name)]) if self._fails_as_tensor(node, name, function):
                pass
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id="_")])]):
                _need(not _reads(self.tree, "_"), "`_` is read in this file: give the sizes a name")
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=name)])]):
                is_own = isinstance(function, Function) and _bindings(function)[name] == 1
                _need(is_own, f"`{name}` has to be bound once, in a function: give the sizes a name of their own")
                self._sizes += _reads(function, name)
            case _:
                raise _ByHandError("unpack it at once: `x, sizes = …`")

    def _fails_as_tensor(self, node: ast.Call, name: str, function: ast.AST) -> bool:
        """Whether `x = all_gather(x, 0, None)` is used later only where a pair raises, whatever is in it."""
        is_loop = any(isinstance(one, ast.For | ast.AsyncFor | ast.While) for one in self.source.around(node))
        is_shared = any(isinstance(one, ast.Global | ast.Nonlocal) for one in ast.walk(function))
        reads = _reads(function, name)
        is_here = isinstance(function, Function) and all(self.source.nearest(one, Scope) is function for one in reads)
        later = [self.source.parents[one] for one in reads if position(one) > position(node)[2:]]
        is_torchs = imported_names(self.tree).get("einsum") == "torch.einsum" and self._counts["einsum"] == 1
        is_einsum = is_torchs and not self._counts["map"]
        others = [one for one in later if not (isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult))]
        is_raised = all(is_einsum and _EINSUM.fullmatch(ast.unparse(self.source.parents[one])) for one in others)
        return is_here and not is_loop and not is_shared and bool(later) and is_raised

    # ------------------------------------------------------------------ sizes, and what no form covers

    def _form(self, read: ast.Name) -> tuple[ast.AST, str]:
        """What is done with sizes, and the code for it; no code where that is not proven."""
        name = read.id
        functions = [ast.unparse(one) for one in self.tree.body if isinstance(one, ast.FunctionDef)]
        checks = [found[1] for found in map(_NONE_CHECK.fullmatch, functions) if found and self._counts[found[1]] == 1]
        asks = {f"{name} is None": f"not {_ASK}", f"{name} is not None": _ASK}
        asks |= {f"{check}({name})": _ASK for check in checks}
        forms = {f"{name}.tolist()": f"list({name})", f"{name}.sum().item()": f"sum({name})"}
        forms |= asks if self.adapter.sizes_may_be_none else dict.fromkeys(asks, UNCHANGED)
        for around in [*self.source.around(read)][:4]:
            if isinstance(around, ast.expr) and ast.unparse(around) in forms:
                return around, forms[ast.unparse(around)]
        return read, ""

    def _is_obstacle(self, node: ast.AST) -> bool:
        """Whether a place may reach a gather, or bind a name, without spelling it as a use does."""
        is_used = any(use.node is node for use in self.uses)
        names = {name for use in self.uses for name in use.bound} | set(self.holders) | LACKING
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return not is_used
            case ast.Name(id=name) if name in _REFLECTION:
                return True
            case ast.Constant(value=str(text)):  # `getattr(self, "gather")`
                return text.rpartition(".")[2] in names
            case ast.Attribute(attr="is_distributed"):
                return self.adapter.asks_when_built and not is_used
            case ast.Attribute(attr=name):
                return name in _WALKS and bool(self.holders)
            case ast.arg(arg="self") | ast.Name(id="self", ctx=ast.Store()) if self.holders:
                around = self.source.parents.get(self.source.nearest(node, Scope))
                return not (isinstance(node, ast.arg) and isinstance(around, ast.ClassDef))
        return False

    def _second_look(self) -> str:
        """The result, looked at by other means: why it is not what was planned; empty if it is."""
        edits = self._edits
        if any(one in edits for node in edits for one in self.source.around(node)):
            return "one line needs two changes, one inside the other; split it into two statements"
        try:
            found = ast.dump(ast.parse(self.result))
            is_read = all(ast.dump(_parsed(self._text(node))) == ast.dump(node) for node in edits)
            is_written = all(ast.dump(_parsed(text)) in found for text in edits.values())
            missing = undefined_names(self.result) - undefined_names(self.source.text)
        except (SyntaxError, ValueError, RecursionError):
            return _LAYOUT
        return "" if is_read and is_written and not missing else _LAYOUT


def _parsed(text: str) -> ast.AST:
    """The statement or expression that a text is."""
    statement = ast.parse(text).body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement
