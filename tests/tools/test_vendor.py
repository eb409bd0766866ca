# SPDX-License-Identifier: MIT
"""vendor, check and update: the one file in its repo, its state, and edits that survive new releases."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.render import released, render, rendered_parts
from shared_distributed_tools.render.header import split
from shared_distributed_tools.render.shim import shim
from shared_distributed_tools.vendor import update
from shared_distributed_tools.vendor.state import MEANINGS
from tests.downstream.commands import done, refused, run
from tests.downstream.projects import PROJECT, PROJECTS, TARGET
from tests.downstream.trees import CORE, MINE, commit, committed, edit, edit_at_the_end, git, newer, write_files

pytestmark = pytest.mark.usefixtures("known")
OLD = PROJECT.files[TARGET]


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bodies of earlier releases, which a test may add to with `released.keep`."""
    (tmp_path / "released").mkdir()
    monkeypatch.setattr(released, "FOLDER", tmp_path / "released")
    return tmp_path / "released"


def state(repo: Path) -> str:
    """What `check` says of the one file; its exit code agrees."""
    result = run("check", repo, "--json")
    said = json.loads(result.stdout)
    (file,) = said["files"]
    assert result.exit_code == said["exit_code"] == int(file["state"] not in ("current", "shim"))
    return str(file["state"])


# ------------------------------------------------------------------ vendor


def test_a_package_without_the_file_gets_one(repo: Path) -> None:
    """In a repo with commits; the new file is added and removed by name."""
    git(repo, "rm", "-q", TARGET)
    commit(repo)
    output = done("vendor", "spear-tts", repo, "--write")
    assert f"git add -f -- {TARGET} && git commit" in output
    assert f"rm -- {TARGET}" in output
    assert (repo / TARGET).read_text() == render("spear-tts")


def test_which_file_has_to_be_clear(tmp_path: Path) -> None:
    """No such package, or two places: say which with --path."""
    flat = write_files(PROJECTS["flat"].make(tmp_path, "flat"), {"musiclm_pytorch/__init__.py": ""})
    assert refused(run("vendor", "mirasol", flat), "has no package for mirasol_pytorch/distributed.py; say where")
    assert refused(run("vendor", "musiclm", flat), "musiclm_pytorch/distributed.py and distributed.py; say where")


def test_a_vendored_file_is_for_update(vendored: Path, tree: Path) -> None:
    """Current: nothing to do, in a later version too. Else `vendor` names `update`; --accept-edits renders afresh."""
    edit(tree / "shared/distributed/pyproject.toml", 'version = "', 'version = "9')
    assert "already current" in done("vendor", "spear-tts", vendored)
    assert "nothing to change" in done("update", vendored)
    newer(tree)
    assert refused(run("vendor", "spear-tts", vendored), "adapters update")
    done("vendor", "spear-tts", vendored, "--accept-edits", "--write")
    assert (vendored / TARGET).read_text() == render("spear-tts")


def test_a_crlf_file_keeps_its_line_ends(vendored: Path, tree: Path) -> None:
    """Vendored, checked, merged: compared with LF, written with CRLF."""
    file = vendored / TARGET
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert state(vendored) == "current"
    file.write_bytes(file.read_bytes() + MINE.encode().replace(b"\n", b"\r\n"))
    commit(vendored)
    assert state(vendored) == "edited"
    newer(tree)
    done("update", vendored, "--write")
    assert file.read_bytes() == (render("spear-tts") + MINE).replace("\n", "\r\n").encode()


# ------------------------------------------------------------------ check


def later(text: str) -> str:
    """As a later release would have rendered it."""
    header, _ = split(text.encode())
    assert header is not None
    return renumbered(text).replace(header.body, "0" * 64)


def renumbered(text: str, version: str = "99") -> str:
    return re.sub(r"tools \S+:", f"tools {version}:", text, count=1)


Edit = Callable[[str], str]
SHIM = shim(ADAPTERS["spear-tts"])
SPOILED: Edit = lambda text: text.replace("adapter spear-tts", "adapter s p e a r")  # noqa: E731
# state, whether the sources moved on, and what was done to the file
STATES: list[tuple[str, bool, Edit]] = [
    ("current", False, str),
    ("current", False, renumbered),  # contents are compared, not versions: no downstream commit for nothing
    ("current", False, lambda text: renumbered(text, "later")),
    ("stale", True, str),
    ("edited", False, lambda text: text + MINE),
    # our mark with a header that cannot be read is never somebody's own copy
    ("edited", False, SPOILED),
    ("edited", False, lambda text: text.replace("# body: sha256 ", "# body: sha256 0")),
    ("edited", False, lambda text: f"import os\n{text}"),
    ("both", True, lambda text: text + MINE),
    ("conflict", False, lambda text: text + "<<<<<<< your edits\nx\n=======\ny\n>>>>>>> new\n"),
    ("newer", False, later),
    ("newer", False, lambda text: text.replace("adapter spear-tts", "adapter whisper")),
    ("shim", False, lambda text: SHIM),
    ("original", False, lambda text: SHIM + "MINE = 1\n"),
]


@pytest.mark.parametrize(("expected", "moved_on", "change"), STATES)
def test_every_state(vendored: Path, tree: Path, expected: str, moved_on: bool, change: Edit) -> None:
    """From the file alone, without git: exit code 0 for what is current or a shim, 1 for the rest.

    With --accept-edits an edited file is good too; one that is stale as well is not.
    """
    (vendored / TARGET).write_text(change((vendored / TARGET).read_text()))
    if moved_on:
        newer(tree)
    (vendored / ".git").rename(vendored.parent / "no git here")
    assert state(vendored) == expected
    is_good = expected in ("current", "shim", "edited")
    assert run("check", vendored, "--accept-edits").exit_code == int(not is_good)
    assert {*MEANINGS, "newer", "shim"} == {one for one, _, _ in STATES}


def test_a_project_on_the_core_is_current(tmp_path: Path) -> None:
    """It has no file to check any more. A check that looked at nothing must not look like one that passed."""
    repo = committed(write_files(tmp_path, {"spear_tts_pytorch/__init__.py": ""}))
    assert refused(run("check", repo), "nothing is vendored here")
    assert refused(run("update", repo), "nothing is vendored")
    (repo / "pyproject.toml").write_text('[project]\ndependencies = ["shared-distributed>=0.1"]\n')
    assert state(repo) == "current"


def test_files_are_found_wherever_they_are(vendored: Path) -> None:
    """By their header; builds, hidden folders and environments are passed over. Several repos are checked at once."""
    (vendored / "lib/build").mkdir(parents=True)  # a package, and no folder of builds
    done("vendor", "mirasol", vendored, "--path", "lib/build/gather.py", "--write")  # where nothing was before
    skipped = {f"{folder}/distributed.py": render("mirasol") + "#" for folder in ("build", ".hidden", "env")}
    write_files(vendored, {**skipped, "env/pyvenv.cfg": ""})
    other = PROJECTS["flat"].make(vendored.parent, "flat")
    result = run("check", "--json", vendored, other)
    found = [(one["path"], one["state"]) for one in json.loads(result.output)["files"]]
    assert found == [("lib/build/gather.py", "current"), (TARGET, "current"), ("distributed.py", "original")]
    assert result.exit_code == 1


# ------------------------------------------------------------------ update


def test_update_replaces_an_unedited_file(vendored: Path, tree: Path) -> None:
    """Shown first; stale becomes current with --write."""
    newer(tree)
    assert '+    """Newer: ' in done("update", vendored)
    assert state(vendored) == "stale"
    done("update", vendored, "--write")
    assert (vendored / TARGET).read_text() == render("spear-tts")
    assert state(vendored) == "current"


def test_update_asks_git_before_it_walks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`adapters update /` is refused at once."""
    monkeypatch.setattr(update, "Tree", None)
    assert refused(run("update", tmp_path), "is in no git repository")


def test_update_of_an_edited_file_three_times_and_once_through_a_conflict(
    vendored: Path, tree: Path, releases: Path
) -> None:
    """The base of the first merge is in the history; those of the others, which were never committed, in releases."""
    file = vendored / TARGET
    edit_at_the_end(file)
    commit(vendored)
    newer(tree)
    released.keep(releases)  # as `nox -s release` does
    done("update", vendored, "--write")
    assert file.read_text() == render("spear-tts") + MINE
    assert state(vendored) == "edited"

    edit(file, '"""Newer: ', '"""Mine: ')
    commit(vendored)
    newer(tree, "Newest")
    released.keep(releases)
    result = run("update", vendored, "--write")
    assert (result.exit_code, "conflict; resolve the markers" in result.output) == (1, True)
    text = file.read_text()
    assert '<<<<<<< your edits\n    """Mine: ' in text
    assert '=======\n    """Newest: ' in text
    assert state(vendored) == "conflict"
    kept = [
        line for line in text.splitlines(keepends=True) if not line.startswith(("<<<", "===", ">>>", '    """Mine'))
    ]
    file.write_text("".join(kept))
    commit(vendored)

    newer(tree, "Last")
    done("update", vendored, "--write")
    assert file.read_text() == render("spear-tts") + MINE
    assert state(vendored) == "edited"


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ("edited", "the first commit that has it has edits already: squashed, reformatted by a hook, or made at once"),
        ("gone", "no commit has it: its branch is gone, or it was never committed"),
        ("shallow", "this clone is shallow"),
    ],
)
def test_a_lost_base_is_explained(vendored: Path, tree: Path, lost: str, why: str) -> None:
    """And the diffs that there are, are shown; nothing is guessed, and nothing written."""
    if lost == "edited":
        git(vendored, "reset", "-q", "--soft", "HEAD~1")
    edit_at_the_end(vendored / TARGET)
    commit(vendored)
    if lost == "gone":  # as if no commit had ever held it
        edit(vendored / TARGET, rendered_parts("spear-tts")[0].body, "0" * 64)
    if lost == "shallow":
        (vendored / ".git/shallow").write_text(git(vendored, "rev-parse", "HEAD"))
    newer(tree)
    before = (vendored / TARGET).read_bytes()
    result = run("update", vendored, "--write")
    assert refused(result, why)
    assert '+    """Newer: ' in result.output
    assert (vendored / TARGET).read_bytes() == before


def test_the_base_is_found_after_a_rename(vendored: Path, tree: Path) -> None:
    """By the hash in its header, whatever the file was called, on a branch that was squashed with edit and rename."""
    git(vendored, "branch", "squashed")
    git(vendored, "reset", "-q", "--soft", "HEAD~1")
    git(vendored, "mv", TARGET, "spear_tts_pytorch/gather.py")
    edit_at_the_end(vendored / "spear_tts_pytorch/gather.py")
    commit(vendored)
    newer(tree)
    done("update", vendored, "--write")
    assert (vendored / "spear_tts_pytorch/gather.py").read_text() == render("spear-tts") + MINE


def test_a_merge_that_breaks_the_code_is_said(vendored: Path, tree: Path) -> None:
    """Their edit uses a name that our change took away: no conflict in the text, and no working module."""
    file = vendored / TARGET
    file.write_text(file.read_text() + "\n\nASK = is_distributed()\n")
    commit(vendored)
    for module in [*(tree / CORE).glob("*.py"), *tree.glob("packages/*/src/*/*.py")]:
        module.write_text(module.read_text().replace("is_distributed", "are_others_there"))
    result = run("update", vendored, "--write")
    assert result.exit_code == 1
    assert "but nothing defines is_distributed; correct it before you commit" in result.output
    assert "ASK = is_distributed()" in file.read_text()


def test_an_edited_file_that_is_current_has_nothing_to_bring(vendored: Path) -> None:
    """`vendor` says so, and does not send anybody to `update`, which says the same: the edits are kept."""
    edit_at_the_end(vendored / TARGET)
    commit(vendored)
    result = run("vendor", "spear-tts", vendored)
    assert refused(result, "there is nothing newer")
    assert "adapters update" not in result.output
    assert "nothing to change; the edits in it are kept" in done("update", vendored)


# ------------------------------------------------------------------ refused


REFUSED: list[tuple[Edit, str, str]] = [  # the vendored file becomes, command, reason
    (later, "update --write", "rendered by the later 99; upgrade the tools"),
    (later, "vendor spear-tts --accept-edits --write", "rendered by the later 99"),
    (later, "migrate --to package --accept-edits --write", "rendered by the later 99"),
    (lambda text: f"{text}<<<<<<< your edits\n", "update", "conflict markers of an update are left"),
    (SPOILED, "update", "its header was changed and cannot be read; restore it"),
    (str, "vendor spear-tts --path README.md", "is not a Python module"),
    (str, "vendor spear-tts --path ../x.py", "outside"),
    (str, "migrate --to vendored", "is at vendored already"),
    (str, "migrate --to package --requirement git+x", "is not a requirement"),
    (lambda text: SHIM, "migrate --to vendored", "`git revert` of the commit that moved it goes back"),
    (lambda text: OLD, "migrate --to vendored --requirement x", "belongs to --to package"),
]
UNLESS_ACCEPTED: list[tuple[Edit, str, str]] = [
    (lambda text: text + MINE, "vendor spear-tts", "there is nothing newer; --accept-edits goes on"),
    (SPOILED, "vendor spear-tts", "--accept-edits goes on without the edits"),
    (lambda text: text + MINE, "migrate --to package", "--accept-edits goes on without the edits"),
    (str, f"vendor mirasol --path {TARGET}", "is the adapter spear-tts"),
    (lambda text: OLD, f"vendor mirasol --path {TARGET}", "nothing in it is known as the original of mirasol"),
    (lambda text: "def gather(x): ...\n", "vendor spear-tts", "nothing in it is known as the original of spear-tts"),
]


@pytest.mark.parametrize(("change", "command", "because"), [*REFUSED, *UNLESS_ACCEPTED])
def test_what_could_lose_work_is_refused(vendored: Path, change: Edit, command: str, because: str) -> None:
    """With the reason, and nothing is written; --accept-edits goes on, where edits are the reason."""
    (vendored / TARGET).write_text(change((vendored / TARGET).read_text()))
    commit(vendored)
    assert refused(run(*command.split(), vendored), because)
    assert git(vendored, "status", "--short") == ""
    if (change, command, because) in UNLESS_ACCEPTED:
        done(*command.split(), vendored, "--accept-edits", "--write")
        assert f" M {TARGET}\n" in git(vendored, "status", "--short")
