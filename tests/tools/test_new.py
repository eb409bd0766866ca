# SPDX-License-Identifier: MIT
"""`adapters new`: what CONTRIBUTING.md says about a further adapter, done."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.downstream.old_copies import RIGHT
from tests.downstream.projects import ORIGINALS
from tests.downstream.trees import committed, write_files

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("packages", "shared", "tests", "tools", "noxfile.py", "pyproject.toml")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this project, with the adapter newproj scaffolded."""
    copy = tmp_path_factory.mktemp("checkout")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", ".nox"))
        else:
            shutil.copy(ROOT / part, copy / part)
    done = new(copy, "newproj", "--like", "spear-tts", "--replaces", "newproj/distributed.py")
    assert done.returncode == 0, done.stderr
    assert "wrote packages/newproj/contract.json" in done.stdout
    return copy


def run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    sources = [*checkout.glob("packages/*/src"), checkout / "shared/distributed/src", checkout / "tools/src"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
    options = {"cwd": checkout, "env": environment, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run([sys.executable, "-m", *arguments], **options, check=False)


def new(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(checkout, "shared_distributed_tools", "new", *arguments)


def test_the_new_adapter_passes_its_tests(checkout: Path) -> None:
    """Its contract and the matrix run for it, without being told of it anywhere else."""
    options = ("-q", "--suite=newproj", "-p", "no:cacheprovider", "--world-size=2")
    done = run(checkout, "pytest", *options, "tests/adapters/test_contract.py", "tests/adapters/test_matrix.py")
    assert done.returncode == 0, done.stdout
    assert "deselected" in done.stdout
    passed = int(done.stdout.rpartition(" passed")[0].split()[-1])
    assert passed >= 7, done.stdout


def test_the_new_adapter_can_be_vendored(checkout: Path, tmp_path: Path) -> None:
    """The command knows it, and finds the file that it replaces."""
    committed(write_files(tmp_path, {"newproj/__init__.py": ""}))
    done = run(checkout, "shared_distributed_tools", "vendor", "newproj", str(tmp_path), "--write")
    assert done.returncode == 0, done.stderr
    assert ": adapter newproj, revision " in (tmp_path / "newproj/distributed.py").read_text()


def test_the_original_is_recognised(checkout: Path, tmp_path: Path) -> None:
    """With --original, `adapters scan` knows that file from then on."""
    (tmp_path / "theirs.py").write_text(RIGHT)
    options = ("--like", "st-moe", "--replaces", "other/distributed.py", "--original", str(tmp_path / "theirs.py"))
    done = new(checkout, "other-proj", *options)
    assert done.returncode == 0, done.stderr
    done = run(checkout, "shared_distributed_tools", "scan", str(tmp_path))
    assert "exact: the original of other-proj" in done.stdout


def test_the_originals_names_are_in_the_contract(checkout: Path, tmp_path: Path) -> None:
    """Helpers too. What the core has is imported; of the rest it says what to write, and the contract test fails."""
    helpers = "\n\ndef pad_dim_to(t, length, dim = 0):\n    return t\n"
    helpers += "\n\ndef own_helper(x: int, *, y = 2) -> int:\n    return x\n"
    (tmp_path / "theirs.py").write_text(RIGHT + helpers)
    (tmp_path / "nearer.py").write_text(RIGHT)
    before = (checkout / "pyproject.toml").read_text()
    options = ("--replaces", "x/distributed.py", "--original")
    assert new(checkout, "nearer", "--like", "musiclm", *options, str(tmp_path / "nearer.py")).returncode == 0
    done = new(checkout, "two-words", "--like", "musiclm", *options, str(tmp_path / "theirs.py"))
    assert done.returncode == 0, done.stderr
    assert "and the core has not: lengthen, own_helper. Define these" in done.stdout
    assert "The original is nearer to nearer's (" in done.stdout
    contract = json.loads((checkout / "packages/two-words/contract.json").read_text())
    api = json.loads((ROOT / "packages/musiclm/contract.json").read_text())["api"]
    more = {"lengthen": "(t, length, dim)", "own_helper": "(x, *, y=2)", "pad_dim_to": "(t, length, dim=0)"}
    assert contract["api"] == {**api, **more}
    assert list(contract["adds"]) == ["AllGatherFunction"]
    assert "from two_words_distributed import" in (checkout / "packages/two-words/README.md").read_text()
    assert (checkout / "pyproject.toml").read_text() == before
    tests = ("-q", "--suite=two-words", "-p", "no:cacheprovider", "tests/adapters/test_contract.py", "-k", "exported")
    assert "own_helper" in run(checkout, "pytest", *tests).stdout

    module = checkout / "packages/two-words/src/two_words_distributed/__init__.py"
    text = module.read_text().replace('    "pad_dim_to",', '    "lengthen",\n    "own_helper",\n    "pad_dim_to",')
    text += "\n\ndef lengthen(t, length, dim):\n    return t\n\n\ndef own_helper(x, *, y=2):\n    return x\n"
    module.write_text(text)
    done = run(checkout, "pytest", *tests)
    assert done.returncode == 0, done.stdout


def test_what_the_original_has_not_is_named(checkout: Path, tmp_path: Path) -> None:
    """What the adapter that is copied defines beyond the original."""
    (tmp_path / "theirs.py").write_text(ORIGINALS["spear-tts"])
    options = ("--like", "mirasol", "--replaces", "x/distributed.py", "--original", str(tmp_path / "theirs.py"))
    done = new(checkout, "beyond", *options)
    assert "The original has no get_is_distributed. Remove that" in done.stdout


def test_an_adapter_that_lacks_a_name_of_its_original_is_a_finding_of_parity(checkout: Path, tmp_path: Path) -> None:
    """Although all that it has behaves like the original."""
    (tmp_path / "theirs.py").write_text(ORIGINALS["mirasol"])
    options = ("--like", "mirasol", "--replaces", "x/distributed.py", "--original", str(tmp_path / "theirs.py"))
    assert new(checkout, "lacking", *options).returncode == 0
    path = checkout / "packages/lacking/contract.json"
    contract = json.loads(path.read_text())
    del contract["api"]["pad_dim_to"]
    path.write_text(json.dumps(contract))
    words = ("parity", str(tmp_path / "theirs.py"), "--adapter", "lacking", "--world-size", "1")
    done = run(checkout, "shared_distributed_tools", *words)
    assert done.returncode == 1, done.stderr
    assert "in the original, and not in the adapter: pad_dim_to" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("musiclm", "--like", "mirasol"), "packages/musiclm is there already"),
        (("New Proj", "--like", "mirasol"), "no name for an adapter"),
        (("third", "--like", "nobody"), "'nobody' is not one of '"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], words: str, checkout: Path) -> None:
    """With a message, and nothing written."""
    before = sorted(checkout.glob("packages/*"))
    done = new(checkout, *arguments, "--replaces", "x/distributed.py")
    assert done.returncode == 2
    assert words in done.stderr
    assert sorted(checkout.glob("packages/*")) == before
