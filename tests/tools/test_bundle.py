# SPDX-License-Identifier: MIT
"""Rendering: what is kept of the sources, what is refused, and what the files look like."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.errors import ToolError
from shared_distributed_tools.render import render
from shared_distributed_tools.render.bundle import HEART, bundle

ROOT = Path(__file__).resolve().parents[2]
LICENCE = "MIT License\n\nCopyright (c) 2026 Nobody\n\nPermission is hereby granted.\n\nNo warranty.\n"
ERRORS = {"GatherError", "BadInputError", "DisagreementError"}


def bundled(adapter: str, **core: str) -> str:
    """A made-up adapter over made-up modules of the heart."""
    return bundle(tuple((name, core.get(name, "")) for name in HEART), adapter, LICENCE, "made-up-distributed")


def loaded(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "rendered"}
    exec(compile(text, "rendered.py", "exec"), space)
    return space


def defined_in(text: str) -> list[str]:
    """The names that a module's top level defines, imports aside, in order."""
    names: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names += [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return names


# ------------------------------------------------------------------ made-up sources


def test_only_what_is_reached_is_kept() -> None:
    """Functions, classes, tuples and annotated names stay if something kept names them, in the heart's order."""
    text = bundled(
        '"""An adapter."""\n\nfrom shared_distributed.adapters import Top\n\n__all__ = ["own"]\n\nown = Top()\n',
        _ranks="LIMIT: int = 3\n_X, _Y = 1, 2\n_UNUSED = 5\n\n\ndef deep():\n    return LIMIT + _Y\n\n\n"
        "def lost():\n    return _UNUSED\n",
        adapters="from ._ranks import deep, lost\n\nTABLE = {'deep': deep}\n\n\nclass Top:\n    table = TABLE\n\n\n"
        "def other():\n    return lost()\n",
    )
    assert defined_in(text) == ["LIMIT", "_X", "_Y", "deep", "TABLE", "Top", "own"]
    assert loaded(text)["own"].table["deep"]() == 5


def test_statements_are_taken_as_they_stand() -> None:
    """Comments above and beside them, decorators, and neighbouring lines stay together; docstrings of modules go."""
    two, f = "# why there are two\n_A = 1  # one\n_B = _A\n", "# said of f\n@staticmethod\ndef f():\n    return _B\n"
    text = bundled("from shared_distributed.adapters import f\n", adapters=f'"""Gone."""\n\n{two}\n\n{f}')
    assert f"{two}\n{f}" in text, "one blank line, as the originals have it"
    assert "Gone" not in text
    assert "made-up-distributed" in (ast.get_docstring(ast.parse(text)) or "")


def test_a_name_of_the_package_is_the_hearts_here() -> None:
    """What `adapters` imports from around the heart is, in the file, what the heart defines under that name."""
    text = bundled(
        "from shared_distributed.adapters import f\n",
        _agree="class _Call:\n    pass\n",
        adapters="from ._compiled import _Call\n\n\ndef f():\n    return _Call\n",
    )
    assert defined_in(text) == ["_Call", "f"]


def test_imports_are_sorted_and_only_those_needed() -> None:
    """The standard library, then torch; `import` before `from`; one line a module."""
    text = bundled(
        "from typing import Any\nfrom torch import nn\nfrom shared_distributed.adapters import f\n\nm: Any = nn, f\n",
        _ranks="import os\nfrom functools import cache\n\nimport torch\n\nUNUSED = os\n",
        adapters="from typing import NamedTuple\n\nimport torch.distributed as dist\nfrom torch import Tensor\n\n\n"
        "def f():\n    return dist, Tensor, NamedTuple\n",
    )
    ours = "import torch.distributed as dist\nfrom torch import Tensor, nn"
    assert f'"""\n\nfrom typing import Any, NamedTuple\n\n{ours}\n\ndef f():' in text


@pytest.mark.parametrize(
    ("adapter", "core", "words"),
    [
        ("def f():\n    return 1\n", {"_ranks": "def f():\n    return 2\n"}, "f would be defined twice"),
        ("x = 1\n", {"_ranks": "def g():\n    return 1\n", "_agree": "g = 2\n"}, "g would be defined twice"),
        ("from shared_distributed.adapters import nothing\n", {}, "nothing"),
        ("from shared_distributed import all_gather\n", {}, "all_gather"),
        ("def f():\n    return missing\n", {}, "undefined names: missing"),
        ("import einops.layers as e\nimport numpy\n\nx = numpy, e\n", {}, "numpy"),
    ],
)
def test_what_cannot_stand_alone_is_refused(adapter: str, core: dict[str, str], words: str) -> None:
    """Names defined twice or nowhere, and imports that a downstream project need not have."""
    with pytest.raises(ToolError, match=words):
        bundled(adapter, **core)


def test_an_adapters_own_definition_takes_the_place_of_a_shared_one() -> None:
    """Where nothing shared calls it: soft-moe's split_by_rank gives less than the others'. Else it is refused."""
    shared = "def split():\n    return 1\n\n\ndef f():\n    return 3\n"
    adapter = "from shared_distributed.adapters import f\n\n\ndef split():\n    return f()\n"
    assert loaded(bundled(adapter, adapters=shared))["split"]() == 3
    with pytest.raises(ToolError, match="split would be defined twice"):
        bundled(adapter, adapters=shared.replace("return 3", "return split()"))


# ------------------------------------------------------------------ the files


@pytest.mark.parametrize("name", ADAPTERS)
def test_public_names_are_the_originals_and_the_errors(name: str) -> None:
    """No other name without an underscore; the warning where an answer can be stale."""
    api = ADAPTERS[name].api
    warning = {"StaleAnswerWarning"} & {*defined_in(render(name))}
    assert bool(warning) == ("_warn_once" in defined_in(render(name)))
    assert {n for n in defined_in(render(name)) if not n.startswith("_")} == {*api, *ERRORS, *warning}
    assert {*api, *ERRORS} <= loaded(render(name)).keys()


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_file_is_short_ends_with_its_licence_and_needs_nothing_private(name: str) -> None:
    """At most 330 lines of at most 120 characters, and 6 for each name of the original."""
    text = render(name)
    lines = text.splitlines()
    assert len(lines) <= 330 + 6 * len(ADAPTERS[name].api)
    assert max(map(len, lines[1:])) <= 120  # the first has the adapter's name and a revision
    words = " ".join(line.removeprefix("# ") for line in lines[lines.index("") :]).split()
    licence = (ROOT / "LICENSE").read_text().replace("MIT License", "MIT License.").split()
    assert words[-len(licence) :] == licence
    assert "einops" not in text
    assert not re.search(r"\b(torch|dist)(\.\w+)*\._", text)


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_formatter_and_the_linter_have_nothing_to_say_but_of_blank_lines(name: str) -> None:
    """With the configuration of the sources, once the comments that tell them to pass the file over are gone.

    And the first line, which has the adapter's name and a revision: their length is not the file's.
    """
    text = render(name).partition("\n")[2].replace("# flake8: noqa\n", "").replace("# fmt: off\n", "")

    def ruff(*arguments: str, given: str) -> str:
        beside = ROOT / "packages" / name / "distributed.py"  # where an adapter's own docstring rules hold
        options = ["--config", str(ROOT / "pyproject.toml"), "--stdin-filename", str(beside), "-"]
        command = [sys.executable, "-m", "ruff", *arguments, *options]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    formatted = ruff("format", given=text)
    assert [line for line in formatted.splitlines() if line] == [line for line in text.splitlines() if line]
    ruff("check", given=formatted)


def test_rendering_depends_on_the_sources_alone(tmp_path: Path) -> None:
    """Same sources, same bytes: another hash seed, another folder and another locale change nothing."""
    code = "import os; from shared_distributed_tools.render import render; os.write(1, render('st-moe').encode())"
    run, others = [sys.executable, "-c", code], {**os.environ, "PYTHONHASHSEED": "1", "LC_ALL": "C"}
    assert subprocess.check_output(run, env=others, cwd=tmp_path) == render("st-moe").encode()
