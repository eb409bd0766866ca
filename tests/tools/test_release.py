# SPDX-License-Identifier: MIT
"""`nox -s release -- X`: one version, set everywhere at once."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.render import rendered_parts
from shared_distributed_tools.render.header import hash_of

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = [ROOT / "shared/distributed", *sorted((ROOT / "packages").iterdir()), ROOT / "tools"]
RELEASED = "tools/src/shared_distributed_tools/render/released"


def release(checkout: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nox", "-s", "release", "--", version]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60, check=False)


def test_a_release_sets_every_version(tmp_path: Path) -> None:
    """Every distribution, what they ask of each other, and the changelog; what is rendered is kept for later ones."""
    files = ["noxfile.py", "CHANGELOG.md", f"{RELEASED}/README.md"]
    files += [f"{d.relative_to(ROOT).as_posix()}/pyproject.toml" for d in DISTRIBUTIONS]
    files += [path.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*/contract.json")]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / ".nox").mkdir()
    (tmp_path / ".nox/env").symlink_to(sys.prefix)
    assert release(tmp_path, "next").returncode != 0

    done = release(tmp_path, "97.0.1")
    assert done.returncode == 0, done.stderr
    for manifest in [tmp_path / d.relative_to(ROOT) / "pyproject.toml" for d in DISTRIBUTIONS]:
        text = manifest.read_text()
        assert '\nversion = "97.0.1"\n' in text
        pins = re.findall(r'"shared-distributed(?:-tools)?([>=]=.+?)"', text)
        assert set(pins) <= {">=97.0.1"}
    kept = {file.stem: hash_of(file.read_bytes()) for file in (tmp_path / RELEASED).glob("*.txt")}
    assert kept == {name: name for name in (rendered_parts(adapter)[0].body for adapter in ADAPTERS)}
    headings = re.findall(r"^## \[(.+)\]", (tmp_path / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", "97.0.1"]
