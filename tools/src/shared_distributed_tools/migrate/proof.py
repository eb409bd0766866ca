# SPDX-License-Identifier: MIT
"""One file that uses the copy, and what each use becomes in the core. tools/README.md has the table.

A file moves if every place that spells a name of the copy, or of what keeps a gather or sizes, has one of a few forms:
in the whole file for names of the copy and attributes of `self`, in its function for sizes. Whatever binds, passes on,
inherits or mentions such a name in another way leaves the file to a person.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from ..catalog import CORE, Adapter
from ..repo.edits import Edits
from ..repo.tree import Function, Scope
from ..repo.uses import Site, Use, is_of_self
from ..scan.helpers import is_none_check
from .risks import fails_as_tensor

UNCHANGED, BY_HAND = "unchanged", "by hand: "
_ASK = "is_distributed()"
_REFLECTION = ("locals", "globals", "vars", "exec", "eval")  # these may reach any name,
_WALKS = ("children", "named_children", "modules", "named_modules", "_modules", "__dict__")  # and these any module
# arguments, as `ast.unparse` writes them
_BUILD = r"(?:(?:dim=)?[^,*=]+)?(?:(?:^|, )all_reduce_grads=(?P<flag>True|False))?(?P<sizes>)"
_CALL = r"(?:(?:sizes=)?(?P<sizes>(?!True|False)[^\W\d]\w*))?(?P<flag>)"
_CALL_OF_FUNCTION = r"(?P<sizes>(?!True|False)[^\W\d]\w*)(?:, (?:all_reduce_grads=)?(?P<flag>True|False))?"
# what a person writes instead
_OTHER = f"what {CORE} has for this: there the name is missing, or called in another way"
_GATHER = "self.gather = AllGather(dim = …, grad = 'local' or 'sum'), which is called and nothing else"
_ARGUMENTS = "all_gather(x, dim, sizes = …, grad = 'local' or 'sum'), with sizes in a variable"
_UNPACK = "x, sizes = …: unpack it at once, in a function"
_SIZES = "list(sizes), sum(sizes) or torch.tensor(sizes): the core's sizes are a tuple of ints, never None"
_CHANGED = "what your copy does there: it is not what the original does"
_IMPORT = f"from {CORE} import …, by name, at the top and without a condition"
_UNCLEAR = "another name for this: what it binds or reaches cannot be followed"


class Row(NamedTuple):
    """A place, and the code for it in the core, "unchanged" or "by hand: …"."""

    site: Site
    core: str
    is_by_hand: bool  # whether a person has to change it


class _ByHandError(Exception):
    """A place that is left to a person: what to write there."""


def _need(is_so: object, advice: str) -> None:
    if not is_so:
        raise _ByHandError(advice)


class File:
    """One file that uses the copy: a row for each place, and the edits that move it."""

    def __init__(self, uses: list[Use], adapter: Adapter, changed: Collection[str] = ()) -> None:
        self.uses, self.adapter, self.source = uses, adapter, uses[0].source
        self.edits = Edits(self.source)
        self.rows: list[Row] = []
        self.stays = ""  # why the file stays although every row has a form
        self.holders: set[str] = set()  # the attributes of `self` that keep a gather
        self._rewritten = {"AllGather" if adapter.has_module else "all_gather", "get_is_distributed"} & set(adapter.api)
        self._clear: set[ast.AST] = set()  # places that have a form
        self._guarded: set[str] = set()  # names, of which each place has to be clear
        self._sizes: dict[tuple[str, ast.AST], None] = {}  # names, of which each place in a function has to be clear
        self._asks = False  # whether the file comes to need `is_distributed`
        forms = {"build": self._built, "call": self._called, "reference": self._referred}
        for kind in forms:
            for use in [use for use in uses if use.kind == kind]:
                form = _need if use.name in changed else forms[kind]
                about = (False, _CHANGED) if use.name in changed else (use, use.node)
                self._row(use.node, kind, use.name, form, *about)
        for name, function in self._sizes:
            for place in self.source.places[name]:
                if place not in self._clear and function in self.source.around(place):
                    self._row(place, "sizes", name, self._sized, place, name)
        for use in [use for use in uses if use.kind == "import"]:
            self._row(use.node, "import", use.name, self._brought, use, use.node)
        told = {row.site.line for row in self.rows if row.is_by_hand}
        for place in [place for place in self._unclear() if getattr(place, "lineno", 0) not in told]:
            self._row(place, "other", "", _need, False, _UNCLEAR)
        self.rows.sort(key=lambda row: row.site.line)
        if self.is_proven and not self.edits.are_safe():
            self.stays = "its layout cannot be edited safely; put each use on a line of its own"

    @property
    def is_proven(self) -> bool:
        """Whether it can be moved."""
        return not self.stays and not any(row.is_by_hand for row in self.rows)

    def _row(self, node: ast.AST, kind: str, name: str, form: Callable[..., Any], *about: Any) -> None:
        line: int = getattr(node, "lineno", 1)
        site = Site(self.source.path, line, kind, name, self.source.lines[line])
        try:
            self.rows.append(Row(site, form(*about) or UNCHANGED, is_by_hand=False))
        except _ByHandError as error:
            self.rows.append(Row(site, f"{BY_HAND}{error}", is_by_hand=True))

    def _edit(self, node: ast.AST, code: str) -> str:
        for name in re.findall(r"\b(list|sum|is_distributed)\(", code):
            is_free = not self.source.binds(name)
            _need(is_free, f"{code}, once `{name}` means nothing else in this file")
            self._asks = self._asks or name == "is_distributed"
        self.edits.code[node] = code
        return code

    # ------------------------------------------------------------------ the forms: code, or "" for what stays as it is

    def _built(self, use: Use, node: Any) -> str:
        around: Any = self.source.parents[node]
        targets: list[Any] = [around.target] if isinstance(around, ast.AnnAssign) else getattr(around, "targets", [])
        method = self.source.parents.get(self.source.nearest(node, Scope))
        _need(len(targets) == 1 and is_of_self(targets[0]) and isinstance(method, ast.ClassDef), _GATHER)
        _need(use.name == "AllGather" and use.name in self._rewritten, _OTHER)
        self.holders.add(targets[0].attr)
        self._guarded.add(targets[0].attr)
        self._clear |= {node.func, targets[0]}
        return self._with(node, 0, _BUILD)

    def _called(self, use: Use, node: Any) -> str:
        self._clear.add(node.func)
        if use.owner or (use.name == "all_gather" and use.name in self._rewritten):
            self._unpack(node)
            return self._with(node, 1, _CALL) if use.owner else self._with(node, 2, _CALL_OF_FUNCTION)
        if use.name == "get_is_distributed" and not node.args and not node.keywords:
            return self._edit(node, _ASK) if ast.unparse(node.func) == use.name else ""
        _need(use.name in self.adapter.shared, _OTHER)
        return ""

    def _referred(self, use: Use, node: Any) -> str:
        if use.owner:
            _need(getattr(node, "attr", "") == "is_distributed" and self.adapter.asks_when_built, _GATHER)
            self._clear |= {node, node.value}
            return self._edit(node, _ASK)
        is_annotation = use.name == "AllGather" and getattr(self.source.parents[node], "annotation", None) is node
        _need(use.name in self.adapter.shared or (is_annotation and use.name in self._rewritten), _OTHER)
        self._clear.add(node)
        return ""

    def _brought(self, use: Use, node: Any) -> str:
        is_by_name = isinstance(node, ast.ImportFrom) and use.name != "*" and not use.through
        _need(is_by_name and node in self.source.tree.body, _IMPORT)
        _need({*use.bound.values()} <= self._rewritten | self.adapter.shared, _OTHER)
        self._guarded |= use.bound.keys()
        self._clear |= {*node.names}
        names = re.sub(r"\bget_is_distributed\b", "is_distributed", self.edits.text(node).partition("import")[2])
        if self._asks and "is_distributed" not in names:
            before, last, after = names.rpartition(ast.unparse(node.names[-1]))
            names = f"{before}{last}, is_distributed{after}"
        self._asks = False  # this import brings it
        return self._edit(node, f"from {CORE} import{names}")

    def _with(self, node: Any, fixed: int, form: str) -> str:
        """A call with its sizes, and the gradient that its flag chooses, behind the first arguments."""
        texts = [ast.unparse(one) for one in (*node.args, *node.keywords)]
        found = re.fullmatch(form, ", ".join(texts[fixed:]))
        if not found or len(node.args) < fixed or any(text.startswith("*") for text in texts):
            raise _ByHandError(_ARGUMENTS if fixed else _GATHER)
        rest = [*(node.args[fixed:] if fixed else ()), *(word for word in node.keywords if word.arg != "dim")]
        given = [one.value if isinstance(one, ast.keyword) else one for one in rest][:1]
        sizes, gradient = (found["sizes"] or "").removeprefix("None"), "sum" if found["flag"] == "True" else "local"
        self._clear |= {*given}
        if sizes and self.adapter.sizes_may_be_none:  # alone the original ignores them
            sizes = f"{sizes} if {_ASK} else None"
        if form is _CALL:
            return self._edit(given[0], sizes) if " " in sizes else ""
        new = f"sizes = {sizes}, grad = '{gradient}'" if sizes else f"grad = '{gradient}'"
        is_dense = re.search(r"\(\w+=\w", self.source.text)
        return self._edit(node, self.edits.with_argument(node, rest, new.replace(" = ", "=") if is_dense else new))

    def _unpack(self, node: Any) -> None:
        match self.source.parents[node]:
            case ast.Subscript(slice=ast.Constant(value=0)):
                pass
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id="_")])]):
                _need(
                    len(self.source.binds("_")) == len(self.source.places["_"]),
                    "x, sizes = …: `_` is read in this file",
                )
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=name) as target])]):
                function = self.source.nearest(node, Scope)
                _need(isinstance(function, Function), _UNPACK)
                self._clear.add(target)
                self._sizes[name, function] = None
            case ast.Assign(targets=[ast.Name(id=name)]):
                _need(fails_as_tensor(self.source, node, name), _UNPACK)
            case _:
                raise _ByHandError(_UNPACK)

    def _sized(self, place: ast.AST, name: str) -> str:
        """What is done with sizes, in the core."""
        forms = {f"{name}.tolist()": f"list({name})", f"{name}.sum().item()": f"sum({name})"}
        asks = {f"{name} is None": f"not {_ASK}", f"{name} is not None": _ASK}
        for node in self.source.tree.body:
            check = getattr(node, "name", "")
            if is_none_check(node) and self.source.binds(check) == [node]:
                asks[f"{check}({name})"] = _ASK
        forms |= asks if self.adapter.sizes_may_be_none else dict.fromkeys(asks, "")
        for around in [*self.source.around(place)][:4]:
            text = ast.unparse(around) if isinstance(around, ast.expr) else ""
            if text in forms:
                return self._edit(around, forms[text]) if forms[text] else ""
        raise _ByHandError(_SIZES)

    def _unclear(self) -> Iterator[ast.AST]:
        """Places that may bind or reach something that is moved, in a way that is not followed."""
        kinds: dict[str, Any] = dict.fromkeys(_REFLECTION, ast.Name) | {"*": ast.alias}
        kinds |= dict.fromkeys(_WALKS if self.holders else (), ast.Attribute)
        kinds |= {"all_reduce_grads": ast.Attribute | ast.Constant} if self.adapter.has_module else {}
        kinds |= {"is_distributed": ast.Attribute | ast.Constant} if self.adapter.asks_when_built else {}
        for name, kind in (kinds | dict.fromkeys(self._guarded, ast.AST)).items():
            yield from (
                place for place in self.source.places[name] if isinstance(place, kind) and place not in self._clear
            )
        for place in self.source.binds("self") if self.holders else ():  # is it an object of the class?
            method = self.source.nearest(place, Scope)
            if not isinstance(place, ast.arg) or not isinstance(self.source.parents.get(method), ast.ClassDef):
                yield place
