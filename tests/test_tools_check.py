# SPDX-License-Identifier: MIT
"""What `adapters check` and `adapters diff` say of a file, and the exit code for each answer."""

import json
import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from downstream.commands import run
from downstream.trees import CORE, LAYOUTS, MINE, commit, copy_sources, edit, edit_at_the_end, make_repo, newer
from shared_distributed_tools import sources
from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.errors import ToolError
from shared_distributed_tools.header import Header, hash_of, split
from shared_distributed_tools.render import render, rendered_parts
from shared_distributed_tools.shim import shim
from shared_distributed_tools.status import State, inspect

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def vendored(tmp_path: Path) -> Path:
    """A repo with a current file, committed."""
    repo = make_repo(tmp_path, "spear-tts")
    assert run("vendor", "spear-tts", repo).exit_code == 0
    commit(repo)
    return repo


@pytest.fixture
def newer_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that moved on; used from now on."""
    tree = newer(copy_sources(tmp_path / "newer"))
    monkeypatch.setattr(sources, "root", lambda: tree)
    return tree


TARGET = LAYOUTS["spear-tts"][1]


def test_every_state_has_an_exit_code_of_its_own() -> None:
    """A CI step can tell the states apart, and from 1 (refused) and 2 (usage). A shim is as it should be."""
    assert State.SHIM.exit_code == State.CURRENT.exit_code == 0
    codes = [state.exit_code for state in State if state is not State.SHIM]
    assert len(set(codes)) == len(codes)
    assert not {1, 2} & set(codes)
    text = run("--help").output
    assert all(str(code) in text for code in codes)


def test_current(vendored: Path) -> None:
    """Just vendored: exit code 0."""
    result = run("check", vendored)
    assert (result.exit_code, "current" in result.output) == (0, True)


def test_stale(vendored: Path, newer_sources: Path) -> None:
    """Unedited, and the sources moved on: exit code 10."""
    assert run("check", vendored).exit_code == 10


def test_edited(vendored: Path) -> None:
    """Edited here: exit code 11."""
    edit_at_the_end(vendored / TARGET)
    assert run("check", vendored).exit_code == 11


def test_stale_and_edited(vendored: Path, newer_sources: Path) -> None:
    """Both: exit code 12."""
    edit_at_the_end(vendored / TARGET)
    assert run("check", vendored).exit_code == 12


def test_untracked(tmp_path: Path) -> None:
    """The file that an adapter would replace, still the old one: exit code 13."""
    assert run("check", make_repo(tmp_path, "flat")).exit_code == 13


def test_shim(tmp_path: Path) -> None:
    """What the package stage leaves, in the old place or wherever the file was: exit code 0; nothing to update."""
    repo = make_repo(tmp_path, "spear-tts")
    for path, adapter in ((TARGET, "spear-tts"), ("lib.py", "st-moe")):
        (repo / path).write_text(shim(ADAPTERS[adapter]))
    result = run("check", repo, "--json")
    seen = [(one["path"], one["state"], one["note"]) for one in json.loads(result.output)["files"]]
    comes_from = "the code comes from {}-distributed; see `adapters status`"
    assert seen == [("lib.py", "shim", comes_from.format("st-moe")), (TARGET, "shim", comes_from.format("spear-tts"))]
    assert result.exit_code == 0
    assert (run("update", repo).exit_code, "nothing is vendored" in run("update", repo).output) == (1, True)


def test_a_shim_with_more_in_it_is_untracked(tmp_path: Path) -> None:
    """It is somebody's file again, in the old one's place: exit code 13."""
    repo = make_repo(tmp_path, "spear-tts")
    (repo / TARGET).write_text(shim(ADAPTERS["spear-tts"]) + MINE)
    assert run("check", repo).exit_code == 13


def test_tampered_header(vendored: Path) -> None:
    """A header that claims another version: exit code 14."""
    edit(vendored / TARGET, "# source: shared-distributed 0", "# source: shared-distributed 9")
    assert run("check", vendored).exit_code == 14


def test_removed_header(vendored: Path) -> None:
    """No header at all, but a lock that says that there was one: exit code 14."""
    file = vendored / TARGET
    file.write_bytes(split(file.read_bytes())[1])
    assert run("check", vendored).exit_code == 14


def test_missing(vendored: Path) -> None:
    """A lock without its file: exit code 16."""
    (vendored / TARGET).unlink()
    result = run("check", vendored)
    assert (result.exit_code, "deleted, but its lock is here: restore it" in result.output) == (16, True)


@pytest.mark.parametrize("damage", ["not json", '{"format": "shared-distributed-tools 1"}', "edited"])
def test_damaged_lock(vendored: Path, damage: str) -> None:
    """A lock that cannot be read, or holds another body than it says: exit code 14."""
    lock = vendored / f"{TARGET}.lock"
    fields = json.loads(lock.read_text())
    lock.write_text(json.dumps({**fields, "body_sha256": "0" * 64}) if damage == "edited" else damage)
    assert run("check", vendored).exit_code == 14


def test_a_forged_header_does_not_agree_with_the_lock(vendored: Path) -> None:
    """An edit whose hashes were all made anew looks like an old release; the lock knows better: exit code 14."""
    header, body = split((vendored / TARGET).read_bytes())
    forged = replace(header, body=hash_of(body + b"x = 1\n"))
    (vendored / TARGET).write_bytes(forged.encode() + body + b"x = 1\n")
    assert run("check", vendored).exit_code == 14


def test_the_file_alone_is_enough(vendored: Path) -> None:
    """Without the lock the answers are the same."""
    (vendored / f"{TARGET}.lock").unlink()
    assert run("check", vendored).exit_code == 0
    edit_at_the_end(vendored / TARGET)
    assert run("check", vendored).exit_code == 11


def test_a_windows_checkout_is_current(vendored: Path) -> None:
    """CRLF on every line is how git checks files out there, no edit."""
    file = vendored / TARGET
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert run("check", vendored).exit_code == 0


def test_a_new_version_that_renders_the_same_body_is_current(vendored: Path, newer_sources: Path) -> None:
    """Content is compared, not versions: no downstream commit for nothing."""
    edit(newer_sources / CORE / "__init__.py", "Newer: ", "")
    edit(newer_sources / "shared/distributed/pyproject.toml", 'version = "', 'version = "9')
    before = (vendored / TARGET).read_bytes()
    assert run("check", vendored).exit_code == 0
    assert run("vendor", "spear-tts", vendored).exit_code == 0
    assert (vendored / TARGET).read_bytes() == before


def test_the_worst_file_decides(vendored: Path, tmp_path: Path) -> None:
    """With several repos the highest exit code is given, and every file is listed."""
    other = make_repo(tmp_path, "flat")
    result = run("check", "--json", vendored, other)
    answer = json.loads(result.output)
    assert result.exit_code == answer["exit_code"] == 13
    assert [(one["path"], one["state"]) for one in answer["files"]] == [
        (TARGET, "current"),
        ("distributed.py", "untracked"),
    ]


def test_a_repo_with_nothing_to_check_is_an_error(tmp_path: Path) -> None:
    """A check that looked at nothing must not look like one that passed."""
    (tmp_path / "empty").mkdir()
    result = run("check", tmp_path / "empty")
    assert (result.exit_code, "nothing is vendored" in result.output) == (1, True)


def test_files_are_found_wherever_they_are(vendored: Path) -> None:
    """A file at a path of its own is found by its header; copies in build folders and environments are skipped."""
    inside = vendored / "lib" / "build"  # a package, and no folder of builds
    inside.mkdir(parents=True)
    assert run("vendor", "mirasol", vendored, "--path", "lib/build/gather.py").exit_code == 0
    for skipped in ("build", ".hidden", "env"):
        (vendored / skipped).mkdir()
        (vendored / skipped / "distributed.py").write_bytes((inside / "gather.py").read_bytes())
    (vendored / "env" / "pyvenv.cfg").touch()
    paths = [one["path"] for one in json.loads(run("check", "--json", vendored).output)["files"]]
    assert paths == ["lib/build/gather.py", TARGET]


def test_a_folder_that_cannot_be_looked_into_is_passed_over(vendored: Path) -> None:
    """Here one whose path is as long as paths may be; one that belongs to somebody else is the same."""
    deep = vendored
    while (room := 4085 - len(str(deep))) > 1:
        deep = deep / ("d" * min(room - 1, 200))
        deep.mkdir()
    assert run("check", vendored).exit_code == 0


def test_json_explains_the_state(vendored: Path) -> None:
    """With the words of the table."""
    edit_at_the_end(vendored / TARGET)
    (file,) = json.loads(run("check", vendored, "--json").output)["files"]
    assert (file["state"], file["note"]) == ("edited", State.EDITED.meaning)


def test_locks_of_other_programs_are_left_alone(vendored: Path) -> None:
    """Another program's `x.py.lock` is no vendored file."""
    (vendored / "x.py.lock").write_text("pid 1")
    assert run("check", vendored).exit_code == 0


def test_check_writes_nothing(vendored: Path) -> None:
    """Not a byte, not a new file, in any state."""
    edit_at_the_end(vendored / TARGET)
    before = {path: path.read_bytes() for path in vendored.rglob("*") if path.is_file()}
    run("check", vendored)
    run("diff", vendored)
    assert before == {path: path.read_bytes() for path in vendored.rglob("*") if path.is_file()}


def test_diff_tells_their_edits_from_our_changes(vendored: Path, newer_sources: Path) -> None:
    """Two labelled diffs, from the body as it was vendored."""
    edit_at_the_end(vendored / TARGET)
    result = run("diff", vendored)
    theirs, ours = result.output.split("our changes", 1)
    assert result.exit_code == 0
    assert f"+{MINE}" in theirs
    assert "Newer" not in theirs
    assert '+"""Newer: ' in ours
    assert MINE not in ours


def test_diff_without_a_base_says_so(vendored: Path, newer_sources: Path) -> None:
    """Edited, stale, and the lock gone: nothing knows what the edits are edits of."""
    edit_at_the_end(vendored / TARGET)
    (vendored / f"{TARGET}.lock").unlink()
    result = run("diff", vendored)
    assert (result.exit_code, "nothing to compare" in result.output) == (1, True)


def test_the_header_says_where_the_file_comes_from() -> None:
    """Generated mark, adapter, version and hashes, how to make it again, licence; no time and no place."""
    head = render("musiclm").split('"""')[0]
    copyright_line = next(line for line in (ROOT / "LICENSE").read_text().splitlines() if line.startswith("Copyright"))
    for part in ("@generated", "adapter: musiclm", "adapters update", "SPDX-License-Identifier: MIT", copyright_line):
        assert part in head
    assert all(line.startswith("# ") for line in head.splitlines())
    assert str(ROOT) not in render("musiclm")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, int]:
    """A folder with one vendored file and no lock, its bytes, and how long its header is."""
    repo = tmp_path_factory.mktemp("repo")
    content = render("spear-tts").encode()
    return repo, content, len(rendered_parts("spear-tts")[0].encode())


@st.composite
def one_byte_edits(draw: st.DrawFn) -> tuple[float, str, int]:
    """Where (as a fraction), what kind of edit, which byte."""
    return (
        draw(st.floats(0, 1, exclude_max=True)),
        draw(st.sampled_from(["set", "insert", "delete"])),
        draw(st.integers(0, 255)),
    )


def _edited(content: bytes, edit_: tuple[float, str, int], start: int, stop: int) -> bytes:
    place = start + int(edit_[0] * (stop - start))
    after = place if edit_[1] == "insert" else place + 1
    return content[:place] + (b"" if edit_[1] == "delete" else bytes([edit_[2]])) + content[after:]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edit_=one_byte_edits())
def test_any_one_byte_edit_of_the_body_is_seen(
    pristine: tuple[Path, bytes, int], edit_: tuple[float, str, int]
) -> None:
    """Set, inserted or deleted, anywhere in the body: locally edited, even where it is no UTF-8 any more."""
    repo, content, start = pristine
    changed = _edited(content, edit_, start, len(content))
    (repo / "distributed.py").write_bytes(changed)
    expected = State.CURRENT if changed == content else State.EDITED
    assert inspect(repo, repo / "distributed.py").state is expected


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edit_=one_byte_edits())
def test_any_one_byte_edit_of_the_header_is_tampering(
    pristine: tuple[Path, bytes, int], edit_: tuple[float, str, int]
) -> None:
    """Set, inserted or deleted, anywhere in the header: tampered, from the file alone."""
    repo, content, start = pristine
    changed = _edited(content, edit_, 0, start)
    (repo / "distributed.py").write_bytes(changed)
    expected = State.CURRENT if changed == content else State.TAMPERED
    assert inspect(repo, repo / "distributed.py").state is expected


def test_an_adapter_of_a_later_release_is_named(tmp_path: Path) -> None:
    """A file for an adapter that this release does not have: say so, and what to do."""
    (tmp_path / "distributed.py").write_bytes(Header("whisper", "1.0", "9.0", "0" * 64, "0" * 64).encode() + b"x = 1\n")
    result = run("check", tmp_path)
    assert (result.exit_code, "upgrade shared-distributed-tools" in result.output) == (14, True)


def test_an_error_of_ours_is_a_message_and_not_a_traceback(vendored: Path) -> None:
    """Exit code 1 and the text."""
    with mock.patch.object(sources, "root", side_effect=ToolError("no sources here; install again")):
        result = run("check", vendored)
    assert (result.exit_code, result.output.strip()) == (1, "Error: no sources here; install again")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_a_folder_that_may_not_be_entered_is_passed_over(vendored: Path) -> None:
    """Somebody else's folder in the tree is no traceback, for check and for scan."""
    closed = vendored / "closed"
    closed.mkdir(mode=0)
    checked, scanned = run("check", vendored), run("scan", vendored)
    closed.chmod(0o700)  # so that it can be deleted
    assert checked.exit_code == 0, checked.output
    assert "closed: cannot be read: Permission denied" in scanned.output
