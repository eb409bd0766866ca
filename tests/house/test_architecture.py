# SPDX-License-Identifier: MIT
"""The house: imports point one way, versions and licences are one, each adapter is small."""

import ast
import itertools
import re
import subprocess
from pathlib import Path

import pytest

from shared_distributed_tools.render.bundle import HEART as RENDERED

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "shared/distributed"
ADAPTERS = sorted((ROOT / "packages").iterdir())
TOOLS = ROOT / "tools"
DISTRIBUTIONS = [CORE, *ADAPTERS, TOOLS]
ADAPTER_MODULES = {f"{folder.name.replace('-', '_')}_distributed" for folder in ADAPTERS}

# a module imports only what stands before it, and the heart nothing of what stands around it
HEART = ["_errors", "_ranks", "_agree", "_gradient"]
AROUND = [
    "_layout",
    "_faults",
    "_blocks",
    "_usable",
    "_call",
    "_gloo",
    "_nccl",
    "_choose",
    "_containers",
    "_together",
    "_compiled",
    "_gather",
    "_all_to_all",
    "_each",
    "_nested",
    "_cut",
    "_loaders",
    "_channel",
    "_loop",
    "_stand_in",
    "_module",
    "adapters",
]


def imports(path: Path) -> set[str]:
    """Every module that a file imports, with relative ones as they are written."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def top_level(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def test_the_core_imports_no_adapter_and_no_tool() -> None:
    """Imports point one way: tools -> packages -> shared."""
    for path in (CORE / "src").rglob("*.py"):
        assert not top_level(path) & {*ADAPTER_MODULES, "shared_distributed_tools"}, path


def test_an_adapter_imports_the_core_only() -> None:
    """No adapter knows another one, or the tools."""
    for folder in ADAPTERS:
        for path in (folder / "src").rglob("*.py"):
            assert not top_level(path) & ({*ADAPTER_MODULES, "shared_distributed_tools"}), path
            assert top_level(path) <= {"collections", "functools", "typing", "torch", "shared_distributed"}, path


def test_the_core_flows_one_way() -> None:
    """No module of the core reaches back up."""
    modules = {path.stem: path for path in (CORE / "src/shared_distributed").glob("*.py") if path.stem != "__init__"}
    assert sorted(modules) == sorted([*HEART, *AROUND])
    for name, path in modules.items():
        order = HEART if name in HEART else [*HEART, *AROUND]
        below = {f".{other}" for other in order[: order.index(name)]}
        assert {i for i in imports(path) if i.startswith(".")} <= below, path


def test_the_heart_is_what_a_vendored_file_is_made_of() -> None:
    """With what is there for adapters, in the order in which a call runs."""
    assert sorted([*HEART, "adapters"]) == sorted(RENDERED)


@pytest.mark.parametrize("folder", ADAPTERS, ids=lambda folder: folder.name)
def test_an_adapter_fits_on_a_screen(folder: Path) -> None:
    """Forty lines of code, without blanks, comments and docstrings; what grows beyond belongs in the core."""
    (path,) = (folder / "src").rglob("*.py")
    tree = ast.parse(path.read_text())
    documented = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))]
    texts = [node.body[0] for node in documented if ast.get_docstring(node)]
    prose = {line for text in texts for line in range(text.lineno, (text.end_lineno or 0) + 1)}
    code = [
        line
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if number not in prose and line.strip() and not line.strip().startswith("#")
    ]
    assert len(code) <= 40, len(code)


def test_one_version_for_all() -> None:
    """Every distribution has the same version, and each adapter asks for the core of that version."""
    manifests = {folder: (folder / "pyproject.toml").read_text() for folder in DISTRIBUTIONS}
    (version,) = {found for text in manifests.values() for found in re.findall(r'^version = "(.+)"', text, re.M)}
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    for folder, text in manifests.items():
        asked = re.findall(r'^    "shared-distributed([^-].*)",$', text, re.M)
        assert asked == ([f">={version}"] if folder in ADAPTERS else []), folder


def test_every_distribution_carries_the_licence() -> None:
    """The same text everywhere, declared by its SPDX name, and typed."""
    for folder in DISTRIBUTIONS:
        assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
        assert 'license = "MIT"' in (folder / "pyproject.toml").read_text()
        assert list((folder / "src").glob("*/py.typed"))


def test_every_file_says_its_licence() -> None:
    """An SPDX line opens every source file."""
    for path in [
        *ROOT.glob("*.py"),
        *itertools.chain(*[(ROOT / d).rglob("*.py") for d in ("shared", "packages", "tools", "tests")]),
    ]:
        assert path.read_text().startswith("# SPDX-License-Identifier: MIT\n"), path


def test_every_test_says_what_it_states() -> None:
    """A docstring each."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


def test_nothing_else_grows_at_the_top() -> None:
    """What git holds at the top level is what should be there, and nothing more."""
    allowed = {
        "noxfile.py", "packages", "shared", "tests", "tools", "README.md", "pyproject.toml", "LICENSE", "CHANGELOG.md",
        "CONTRIBUTING.md", ".ci", ".github", ".gitignore",
    }  # fmt: skip
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.partition("/")[0] for line in listed.splitlines()} == allowed
