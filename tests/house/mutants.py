# SPDX-License-Identifier: MIT
"""Plant defects one at a time in a copy of the sources: which of them does no test see?

    nox -s mutants -- --count 40 --seed 7 shared_distributed/_agree

Draws so many defects (`defects.py` says which there are) from the sources whose path has one of the words, and runs the
tests until one fails: first those that are quick and see most, then the whole suite of the core or of the tools. Prints
the share that survives for each module, and every survivor with its line. A survivor is a missing test, a needless
line, or a change that makes no difference; for these `EXCUSED` has the reason.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from defects import Defect, defects_of

ROOT = Path(__file__).parents[2]
COPIED = ("README.md", "LICENSE", "CHANGELOG.md", "packages", "pyproject.toml", "shared", "tests", "tools")
SOURCES = ("shared/distributed/src/**/*.py", "tools/src/**/*.py")
LIMIT = 900  # seconds for one run of tests; a defect that they hang on is seen too
QUICK = (
    ["tests/adapters/test_matrix.py", "tests/adapters/test_bad_input.py", "--suite=core"],
    ["tests/core/test_transports.py", "tests/core/test_many_tensors.py", "tests/core/test_all_to_all.py"],
)
WHOLE = {"shared": ["tests/adapters", "tests/core"], "tools": ["tests/tools"]}
VENDORED = ["--vendored"]

# (function, kind, line before the change) -> why no test can see it
EXCUSED: dict[tuple[str, str, str], str] = {}


def main() -> None:
    """Draw, plant, test, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 16))
    parser.add_argument("words", nargs="*", default=["shared_distributed/"])
    arguments = parser.parse_args()

    drawn = draw(arguments.words, arguments.count, arguments.seed)
    print(f"seed {arguments.seed}: {len(drawn)} defects", flush=True)
    planted: dict[str, int] = defaultdict(int)
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        for path, defect in drawn:
            planted[path] += 1
            if not is_seen(path, defect, copy):
                survivors.append((path, defect))
                print(
                    f"{path}:{defect.line} {defect.function}, {defect.kind}: {defect.before}  ->  {defect.after}",
                    flush=True,
                )
    for path, count in sorted(planted.items()):
        alive = sum(survivor == path for survivor, _ in survivors)
        print(f"{path}: {alive} of {count} survive")
    print(f"{len(survivors)} of {len(drawn)} survive")


def draw(words: list[str], count: int, seed: int) -> list[tuple[str, Defect]]:
    """So many defects, by chance, of the files whose path has one of the words."""
    found = []
    for pattern in SOURCES:
        for file in sorted(ROOT.glob(pattern)):
            path = str(file.relative_to(ROOT))
            if any(word in path for word in words):
                found += [(path, defect) for defect in defects_of(file.read_text())]
    found = [(path, d) for path, d in found if (d.function, d.kind, d.before) not in EXCUSED]
    return random.Random(seed).sample(found, min(count, len(found)))


def is_seen(path: str, defect: Defect, copy: Path) -> bool:
    """Whether a test fails with the defect in the copy, which is then as it was."""
    file = copy / path
    sound = file.read_text()
    file.write_text(defect.source)
    whole = WHOLE["tools" if path.startswith("tools") else "shared"]
    runs = [whole] if path.startswith("tools") else [*QUICK, whole, VENDORED]
    try:
        return not all(passes(run, copy) for run in runs)
    finally:
        file.write_text(sound)


def passes(arguments: list[str], copy: Path) -> bool:
    """Whether these tests pass in the copy."""
    sources = [str(copy / folder) for folder in ("shared/distributed/src", "tools/src", "tools")]
    sources += [str(folder) for folder in copy.glob("packages/*/src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), *sources])}
    here = [argument for argument in arguments if not argument.endswith(".py") or (copy / argument).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *here]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    main()
