# SPDX-License-Identifier: MIT
"""Edits made in a file, with everything else as it was: spacing, alignment, comments, quotes, newlines."""

from collections import Counter

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from ..catalog import CORE
from ..errors import RefusalError
from .formatting import Space, with_one_more
from .judge import RENAMED_IN_CORE, Arguments, Edit, Imports, Replace, Span

_NOTHING = cst.SimpleWhitespace("")


def rewrite(path: str, content: bytes, edits: dict[Span, Edit]) -> bytes:
    """A file with its edits made. RefusalError if one of them finds no place, which would be our mistake."""
    wrapper = MetadataWrapper(cst.parse_module(content), unsafe_skip_copy=True)
    style = _Style()
    wrapper.module.visit(style)
    transformer = _Rewrite(edits, style)
    new = wrapper.visit(transformer)
    left = sorted(set(edits) - transformer.made)
    if left:
        msg = f"{path}:{left[0].line} cannot be rewritten: LibCST and Python disagree about it; change it by hand"
        raise RefusalError(msg)
    return new.bytes


class _Style(cst.CSTVisitor):
    """How a file spells `name = 'text'` in a call, most of the time."""

    def __init__(self) -> None:
        super().__init__()
        self._spaces: Counter[str] = Counter()
        self._quotes: Counter[str] = Counter()

    def visit_AssignEqual(self, node: cst.AssignEqual) -> None:
        self._spaces[" " if not node.whitespace_before.empty else ""] += 1

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        if node.quote in ("'", '"'):
            self._quotes[node.quote] += 1

    @property
    def equal(self) -> cst.AssignEqual:
        space = cst.SimpleWhitespace(self._spaces.most_common(1)[0][0] if self._spaces else "")
        return cst.AssignEqual(space, space)

    def text(self, value: str) -> cst.SimpleString:
        quote = self._quotes.most_common(1)[0][0] if self._quotes else "'"
        return cst.SimpleString(f"{quote}{value}{quote}")


class _Rewrite(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, edits: dict[Span, Edit], style: _Style) -> None:
        super().__init__()
        self.edits, self.style = edits, style
        self.made: set[Span] = set()

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if not isinstance(original_node, cst.BaseExpression | cst.Import | cst.ImportFrom):
            return updated_node
        place = self.get_metadata(PositionProvider, original_node)
        span = Span(place.start.line, place.start.column, place.end.line, place.end.column)
        edit = self.edits.get(span)
        new: cst.CSTNode | None = None
        if isinstance(edit, Replace) and isinstance(updated_node, cst.BaseExpression):
            new = cst.parse_expression(edit.code).with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)
        elif isinstance(edit, Arguments) and isinstance(updated_node, cst.Call):
            new = self._call(updated_node, edit)
        elif isinstance(edit, Imports) and isinstance(updated_node, cst.Import | cst.ImportFrom):
            new = _import(updated_node, edit)
        if new is None:
            return updated_node
        self.made.add(span)
        return new

    def _call(self, call: cst.Call, edit: Arguments) -> cst.Call:
        args = list(call.args)
        equal = next((arg.equal for arg in args if isinstance(arg.equal, cst.AssignEqual)), self.style.equal)
        local = cst.Arg(self.style.text("local"), keyword=cst.Name("grad"), equal=equal)
        if edit.sizes is not None:
            args[edit.sizes] = args[edit.sizes].with_changes(keyword=cst.Name("sizes"), equal=equal)
        if edit.flag is not None:
            args[edit.flag] = args[edit.flag].with_changes(keyword=cst.Name("grad"), value=self._grad(args[edit.flag]))
        elif edit.no_sizes is not None:
            old = args[edit.no_sizes]
            args[edit.no_sizes] = local.with_changes(comma=old.comma, whitespace_after_arg=old.whitespace_after_arg)
        else:
            args = _with_argument(args, local, call.whitespace_before_args)
        return call.with_changes(args=args)

    def _grad(self, flag: cst.Arg) -> cst.BaseExpression:
        """The value of `all_reduce_grads`, as one for `grad`."""
        if isinstance(flag.value, cst.Name) and flag.value.value in ("True", "False"):
            return self.style.text("sum" if flag.value.value == "True" else "local")
        return cst.IfExp(test=flag.value, body=self.style.text("sum"), orelse=self.style.text("local"))


def _with_argument(args: list[cst.Arg], new: cst.Arg, opening: Space) -> list[cst.Arg]:
    if not args:
        return [new]
    closing = args[-1].whitespace_after_arg  # LibCST gives the space before `)` to the last argument
    args[-1] = args[-1].with_changes(whitespace_after_arg=_NOTHING)
    longer, closing = with_one_more(args, new, opening, closing)
    longer[-1] = longer[-1].with_changes(whitespace_after_arg=closing)
    return longer


def _import(node: cst.Import | cst.ImportFrom, edit: Imports) -> cst.BaseSmallStatement:
    """An import of the copy, as one of the core under the same names."""
    assert not isinstance(node.names, cst.ImportStar)
    first = node.names[0]
    if isinstance(node, cst.Import):  # `import package.distributed as d`
        return node.with_changes(names=[first.with_changes(name=cst.Name(CORE))])
    if edit.of_module:  # `from package import distributed`
        kept = first.asname or cst.AsName(cst.Name(first.evaluated_name))
        return cst.Import([cst.ImportAlias(cst.Name(CORE), kept)], semicolon=node.semicolon)
    in_core = [RENAMED_IN_CORE.get(alias.evaluated_name, alias.evaluated_name) for alias in node.names]
    names = [alias.with_changes(name=cst.Name(name)) for alias, name in zip(node.names, in_core, strict=True)]
    opening = node.lpar.whitespace_after if node.lpar else _NOTHING
    closing: Space = node.rpar.whitespace_before if node.rpar else _NOTHING
    for name in edit.more:
        names, closing = with_one_more(names, cst.ImportAlias(cst.Name(name)), opening, closing)
    rpar = node.rpar.with_changes(whitespace_before=closing) if node.rpar else None
    return node.with_changes(module=cst.Name(CORE), relative=[], names=names, rpar=rpar)
