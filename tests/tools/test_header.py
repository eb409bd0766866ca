# SPDX-License-Identifier: MIT
"""The header of a rendered file: what it says, who reads it, and what it still knows of an edited file."""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.render import render, rendered_parts, sources
from shared_distributed_tools.render.header import hash_of, looks_generated, split
from shared_distributed_tools.render.shim import shim, shim_of
from shared_distributed_tools.repo.git import revision_of
from shared_distributed_tools.vendor.state import inspect
from tests.downstream.trees import committed, git, newer

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_header_says_where_the_file_comes_from(name: str) -> None:
    """Adapter, version, revision, hash of the body, in ten lines at most; the parser reads what the writer wrote."""
    header, body = rendered_parts(name)
    assert split(render(name).encode()) == (header, body)
    assert (header.adapter, header.version, header.body) == (name, sources.version(), hash_of(body))
    lines = header.encode().decode().splitlines()
    assert len(lines) <= 10
    assert all(line.startswith("# ") for line in lines)
    assert any(line.startswith("# @generated") for line in lines)
    assert str(ROOT) not in render(name)


def test_the_notes_of_other_releases_do_not_matter() -> None:
    """Two lines have the facts; the comments below them may say something else, or be gone."""
    header, body = rendered_parts("musiclm")
    facts = header.encode().splitlines(keepends=True)[:2]
    for notes in ([], [b"# other words\n", b"#\n"]):
        assert split(b"".join([*facts, *notes]) + body) == (header, body)


def test_only_a_header_looks_like_one() -> None:
    """The source that has the template in it does not. A header names nothing that an index would answer."""
    assert looks_generated(render("musiclm").encode())
    assert not looks_generated((ROOT / "tools/src/shared_distributed_tools/render/header.py").read_bytes())
    assert re.findall(r"(From .*)pip install (\S+)", render("musiclm")) == [
        ("From a checkout of shared-distributed: ", "./tools")
    ]


@pytest.mark.parametrize(
    "command", [["check", "--select", "E,F,W,I,D,N,UP,ANN,B,SIM"], ["format", "--check", "--line-length", "60"]]
)
def test_linters_pass_the_file_over(tmp_path: Path, command: list[str]) -> None:
    """Ruff here; flake8, black, isort, pylint and mypy know the same comments, and were tried by hand."""
    bad = "import sys, os\ndef f( a,b ): return   a+b\n"
    (tmp_path / "distributed.py").write_bytes(rendered_parts("musiclm")[0].encode() + bad.encode())
    ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "--quiet", str(tmp_path)]
    assert subprocess.run(ruff, capture_output=True, check=False).returncode == 0
    (tmp_path / "distributed.py").write_text(bad)
    assert subprocess.run(ruff, capture_output=True, check=False).returncode == 1


def test_the_revision_is_the_commit_of_the_sources(tree: Path) -> None:
    """Of the checkout that they are in; with a word where a source is not as committed, whatever its newlines."""
    files = sorted(tree.rglob("*.py"))
    assert revision_of(tree, files) == sources.revision() == "unknown"
    head = git(committed(tree), "rev-parse", "HEAD").strip()
    assert revision_of(tree, files) == head
    (tree / "notes.txt").write_text("no source")
    files[0].write_bytes(files[0].read_bytes().replace(b"\n", b"\r\n"))
    assert revision_of(tree, files) == head
    newer(tree)
    assert revision_of(tree, files) == f"{head[:12]} with uncommitted changes"
    (tree / "REVISION").write_text("as carried\n")
    sources._revision.cache_clear()
    assert rendered_parts("musiclm")[0].revision == "as carried"
    sources._revision.cache_clear()


@settings(max_examples=300, deadline=None)
@given(
    where=st.floats(0, 1, exclude_max=True), how=st.sampled_from(["set", "insert", "delete"]), byte=st.integers(0, 255)
)
def test_any_one_byte_edit_of_the_body_is_seen(where: float, how: str, byte: int) -> None:
    """Set, inserted or deleted, anywhere in the body, even where it is no UTF-8 then. Line ends alone are no edit."""
    header, body = rendered_parts("spear-tts")
    place = int(where * len(body))
    after = place if how == "insert" else place + 1
    changed = body[:place] + (b"" if how == "delete" else bytes([byte])) + body[after:]
    is_same = changed.replace(b"\r\n", b"\n") == body
    with TemporaryDirectory() as folder:
        file = Path(folder).resolve() / "distributed.py"
        file.write_bytes(header.encode() + changed)
        assert inspect(file.parent, file).state == ("current" if is_same else "edited")


def test_the_shim_of_any_release_is_known() -> None:
    """It may hand on more or fewer names; one with anything else in it, or that does not parse, is somebody's file."""
    adapter = ADAPTERS["spear-tts"]
    text = shim(adapter)
    assert shim_of(text.encode()) is shim_of(text.replace("\n", "\r\n").encode()) is adapter
    assert shim_of(text.replace("    AllGather,\n", "    AllGather,\n    GatherError,\n").encode()) is adapter
    for other in (text + "x = 1\n", text.replace("from spear", "from other"), text + "(", text[3:], ""):
        assert shim_of(other.encode()) is None
