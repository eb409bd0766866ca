# SPDX-License-Identifier: MIT
"""The code of a page, as a reader would run it: block after block, from the top. A page is named by its path here."""

import doctest
import re
from pathlib import Path
from typing import Any

import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str = "python") -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def names_of(page: str) -> dict[str, Any]:
    """What the blocks of a page define, those with prompts left out."""
    names: dict[str, Any] = {"__name__": page}
    for code in blocks(page):
        if not code.startswith(">>> "):
            exec(compile(code, page, "exec"), names)
    return names


def shown(code: str, names: dict[str, Any]) -> str:
    """Where a block with prompts does not print what it shows, in words; `rank` is this process's."""
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(code, {**names, "rank": dist.get_rank()}, "page", None, 0)
    assert test.examples
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append, clear_globs=False)
    return "".join(said) if result.failed else ""


def prompts(page: str, **names: Any) -> str:
    """The same for all blocks with prompts of a page, one after the other in one place."""
    code = "\n".join(code for code in blocks(page) if code.startswith(">>> "))
    return shown(code, {**names_of(page), **names})
