# SPDX-License-Identifier: MIT
"""Bad content is an answer: never a traceback, a hang, a full memory or raw escape sequences."""

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.migrate.status import status_of
from shared_distributed_tools.render import render, rendered_parts
from shared_distributed_tools.repo.tree import Tree
from shared_distributed_tools.terminal import one_line
from shared_distributed_tools.vendor import content
from shared_distributed_tools.vendor.state import State, inspect
from tests.downstream.commands import done, refused, run
from tests.downstream.projects import PROJECTS
from tests.downstream.trees import MINE, commit, edit_at_the_end, git, newer, write_files

pytestmark = pytest.mark.usefixtures("known")
PROJECT = PROJECTS["spear-tts"]
TARGET = PROJECT.copy
USER = PROJECT.user
READING = ("check", "scan", "plan", "status", "update", "vendor spear-tts", "migrate --to package")


BOUNDED = """
import resource, signal, sys
from click.testing import CliRunner
from shared_distributed_tools.cli import main
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**29, 3 * 2**29))
signal.alarm(60)
for repo in sys.argv[1].split(":"):
    for command in sys.argv[2:]:
        result = CliRunner().invoke(main, [*command.split(), repo])
        assert isinstance(result.exception, (SystemExit, type(None))), (command, result.exception)
        assert result.output
"""


def assert_bounded(*repos: Path) -> None:
    """Every command gives an answer, within a minute and 1.5 GB."""
    command = [sys.executable, "-c", BOUNDED, ":".join(map(str, repos)), *READING]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("kind", ["/dev/zero", "/proc/kmsg", "pipe", "sparse", "folder", "loop"])
def test_odd_files_in_the_place_of_every_file_that_is_read(repo: Path, tmp_path: Path, kind: str) -> None:
    """Links to devices and files without an end, pipes, 6 GB, a folder: each command answers, or refuses."""
    other = PROJECT.make(tmp_path, "other")
    done("migrate", other, "--to", "package", "--write")
    metadata = [other / name for name in ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")]
    for path in (repo / TARGET, repo / USER, *metadata):
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "sparse":
            path.touch()
            os.truncate(path, 6 * 2**30)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(path if kind == "loop" else kind)
    assert_bounded(repo, other)


@pytest.mark.parametrize("coding", ["punycode", "undefined", "idna", "rot13", "utf-16", "unicode_escape", "x\0"])
def test_codings_that_no_source_has(repo: Path, coding: str) -> None:
    """In the copy and in a call site of some size: unread or read, at once."""
    for name in (TARGET, USER):
        text = (repo / name).read_bytes()
        (repo / name).write_bytes(f"# coding: {coding}\n".encode() + text + b"# gather-" + b"a" * 300_000)
    commit(repo)
    assert_bounded(repo)


NASTY = [
    *(b"null\0", b"(" * 5000, b"x = " + b"-" * 200_000 + b"1", b"\xff\xfe", b"\xef\xbb\xbfx = 1", b"f'{f'{f'"),
    *(b"class AllGather:\n" + b" x" * 9, b"x" * 2**20, b"if 1:\n" * 99, b"\r\r\n\x0c", b"def f(" + b"(" * 999),
    *(b"x = all_gather(a" + b".b" * 2000 + b", 0, None)  # AllGather",),
    *(b"x = " + b"9" * 5000, b"a" + b".b" * 50_000, b"x = " + b"1+" * 50_000 + b"1", "é = 'gather'".encode("latin-1")),
]


def test_text_that_is_hardly_python(repo: Path) -> None:
    """As the copy and as a call site, after our header and without one: an answer each time."""
    header, start = rendered_parts("spear-tts")[0].encode(), b"# all_gather\nfrom .distributed import *\n"
    for nasty in NASTY:
        for before in (start, header):
            (repo / TARGET).write_bytes(before + nasty)
            (repo / USER).write_bytes(start + nasty)
            for command in ("status", "check", "plan", "scan"):
                result = run(command, repo)
                assert isinstance(result.exception, SystemExit | None), (command, nasty[:20], before[:20])


def test_folders_nested_deeper_than_calls(repo: Path) -> None:
    """Walked all the same; a path that the system cannot take is a message."""
    deep = "/".join("d" * 1100)
    subprocess.run(["mkdir", "-p", repo / deep], check=True)
    (repo / deep / "deep.py").touch()
    assert f"{deep}/deep.py" in Tree(repo).files
    subprocess.run(["rm", "-rf", repo / "d"], check=True)  # pytest's own cleaning does not reach so deep
    assert refused(run("check", "x" * 5000), "does not exist")


# ------------------------------------------------------------------ headers

WRONG = ["", "0" * 64, "g" * 64, "9" * 5000, "1.0.dev", "../x", "musiclm", "99", "\x1b[31m", "[/b]", "a\nb", "é\0"]


def test_headers_with_every_field_wrong(tmp_path: Path) -> None:
    """Judged and updated, or refused with a reason: 2,000 files, each field right or wrong, some cut off anywhere."""
    header, body = rendered_parts("spear-tts")
    draw = random.Random(15)
    start = "# @generated by shared-distributed-tools {}: adapter {}, revision {}\n# body: sha256 {}\n"
    states = set()
    for number in range(2000):
        right = (header.version, header.adapter, header.revision, header.body)
        noise = "".join(map(chr, draw.choices(range(0x250), k=draw.randrange(40))))
        fields = [draw.choice([good, good, noise, *WRONG]) for good in right]
        if not number:
            fields = ["9" * 5000, header.adapter, header.revision, "0" * 64]
        whole = start.format(*fields).encode() + body
        cut = draw.choice([len(whole), len(whole), draw.randrange(400)]) if number else len(whole)
        (tmp_path / "distributed.py").write_bytes(whole[:cut])
        seen = inspect(tmp_path, tmp_path / "distributed.py")
        states.add(seen.state)
        assert seen.meaning, number
        with suppress(RefusalError), mock.patch.object(content, "unified", return_value=""):  # which takes its time
            content.updated(seen)
    assert states >= {State.CURRENT, State.EDITED, State.NEWER, State.BOTH, State.ORIGINAL}


# ------------------------------------------------------------------ names


@pytest.mark.parametrize(
    "name",
    [
        b"pages/[id]/a.py",
        b"a[/b]x.py",
        b"\x1b[31mred\x07.py",
        b"\xff\xfe.py",
        b"a\nb.py",
        b":bug:.py",
        b"\xe2\x80\xae.py",
    ],
)
def test_names_are_data(tmp_path: Path, name: bytes) -> None:
    """Shown whole and never raw, in tables, lists, diffs and refusals, as JSON, and on the page."""
    repo = PROJECT.make(tmp_path, os.fsdecode(name.replace(b"/", b"")))
    path, copy = os.fsdecode(name), (repo / TARGET).read_text() + "# \x1b[2J gather \x9b\n"
    (repo / TARGET).unlink()
    commit(write_files(repo, {path: copy, USER: "from x import y  # \x1b]0;title\x07\n"}))
    page, shown = tmp_path / "page.html", one_line(path)
    for command in (
        *(("scan",), ("plan", "--path", path), ("check",), ("status", "--html", page), ("scan", "--json")),
        ("migrate", "--to", "vendored", "--path", path, "--accept-edits", "--write"),
    ):
        result = run(*command, repo)
        assert isinstance(result.exception, SystemExit | None), (command, result.exception)
        assert not set(result.output) & {"\x1b", "\x07", "\x9b", "\u202e"}, command
        if command[-1] == "--json":
            json.loads(result.stdout)
        elif command[0] in ("scan", "migrate"):
            assert shown in result.output, command
        assert "\n" not in path or path not in result.output, command
    text = page.read_text(encoding="utf-8")
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert shown.replace("/", "") in text


@pytest.mark.parametrize("place", ["/dev/null", "link"])
def test_a_page_onto_a_device_or_a_link_is_refused(repo: Path, tmp_path: Path, place: str) -> None:
    """It would not be a file that is replaced."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert refused(run("status", repo, "--html", tmp_path / place), "is not a plain file")
    assert not (tmp_path / "elsewhere").exists()


# ------------------------------------------------------------------ clones and checkouts


@pytest.fixture
def edited(repo: Path, tree: Path) -> Path:
    """A vendored file with an edit; this release renders something else, so that `update` reads the history."""
    done("vendor", "spear-tts", repo, "--write")
    commit(repo)
    edit_at_the_end(repo / TARGET)
    commit(repo)
    newer(tree)
    return repo


def test_a_blobless_clone_is_not_read_as_an_empty_one(edited: Path, tmp_path: Path) -> None:
    """Git could not read, and says so: nothing is fetched, and nothing is taken for lost."""
    git(edited, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", edited.as_uri(), "clone")
    assert refused(run("update", tmp_path / "clone"), "git could not read")
    assert status_of(tmp_path / "clone").state == "both"


def test_a_history_of_20000_commits(edited: Path) -> None:
    """The base is found in seconds."""
    head = git(edited, "rev-parse", "HEAD").strip()
    lines = ["reset refs/heads/long", f"from {head}"]
    for number in range(20_000):
        lines += ["commit refs/heads/long", f"committer t <t@example.invalid> {number} +0000", "data 1", "m"]
        lines += ["M 644 inline notes.txt", f"data {len(str(number))}", str(number)]
    command = ["git", "fast-import", "--quiet"]
    subprocess.run(command, cwd=edited, input="\n".join([*lines, ""]).encode(), check=True)
    git(edited, "checkout", "-q", "long")
    done("update", edited, "--write")
    assert (edited / TARGET).read_text() == render("spear-tts") + MINE


def test_call_sites_that_a_sparse_checkout_leaves_out_are_found(repo: Path) -> None:
    """Read from git: a name that the adapter lacks is refused, and the plan lists them."""
    git(repo, "sparse-checkout", "set", "--no-cone", "/*", f"!{TARGET}")
    assert refused(run("vendor", "spear-tts", repo, "--write"), "is committed, but not here")
    git(repo, "sparse-checkout", "disable")
    write_files(repo, {"tools/train.py": "from spear_tts_pytorch.distributed import all_gather, own_rows\n"})
    commit(repo)
    git(repo, "sparse-checkout", "set", "--no-cone", "/*", "!tools/")
    assert not (repo / "tools").exists()
    for command in (("vendor", "spear-tts"), ("migrate", "--to", "vendored")):
        assert refused(run(*command, repo, "--write"), "tools/train.py:1: own_rows")
    assert refused(run("migrate", repo, "--to", "core", "--write"), "tools/train.py:1: own_rows")
    commit(write_files(repo, {"spear_tts_pytorch/align.py": "from .distributed import all_gather\n"}))
    git(repo, "sparse-checkout", "disable")
    commit(write_files(repo, {"tools/train.py": "from spear_tts_pytorch.distributed import all_gather\n"}))
    git(repo, "sparse-checkout", "set", "--no-cone", "/*", "!tools/")
    assert refused(run("migrate", repo, "--to", "core", "--write"), "a sparse checkout leaves out tools/train.py")
    plan = json.loads(run("plan", repo, "--json").stdout)
    assert "tools/train.py" in {site["path"] for site in plan["sites"]}


@pytest.mark.parametrize(
    ("place", "how"),
    [
        (".", ["git", "checkout", "-q", "--detach"]),
        ("../other", ["git", "worktree", "add", "-q", "../other"]),
        ("sub", ["sh", "-c", "mkdir sub && git mv -k * sub && git commit -q -m moved"]),
        ("../odd\nname [x]", ["cp", "-r", ".", "../odd\nname [x]"]),
    ],
)
def test_checkouts_of_every_kind(repo: Path, place: str, how: list[str]) -> None:
    """A detached HEAD, a worktree, a project in a subfolder, a folder with an odd name."""
    git(repo, "config", "user.name", "t")
    git(repo, "config", "user.email", "t@example.invalid")
    subprocess.run(how, cwd=repo, check=True)
    other = (repo / place).resolve()
    done("vendor", "spear-tts", other, "--write")
    assert git(other, "status", "--short").strip().endswith(TARGET)
    git(other, "restore", TARGET)
    done("migrate", other, "--to", "package", "--write")
