# SPDX-License-Identifier: MIT
"""What can go wrong, as a tree.

ToolError               the root: everything raised here on purpose; its message says what to do
└── RefusalError        a repo is in a state in which going on could lose somebody's work
"""


class ToolError(Exception):
    """Root of every error that these tools raise on purpose. Its arguments are the lines of the message."""

    def __str__(self) -> str:
        return "\n".join(self.args)


class RefusalError(ToolError):
    """Going on could lose somebody's work, or write where nothing should be written."""
