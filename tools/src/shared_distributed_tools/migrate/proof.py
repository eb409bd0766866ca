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
from dataclasses import dataclass, field

from ..catalog import CORE, CORE_FOLDER, Adapter, root
from ..render.verify import undefined_names
from ..repo.tree import Source
from ..repo.uses import Site, Use, class_of, is_of_self, position, scope_of

UNCHANGED, BY_HAND = "unchanged", "by hand: "
LACKING = frozenset({"is_distributed", "all_reduce_grads"})  # attributes of an old AllGather that the core's lacks
_ASK = "is_distributed()"
_REFLECTION = frozenset({"locals", "globals", "vars", "exec", "eval"})
_WALKS = frozenset({"children", "named_children", "modules", "named_modules", "_modules", "__dict__"})
_EINSUM = re.compile(r"map\(lambda (\w+): einsum\('[^']*', \1, \1\), \([\w, ]+\)\)")
_KEEP = "keep it in a variable of the function that calls it, or in `self`"
_WRITE_OUT = "write the arguments out: dim, sizes in a variable, grad='sum' or 'local'"
_SIZES = "sizes are a tuple of ints in the core, never None: list(sizes), sum(sizes), torch.tensor(sizes)"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class File:
    """One file that uses the copy: what each use becomes, and whether the file can be moved."""

    source: Source
    uses: list[Use]
    rows: list[tuple[Site, str]] = field(default_factory=list)  # a place; the code for it, "unchanged" or "by hand: …"
    edits: dict[ast.AST, str] = field(default_factory=dict)
    holders: dict[str, list[ast.ClassDef]] = field(default_factory=dict)  # `self.` attributes that hold a gather
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
            start, end = span(self.source, node)
            text = text[:start] + self.edits[node] + text[end:]
        return text


def span(source: Source, node: ast.AST) -> tuple[int, int]:
    """Where a node begins and ends in its file's text."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source.text)  # as ast counts them
    row, column, last_row, last_column = position(node)
    ends = ((row, column), (last_row, last_column))
    start, end = (sum(map(len, lines[: at - 1])) + len(lines[at - 1].encode()[:to].decode()) for at, to in ends)
    return start, end


def bound_by(node: ast.AST) -> list[str]:
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


def is_stored(node: ast.AST) -> bool:
    """Whether a name or attribute is bound or deleted here, and not read."""
    return not isinstance(getattr(node, "ctx", None), ast.Load)


def times_kept(node: ast.ClassDef, attribute: str) -> int:
    """How often a class binds `self.attribute`."""
    return sum(is_of_self(one) and one.attr == attribute and is_stored(one) for one in ast.walk(node))


def movable_names(adapter: Adapter) -> set[str]:
    """The names that the core has: what is rewritten, and what the adapter re-exports from there."""
    trees = (
        ast.parse((root() / path).read_bytes()) for path in (adapter.source, f"{CORE_FOLDER}/src/{CORE}/__init__.py")
    )
    own, core = (
        {name for node in tree.body if isinstance(node, ast.ImportFrom) for name in bound_by(node)} for tree in trees
    )
    rewritten = {"AllGather" if adapter.has_module else "all_gather", "get_is_distributed"}
    return set(adapter.api) & (rewritten | (own & core))


def prove(file: File, adapter: Adapter) -> None:
    """Fill in a file's rows and edits."""
    _Proof(file, adapter).run()


class _Proof:
    """Each question is answered with code, with "unchanged", or with "by hand" and what to do."""

    def __init__(self, file: File, adapter: Adapter) -> None:
        self.file, self.source, self.tree = file, file.source, file.source.tree
        self.adapter, self.movable = adapter, movable_names(adapter)
        self.nodes = list(ast.walk(self.tree))
        self.counts = _bindings(self.tree)
        self.asks = False  # whether the file comes to need `is_distributed`
        self.sizes: list[tuple[ast.AST, str]] = []  # functions, and the name that sizes have there
        self.given: set[ast.AST] = set()  # sizes passed to a gather, whose row has them

    def run(self) -> None:
        for use in self.file.uses:
            if use.kind != "import":
                self._row(use.node, use.kind, use.name, self._used(use.node, use))
        for function, name in self.sizes:
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id == name and not is_stored(node) and node not in self.given:
                    self._row(*self._sizes_read(node))
        for node in self.nodes:
            why = self._obstacle(node)
            if why:
                self._row(node, "other", "", BY_HAND + why)
        for use in self.file.uses:
            if use.kind == "import":
                self._row(use.node, use.kind, use.name, self._imported(use))
        self.file.rows.sort(key=lambda row: row[0].line)
        if self.file.is_proven:
            self.file.stays = self._second_look()

    def _row(self, node: ast.AST, kind: str, name: str, core: str) -> None:
        line: int = node.lineno  # type: ignore[attr-defined]
        self.file.rows.append((Site(self.source.path, line, kind, name, self.source.line(line)), core))
        if core != UNCHANGED and not core.startswith(BY_HAND):
            self.file.edits[node] = core

    def _text(self, node: ast.AST) -> str:
        start, end = span(self.source, node)
        return self.source.text[start:end]

    def _with(self, name: str, core: str) -> str:
        """Code with a name that nothing else in the file may bind."""
        if self.counts[name]:
            return f"{BY_HAND}{core}, but `{name}` means something else in this file: rename that first"
        self.asks = self.asks or name == "is_distributed"
        return core

    # ------------------------------------------------------------------ the copy's names

    def _used(self, node: ast.AST, use: Use) -> str:
        if use.through:
            return f"{BY_HAND}import it from the copy, not through {use.through}"
        is_gather = use.owner is not None or (use.name == "all_gather" and not self.adapter.has_module)
        if use.kind == "call" and is_gather:
            return self._called(node, use)
        if use.owner is not None:
            is_question = (
                self.adapter.asks_when_built and isinstance(node, ast.Attribute) and node.attr == "is_distributed"
            )
            return (
                self._with("is_distributed", _ASK)
                if is_question
                else f"{BY_HAND}a gather that is passed on is not followed"
            )
        if use.kind == "build" and use.name == "AllGather" and self.adapter.has_module:
            return self._built(node)
        if use.name == "get_is_distributed" and isinstance(node, ast.Call) and not node.args and not node.keywords:
            return self._with("is_distributed", _ASK) if self._text(node.func) == use.name else UNCHANGED
        is_same = use.name in self.movable and use.name not in ("AllGather", "all_gather", "get_is_distributed")
        return (
            UNCHANGED
            if is_same
            else f"{BY_HAND}{use.name or 'the module'} is not the core's: import and call what the core has"
        )

    def _imported(self, use: Use) -> str:
        node = use.node
        if use.through:
            return f"{BY_HAND}import it from the copy, not through {use.through}"
        if use.name == "*" or "" in use.bound.values() or not isinstance(node, ast.ImportFrom):
            return f"{BY_HAND}import the names that you use, one by one"
        if node not in self.tree.body:
            return f"{BY_HAND}import it at the top of the file, without a condition"
        for local, name in use.bound.items():
            if name not in self.movable:
                return f"{BY_HAND}the core has no {name}; write what the core has, or use it in another file"
            if self.counts[local] > 1:
                return f"{BY_HAND}`{local}` is bound again in this file: rename one of the two"
        names = re.sub(r"\bget_is_distributed\b", "is_distributed", self._text(node).partition("import")[2])
        if "get_is_distributed" in use.bound:
            return self._with("is_distributed", f"from {CORE} import{names}")
        if self.asks and not any("get_is_distributed" in one.bound for one in self.file.uses):
            self.asks = False  # the first import brings it
            before, last, after = names.rpartition(self._text(node.names[-1]))
            names = f"{before}{last}, is_distributed{after}"
        return f"from {CORE} import{names}"

    # ------------------------------------------------------------------ gathers

    def _built(self, node: ast.AST) -> str:
        assert isinstance(node, ast.Call)
        words = {word.arg: word for word in node.keywords}
        flag = words.get("all_reduce_grads")
        has_dim = len(node.args) + ("dim" in words) == 1 if self.adapter.asks_when_built else not node.args
        gradient = _gradient(flag.value if flag else None)
        if _is_starred(node) or not (has_dim and gradient and words.keys() <= {"dim", "all_reduce_grads"}):
            return BY_HAND + _WRITE_OUT
        around = self.source.parents[node]
        if isinstance(around, ast.Assign) and len(around.targets) == 1:
            why = self._kept_in(around.targets[0])
        else:
            why = "" if isinstance(around, ast.Call) and around.func is node else _KEEP
        if why:
            return BY_HAND + why
        arguments: list[ast.AST] = [*node.args, *node.keywords]
        return self._edited(node, [flag] if flag else [], "" if flag or not arguments else ", ", f"grad = '{gradient}'")

    def _edited(self, node: ast.Call, old: list[ast.AST], before: str, new: str) -> str:
        """A call with an argument in the place of others, or after the last one."""
        text, begin = self._text(node), span(self.source, node)[0]
        new = new.replace(" = ", "=") if re.search(r"\w=[^=\s]", text) else new
        every = old or [*node.args, *node.keywords]
        start = span(self.source, old[0])[0] - begin if old else len(text) - 1
        stop = max([span(self.source, one)[1] - begin for one in every], default=start)
        if not old and ")" not in text[stop:-1]:  # otherwise the last argument is in parentheses
            start = stop
        return f"{text[:start]}{before}{new}{text[max(start, stop) :]}"

    def _kept_in(self, target: ast.expr) -> str:
        """Why a gather cannot be followed to its calls; empty if it can."""
        function, own = scope_of(self.source, target), class_of(self.source, target)
        if isinstance(target, ast.Name) and isinstance(function, _Function):
            return "" if _bindings(function)[target.id] == 1 else f"`{target.id}` is bound again in this function"
        if not (is_of_self(target) and isinstance(own, ast.ClassDef) and function in own.body):
            return _KEEP
        self.file.holders.setdefault(target.attr, []).append(own)
        names = [name for one in ast.walk(own) if scope_of(self.source, one) is own for name in bound_by(one)]
        is_once = times_kept(own, target.attr) == 1 and target.attr not in names
        return "" if is_once else f"`self.{target.attr}` is bound again in this class"

    def _called(self, node: ast.AST, use: Use) -> str:
        assert isinstance(node, ast.Call)
        words = {word.arg: word.value for word in node.keywords}
        if use.owner is not None:
            given, flags = [*node.args[1:], *words.values()], []
            is_plain = len(node.args) >= 1 and len(given) <= 1 and words.keys() <= {"sizes"}
        else:
            given, flags = node.args[2:3], [*node.args[3:], *words.values()]
            is_plain = len(given) == 1 and len(flags) <= 1 and words.keys() <= {"all_reduce_grads"}
        gradient = _gradient(flags[0] if flags else None)
        sizes = next((one for one in given if not (isinstance(one, ast.Constant) and one.value is None)), None)
        is_kept = sizes is None or isinstance(sizes, ast.Name) or is_of_self(sizes)
        if _is_starred(node) or not (is_plain and gradient and is_kept):
            return BY_HAND + _WRITE_OUT
        why = self._unpacked(node)
        if why:
            return BY_HAND + why
        passed = "" if sizes is None else self._text(sizes)
        if sizes is not None and self.adapter.sizes_may_be_none:  # without other ranks the original ignores them
            passed = self._with("is_distributed", f"{passed} if {_ASK} else None")
        if sizes is not None:
            self.given.add(sizes)
        if passed.startswith(BY_HAND):
            return passed
        if use.owner is None:
            new = (f"sizes = {passed}, " if passed else "") + f"grad = '{gradient}'"
            return self._edited(node, [*node.args[2:], *node.keywords], "", new)
        if sizes is not None and passed != self._text(sizes):
            self._row(sizes, "sizes", "", passed)
        return UNCHANGED

    def _unpacked(self, node: ast.Call) -> str:
        """Why it is not known where the sizes go; empty if it is."""
        around = self.source.parents[node]
        if isinstance(around, ast.Subscript) and ast.unparse(around.slice) == "0" and not is_stored(around):
            return ""
        target = around.targets[0] if isinstance(around, ast.Assign) and len(around.targets) == 1 else None
        function = scope_of(self.source, node)
        if (
            isinstance(target, ast.Name)
            and isinstance(function, _Function)
            and self._fails_as_tensor(node, target.id, function)
        ):
            return ""
        if not (isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(target.elts[1], ast.Name)):
            return "unpack it at once: `x, sizes = …`"
        name = target.elts[1].id
        if name == "_":
            is_read = any(isinstance(one, ast.Name) and one.id == "_" and not is_stored(one) for one in self.nodes)
            return "`_` is read in this file: give the sizes a name" if is_read else ""
        if not isinstance(function, _Function) or _bindings(function)[name] != 1:
            return f"`{name}` has to be bound once, in a function: give the sizes a name of their own"
        self.sizes.append((function, name))
        return ""

    def _fails_as_tensor(self, node: ast.Call, name: str, function: ast.AST) -> bool:
        """Whether `x = all_gather(x, 0, None)` is used later only where a pair raises, whatever is in it."""
        inside = list(ast.walk(function))
        loops = [one for one in self.source.around(node) if isinstance(one, ast.For | ast.AsyncFor | ast.While)]
        declared = any(name in one.names for one in inside if isinstance(one, ast.Global | ast.Nonlocal))
        reads = [one for one in inside if isinstance(one, ast.Name) and one.id == name and not is_stored(one)]
        later = [one for one in reads if position(one) > position(node)[2:]]
        is_here = all(scope_of(self.source, one) is function for one in reads)
        is_gathered = bool(node.args) and ast.unparse(node.args[0]) == name
        return (
            is_gathered
            and is_here
            and not loops
            and not declared
            and bool(later)
            and all(map(self._raises_for_a_pair, later))
        )

    def _raises_for_a_pair(self, node: ast.Name) -> bool:
        around = self.source.parents[node]
        is_torchs = any(
            isinstance(one, ast.ImportFrom) and one.module == "torch" and "einsum" in bound_by(one)
            for one in self.tree.body
        )
        is_einsum = _EINSUM.fullmatch(ast.unparse(self.source.parents[around])) is not None
        is_einsum = is_einsum and is_torchs and self.counts["einsum"] == 1 and not self.counts["map"]
        return is_einsum or (isinstance(around, ast.BinOp) and isinstance(around.op, ast.MatMult))

    # ------------------------------------------------------------------ sizes, and what no form covers

    def _sizes_read(self, node: ast.Name) -> tuple[ast.AST, str, str, str]:
        name, may_be_none = node.id, self.adapter.sizes_may_be_none
        for around in [*self.source.around(node)][:4]:
            code = ast.unparse(around) if isinstance(around, ast.expr) else ""
            is_check = isinstance(around, ast.Call) and around.args == [node] and self._is_none_check(around)
            if is_check or code in (f"{name} is None", f"{name} is not None"):
                core = f"not {_ASK}" if code == f"{name} is None" else _ASK
                return around, "sizes", name, self._with("is_distributed", core) if may_be_none else UNCHANGED
            if code == f"{name}.tolist()":
                return around, "sizes", name, self._with("list", f"list({name})")
            if code == f"{name}.sum().item()":
                return around, "sizes", name, self._with("sum", f"sum({name})")
        return node, "sizes", name, BY_HAND + _SIZES

    def _is_none_check(self, call: ast.Call) -> bool:
        """Whether a function of this file is `return … is not None`, and nothing else is called so."""
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        found = [one for one in self.tree.body if isinstance(one, ast.FunctionDef) and one.name == name]
        return (
            self.counts[name] == len(found) == 1
            and re.fullmatch(rf"def {name}\((\w+)\):\s+return \1 is not None", ast.unparse(found[0])) is not None
        )

    def _obstacle(self, node: ast.AST) -> str:
        """Why a place outside of the copy's uses keeps the file from moving; empty for most."""
        is_used = any(use.node is node for use in self.file.uses)
        names = {name for use in self.file.uses for name in use.bound} | set(self.file.holders)
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]) if not is_used:
                return "a star import may bind any name; import the names that you use"
            case ast.Name(id=name) if name in _REFLECTION:
                return f"{name}() reaches variables by name, which is not followed"
            case ast.Constant(value=str(text)) if text.rpartition(".")[2] in names | LACKING:
                return "a name of the gather in a string, which is not followed"
            case ast.Attribute(attr=name) if name in _WALKS and self.file.holders:
                return f"`.{name}` reaches the gather that is kept in `self`"
            case ast.Attribute(attr="is_distributed") if self.adapter.asks_when_built and not is_used:
                return "this may be a gather's `.is_distributed`; give the other attribute another name"
            case ast.arg(arg="self") | ast.Name(id="self", ctx=ast.Store()) if self.file.holders:
                function = scope_of(self.source, node)
                is_method = isinstance(node, ast.arg) and isinstance(self.source.parents.get(function), ast.ClassDef)
                return "" if is_method else "`self` is bound again here"
        return ""

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
            return "its layout cannot be edited safely; put each use on a line of its own"
        if missing or not (is_read_right and is_written_right):
            return f"its layout cannot be edited safely {sorted(missing)}; put each use on a line of its own"
        return ""


class _Replaced(ast.NodeTransformer):
    def __init__(self, new: dict[ast.AST, str]) -> None:
        self.new = new

    def visit(self, node: ast.AST) -> ast.AST:
        return _parsed(self.new[node]) if node in self.new else self.generic_visit(node)


def _parsed(text: str) -> ast.AST:
    """The statement or expression that a text is."""
    statement = ast.parse(text).body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


def _bindings(node: ast.AST) -> Counter[str]:
    return Counter(name for inner in ast.walk(node) for name in bound_by(inner))


def _is_starred(node: ast.Call) -> bool:
    return any(isinstance(one, ast.Starred) for one in node.args) or any(word.arg is None for word in node.keywords)


def _gradient(flag: ast.expr | None) -> str:
    """The core's word for `all_reduce_grads`; empty where that is no constant."""
    value = False if flag is None else getattr(flag, "value", None)
    return {True: "sum", False: "local"}.get(value, "") if isinstance(value, bool) else ""
