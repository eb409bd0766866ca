# SPDX-License-Identifier: MIT
"""The examples in docstrings, run on a rank: most need a process group, if only one of a single rank."""

import doctest
import importlib
import io
from contextlib import redirect_stdout

import torch


def run(module: str) -> tuple[int, str]:
    """How many examples a module's docstrings have, and what went wrong in words."""
    said = io.StringIO()
    with redirect_stdout(said):
        result = doctest.testmod(importlib.import_module(module), extraglobs={"torch": torch})
    return result.attempted, said.getvalue() if result.failed else ""
