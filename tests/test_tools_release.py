# SPDX-License-Identifier: MIT
"""`nox -s release -- X`: one version, set everywhere at once."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from test_architecture import DISTRIBUTIONS, ROOT


def release(checkout: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nox", "-s", "release", "--", version]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60, check=False)


def test_a_release_sets_every_version(tmp_path: Path) -> None:
    """The six distributions, what they ask of each other, what the guide tells to pin, and the changelog."""
    files = ["noxfile.py", "CHANGELOG.md", "tools/README.md"]
    files += [f"{d.relative_to(ROOT).as_posix()}/pyproject.toml" for d in DISTRIBUTIONS]
    files += [path.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*/contract.json")]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    assert release(tmp_path, "next").returncode != 0

    done = release(tmp_path, "97.0.1")
    assert done.returncode == 0, done.stderr
    for manifest in [tmp_path / d.relative_to(ROOT) / "pyproject.toml" for d in DISTRIBUTIONS]:
        text = manifest.read_text()
        assert '\nversion = "97.0.1"\n' in text
        pins = re.findall(r'"shared-distributed(?:-tools)?([>=]=.+?)"', text)
        assert set(pins) <= {">=97.0.1"}
    pinned = re.findall(r"shared-distributed-tools==([\d.]+)", (tmp_path / "tools/README.md").read_text())
    assert pinned
    assert set(pinned) == {"97.0.1"}
    headings = re.findall(r"^## \[(.+)\]", (tmp_path / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", "97.0.1"]
