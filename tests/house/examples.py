# SPDX-License-Identifier: MIT
"""The examples in docstrings, run on a rank: most need a process group, if only one of a single rank."""

import doctest
import importlib
import io
from contextlib import redirect_stdout

import torch
import torch.distributed as dist

import shared_distributed


def run(module: str) -> tuple[int, str]:
    """How many examples a module's docstrings have, and what went wrong in words."""
    said = io.StringIO()
    with redirect_stdout(said):
        result = doctest.testmod(importlib.import_module(module), extraglobs={"torch": torch})
    return result.attempted, said.getvalue() if result.failed else ""


def run_text(text: str) -> tuple[int, str]:
    """The same for a text, with the core's names at hand and this process's `rank`."""
    names = {name: getattr(shared_distributed, name) for name in shared_distributed.__all__}
    test = doctest.DocTestParser().get_doctest(
        text, {"torch": torch, "rank": dist.get_rank(), **names}, "text", None, 0
    )
    said = io.StringIO()
    result = doctest.DocTestRunner().run(test, out=said.write)
    return result.attempted, said.getvalue() if result.failed else ""
