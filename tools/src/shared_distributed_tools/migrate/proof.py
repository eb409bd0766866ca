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
import copy
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..catalog import CORE, CORE_FOLDER, Adapter, root
from ..render.verify import undefined_names
from ..repo.tree import Source
from ..repo.uses import Site, Use, class_of, is_of_self, position, scope_of

UNCHANGED, BY_HAND = "unchanged", "by hand: "
LACKING = frozenset({"is_distributed", "all_reduce_grads"})  # attributes of an old AllGather that the core's lacks
_ASK = "is_distributed()"
_GATHERS = ("AllGather", "all_gather", "get_is_distributed")  # the core has others of these names
_REFLECTION = frozenset({"locals", "globals", "vars", "exec", "eval"})
_WALKS = frozenset({"children", "named_children", "modules", "named_modules", "_modules", "__dict__"})
_EINSUM = re.compile(r"map\(lambda (\w+): einsum\('[^']*', \1, \1\), \([\w, ]+\)\)")
_KEEP = "keep it in a variable of the function that calls it, or in `self`"
_WRITE_OUT = "write the arguments out: dim, sizes in a variable, grad='sum' or 'local'"
_SIZES = "sizes are a tuple of ints in the core, never None: list(sizes), sum(sizes), torch.tensor(sizes)"
_LAYOUT = "its layout cannot be edited safely; put each use on a line of its own"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class File:
    """One file that uses the copy: what each use becomes, and whether the file can be moved."""

    source: Source
    uses: list[Use]
    rows: list[tuple[Site, str]] = field(default_factory=list)  # a place; the code for it, "unchanged" or "by hand: …"
    edits: dict[ast.AST, str] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)  # `self.` attributes with a gather: their classes
    stays: str = ""  # why the file stays although every row is proven

    @property
    def is_proven(self) -> bool:
        """Whether it can be moved."""
        return not self.stays and not any(core.startswith(BY_HAND) for _, core in self.rows)

    @property
    def result(self) -> str:
        """The file's text on the core."""
        text = self.source.text
        for node in sorted(self.edits, key=position, reverse=True):
            start, end = _span(self.source, node)
            text = text[:start] + self.edits[node] + text[end:]
        return text


class _ByHandError(Exception):
    """A place that is left to a person: what to do there."""


def _need(is_so: object, advice: str) -> None:
    if not is_so:
        raise _ByHandError(advice)


def _span(source: Source, node: ast.AST) -> tuple[int, int]:
    """Where a node begins and ends in its file's text."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source.text)  # as ast counts them
    row, column, last_row, last_column = position(node)
    ends = ((row, column), (last_row, last_column))
    start, end = (sum(map(len, lines[: at - 1])) + len(lines[at - 1].encode()[:to].decode()) for at, to in ends)
    return start, end


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


def _gradient(flags: list[ast.expr]) -> str:
    """The core's word for `all_reduce_grads`; by hand where that is no constant."""
    value = getattr(flags[0], "value", None) if flags else False
    _need(isinstance(value, bool) and len(flags) <= 1, _WRITE_OUT)
    return "sum" if value else "local"


def movable_names(adapter: Adapter) -> set[str]:
    """The names that the core has: what is rewritten, and what the adapter re-exports from there."""
    paths = (adapter.source, f"{CORE_FOLDER}/src/{CORE}/__init__.py")
    trees = [ast.parse((root() / path).read_bytes()).body for path in paths]
    own, core = ({name for node in tree if isinstance(node, ast.ImportFrom) for name in _bound(node)} for tree in trees)
    rewritten = {"AllGather" if adapter.has_module else "all_gather", "get_is_distributed"}
    return set(adapter.api) & (rewritten | (own & core))


class Proof:
    """Fills in a file. Each question about a node is answered with code for it, or with "unchanged"."""

    def __init__(self, file: File, adapter: Adapter) -> None:
        self.file, self.source, self.tree = file, file.source, file.source.tree
        self.adapter, self.movable = adapter, movable_names(adapter)
        self.counts = _bindings(self.tree)
        self.asks = False  # whether the file comes to need `is_distributed`
        self.sizes: list[tuple[ast.AST, str]] = []  # functions, and the name that sizes have there
        self.given: set[ast.AST] = set()  # sizes passed to a gather, whose row has them
        for use in file.uses:
            if use.kind != "import":
                self._row(use.node, use.kind, use.name, self._used, use.node, use)
        for read in (one for function, name in self.sizes for one in _reads(function, name)):
            if read not in self.given:
                self._row(self._around_sizes(read), "sizes", read.id, self._sizes_read, read)
        for node in ast.walk(self.tree):
            if self._is_obstacle(node):
                self._row(node, "other", "", _need, False, "what this may reach or bind cannot be followed")
        for use in file.uses:
            if use.kind == "import":
                self._row(use.node, use.kind, use.name, self._imported, use.node, use)
        file.rows.sort(key=lambda row: row[0].line)
        if file.is_proven:
            file.stays = self._second_look()

    def _row(self, node: ast.AST, kind: str, name: str, question: Callable[..., str | None], *about: object) -> None:
        try:
            core = question(*about) or UNCHANGED
        except _ByHandError as error:
            core = f"{BY_HAND}{error}"
        line: int = node.lineno  # type: ignore[attr-defined]
        self.file.rows.append((Site(self.source.path, line, kind, name, self.source.line(line)), core))
        if core != UNCHANGED and not core.startswith(BY_HAND):
            self.file.edits[node] = core

    def _text(self, node: ast.AST) -> str:
        start, end = _span(self.source, node)
        return self.source.text[start:end]

    def _with(self, name: str, core: str) -> str:
        """Code with a name that nothing else in the file may bind."""
        _need(not self.counts[name], f"{core}, but `{name}` means something else in this file: rename that first")
        self.asks = self.asks or name == "is_distributed"
        return core

    def _used(self, node: ast.AST, use: Use) -> str:
        _need(not use.through, f"import it from the copy, not through {use.through}")
        if use.kind == "call" and (use.owner or (use.name == "all_gather" and not self.adapter.has_module)):
            return self._called(node, use)
        if use.owner is not None:
            is_question = isinstance(node, ast.Attribute) and node.attr == "is_distributed"
            _need(is_question and self.adapter.asks_when_built, "a gather that is passed on cannot be followed")
            return self._with("is_distributed", _ASK)
        if use.kind == "build" and use.name == "AllGather" and self.adapter.has_module:
            return self._built(node)
        if use.name == "get_is_distributed" and isinstance(node, ast.Call) and not node.args and not node.keywords:
            return self._with("is_distributed", _ASK) if self._text(node.func) == use.name else UNCHANGED
        is_same = use.name in self.movable and use.name not in _GATHERS
        _need(is_same, f"{use.name or 'the module'} is not the core's: import and call what the core has")
        return UNCHANGED

    def _imported(self, node: ast.AST, use: Use) -> str:
        _need(not use.through, f"import it from the copy, not through {use.through}")
        is_plain = isinstance(node, ast.ImportFrom) and use.name != "*" and "" not in use.bound.values()
        _need(is_plain, "import the names that you use, one by one")
        _need(node in self.tree.body, "import it at the top of the file, without a condition")
        for local, name in use.bound.items():
            _need(name in self.movable, f"the core has no {name}; write what the core has, or use it in another file")
            _need(self.counts[local] == 1, f"`{local}` is bound again in this file: rename one of the two")
        names = re.sub(r"\bget_is_distributed\b", "is_distributed", self._text(node).partition("import")[2])
        if "get_is_distributed" in use.bound:
            return self._with("is_distributed", f"from {CORE} import{names}")
        if self.asks and not any("get_is_distributed" in one.bound for one in self.file.uses):
            self.asks = False  # the first import brings it
            before, last, after = names.rpartition(self._text(node.names[-1]))  # type: ignore[attr-defined]
            names = f"{before}{last}, is_distributed{after}"
        return f"from {CORE} import{names}"

    # ------------------------------------------------------------------ gathers

    def _built(self, node: ast.AST) -> str:
        assert isinstance(node, ast.Call)
        words = {word.arg: word.value for word in node.keywords}
        has_dim = len(node.args) + ("dim" in words) == 1 if self.adapter.asks_when_built else not node.args
        is_starred = any(isinstance(one, ast.Starred) for one in node.args)
        _need(has_dim and not is_starred and words.keys() <= {"dim", "all_reduce_grads"}, _WRITE_OUT)
        flags = [word for word in node.keywords if word.arg == "all_reduce_grads"]
        gradient = _gradient([word.value for word in flags])
        around = self.source.parents[node]
        if isinstance(around, ast.Assign) and len(around.targets) == 1:
            self._keep(around.targets[0])
        else:
            _need(isinstance(around, ast.Call) and around.func is node, _KEEP)
        return self._edited(node, [*flags], f"grad = '{gradient}'")

    def _edited(self, node: ast.Call, old: list[ast.AST], new: str) -> str:
        """A call with an argument in the place of others, or after the last one."""
        text, begin = self._text(node), _span(self.source, node)[0]
        is_dense = re.search(r"\w=[^=\s]", text) or (" = " not in text and re.search(r"\(\w+=\w", self.source.text))
        new = new.replace(" = ", "=") if is_dense else new
        if old:
            start, stop = _span(self.source, old[0])[0], max(_span(self.source, one)[1] for one in old)
            return f"{text[: start - begin]}{new}{text[stop - begin :]}"
        ends = [_span(self.source, one)[1] - begin for one in [*node.args, *node.keywords]]
        at = max(ends, default=len(text) - 1)
        at = len(text) - 1 if ")" in text[at:-1] else at  # the last argument is in parentheses
        return f"{text[:at]}{', ' if ends else ''}{new}{text[at:]}"

    def _keep(self, target: ast.expr) -> None:
        """By hand, unless a gather can be followed from here to its calls."""
        function, own = scope_of(self.source, target), class_of(self.source, target)
        if isinstance(target, ast.Name):
            _need(isinstance(function, _Function), _KEEP)
            _need(_bindings(function)[target.id] == 1, f"`{target.id}` is bound again in this function")
            return
        if not (is_of_self(target) and isinstance(own, ast.ClassDef) and function in own.body):
            raise _ByHandError(_KEEP)
        self.file.holders.setdefault(target.attr, set()).add(own.name)
        kept = [one for one in ast.walk(own) if is_of_self(one) and one.attr == target.attr]
        stored = [one for one in kept if not isinstance(one.ctx, ast.Load)]
        names = [name for one in ast.walk(own) if scope_of(self.source, one) is own for name in _bound(one)]
        _need(len(stored) == 1 and target.attr not in names, f"`self.{target.attr}` is bound again in this class")

    def _called(self, node: ast.AST, use: Use) -> str:
        assert isinstance(node, ast.Call)
        words = {word.arg: word.value for word in node.keywords}
        fixed, word = (1, "sizes") if use.owner else (2, "all_reduce_grads")
        is_starred = any(isinstance(one, ast.Starred) for one in node.args)
        rest = [*node.args[fixed:], *words.values()]
        _need(len(node.args) >= fixed and not is_starred and words.keys() <= {word}, _WRITE_OUT)
        _need(len(rest) <= 1 if use.owner else len(node.args) > 2, _WRITE_OUT)
        gradient = _gradient([] if use.owner else rest[1:])
        sizes = next((one for one in rest[:1] if ast.unparse(one) != "None"), None)
        self._unpack(node)
        if sizes is None:
            return UNCHANGED if use.owner else self._edited(node, [*rest], f"grad = '{gradient}'")
        _need(isinstance(sizes, ast.Name) or is_of_self(sizes), _WRITE_OUT)
        self.given.add(sizes)
        passed = self._text(sizes)
        if self.adapter.sizes_may_be_none:  # without other ranks the original ignores them
            passed = self._with("is_distributed", f"{passed} if {_ASK} else None")
        if use.owner is None:
            return self._edited(node, [*node.args[2:], *node.keywords], f"sizes = {passed}, grad = '{gradient}'")
        if self.adapter.sizes_may_be_none:
            self._row(sizes, "sizes", "", lambda: passed)
        return UNCHANGED

    def _unpack(self, node: ast.Call) -> None:
        """By hand, unless it is known where the sizes go."""
        around, function = self.source.parents[node], scope_of(self.source, node)
        if isinstance(around, ast.Subscript) and ast.unparse(around.slice) == "0" and isinstance(around.ctx, ast.Load):
            return
        target = around.targets[0] if isinstance(around, ast.Assign) and len(around.targets) == 1 else None
        if isinstance(target, ast.Name) and self._fails_as_tensor(node, target.id, function):
            return
        is_pair = isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(target.elts[1], ast.Name)
        _need(is_pair, "unpack it at once: `x, sizes = …`")
        name = target.elts[1].id  # type: ignore[union-attr]
        if name == "_":
            _need(not _reads(self.tree, "_"), "`_` is read in this file: give the sizes a name")
        else:
            is_own = isinstance(function, _Function) and _bindings(function)[name] == 1
            _need(is_own, f"`{name}` has to be bound once, in a function: give the sizes a name of their own")
            self.sizes.append((function, name))

    def _fails_as_tensor(self, node: ast.Call, name: str, function: ast.AST) -> bool:
        """Whether `x = all_gather(x, 0, None)` is used later only where a pair raises, whatever is in it."""
        loops = [one for one in self.source.around(node) if isinstance(one, ast.For | ast.AsyncFor | ast.While)]
        declared = [one for one in ast.walk(function) if isinstance(one, ast.Global | ast.Nonlocal)]
        reads = _reads(function, name)
        later = [one for one in reads if position(one) > position(node)[2:]]
        is_here = isinstance(function, _Function) and all(scope_of(self.source, one) is function for one in reads)
        is_its_own = ast.unparse(node.args[0]) == name
        return is_here and is_its_own and not loops and not declared and bool(later) and all(map(self._raises, later))

    def _raises(self, node: ast.Name) -> bool:
        """Whether a pair raises where a name stands, as an operand of torch's einsum or of `@`."""
        around = self.source.parents[node]
        torchs = {name for one in self.source.imports if getattr(one, "module", "") == "torch" for name in _bound(one)}
        is_einsum = "einsum" in torchs and self.counts["einsum"] == 1 and not self.counts["map"]
        is_operand = isinstance(around, ast.BinOp) and isinstance(around.op, ast.MatMult)
        return is_operand or (is_einsum and bool(_EINSUM.fullmatch(ast.unparse(self.source.parents[around]))))

    # ------------------------------------------------------------------ sizes, and what no form covers

    def _around_sizes(self, node: ast.Name) -> ast.AST:
        """What is done with sizes, as far as it is a proven form; else the name itself."""
        name = node.id
        forms = {f"{name}{one}" for one in (".tolist()", ".sum().item()", " is None", " is not None")}
        for around in [*self.source.around(node)][:4]:
            is_check = isinstance(around, ast.Call) and around.args == [node] and self._is_none_check(around)
            if isinstance(around, ast.expr) and (is_check or ast.unparse(around) in forms):
                return around
        return node

    def _sizes_read(self, node: ast.Name) -> str:
        around = self._around_sizes(node)
        _need(around is not node, _SIZES)
        code = ast.unparse(around)
        if code.endswith(")") and code.startswith(f"{node.id}."):
            builtin = "list" if code.endswith("tolist()") else "sum"
            return self._with(builtin, f"{builtin}({node.id})")
        if not self.adapter.sizes_may_be_none:
            return UNCHANGED
        return self._with("is_distributed", f"not {_ASK}" if code.endswith(" is None") else _ASK)

    def _is_none_check(self, call: ast.Call) -> bool:
        """Whether a function of this file is `return … is not None`, and nothing else is called so."""
        name = ast.unparse(call.func)
        found = [one for one in self.tree.body if isinstance(one, ast.FunctionDef) and one.name == name]
        form = rf"def {re.escape(name)}\((\w+)\):\s+return \1 is not None"
        return self.counts[name] == len(found) == 1 and bool(re.fullmatch(form, ast.unparse(found[0])))

    def _is_obstacle(self, node: ast.AST) -> bool:
        """Whether a place may reach a gather, or bind a name, without spelling it as a use does."""
        is_used = any(use.node is node for use in self.file.uses)
        names = {name for use in self.file.uses for name in use.bound} | set(self.file.holders) | LACKING
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
                return name in _WALKS and bool(self.file.holders)
            case ast.arg(arg="self") | ast.Name(id="self", ctx=ast.Store()) if self.file.holders:
                around = self.source.parents.get(scope_of(self.source, node))
                return not (isinstance(node, ast.arg) and isinstance(around, ast.ClassDef))
        return False

    def _second_look(self) -> str:
        """The result, looked at by other means: why it is not what was planned; empty if it is."""
        edits = self.file.edits
        if any(one in edits for node in edits for one in self.source.around(node)):
            return "one line needs two changes, one inside the other; split it into two statements"
        copies: dict[int, ast.AST] = {}
        expected = copy.deepcopy(self.tree, copies)
        new = {copies[id(node)]: text for node, text in edits.items()}
        try:
            is_read_right = all(ast.dump(_parsed(self._text(node))) == ast.dump(node) for node in edits)
            is_written_right = ast.dump(ast.parse(self.file.result)) == ast.dump(_Replaced(new).visit(expected))
            missing = undefined_names(self.file.result) - undefined_names(self.source.text)
        except (SyntaxError, ValueError, RecursionError):
            return _LAYOUT
        return "" if is_read_right and is_written_right and not missing else _LAYOUT


class _Replaced(ast.NodeTransformer):
    def __init__(self, new: dict[ast.AST, str]) -> None:
        self.new = new

    def visit(self, node: ast.AST) -> ast.AST:
        return _parsed(self.new[node]) if node in self.new else self.generic_visit(node)


def _parsed(text: str) -> ast.AST:
    """The statement or expression that a text is."""
    statement = ast.parse(text).body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement
