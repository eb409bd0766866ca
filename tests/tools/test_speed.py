# SPDX-License-Identifier: MIT
"""Time grows with the size of what is looked at, and not with its square: files that somebody made to be slow."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.downstream.commands import run
from tests.downstream.copies import RELATIVE
from tests.downstream.projects import PROJECT, TARGET
from tests.downstream.trees import commit, committed, write_files

pytestmark = pytest.mark.usefixtures("known")
GATHER = "from .distributed import all_gather\n"
SECONDS = 20  # for what took a minute and more


def related_functions(number: int) -> str:
    """Functions of autograd that each reach every helper."""
    head, body = RELATIVE.split("class Spread", 1)
    body = body.replace("gradient[ctx.window]", "helper_0(gradient)")
    helpers = "".join(
        f"def helper_{n}(x):\n    return helper_{n + 1}(x) + helper_{n + 1}(-x)\n\n\n" for n in range(number)
    )
    return head + helpers + "".join(f"class Spread{n}{body}\n\n" for n in range(number))


def gathers_in_a_function(number: int) -> str:
    """Sizes of one gather go into the next."""
    lines = [f"    x{n}, sizes{n} = all_gather(x, 0, None)\n    if x{n}.mask: x = x[label{n}]\n" for n in range(number)]
    return f"{GATHER}def f(x, mask):\n{''.join(lines)}    return x\n"


def uses_by_attribute(number: int) -> str:
    """One name with many others behind it, and many of these."""
    return f"{GATHER}def f(x):\n" + "".join(f"    all_gather.a{n}.b.c(x, mask, {n})\n" for n in range(number))


SLOW: dict[str, tuple[Callable[[int], str], int]] = {
    "newlines": (lambda number: GATHER + "\n" * number, 1_000_000),
    "spaces": (lambda number: GATHER + " " * number + "#\n" + "from" + "\t" * number, 1_000_000),
    "related Functions": (related_functions, 120),
    "gathers in a function": (gathers_in_a_function, 1_000),
    "imports": (lambda number: "".join(f"from .distributed import all_gather as g{n}\n" for n in range(number)), 1_500),
    "names of torch": (
        lambda number: (
            f"import torch.distributed as gather\nfrom torch import {', '.join(f'a{n}' for n in range(number))}\n"
            + "".join(f"def f{n}(x):\n    return gather\n" for n in range(number))
        ),
        3_000,
    ),
    "uses by attribute": (uses_by_attribute, 1_000),
    "definitions": (lambda number: "".join(f"def gather_{n}(x):\n    return x\n" for n in range(number)), 2_000),
    "nested calls": (
        lambda number: GATHER + "def f(x):\n" + f"    x, _ = all_gather({'f(' * 80}x{')' * 80}, 0, None)\n" * number,
        100,
    ),
}


@pytest.mark.parametrize("what", SLOW)
def test_a_file_made_to_be_slow_is_looked_at_in_seconds(repo: Path, what: str) -> None:
    """By every command that reads it."""
    make, number = SLOW[what]
    text = make(number)
    commit(
        write_files(repo, {PROJECT.user: text, "other.py": text.replace(".distributed", TARGET[:-3].replace("/", "."))})
    )
    start = time.process_time()
    for words in ("scan", "plan", "migrate --to core --accept-edits", "status"):
        result = run(*words.split(), repo)
        assert isinstance(result.exception, SystemExit | None), result.exception
        assert time.process_time() - start < SECONDS, words


def test_names_that_are_handed_from_module_to_module(repo: Path) -> None:
    """By many modules, each from the next in the order of their names: all are found, in one look at each."""
    number = 200
    modules = {
        f"{TARGET.partition('/')[0]}/m{n:04}.py": f"from .m{n + 1:04} import all_gather\n" for n in range(number)
    }
    commit(write_files(repo, {**modules, f"{TARGET.partition('/')[0]}/m{number:04}.py": GATHER}))
    start = time.process_time()
    output = run("plan", repo).output
    assert "m0000.py" in output
    assert time.process_time() - start < SECONDS


def test_a_plan_takes_hardly_longer_than_a_scan(tmp_path: Path) -> None:
    """Of a tree of many files; and it says how far it is."""
    others = {f"lib{n // 100}/m{n}.py": f"import torch\nx = {n}\n" * 40 for n in range(2_000)}
    repo = committed(write_files(tmp_path / "repo", {**PROJECT.files, **others}))

    def seconds(*words: str) -> float:
        runs = []
        for _ in range(3):
            start = time.process_time()
            run(*words, repo)
            runs.append(time.process_time() - start)
        return min(runs)

    assert seconds("plan") < 1.5 * seconds("scan") + 0.3  # for what does not grow with the tree
    assert "looking for" in run("plan", repo, FORCE_COLOR="1", COLUMNS="100").stderr
