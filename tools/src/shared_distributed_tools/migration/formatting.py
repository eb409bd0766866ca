# SPDX-License-Identifier: MIT
"""One more item in a list, a call or an import, laid out as those before it."""

from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

Item = TypeVar("Item", cst.Arg, cst.BaseElement, cst.ImportAlias)
Space = cst.BaseParenthesizableWhitespace

_NOTHING = cst.SimpleWhitespace("")
_BLANK = cst.SimpleWhitespace(" ")


def with_one_more(
    items: Sequence[Item], new: Item, opening: Space = _NOTHING, closing: Space = _NOTHING
) -> tuple[list[Item], Space]:
    """The items with a new one at the end, and the space before the closing bracket.

    opening, closing: the space inside the brackets. On lines of their own the new item gets one too, a
    trailing comma stays one, and a comment stays with the item that it follows.
    """
    if not items:
        return [new], closing
    last = items[-1]
    has_comma = isinstance(last.comma, cst.Comma)
    before = items[-2].comma if len(items) > 1 else None
    between = before.whitespace_after if isinstance(before, cst.Comma) else opening
    in_comma = isinstance(last.comma, cst.Comma) and not last.comma.whitespace_after.empty
    tail: Space = last.comma.whitespace_after if in_comma and isinstance(last.comma, cst.Comma) else closing

    joint: Space = between if isinstance(before, cst.Comma) and not _has_newline(between) else _BLANK
    end = tail
    if isinstance(tail, cst.ParenthesizedWhitespace):
        if isinstance(between, cst.ParenthesizedWhitespace):  # a line for each
            joint = tail.with_changes(indent=between.indent, last_line=between.last_line)
            end = cst.ParenthesizedWhitespace(indent=tail.indent, last_line=tail.last_line)
        elif tail.first_line.comment or tail.empty_lines:
            joint = tail
    comma = cst.Comma(whitespace_after=end if in_comma else _NOTHING) if has_comma else cst.MaybeSentinel.DEFAULT
    longer: list[Item] = list(items[:-1])
    longer.append(last.with_changes(comma=cst.Comma(whitespace_after=joint)))
    longer.append(new.with_changes(comma=comma))
    return longer, closing if in_comma else end


def without(items: Sequence[Item], gone: Item) -> list[Item]:
    """The items without one of them; what closes the list stays as it is."""
    left = [item for item in items if item is not gone]
    if left and gone is items[-1]:
        left[-1] = left[-1].with_changes(comma=gone.comma)
    return left


def _has_newline(space: Space) -> bool:
    return isinstance(space, cst.ParenthesizedWhitespace)
