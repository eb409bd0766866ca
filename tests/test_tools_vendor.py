# SPDX-License-Identifier: MIT
"""Vendor and update: where the file goes, what is refused, how edits and changes are joined, what a crash leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from downstream.commands import refused, run
from downstream.trees import (
    CORE,
    LAYOUTS,
    MINE,
    OLD,
    commit,
    copy_sources,
    edit,
    edit_at_the_end,
    git,
    make_repo,
    newer,
)
from shared_distributed_tools import floor, sources, vendoring
from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.files import write_atomically
from shared_distributed_tools.git import merge
from shared_distributed_tools.lock import read_lock
from shared_distributed_tools.render import render, rendered_parts

TARGET = LAYOUTS["spear-tts"][1]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repo with the old file, committed."""
    return make_repo(tmp_path, "spear-tts")


@pytest.fixture
def vendored(repo: Path) -> Path:
    """A repo with a current file, committed."""
    assert run("vendor", "spear-tts", repo).exit_code == 0
    commit(repo)
    return repo


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that a test may change: they are used from now on."""
    copied = copy_sources(tmp_path / "sources")
    monkeypatch.setattr(sources, "root", lambda: copied)
    return copied


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_file_goes_where_the_old_one_was(tmp_path: Path, layout: str) -> None:
    """In each known layout: the rendered bytes in place of the old file, and a lock beside it."""
    adapter, target, _ = LAYOUTS[layout]
    repo = make_repo(tmp_path, layout)
    result = run("vendor", adapter, repo)
    assert result.exit_code == 0
    assert (repo / target).read_bytes() == render(adapter).encode()
    lock = read_lock(repo / f"{target}.lock")
    assert lock is not None
    assert lock.body == rendered_parts(adapter)[1]
    assert set(git(repo, "status", "--short").split()) == {"M", target, "??", f"{target}.lock"}
    assert run("check", repo).exit_code == 0


def test_the_diff_is_shown(repo: Path) -> None:
    """What goes and what comes, before it is written."""
    output = run("vendor", "spear-tts", repo).output
    assert '-"""The old copy."""' in output
    assert "+# adapter: spear-tts" in output


def test_a_second_run_writes_nothing(vendored: Path) -> None:
    """Not the file, not the lock: not even their times change."""
    files = [vendored / TARGET, vendored / f"{TARGET}.lock"]
    before = [(file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino) for file in files]
    result = run("vendor", "spear-tts", vendored)
    assert "already current" in result.output
    assert before == [(file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino) for file in files]


def test_a_dry_run_writes_nothing(repo: Path) -> None:
    """The diff is shown, the old file stays, no lock appears."""
    result = run("vendor", "spear-tts", repo, "--dry-run")
    assert (result.exit_code, '-"""The old copy."""' in result.output) == (0, True)
    assert git(repo, "status", "--short") == ""


def test_a_package_without_the_file_gets_one(repo: Path) -> None:
    """The package is there, the file was deleted: it is made."""
    (repo / TARGET).unlink()
    assert run("vendor", "spear-tts", repo).exit_code == 0
    assert (repo / TARGET).stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_permissions_are_kept(repo: Path) -> None:
    """An executable file stays one."""
    (repo / TARGET).chmod(0o751)
    run("vendor", "spear-tts", repo)
    assert (repo / TARGET).stat().st_mode & 0o777 == 0o751


def test_a_missing_lock_is_made_again(vendored: Path) -> None:
    """A current file without its lock: the lock comes back, the file is not touched."""
    (vendored / f"{TARGET}.lock").unlink()
    assert run("vendor", "spear-tts", vendored).exit_code == 0
    assert git(vendored, "status", "--short") == ""


def test_a_missing_file_is_made_again(vendored: Path) -> None:
    """Update says that it is gone; vendor brings it back."""
    (vendored / TARGET).unlink()
    assert refused(run("update", vendored), "was deleted, its lock is there; restore it, run `adapters vendor NAME")
    assert run("vendor", "spear-tts", vendored).exit_code == 0
    assert git(vendored, "status", "--short") == ""


def test_local_edits_are_shown_and_refused(vendored: Path) -> None:
    """The edits, and both ways on; the file stays. `--force` drops them."""
    edit_at_the_end(vendored / TARGET)
    commit(vendored)
    result = run("vendor", "spear-tts", vendored)
    assert refused(result, f"+{MINE}")
    assert result.output.startswith(f"Error: {TARGET} was edited")  # before a diff that may be long
    assert "--force" in result.output
    assert "update --merge" in result.output
    assert (vendored / TARGET).read_text().endswith(MINE)
    assert run("vendor", "spear-tts", vendored, "--force").exit_code == 0
    assert (vendored / TARGET).read_text() == render("spear-tts")


def test_a_tampered_header_is_refused(vendored: Path) -> None:
    """Until `--force`."""
    edit(vendored / TARGET, "# source: shared-distributed 0", "# source: shared-distributed 9")
    commit(vendored)
    assert refused(run("vendor", "spear-tts", vendored), "the header was edited")
    assert refused(run("update", vendored), "the header was edited")
    assert run("vendor", "spear-tts", vendored, "--force").exit_code == 0


@pytest.mark.parametrize("outside", ["../elsewhere.py", "/elsewhere.py", "spear_tts_pytorch/../../x.py", "."])
def test_a_path_outside_the_repo_is_refused(repo: Path, outside: str) -> None:
    """However it is written."""
    assert refused(run("vendor", "spear-tts", repo, "--path", outside), "outside")


@pytest.mark.parametrize("odd", ["README.md", ".git/hooks/x.py"])
def test_a_path_that_is_no_module_is_refused(repo: Path, odd: str) -> None:
    """A text file, or the inside of .git."""
    assert refused(run("vendor", "spear-tts", repo, "--path", odd), "not a place for a Python module")


def test_a_path_inside_the_repo_is_taken(repo: Path) -> None:
    """`--path`, relative to the repo, where nothing was before."""
    assert run("vendor", "spear-tts", repo, "--path", "spear_tts_pytorch/gather.py").exit_code == 0
    assert (repo / "spear_tts_pytorch/gather.py").read_text() == render("spear-tts")
    assert (repo / TARGET).read_text() == OLD


@pytest.mark.parametrize("link", [TARGET, f"{TARGET}.lock", "spear_tts_pytorch"])
def test_a_symlink_is_refused(repo: Path, tmp_path: Path, link: str) -> None:
    """The file, its lock or a folder on the way: what it points to is not touched."""
    elsewhere = tmp_path / "elsewhere"
    if (repo / link).exists():
        (repo / link).rename(elsewhere)
    else:
        elsewhere.write_text("{}")
    (repo / link).symlink_to(elsewhere)
    assert refused(run("vendor", "spear-tts", repo, "--force"), "symlink")
    assert (repo / link).is_symlink()
    assert not (elsewhere / "distributed.py.lock").exists()


@pytest.mark.parametrize("folder", [TARGET, f"{TARGET}.lock"])
def test_a_folder_where_the_file_should_be_is_refused(repo: Path, folder: str) -> None:
    """The file's place, or its lock's."""
    (repo / folder).unlink(missing_ok=True)
    (repo / folder).mkdir()
    assert refused(run("vendor", "spear-tts", repo), "is a folder")


def test_a_pipe_where_the_file_should_be_is_refused(repo: Path) -> None:
    """And not read from, which would wait for ever."""
    (repo / TARGET).unlink()
    os.mkfifo(repo / TARGET)
    assert refused(run("vendor", "spear-tts", repo), "no plain file")


def test_uncommitted_changes_are_refused(repo: Path) -> None:
    """What git does not hold could not be brought back: refused, with `--force` too."""
    edit_at_the_end(repo / TARGET)
    for options in ([], ["--force"]):
        assert refused(run("vendor", "spear-tts", repo, *options), "not committed")
    assert (repo / TARGET).read_text() == OLD + MINE


def test_a_file_that_git_does_not_know_is_refused(repo: Path) -> None:
    """Never added, so never saved."""
    git(repo, "rm", "-q", "--cached", TARGET)
    git(repo, "commit", "-q", "-m", "forgotten")
    assert refused(run("vendor", "spear-tts", repo), "not committed")


def test_inside_a_git_hook_the_repo_is_still_the_one_named(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git exports variables to hooks that point at another repo or index; they are not followed."""
    monkeypatch.setenv("GIT_DIR", str(repo / "nowhere"))
    assert run("vendor", "spear-tts", repo).exit_code == 0


def test_outside_git_an_old_file_needs_force(tmp_path: Path) -> None:
    """Nobody else has a copy; `--force` says that this is fine."""
    repo = make_repo(tmp_path, "spear-tts", under_git=False)
    assert refused(run("vendor", "spear-tts", repo), "not under version control")
    assert run("vendor", "spear-tts", repo, "--force").exit_code == 0
    assert run("vendor", "spear-tts", repo).exit_code == 0


def test_our_own_file_needs_no_commit(repo: Path, tree: Path) -> None:
    """An unedited file can be made again at any time: a newer one may replace it before anything is committed."""
    run("vendor", "spear-tts", repo)
    newer(tree)
    assert run("vendor", "spear-tts", repo).exit_code == 0
    assert (repo / TARGET).read_text() == render("spear-tts")


@pytest.mark.parametrize("command", [("vendor", "spear-tts"), ("check",), ("update",), ("diff",)])
def test_an_unreadable_file_is_refused(
    vendored: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """With its name, not with a traceback."""
    real = Path.open

    def closed(self: Path, *arguments: object, **options: object) -> object:
        if self.name == "distributed.py":
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", closed)
    assert refused(run(*command, vendored), "cannot be read: Permission denied")


@pytest.mark.parametrize("adapter", ["musiclm", "mirasol"])
def test_a_repo_without_the_package_is_refused(repo: Path, adapter: str) -> None:
    """Another project's repo: say where, with --path."""
    assert refused(run("vendor", adapter, repo), "say where the file goes with --path")


def test_two_possible_places_are_refused(tmp_path: Path) -> None:
    """A package and a flat module in one repo: say which."""
    repo = make_repo(tmp_path, "flat", extra={"musiclm_pytorch/__init__.py": ""})
    assert refused(run("vendor", "musiclm", repo), "say which with --path")


@pytest.mark.parametrize("what", ["nowhere", "a file"])
def test_a_repo_that_is_no_folder_is_refused(tmp_path: Path, what: str) -> None:
    """A typo in the path, or a file's."""
    if what == "a file":
        (tmp_path / what).touch()
    for command in (("vendor", "musiclm"), ("check",), ("update",), ("diff",)):
        assert refused(run(*command, tmp_path / what), "is not a folder")


def test_another_adapters_file_is_refused(vendored: Path) -> None:
    """One adapter does not silently become another."""
    assert refused(run("vendor", "mirasol", vendored, "--path", TARGET), "is the adapter spear-tts")
    assert run("vendor", "mirasol", vendored, "--path", TARGET, "--force").exit_code == 0


def test_a_newer_file_is_not_made_older(vendored: Path, tree: Path) -> None:
    """An old release of the tools refuses a file that a newer one rendered."""
    edit(tree / "shared/distributed/pyproject.toml", 'version = "', 'version = "9')
    newer(tree)
    assert run("update", vendored).exit_code == 0
    edit(tree / "shared/distributed/pyproject.toml", 'version = "9', 'version = "')
    newer(tree, "Older")
    assert run("check", vendored).exit_code == 10
    for command in (("update",), ("vendor", "spear-tts")):
        assert refused(run(*command, vendored), "upgrade shared-distributed-tools")


def test_update_replaces_an_unedited_file(vendored: Path, tree: Path) -> None:
    """Stale becomes current, file and lock."""
    newer(tree)
    assert run("update", vendored).exit_code == 0
    assert (vendored / TARGET).read_text() == render("spear-tts")
    assert read_lock(vendored / f"{TARGET}.lock") is not None
    assert run("check", vendored).exit_code == 0


def test_update_asks_before_it_merges(vendored: Path, tree: Path) -> None:
    """An edited file is merged when asked only."""
    edit_at_the_end(vendored / TARGET)
    commit(vendored)
    newer(tree)
    assert refused(run("update", vendored), "update --merge")
    assert git(vendored, "status", "--short") == ""


def test_update_keeps_both_sides(vendored: Path, tree: Path) -> None:
    """Their edit and our change, and the next release merges from there."""
    edit_at_the_end(vendored / TARGET)
    for word in ("Newer", "Newest"):
        commit(vendored)
        newer(tree, word)
        assert run("update", vendored, "--merge").exit_code == 0
        text = (vendored / TARGET).read_text()
        assert text == render("spear-tts") + MINE
        assert run("check", vendored).exit_code == 11


def test_a_merge_that_breaks_the_code_is_said(vendored: Path, tree: Path) -> None:
    """Their edit uses a name that our change took away: no conflict in the text, and no working module."""
    file = vendored / TARGET
    file.write_text(file.read_text() + "\n\nTRACING = is_compiling()\n")
    commit(vendored)
    for module in (tree / CORE).glob("*.py"):
        module.write_text(module.read_text().replace("is_compiling", "is_tracing"))
    result = run("update", vendored, "--merge")
    assert result.exit_code == 15
    assert "nobody defines is_compiling any more; mend it before you commit" in result.output
    assert "TRACING = is_compiling()" in file.read_text()
    assert run("check", vendored).exit_code == 11, "the lock has moved on: what is left is an edit"


def test_a_conflict_leaves_markers_and_the_lock(vendored: Path, tree: Path) -> None:
    """Both changed one line: markers, exit code 15, the lock as it was; resolved, the next update moves the lock."""
    file, lock = vendored / TARGET, vendored / f"{TARGET}.lock"
    file.write_text(file.read_text().replace('"""', '"""Mine: ', 1))
    commit(vendored)
    newer(tree)
    before = lock.read_bytes()
    assert run("update", vendored, "--merge").exit_code == 15
    text = file.read_text()
    assert '<<<<<<< your edits\n"""Mine: ' in text
    assert '=======\n"""Newer: ' in text
    assert lock.read_bytes() == before
    assert run("check", vendored).exit_code == 15
    assert refused(run("update", vendored, "--merge"), "resolve them")

    kept = [line for line in text.splitlines(keepends=True) if not line.startswith(("<<<", "===", ">>>", '"""Mine'))]
    file.write_text("".join(kept) + MINE)
    assert "lock brought up to date" in run("update", vendored).output
    commit(vendored)
    assert run("check", vendored).exit_code == 11
    newer(tree, "Newest")
    assert run("update", vendored, "--merge").exit_code == 0
    assert file.read_text() == render("spear-tts") + MINE


def test_a_merge_without_a_base_is_refused(vendored: Path, tree: Path) -> None:
    """Edited, stale, and the lock gone: nothing is guessed."""
    edit_at_the_end(vendored / TARGET)
    (vendored / f"{TARGET}.lock").unlink()
    commit(vendored)
    newer(tree)
    assert refused(run("update", vendored, "--merge"), "Restore distributed.py.lock")


def test_a_merge_over_uncommitted_edits_is_refused(vendored: Path, tree: Path) -> None:
    """A conflict would be written over the only copy of the edits."""
    edit_at_the_end(vendored / TARGET)
    newer(tree)
    assert refused(run("update", vendored, "--merge"), "not committed")


def test_a_merge_keeps_windows_newlines(vendored: Path, tree: Path) -> None:
    """A file with CRLF on every line keeps it."""
    file = vendored / TARGET
    edit_at_the_end(file)
    commit(vendored)
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    newer(tree)
    assert run("update", vendored, "--merge").exit_code == 0
    assert file.read_bytes() == (render("spear-tts") + MINE).replace("\n", "\r\n").encode()


def test_update_of_a_repo_that_has_nothing_vendored_is_refused(repo: Path, tmp_path: Path) -> None:
    """The old file is nobody's to update; nor is nothing."""
    assert refused(run("update", repo), "adapters vendor")
    (tmp_path / "empty").mkdir()
    assert refused(run("update", tmp_path / "empty"), "adapters vendor")


def test_one_refusal_leaves_all_files_alone(vendored: Path, tree: Path) -> None:
    """Nothing is written before every file of the repo was looked at."""
    (vendored / "a").mkdir()
    run("vendor", "mirasol", vendored, "--path", "a/first.py")
    edit_at_the_end(vendored / TARGET)
    commit(vendored)
    newer(tree)
    assert refused(run("update", vendored), "was edited")
    assert git(vendored, "status", "--short") == ""


def test_nothing_that_lies_in_the_repo_is_run(vendored: Path, tree: Path, tmp_path: Path) -> None:
    """Module code, git hooks, filters, monitors and attributes of the repo: none leaves a trace."""
    trace = tmp_path / "trace"
    trap = vendored / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {trace}\ncat\n")
    trap.chmod(0o755)
    for name in ("__init__.py", "../setup.py", "../conftest.py"):
        (vendored / "spear_tts_pytorch" / name).write_text(f"open({str(trace)!r}, 'w')\n")
    (vendored / ".gitattributes").write_text("*.py filter=trap merge=trap diff=trap\n")
    edit_at_the_end(vendored / TARGET)
    commit(vendored)
    for key in ("core.fsmonitor", "filter.trap.clean", "filter.trap.smudge", "merge.trap.driver", "diff.trap.textconv"):
        git(vendored, "config", key, str(trap))
    for hook in ("post-checkout", "pre-commit", "post-index-change", "post-merge"):
        (vendored / ".git/hooks" / hook).write_bytes(trap.read_bytes())
        (vendored / ".git/hooks" / hook).chmod(0o755)
    newer(tree)
    for command in (("check",), ("diff",), ("vendor", "spear-tts"), ("update",), ("update", "--merge")):
        run(*command, vendored)
    assert (vendored / TARGET).read_text() == render("spear-tts") + MINE
    assert not trace.exists()


LINES = st.lists(st.sampled_from(["a = 1\n", "b = 2\n", "\n", "def f(): ...\n"]), min_size=1, max_size=3)


SETUP = "from setuptools import setup\nsetup(name = 'x', {})\n"
TOO_OLD = {
    "setup.py": (
        SETUP.format("python_requires = '>=3.8', install_requires = ['einops', 'torch>=1.6']"),
        ">=3.8",
        ">=1.6",
    ),
    "setup.cfg": (
        "[options]\npython_requires = >=3.7\ninstall_requires =\n    einops\n    torch==1.13.1\n",
        ">=3.7",
        "==1.13.1",
    ),
    "pyproject.toml": ('[project]\nrequires-python = ">=3.9"\ndependencies = ["torch<2"]\n', ">=3.9", "<2"),
    "requirements.txt": ("# all of it\nTorch~=1.12  # not newer\n-r more.txt\n", None, "~=1.12"),
    "poetry's pyproject.toml": ('[tool.poetry.dependencies]\npython = "^3.8"\ntorch = "^1.6"\n', ">=3.8", ">=1.6"),
}


@pytest.mark.parametrize("name", TOO_OLD)
def test_what_a_project_allows_and_the_file_cannot_do_is_noted(repo: Path, name: str) -> None:
    """One line, in whichever file the project says it; which stays as it is."""
    text, python, torch = TOO_OLD[name]
    file = name.split()[-1]
    (repo / file).write_text(text)
    result = run("vendor", "spear-tts", repo)
    found = [f"{package}{bound} ({file})" for package, bound in (("python", python), ("torch", torch)) if bound]
    note = f"note: {TARGET} needs Python 3.10 and torch 2.0 or later, and this project allows less: {', '.join(found)}"
    assert (result.exit_code, result.stderr.splitlines()[0]) == (0, note)
    assert (repo / file).read_text() == text
    assert "note" not in run("vendor", "spear-tts", repo).stderr  # already current


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("setup.py", SETUP.format("python_requires = '>=3.10', install_requires = ['torch>=2.0,<3']")),
        ("setup.py", SETUP.format("install_requires = ['torch', 'torchvision>=0.9', 'torch!=1.7']")),
        ("setup.py", SETUP.format("install_requires = required(), python_requires = MINIMUM")),
        ("setup.py", "setup(install_requires = ['torch>=1.6'"),
        ("requirements.txt", "torch>=1.6; python_version < '3.8'\ntorch @ https://example.org/torch.whl\n"),
        ("requirements.txt", "torch>=1.6,>=2.1\n"),
        ("pyproject.toml", '[project]\nrequires-python = ">= three"\ndependencies = "torch>=1.6"\n'),
        ("pyproject.toml", '[tool.poetry.dependencies]\npython = "*"\ntorch = "^1.13 || ^2.0"\n'),
        ("pyproject.toml", "[project"),
    ],
)
def test_nothing_is_noted_where_nothing_is_plainly_too_old(repo: Path, file: str, text: str) -> None:
    """No bound, one that is met, a condition, a computed value, a file that is damaged."""
    (repo / file).write_text(text)
    assert run("vendor", "spear-tts", repo).stderr == f"{TARGET}: written; commit it together with its lock\n"


def test_the_first_file_that_names_a_package_decides(repo: Path) -> None:
    """What else lies there may be for development only."""
    (repo / "setup.py").write_text(SETUP.format("install_requires = ['torch>=2.0']"))
    (repo / "requirements.txt").write_text("torch==1.13.1\n")
    assert "note" not in run("vendor", "spear-tts", repo).stderr


def test_what_the_file_needs_is_what_the_core_asks_for() -> None:
    """The numbers of the note."""
    manifest = (sources.root() / "shared/distributed/pyproject.toml").read_text()
    assert f'requires-python = ">={floor.NEEDED["python"]}"' in manifest
    assert f'"torch>={floor.NEEDED["torch"]}"' in manifest


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(theirs=LINES, ours=LINES, cut=st.floats(0.05, 0.95), swap=st.booleans())
def test_disjoint_edits_keep_both_sides(theirs: list[str], ours: list[str], cut: float, swap: bool) -> None:
    """Whatever two sides put into places apart from each other is in the result, once, and nothing else changed."""
    base = rendered_parts("spear-tts")[1].decode().splitlines(keepends=True)
    place = int(cut * (len(base) - 10))
    first, second = (ours, theirs) if swap else (theirs, ours)
    with_first = [*base[:place], *first, *base[place:]]
    with_second = [*base[: place + 8], *second, *base[place + 8 :]]
    left, right = (with_second, with_first) if swap else (with_first, with_second)
    merged, conflict = merge(*("".join(lines).encode() for lines in (left, base, right)))
    expected = [*base[:place], *first, *base[place : place + 8], *second, *base[place + 8 :]]
    assert (merged.decode(), conflict) == ("".join(expected), False)


KILLED = """
import os, resource, signal, sys
from pathlib import Path
from shared_distributed_tools import sources
from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.paths import lock_path
from shared_distributed_tools.render import render
from shared_distributed_tools.status import inspect
from shared_distributed_tools.vendoring import vendor

repo, tree, file = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
old = file.read_bytes(), lock_path(file).read_bytes()
sources.root = lambda: tree
new = render("spear-tts").encode()
change = vendor(repo, ADAPTERS["spear-tts"], None, force=False)
seen = set()
for moment in range(1000):
    child = os.fork()
    if child == 0:
        count = 0
        if moment == 0:  # dies of the first write that goes past a kilobyte
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        def trace(frame, event, _):
            global count
            if frame.f_globals["__name__"].rpartition(".")[2] not in ("files", "vendoring"):
                return None
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace
        sys.settrace(trace)
        change.apply()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    content, lock = file.read_bytes(), lock_path(file).read_bytes()
    seen.add((content == new, lock != old[1]))
    assert content in (old[0], new), f"moment {moment}: neither the old nor the new file"
    state = inspect(repo, file).state.name
    assert state == ("CURRENT" if content == new else "STALE"), f"moment {moment}: {state}"
    vendor(repo, ADAPTERS["spear-tts"], None, force=False).apply()
    assert file.read_bytes() == new and lock_path(file).read_bytes() != old[1], f"moment {moment}: not mended"
    if status == 0:
        break
    file.write_bytes(old[0])
    lock_path(file).write_bytes(old[1])
print(moment, sorted(seen))
"""


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_file(vendored: Path, tmp_path: Path) -> None:
    """In the middle of a write, and before every line of the code that writes: a whole file, and a next run mends."""
    tree = newer(copy_sources(tmp_path / "sources"))
    command = [sys.executable, "-c", KILLED, str(vendored), str(tree), str(vendored / TARGET)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    moments, states = done.stdout.split(maxsplit=1)
    assert int(moments) > 20
    # old and old, new file and old lock, new and new; never an old file with a new lock, which would lose the base
    assert states.strip() == "[(False, False), (True, False), (True, True)]"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_no_litter(repo: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A full disk, or an interrupt: the old file whole, no temporary file beside it."""

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os if failing == "fsync" else Path, failing, fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(repo / TARGET, b"x = 1\n")
    assert (repo / TARGET).read_text() == OLD
    assert {file.name for file in (repo / "spear_tts_pytorch").iterdir()} == {"__init__.py", "distributed.py"}


def test_the_old_file_is_never_written_to(repo: Path, tmp_path: Path) -> None:
    """It is replaced by another: a second name for the old one still gives the old content."""
    (tmp_path / "second name").hardlink_to(repo / TARGET)
    assert run("vendor", "spear-tts", repo).exit_code == 0
    assert (tmp_path / "second name").read_text() == OLD


def test_a_change_reaches_the_disk_before_it_replaces_the_file(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synced, then renamed, then the folder synced: a power cut cannot leave an empty file under the old name."""
    calls = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr(Path, "replace", lambda self, target: (calls.append("replace"), replace(self, target))[1])
    write_atomically(repo / TARGET, b"x = 1\n")
    assert calls == ["sync", "replace", "sync"]


def test_merging_without_git_says_what_to_do(vendored: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No git on the machine: refused, in words."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RefusalError, match="merging needs git"):
        merge(b"a", b"b", b"c")
    edit_at_the_end(vendored / TARGET)
    newer(tree)
    assert refused(run("update", vendored, "--merge"), "merging needs git")


def test_the_lock_is_small_and_readable(vendored: Path) -> None:
    """JSON that names adapter and version; the body in it is compressed."""
    text = (vendored / f"{TARGET}.lock").read_text()
    assert len(text) < 0.6 * len(render("spear-tts"))
    assert json.loads(text)["adapter"] == "spear-tts"
    assert vendoring.unified(b"a\n", b"a\n", "x", "y") == ""
