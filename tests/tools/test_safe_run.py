# SPDX-License-Identifier: MIT
"""Nothing of a stranger's repo runs: each attack leaves a trace where it works, and leaves none here."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from shared_distributed_tools.render import render
from shared_distributed_tools.repo import git as git_module
from tests.downstream.commands import done, moved, refused, run, run_apart
from tests.downstream.projects import PROJECT
from tests.downstream.trees import commit, edit_at_the_end, git, newer, write_files

pytestmark = pytest.mark.usefixtures("known")
ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "spear_tts_pytorch"
COMMANDS = (
    *("check", "scan", "plan", "status", "update", "migrate --to core", "migrate --to package --accept-edits"),
    *("vendor spear-tts --accept-edits", "vendor spear-tts --accept-edits --write", "update --write"),
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """What an attack touches."""
    return tmp_path / "trace"


def promisor(trace: Path) -> str:
    """The configuration of a repository whose missing objects are fetched by running a command."""
    return (
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n"
        f'[remote "origin"]\n\turl = /nowhere\n\tpromisor = true\n\tuploadpack = "touch {trace}; false"\n'
    )


def embedded(repo: Path, trace: Path) -> Callable[[], object]:
    """Files in the package folder that form a bare repository, delivered by a plain clone."""
    bare = {"HEAD": "ref: refs/heads/main\n", "objects/x": "", "refs/heads/main": "1" * 40 + "\n"}
    write_files(repo / PACKAGE, {**bare, "config": promisor(trace)})
    commit(repo)
    origin = repo.rename(repo.parent / "origin")
    git(origin.parent, "clone", "-q", str(origin), str(repo))
    return lambda: git(repo / PACKAGE, "cat-file", "-p", "HEAD")


def missing_blob(repo: Path, trace: Path) -> Callable[[], object]:
    """The same through a `.git/config` that came with the repo."""
    name = git(repo, "rev-parse", f"HEAD:{PROJECT.copy}").strip()
    (repo / ".git/objects" / name[:2] / name[2:]).unlink()
    (repo / ".git/config").write_text(promisor(trace))
    return lambda: git(repo, "cat-file", "-p", name)


def other_transport(repo: Path, trace: Path) -> Callable[[], object]:
    """The same through an address that is rewritten to a program."""
    missing_blob(repo, trace)
    text = promisor(trace).replace("uploadpack", "other").replace("/nowhere", "https://host.invalid/x")
    text += f'[protocol "ext"]\n\tallow = always\n[url "ext::sh -c touch%S{trace}%S#"]\n\tinsteadOf = https://\n'
    (repo / ".git/config").write_text(text.replace("%S", "% "))
    return lambda: git(repo, "ls-remote", "origin")


def modules_and_programs(repo: Path, trace: Path) -> Callable[[], object]:
    """Modules at the root, named as those that the tools use; a program called git."""
    names = ("pip", "git", "rich", "click", "tomlkit", "packaging", "subprocess", "sitecustomize")
    write_files(repo, {f"{name}.py": f"open({str(trace)!r}, 'w')\n" for name in names})
    write_files(repo, {"git": f"#!/bin/sh\ntouch {trace}\n"})
    (repo / "git").chmod(0o755)
    commit(repo)
    return lambda: subprocess.run([sys.executable, "-m", "pip"], cwd=repo, check=False)


def programs_of_git(repo: Path, trace: Path) -> Callable[[], object]:
    """Hooks, filters, monitors, drivers, textconv, a pager, and a program for the signature that a commit has."""
    trap = write_files(repo.parent, {"trap.sh": f"#!/bin/sh\ntouch {trace}\ncat\n"}) / "trap.sh"
    trap.chmod(0o755)
    commit(write_files(repo, {".gitattributes": "*.md filter=trap merge=trap diff=trap\n*.py diff=trap merge=trap\n"}))
    keys = ("core.fsmonitor", "filter.trap.clean", "filter.trap.smudge", "merge.trap.driver", "diff.trap.textconv")
    for key in (*keys, "diff.trap.command", "diff.external", "gpg.program", "core.pager", "core.alternateRefsCommand"):
        git(repo, "config", key, str(trap))
    git(repo, "config", "log.showSignature", "true")
    signed = git(repo, "cat-file", "commit", "HEAD").replace("\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n\n", 1)
    write_files(repo.parent, {"signed": signed})
    git(repo, "update-ref", "HEAD", git(repo, "hash-object", "-t", "commit", "-w", "../signed").strip())
    for hook in ("post-checkout", "pre-commit", "post-index-change", "post-merge"):
        shutil.copy(trap, repo / ".git/hooks" / hook)
    return lambda: git(repo, "status")


@pytest.mark.parametrize("attack", [embedded, missing_blob, other_transport, modules_and_programs, programs_of_git])
@pytest.mark.parametrize("stage", ["original", "edited"])
def test_nothing_of_the_repo_runs(
    repo: Path, tree: Path, trace: Path, attack: Callable[[Path, Path], Callable[[], object]], stage: str
) -> None:
    """Whatever the command, started in the repo, in its package, or elsewhere; writing or not."""
    if stage == "edited":  # and rendered from other sources: then `update` reads the history
        newer(tree)
        moved(repo, "vendored")
        edit_at_the_end(repo / PROJECT.copy)
        commit(repo)
    works = attack(repo, trace)
    before = {*repo.rglob("*")}
    environment = {**os.environ, "PATH": f".{os.pathsep}{os.pathsep}{os.environ['PATH']}"}
    run_apart(COMMANDS, [repo], [Path("/"), repo / PACKAGE], cwd=repo, env=environment)
    assert not trace.exists()
    assert {*repo.rglob("*")} == before
    with suppress(subprocess.CalledProcessError):
        works()
    assert trace.exists(), "the attack itself does not work"


def test_a_repo_of_another_owner_is_refused(repo: Path, monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    """Git itself checks the owner, before anything in the repository counts; `safe.directory` is the user's answer."""
    programs_of_git(repo, trace)
    render("spear-tts")  # asks git for the revision of the sources, whose owner is not the question here
    monkeypatch.setitem(git_module._SET, "GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("LC_ALL", "C")
    for command in (("vendor", "spear-tts"), ("migrate", "--to", "package"), ("plan",)):
        assert refused(run(*command, repo), "dubious ownership")
    trace.with_name("own").write_text(f"[safe]\n\tdirectory = {repo}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(trace.with_name("own")))
    done("vendor", "spear-tts", repo, "--write")
    assert not trace.exists()


def test_one_module_starts_programs() -> None:
    """Ranks aside, which are processes of ours; and git is asked by commands that read only."""
    tools = ROOT / "tools/src/shared_distributed_tools"
    starts = re.compile(r"\b(subprocess|multiprocessing|pty|os\.(popen|system|exec\w+|spawn\w+|posix_spawn\w*))\b")
    found = {path.relative_to(tools).as_posix() for path in tools.rglob("*.py") if starts.search(path.read_text())}
    assert {path for path in found if not path.startswith(("ranks/", "parity/"))} == {"repo/git.py"}
    asked = re.findall(r'(?:_ask|_run)\((?:\w[\w()]*, )?"([a-z-]+)"', (tools / "repo/git.py").read_text())
    reading = {"rev-parse", "rev-list", "cat-file", "diff-tree", "ls-tree", "ls-files", "check-attr", "merge-file"}
    assert set(asked) == reading


def test_no_text_names_what_an_index_would_answer() -> None:
    """Until there is a release, whoever registers such a name first would run in every downstream CI."""
    texts = {"a rendered file": render("musiclm")}
    texts |= {
        str(path): path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("*/*/*.md"))
    }
    texts |= {str(path): path.read_text() for path in (ROOT / "tools/src").rglob("*.py")}
    for where, text in texts.items():
        for line in re.findall(r"pip install (.*)", text):
            words = [word.strip("'\"`") for word in line.partition("  ")[0].split() if not word.startswith("-")]
            named = [word for word in words if word and not re.match(r"\.|git\+.*@.*#subdirectory=|nox\b|&&|\W", word)]
            assert not [word for word in named if "distributed" in word], (where, line)
