# SPDX-License-Identifier: MIT
"""The parts of the core that an adapter reaches, and the adapter, as one plain module.

Statements are kept or dropped whole, by name. The core's modules come in the order of their imports
and the adapter last; inside a module the source's order stays. So whatever a statement needs while
the file is being imported stands above it.
"""

from graphlib import CycleError, TopologicalSorter

import libcst as cst
from libcst import matchers as m

from ..catalog import CORE
from ..errors import RenderError
from .imports import Import, merged
from .modules import SourceModule, Statement, read_module
from .signatures import reflow
from .sources import Sources
from .verify import verify

_ORIENTATION = """What this project calls stands in the last section; above it, what that needs of the shared core.
For torch 2.0 and Python 3.10 or later."""
_BLANK = cst.EmptyLine(indent=False)


def bundle(sources: Sources) -> str:
    """The body of the rendered file. RenderError where the sources break a rule."""
    package, core = _read_core(sources)
    adapter = read_module("adapter", sources.adapter)
    home = _homes(core)
    renamed = _check_adapter(adapter, package, home)

    kept = _reached(adapter, home)
    sections = [(module, [s for s in module.statements if id(s) in kept]) for module in _import_order(core)]
    sections = [(module, statements) for module, statements in sections if statements]
    exports = [s for s in adapter.statements if s.binds == {"__all__"}]
    sections.append((adapter, [s for s in adapter.statements if s not in exports]))

    for module, _ in sections:
        if module.undefined:  # quoted annotations too, where a compiler does not look
            msg = f"{module.name} would use undefined names: {', '.join(sorted(module.undefined))}"
            raise RenderError(msg)
    imports = _needed_imports(sections)
    _check_bound_once(sections, imports, renamed)
    first_line = package.docstring.partition("\n")[0]
    body: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = [
        cst.parse_statement(f'"""{first_line}\n\n{_ORIENTATION}\n"""'),
        *merged(imports),
        *(s.node.with_changes(leading_lines=[_BLANK]) for s in exports),
    ]
    for module, statements in sections:
        body.extend(_section(module, statements, renamed))
    text = cst.Module(body).code
    verify(text)
    return text


def _read_core(sources: Sources) -> tuple[SourceModule, dict[str, SourceModule]]:
    modules = {name: read_module(name, text) for name, text in sources.core}
    package = modules.pop("__init__")
    return package, modules


def _homes(core: dict[str, SourceModule]) -> dict[str, SourceModule]:
    """Which module of the core defines a name. One name, one home: the bundle has a single namespace."""
    home: dict[str, SourceModule] = {}
    for module in core.values():
        for statement in module.statements:
            for name in statement.binds - {"__all__"}:
                if home.setdefault(name, module) is not module:
                    msg = f"{name!r} is defined in {home[name].name} and in {module.name}; rename one of them"
                    raise RenderError(msg)
    for module in core.values():
        for name in module.internal.values():
            if name not in home:
                msg = f"{module.name} imports {name!r} from the core, where nothing defines it"
                raise RenderError(msg)
    return home


def _check_adapter(adapter: SourceModule, package: SourceModule, home: dict[str, SourceModule]) -> dict[str, str]:
    """The names that the adapter gives to definitions of the core: the core's name to the adapter's."""
    if not any("__all__" in statement.binds for statement in adapter.statements):
        raise RenderError("the adapter needs an __all__: it is what downstream may import")
    renamed: dict[str, str] = {}
    for local, name in adapter.internal.items():
        if name not in package.internal or name not in home:
            msg = f"the adapter imports {name!r}, which {CORE} does not export"
            raise RenderError(msg)
        if renamed.setdefault(name, local) != local:
            msg = f"the adapter imports {name!r} both as {renamed[name]!r} and as {local!r}; use one name"
            raise RenderError(msg)
    return {name: local for name, local in renamed.items() if name != local}


def _reached(adapter: SourceModule, home: dict[str, SourceModule]) -> set[int]:
    """The statements (by id) of the core that the adapter's imports lead to."""
    kept: set[int] = set()
    wanted = sorted(adapter.internal.values())
    while wanted:
        name = wanted.pop()
        for statement in home[name].statements:
            if name in statement.binds and id(statement) not in kept:
                kept.add(id(statement))
                wanted.extend(sorted(used for used in statement.uses if used in home))
    return kept


def _import_order(core: dict[str, SourceModule]) -> list[SourceModule]:
    """Modules after those that they import; alphabetical where imports leave it open."""
    sorter = TopologicalSorter({name: module.needs for name, module in core.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        msg = f"the core's modules import each other in a circle: {' -> '.join(error.args[1])}"
        raise RenderError(msg) from error
    order: list[SourceModule] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        sorter.done(*ready)
        order.extend(core[name] for name in ready)
    return order


def _needed_imports(sections: list[tuple[SourceModule, list[Statement]]]) -> set[Import]:
    needed: set[Import] = set()
    for module, statements in sections:
        for name in {name for statement in statements for name in statement.uses}:
            needed |= module.external.get(name, set())
    return needed


def _check_bound_once(
    sections: list[tuple[SourceModule, list[Statement]]], imports: set[Import], renamed: dict[str, str]
) -> None:
    """RenderError where two things in the bundle would have one name."""
    sources: dict[str, set[str]] = {}
    for one in imports:
        # `import a` and `import a.b` make the same name, and the same thing
        sources.setdefault(one.bound, set()).add(one.code if one.name or one.alias else f"import {one.bound}")
    for module, statements in sections:
        for name in {name for statement in statements for name in statement.binds}:
            final = name if module.name == "adapter" else renamed.get(name, name)
            sources.setdefault(final, set()).add(f"{module.name}.{name}")
    clashes = {name: sorted(found) for name, found in sources.items() if len(found) > 1}
    if clashes:
        msg = "one name, several things: " + "; ".join(f"{name}: {', '.join(f)}" for name, f in sorted(clashes.items()))
        raise RenderError(f"{msg}. Rename one, or import the core's `as` another name in the adapter.")


def _section(
    module: SourceModule, statements: list[Statement], renamed: dict[str, str]
) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
    """A module's statements, under its docstring's first line as a comment."""
    names = {} if module.name == "adapter" else _nodes_to_rename(module, renamed)
    result: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
    before: Statement | None = None
    for statement in statements:
        node = statement.node.visit(_Rewrite(names))
        assert isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        lead = _attached(statement.node)
        if before is None:
            title = cst.EmptyLine(indent=False, comment=cst.Comment(f"# -- {module.docstring.partition(chr(10))[0]}"))
            gap = [_BLANK, _BLANK, title, _BLANK, *([_BLANK] if _is_definition(node) else [])]
        elif _is_definition(before.node) or _is_definition(node):
            gap = [_BLANK, _BLANK]
        else:
            together = statement.follows and module.statements.index(statement) == module.statements.index(before) + 1
            gap = [] if together else [_BLANK]
        result.append(node.with_changes(leading_lines=[*gap, *lead]))
        before = statement
    return result


def _attached(node: cst.SimpleStatementLine | cst.BaseCompoundStatement) -> list[cst.EmptyLine]:
    """The comment lines right above a statement, without those that a blank line sets apart."""
    lines: list[cst.EmptyLine] = []
    for line in node.leading_lines:
        lines = [*lines, line] if line.comment else []
    return lines


def _is_definition(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.FunctionDef | cst.ClassDef)


def _nodes_to_rename(module: SourceModule, renamed: dict[str, str]) -> dict[int, str]:
    nodes: dict[int, str] = {}
    for name, new in renamed.items():
        for node in module.mentions.get(name, []):
            while isinstance(node, cst.Attribute):
                node = node.value
            if not isinstance(node, cst.Name):
                msg = (
                    f"{module.name}: {name!r} stands in a quoted annotation, where it cannot become {new!r}; unquote it"
                )
                raise RenderError(msg)
            nodes[id(node)] = new
        if new in module.spelled:
            msg = f"{module.name} uses the name {new!r}, which the adapter gives to {name!r}; choose another there"
            raise RenderError(msg)
    return nodes


class _Rewrite(cst.CSTTransformer):
    """Renames the nodes asked for, and drops late imports from the core: its names are all at hand."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        new = self.names.get(id(original_node))
        return updated_node if new is None else updated_node.with_changes(value=new)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.BaseStatement:
        return reflow(updated_node) if id(original_node.name) in self.names else updated_node

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.BaseSmallStatement | cst.RemovalSentinel:
        is_core = original_node.relative or m.matches(original_node, m.ImportFrom(module=m.Name(CORE)))
        return cst.RemoveFromParent() if is_core else updated_node
