# SPDX-License-Identifier: MIT
"""Defects planted one at a time in a copy of the sources: which of them does no test see?

`mutants.toml` beside this file has the defects. Words on the command line choose those whose file or text has one.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = ("README.md", "packages", "pyproject.toml", "shared", "tests", "tools")
WORLDS = ("--world-size=1", "--world-size=3")  # enough to see a defect, and quicker than all
LIMIT = 900  # seconds for the tests of one defect; one that they hang on is seen too


class Mutant(NamedTuple):
    """One defect, the pytest arguments that can see it, and why it may survive."""

    file: str
    old: str
    new: str
    tests: list[str]
    excuse: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}: {self.old.strip()}  ->  {self.new.strip()}"


def mutants() -> Iterator[Mutant]:
    """Every defect of the table."""
    import tomllib  # here, since Python 3.10 has none

    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    for name, group in table.items():
        file = name.partition(" ")[0]  # one file may stand there twice, for other tests
        tests = [*group["tests"], *(["--vendored"] if group.get("vendored") else [])]
        for old, new, *excuse in group["edits"]:
            yield Mutant(file, old, new, tests, *excuse)


def is_seen(mutant: Mutant, folder: Path) -> bool:
    """Whether a test fails with the defect in the sources of `folder`, which are then as they were."""
    file = folder / mutant.file
    sound = file.read_text()
    assert sound.count(mutant.old) == 1, f"{sound.count(mutant.old)} times in its file: {mutant}"
    file.write_text(sound.replace(mutant.old, mutant.new))
    try:
        return not passes(mutant.tests, folder)
    finally:
        file.write_text(sound)


def passes(tests: list[str], folder: Path) -> bool:
    """Whether these tests pass with the sources as they are in `folder`."""
    sources = [str(path) for path in (folder / "shared/distributed/src", *folder.glob("packages/*/src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sources, str(folder / "tools/src")])}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *WORLDS, *tests]
    try:
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return False
    if ran.returncode not in (0, 1, 2):  # 2: a test module could not be imported any more
        sys.exit(f"pytest could not run {tests}\n{ran.stdout}{ran.stderr}")
    return ran.returncode == 0


def main() -> None:
    """Plant each, print who survived, and exit with 1 if one did without an excuse."""
    chosen = [mutant for mutant in mutants() if all(word in f"{mutant.file} {mutant}" for word in sys.argv[1:])]
    survivors = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for entry in COPIED:
            copy = shutil.copytree if (ROOT / entry).is_dir() else shutil.copy
            copy(ROOT / entry, folder / entry)
        for tests in {tuple(mutant.tests): mutant.tests for mutant in chosen}.values():
            if not passes(tests, folder):  # then they would "see" any defect
                sys.exit(f"these fail without a defect: {tests}")
        for number, mutant in enumerate(chosen, 1):
            start = time.monotonic()
            seen = is_seen(mutant, folder)
            answer = "seen" if seen else f"SURVIVED {mutant.excuse and f'({mutant.excuse})'}"
            print(f"{number}/{len(chosen)}  {time.monotonic() - start:4.0f} s  {answer}  {mutant}", flush=True)
            survivors += [] if seen else [mutant]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} seen; {len(survivors)} survived")
    sys.exit(any(not mutant.excuse for mutant in survivors))


if __name__ == "__main__":
    main()
