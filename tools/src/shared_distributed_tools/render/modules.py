# SPDX-License-Identifier: MIT
"""One source module taken apart: the statements at its top level, what each binds and what each uses."""

from dataclasses import dataclass, field
from functools import lru_cache

import libcst as cst
from libcst import helpers
from libcst import matchers as m
from libcst.metadata import Assignment, GlobalScope, ImportAssignment, MetadataWrapper, Scope, ScopeProvider

from ..catalog import CORE
from ..errors import RenderError
from .imports import Import


@dataclass
class Statement:
    """One top-level statement: a definition, an assignment, or a block that makes some."""

    node: cst.SimpleStatementLine | cst.BaseCompoundStatement
    binds: set[str]
    uses: set[str]  # names of the module's top level, imported ones too
    follows: bool  # directly below the statement before it in the source, with no blank line between


@dataclass
class SourceModule:
    """A module, read. `internal` are names that come from the core: local name to the core's name."""

    name: str
    docstring: str
    statements: list[Statement] = field(default_factory=list)
    external: dict[str, set[Import]] = field(default_factory=dict)
    internal: dict[str, str] = field(default_factory=dict)
    needs: set[str] = field(default_factory=set)  # modules of the core that it imports when it is imported
    mentions: dict[str, list[cst.CSTNode]] = field(default_factory=dict)  # where each top-level name stands
    spelled: set[str] = field(default_factory=set)  # every name that stands anywhere in it
    undefined: set[str] = field(default_factory=set)  # names that nothing in it, and no builtin, defines


@lru_cache(maxsize=64)  # four adapters over one core
def read_module(name: str, text: str) -> SourceModule:
    """Take a module apart. RenderError for what cannot be bundled by name."""
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)  # safe straight from the parser
    except cst.ParserSyntaxError as error:
        msg = f"{name} is not valid Python: {error}"
        raise RenderError(msg) from error
    tree = wrapper.module
    module = SourceModule(name, (tree.get_docstring() or "").strip())
    owner: dict[cst.CSTNode, Statement] = {}
    for index, node in enumerate(tree.body):
        if _is_docstring(node) and index == 0:
            continue
        if isinstance(node, cst.SimpleStatementLine) and _is_import(node):
            for line in node.body:
                _read_import(module, line)
            continue
        statement = Statement(node, set(), _late_imports(module, node), not _gap_before(node))
        module.statements.append(statement)
        owner.update(dict.fromkeys(descendants(node), statement))

    module.spelled = {node.value for node in owner if isinstance(node, cst.Name)}
    late = {id(node) for node in owner if isinstance(node, cst.ImportFrom) and _is_internal(node)}
    for scope in _scopes(wrapper):
        module.undefined |= {tree.code_for_node(access.node) for access in scope.accesses if not access.referents}
        for assignment in scope.assignments:
            if not isinstance(assignment, Assignment):
                continue
            is_late = isinstance(assignment, ImportAssignment) and id(assignment.node) in late
            if isinstance(scope, GlobalScope) or is_late:
                _record(module, owner, assignment, binds=not is_late)
            if is_late and len({id(other) for other in scope[assignment.name]}) > 1:
                msg = f"{name}: {assignment.name!r} is imported late and assigned as well; give one another name"
                raise RenderError(msg)
    for statement in module.statements:
        if not statement.binds:
            code = tree.code_for_node(statement.node).strip()
            msg = f"{name}: a top-level statement that defines nothing cannot be placed: {code!r}"
            raise RenderError(msg)
    return module


def _scopes(wrapper: MetadataWrapper) -> list[Scope]:
    return list({scope for scope in wrapper.resolve(ScopeProvider).values() if scope is not None})


def _record(module: SourceModule, owner: dict[cst.CSTNode, Statement], assignment: Assignment, *, binds: bool) -> None:
    nodes = module.mentions.setdefault(assignment.name, [])
    if assignment.node in owner and binds:
        defined, statement = assignment.node, owner[assignment.node]
        inside = isinstance(statement.node, cst.FunctionDef | cst.ClassDef) and defined is not statement.node
        (statement.uses if inside else statement.binds).add(assignment.name)  # inside: by a `global`
        nodes.append(defined.name if isinstance(defined, cst.FunctionDef | cst.ClassDef) else defined)
    for access in assignment.references:
        owner[access.node].uses.add(assignment.name)
        nodes.append(access.node)


def descendants(node: cst.CSTNode) -> list[cst.CSTNode]:
    """A node and everything below it."""
    collect = _Collect()
    node.visit(collect)
    return collect.nodes


class _Collect(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.nodes.append(node)
        return True


def _is_docstring(node: cst.CSTNode) -> bool:
    return m.matches(node, m.SimpleStatementLine([m.Expr(m.SimpleString() | m.ConcatenatedString())]))


def _is_import(node: cst.SimpleStatementLine) -> bool:
    return all(isinstance(line, cst.Import | cst.ImportFrom) for line in node.body)


def _gap_before(node: cst.SimpleStatementLine | cst.BaseCompoundStatement) -> bool:
    return any(line.comment is None for line in node.leading_lines)


def _is_internal(node: cst.ImportFrom) -> bool:
    dotted = helpers.get_full_name_for_node(node.module) if node.module else ""
    return bool(node.relative) or (dotted or "").split(".")[0] == CORE


def _read_import(module: SourceModule, line: cst.BaseSmallStatement) -> None:
    if isinstance(line, cst.ImportFrom) and _is_internal(line):
        home, names = _internal_names(module.name, line)
        module.internal.update(names)
        module.needs.add(home)
        return
    for one in Import.read(module.name, line):
        if one.module.split(".")[0] == CORE:
            msg = f"{module.name}: import names from {CORE}, as in `from {CORE} import name`; got `{one.code}`"
            raise RenderError(msg)
        module.external.setdefault(one.bound, set()).add(one)


def _internal_names(where: str, node: cst.ImportFrom) -> tuple[str, dict[str, str]]:
    """The core's module that is imported from, and local name to the core's name."""
    code = cst.Module([]).code_for_node(node)
    dotted = helpers.get_full_name_for_node(node.module) if node.module else None
    relative = len(node.relative) == 1 and dotted is not None and "." not in dotted
    if isinstance(node.names, cst.ImportStar) or not (relative or (not node.relative and dotted == CORE)):
        msg = f"{where}: import the core's names one by one, from the module itself or from {CORE}; got `{code}`"
        raise RenderError(msg)
    names = {alias.evaluated_alias or alias.evaluated_name: alias.evaluated_name for alias in node.names}
    if relative and any(local != name for local, name in names.items()):
        msg = f"{where}: inside the core names are imported without `as`; got `{code}`"
        raise RenderError(msg)
    return str(dotted), names


def _late_imports(module: SourceModule, statement: cst.CSTNode) -> set[str]:
    """Names that functions in a statement import from the core when they run: these count as used."""
    late: dict[str, str] = {}
    for node in descendants(statement):
        if isinstance(node, cst.ImportFrom) and _is_internal(node):
            late.update(_internal_names(module.name, node)[1])
    module.internal.update(late)
    return set(late)
