# SPDX-License-Identifier: MIT
"""The code of a page, as a reader would run it: block after block, from the top."""

import doctest
import re
from pathlib import Path
from typing import Any

import torch.distributed as dist

PAGES = Path(__file__).resolve().parents[2] / "shared/distributed/docs"


def blocks(page: str, language: str = "python") -> list[str]:
    """The fenced blocks of a page in one language."""
    text = (PAGES / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def names_of(page: str) -> dict[str, Any]:
    """What the blocks of a page define. Those with prompts are run too, where there are other ranks; see `examples`."""
    names: dict[str, Any] = {"__name__": page}
    for code in blocks(page):
        if not code.startswith(">>> "):
            exec(compile(code, page, "exec"), names)
    return names


def examples(page: str) -> tuple[int, str]:
    """How many prompts the blocks of a page have, and what went wrong in words; this process's rank is `rank`."""
    shown = "\n".join(code for code in blocks(page) if code.startswith(">>> "))
    names = {**names_of(page), "rank": dist.get_rank()}
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(shown, names, page, None, 0)
    result = doctest.DocTestRunner().run(test, out=said.append)
    return result.attempted, "".join(said) if result.failed else ""
