# SPDX-License-Identifier: MIT
"""The head of a renamed function, laid out anew: a shorter or longer name can change where it must break."""

import libcst as cst
from libcst import matchers as m

from .imports import LINE_LENGTH

_NOTHING = cst.SimpleWhitespace("")
_NEWLINE = cst.ParenthesizedWhitespace(indent=False)
_INDENTED = cst.ParenthesizedWhitespace(indent=False, last_line=cst.SimpleWhitespace("    "))


def reflow(node: cst.FunctionDef) -> cst.FunctionDef:
    """On one line if it fits, else the parameters on a line of their own; as the formatter does.

    A trailing comma asks for one parameter a line at any length: such a head stays as it is.
    """
    params = node.params.visit(_Flatten())
    assert isinstance(params, cst.Parameters)
    code = cst.Module([]).code_for_node(params)
    if not code or code.endswith(", ") or m.findall(node.params, m.Comment()):
        return node
    flat = node.with_changes(params=params, whitespace_before_params=_NOTHING)
    empty = flat.with_changes(body=cst.SimpleStatementSuite([cst.Pass()]), decorators=[], leading_lines=[])
    if len(cst.Module([]).code_for_node(empty).strip().removesuffix(" pass")) <= LINE_LENGTH:
        return flat
    last = _last(params)
    broken = params.with_deep_changes(last, whitespace_after_param=_NEWLINE)
    return node.with_changes(params=broken, whitespace_before_params=_INDENTED)


def _last(params: cst.Parameters) -> cst.Param:
    star = [params.star_arg] if isinstance(params.star_arg, cst.Param) else []
    kwargs = [params.star_kwarg] if params.star_kwarg else []
    return [*params.posonly_params, *params.params, *star, *params.kwonly_params, *kwargs][-1]


class _Flatten(cst.CSTTransformer):
    """No line breaks between parameters. Defaults and annotations keep theirs."""

    def leave_Comma(self, original_node: cst.Comma, updated_node: cst.Comma) -> cst.Comma:
        if isinstance(updated_node.whitespace_after, cst.ParenthesizedWhitespace):
            return updated_node.with_changes(whitespace_after=cst.SimpleWhitespace(" "))
        return updated_node

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        return updated_node.with_changes(whitespace_after_param=_NOTHING)
