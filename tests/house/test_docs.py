# SPDX-License-Identifier: MIT
"""Every public name says what it does, with shapes and an example; every example is true."""

import doctest
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import shared_distributed
from tests.support import Worlds
from tests.support.adapters import ADAPTERS

# ------------------------------------------------------------------ on ranks


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


# ------------------------------------------------------------------ tests

pytestmark = pytest.mark.only_over("gloo", reason="documents and examples are the same over every backend")

ROOT = Path(__file__).resolve().parents[2]
ADAPTER_MODULES = [f"{name.replace('-', '_')}_distributed" for name in ADAPTERS]
DEFINING = sorted({getattr(shared_distributed, name).__module__ for name in shared_distributed.__all__})


def public(module: str) -> dict[str, object]:
    loaded = importlib.import_module(module)
    return {name: getattr(loaded, name) for name in loaded.__all__}


@pytest.mark.parametrize("module", ["shared_distributed", *ADAPTER_MODULES])
def test_every_public_name_has_a_docstring(module: str) -> None:
    """Of its own: one inherited from nn.Module or Function says nothing about it. One line of code says it itself."""
    for name, value in {"the module": importlib.import_module(module), **public(module)}.items():
        own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
        documented = own or (inspect.isclass(value) and vars(value)["apply"].__doc__)
        assert documented or len(inspect.getsource(value).splitlines()) == 2, f"{module}.{name} has no docstring"


def test_every_public_name_of_the_core_has_an_example() -> None:
    """Errors and warnings apart: those are raised, not called."""
    for name, value in public("shared_distributed").items():
        if not (inspect.isclass(value) and issubclass(value, BaseException)):
            home = importlib.import_module(value.__module__)
            assert ">>> " in (value.__doc__ or "") or f">>> {name}(" in (home.__doc__ or ""), f"{name} has no example"


@pytest.mark.parametrize("module", [m for m in DEFINING if m != "shared_distributed._errors"] + ADAPTER_MODULES)
def test_examples_in_docstrings(module: str, worlds: Worlds) -> None:
    """What a docstring shows is what happens."""
    ((attempted, problem),) = worlds.get("gloo", 1).run(run, module)
    assert attempted > 0
    assert not problem


def test_examples_in_the_readme(worlds: Worlds) -> None:
    """On two ranks, with the same numbers on both."""
    blocks = re.findall(r"```python\n(>>> .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        for attempted, problem in worlds.get("gloo", 2).run(run_text, block):
            assert attempted > 0
            assert not problem


def test_the_contrastive_example_trains_as_one_process_does() -> None:
    """Under torchrun, three ranks with ragged batches; the script itself compares the two loss curves."""
    script = ROOT / "shared/distributed/examples/contrastive.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--steps=25"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "3 ranks, cpu, gloo: 25 steps" in done.stdout


def test_links_in_the_documents_lead_somewhere() -> None:
    """Files that README and its like point to are there."""
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")]
    documents += ROOT.glob("shared/distributed/docs/*.md")
    for document in documents:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} points to {target}"


def test_the_site_has_the_pages_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    """Each page beside the API reference. Links among pages reach a heading, all others a file of the checkout."""
    pytest.importorskip("pdoc", reason="pdoc builds the site")
    from website import build

    build(tmp_path, "shared_distributed")
    pages = {page.stem: page.read_text() for page in tmp_path.glob("*.html")}
    written = {page.stem for page in ROOT.glob("shared/distributed/docs/*.md")}
    assert set(pages) == {*written, "index", "shared_distributed"}
    for name in pages.keys() - {"shared_distributed"}:
        for target, anchor in re.findall(r'(?:href|src)="(?!http|data:|[$])([^"#]*)#?([^"]*)"', pages[name]):
            beside = target.removesuffix(".html") or name
            if beside in pages:
                assert not anchor or f'id="{anchor}"' in pages[beside], f"{name} points to {target}#{anchor}"
            else:
                assert (tmp_path / target).exists() or (ROOT / target.removeprefix("../")).exists(), f"{name}: {target}"
