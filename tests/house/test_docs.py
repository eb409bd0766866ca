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

import shared_distributed
from tests.house.pages import ROOT, blocks, names_of, prompts
from tests.support import Worlds
from tests.support.adapters import ADAPTERS

# ------------------------------------------------------------------ on ranks


def run(module: str) -> tuple[int, str]:
    """How many examples a module's docstrings have, and what went wrong in words."""
    said = io.StringIO()
    with redirect_stdout(said):
        result = doctest.testmod(importlib.import_module(module), extraglobs={"torch": torch})
    return result.attempted, said.getvalue() if result.failed else ""


# ------------------------------------------------------------------ tests

pytestmark = pytest.mark.only_over("gloo", reason="documents and examples are the same over every backend")

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
        lines = [line for line in inspect.getsource(value).splitlines() if not line.startswith("@")]
        assert documented or len(lines) == 2, f"{module}.{name} has no docstring"


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


@pytest.mark.parametrize(("page", "ranks"), [("docs/gradients.md", 2), ("README.md", 3)])
def test_examples_at_a_prompt(page: str, ranks: int, worlds: Worlds) -> None:
    """The same on every rank."""
    assert worlds.get("gloo", ranks).run(prompts, f"shared/distributed/{page}") == [""] * ranks


@pytest.mark.parametrize("name", ADAPTERS)
def test_code_in_the_adapters_documents(name: str) -> None:
    """The names that it imports are there."""
    assert {"AllGather", "all_gather"} & set(names_of(f"packages/{name}/README.md"))


def under_torchrun(ranks: int, script: Path, *arguments: str) -> str:
    """What a script prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(3):
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        # torch's DDP keeps the process group's threads, even after `del model`: where cores are busy, one of them can
        # be the last to hold a tensor while the interpreter ends
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_script_of_the_readme_prints_what_is_shown(tmp_path: Path) -> None:
    """As a reader saves and runs it; a test of core/test_gradient_table.py compares its weights with one process."""
    (script,) = blocks("README.md")
    (shown,) = [text for text in blocks("README.md", "console") if text.startswith("$ torchrun")]
    (tmp_path / "train.py").write_text(script)
    assert under_torchrun(2, tmp_path / "train.py") == shown.partition("\n")[2]


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    """What is looked up stands in pages of its own."""
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 180
    for page in ROOT.glob("shared/distributed/docs/*.md"):
        assert f"(shared/distributed/docs/{page.name})" in readme, page.name


def test_every_page_with_code_is_run() -> None:
    """Here, in test_recipes and test_maintainers, by `nox -s frameworks`, or on GPUs, which may be emulated."""
    frameworks = (ROOT / "tests/frameworks/pages.py").read_text()
    for page in ROOT.glob("shared/distributed/docs/*.md"):
        if blocks(str(page)) and page.stem not in (
            "gradients",
            "recipes",
            "maintainers",
            "unequal-batches",
            "promises",
        ):
            assert f'"{page.stem}"' in frameworks, page.name


def test_the_page_on_unequal_batches_defines_what_it_shows() -> None:
    """Its blocks run; tests/core/test_loop.py and test_stand_in.py hold it to its tables."""
    assert {"train", "finish"} <= names_of("shared/distributed/docs/unequal-batches.md").keys()


def test_the_contrastive_example_trains_as_one_process_does() -> None:
    """Under torchrun, two ranks with ragged batches; the script itself compares the two loss curves."""
    printed = under_torchrun(2, ROOT / "shared/distributed/examples/contrastive.py", "--steps=25")
    assert "2 ranks, cpu, gloo: 25 steps" in printed


def test_the_example_of_experts_has_the_gradients_of_one_process(tmp_path: Path) -> None:
    """Both ways, on two ranks; the script itself compares them, and draws the plot."""
    script = ROOT / "shared/distributed/examples/experts.py"
    words = ["--ranks", "2", "--rows", "40", "--steps", "1", "--plot", str(tmp_path / "experts.svg")]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[2:4]] == [["2", "all_to_all"], ["2", "gather"]]
    assert "gather everything" in (tmp_path / "experts.svg").read_text()


def test_links_in_the_documents_lead_somewhere() -> None:
    """Files that README and its like point to are there."""
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")]
    documents += ROOT.glob("shared/distributed/docs/*.md")
    for document in documents:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} points to {target}"


def test_the_site_has_the_pages_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    """Each page beside the API reference. Links among pages reach a heading, all others a file of the checkout."""
    pytest.importorskip("pdoc", reason="pdoc, which builds the site, is not installed")
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
