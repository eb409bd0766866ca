# SPDX-License-Identifier: MIT
"""`adapters new`: what CONTRIBUTING.md says about a fifth adapter, done."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.downstream.old_copies import RIGHT
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("musiclm", "--like", "mirasol"), "packages/musiclm is there already"),
        (("New Proj", "--like", "mirasol"), "no name for an adapter"),
        (("third", "--like", "nobody"), "'nobody' is not one of 'mirasol'"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], words: str, checkout: Path) -> None:
    """With a message, and nothing written."""
    before = sorted(checkout.glob("packages/*"))
    done = new(checkout, *arguments, "--replaces", "x/distributed.py")
    assert done.returncode == 2
    assert words in done.stderr
    assert sorted(checkout.glob("packages/*")) == before
