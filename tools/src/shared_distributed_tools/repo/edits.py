# SPDX-License-Identifier: MIT
"""Code put in the place of nodes of a file; everything else of its text stays, layout and comments too."""

import ast
from itertools import accumulate

from .tree import Source
from .uses import position


class Edits:
    """The edits of one file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.code: dict[ast.AST, str] = {}  # for each node that is replaced
        self._text = source.text.encode()  # ast counts columns in UTF-8
        self._starts = [0, *accumulate(map(len, self._text.splitlines(keepends=True)))]  # of the lines in it

    @property
    def result(self) -> str:
        """The file's text with every edit."""
        text = self._text
        for node in sorted(self.code, key=position, reverse=True):
            start, end = self._span(node)
            text = text[:start] + self.code[node].encode() + text[end:]
        return text.decode()

    def text(self, node: ast.AST) -> str:
        """A node as the file has it."""
        start, end = self._span(node)
        return self._text[start:end].decode(errors="replace")

    def with_argument(self, node: ast.Call, old: list[ast.AST], new: str) -> str:
        """A call with an argument in the place of others, or after its last one."""
        begin, end = self._span(node)
        stop = max([self._span(one)[1] for one in [*node.args, *node.keywords]], default=end - 1)
        if b")" in self._text[stop : end - 1]:  # the last argument is in parentheses
            stop = end - 1
        start = self._span(old[0])[0] if old else stop
        comma = ", " if not old and (node.args or node.keywords) else ""
        code = self._text[begin:start] + f"{comma}{new}".encode() + self._text[stop:end]
        return code.decode(errors="replace")

    def are_safe(self) -> bool:
        """Whether each node is in the text what it is in the tree, none is in another, and the result parses."""
        for node in self.code:
            if any(around in self.code for around in self.source.around(node)):
                return False
        try:
            ast.parse(self.result)
            return all(ast.dump(_parsed(self.text(node))) == ast.dump(node) for node in self.code)
        except (SyntaxError, ValueError, RecursionError):
            return False

    def _span(self, node: ast.AST) -> tuple[int, int]:
        row, column, last_row, last_column = position(node)
        return self._starts[row - 1] + column, self._starts[last_row - 1] + last_column


def _parsed(text: str) -> ast.AST:
    """The statement or expression that a text is."""
    statement = ast.parse(text).body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement
