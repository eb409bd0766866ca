# SPDX-License-Identifier: MIT
"""migrate and status: every project through every stage, exactly the files that change, and git undoes each."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.migrate import stages
from shared_distributed_tools.migrate.stages import look_at
from shared_distributed_tools.render import render, sources
from shared_distributed_tools.render.shim import shim
from tests.downstream.commands import done, moved, refused, run
from tests.downstream.projects import EDITED, ORIGINALS, PROJECT, PROJECTS, STEPS
from tests.downstream.trees import commit, committed, edit, git, write_files

pytestmark = pytest.mark.usefixtures("known")


# ------------------------------------------------------------------ there and back


NEEDED = {"vendored": [], "package": ["{}-distributed"], "core": ["{}-distributed", "shared-distributed"]}


@pytest.mark.parametrize("name", PROJECTS)
@pytest.mark.parametrize("stages", [["vendored"], ["package"], ["core"], ["vendored", "package", "core"]], ids="-".join)
def test_a_stage_leaves_exactly_its_files_and_git_reverts_it(tmp_path: Path, name: str, stages: list[str]) -> None:
    """The file, the dependencies, at core the call sites; nothing without --write; `git revert` brings every byte."""
    project = PROJECTS[name]
    repo = project.make(tmp_path, name)
    (repo / project.copy).chmod(0o755)
    commit(repo)
    trees = [git(repo, "rev-parse", "HEAD^{tree}")]  # every byte, and who may run it
    for stage in stages:
        assert "--write makes the change" in done("migrate", repo, "--to", stage)
        assert git(repo, "status", "--short") == ""
        output = done("migrate", repo, "--to", stage, "--write")
        needed = [f"{one.format(project.adapter)}>={sources.version()}" for one in NEEDED[stage]]
        changed = [] if stages[-2:] == ["package", stage] else [project.copy]  # where it is the shim already
        changed += [project.dependencies] if needed and project.is_edited else []
        changed += [project.user] if stage == "core" else []
        expected = render(project.adapter) if stage == "vendored" else shim(ADAPTERS[project.adapter])
        assert (repo / project.copy).read_text() == expected
        assert git(repo, "status", "--short").splitlines() == [f" M {path}" for path in sorted(changed)]
        for one in needed:
            assert (one in (repo / project.dependencies).read_text()) == project.is_edited
            assert project.is_edited or f"  {one}\n" in output, "printed where it could not be added"
        git(repo, "commit", "-q", "-m", stage, "--", *changed)
        trees.append(git(repo, "rev-parse", "HEAD^{tree}"))
    assert refused(run("migrate", repo, "--to", stages[-1]), f"is at {stages[-1]} already")
    user, was = (repo / project.user).read_text().splitlines(), project.files[project.user].splitlines()
    assert (len(user), user == was) == (len(was), stages[-1] != "core")
    for reverted, tree in enumerate(reversed(trees[:-1])):
        git(repo, "revert", "--no-edit", f"HEAD~{2 * reverted}")
        assert git(repo, "rev-parse", "HEAD^{tree}") == tree
    assert git(repo, "status", "--short") == ""


def test_every_project_imports_at_every_stage(tmp_path: Path) -> None:
    """The module that uses the copy finds its names, in the vendored file and in the package."""
    repos = {project.make(tmp_path / "repos", name): project for name, project in PROJECTS.items()}
    modules = [project.user.removesuffix(".py").replace("/", ".") for project in repos.values()]
    code = f"import sys; sys.path[:0] = {list(map(str, repos))}; import {', '.join(modules)}"
    for stage in ("vendored", "package"):
        for repo in repos:
            moved(repo, stage)
        subprocess.run([sys.executable, "-c", code], check=True)


def test_windows_line_ends_are_kept(repo: Path) -> None:
    """A checkout with CRLF has CRLF at every stage."""
    for path in PROJECT.files:
        (repo / path).write_bytes((repo / path).read_bytes().replace(b"\n", b"\r\n"))
    commit(repo)
    for stage in ("vendored", "package"):
        moved(repo, stage)
        for path in PROJECT.files:
            content = (repo / path).read_bytes()
            assert content.count(b"\n") == content.count(b"\r\n"), (stage, path)
    assert look_at(repo).stage == "package"


def test_before_a_release_a_stage_that_needs_packages_asks_where_they_are(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that nobody owns is never written: anybody could register it. Each that is needed has to be named."""
    monkeypatch.setattr(stages, "is_released", lambda: False)
    said = "spear-tts-distributed is on no package index yet"
    for stage in ("package", "core"):
        assert refused(run("migrate", repo, "--to", stage, "--write"), said)
    assert "shared-distributed @ git+" in run("migrate", repo, "--to", "core").output
    assert git(repo, "status", "--short") == ""
    done("plan", repo)  # which asks about the next stage
    base = "git+https://host.invalid/repo.git@v1#subdirectory="
    wanted = [f"spear-tts-distributed @ {base}packages/spear-tts", f"shared-distributed @ {base}shared/distributed"]
    options = [word for one in wanted for word in ("--requirement", one)]
    assert refused(run("migrate", repo, "--to", "core", *options[:2]), "shared-distributed is on no package index yet")
    output = done("migrate", repo, "--to", "package", *options, "--write")
    assert ("PyPI refuses a package" in output, said in output) == (True, False)
    assert all(f'"{one}"' in (repo / PROJECT.dependencies).read_text() for one in wanted)
    commit(repo)
    done("migrate", repo, "--to", "core", "--write")  # what is listed already is known


def test_the_nearest_manifest_is_the_one_that_is_edited(tmp_path: Path) -> None:
    """In a repo of several projects: that of the copy, not the root's; a folder of tools' settings is none."""
    root = {
        "pyproject.toml": '[project]\nname = "all"\ndependencies = ["torch>=2"]\n',
        "libs/pyproject.toml": "[tool.x]\n",
    }
    files = {f"libs/one/{path}": text for path, text in PROJECT.files.items()}
    repo = committed(write_files(tmp_path / "repo", {**root, **files}))
    done("migrate", repo, "--to", "package", "--write")
    changed = [f"libs/one/{PROJECT.dependencies}", f"libs/one/{PROJECT.copy}"]
    assert git(repo, "status", "--short").splitlines() == [f" M {path}" for path in changed]
    git(repo, "checkout", "-q", ".")
    (repo / f"libs/one/{PROJECT.dependencies}").rename(repo / "libs/one/notes.toml")
    (repo / "libs/one/setup.py").write_text("setup(install_requires = ['torch'])\n")
    commit(repo)
    output = done("migrate", repo, "--to", "package", "--write")
    assert "add by hand, where the project in libs/one lists its dependencies" in output
    assert git(repo, "status", "--short").splitlines() == [f" M {changed[1]}"]


OLD = {  # what a project asks for, and what is said of it
    "setup.py": ("setup(install_requires = ['torch>=1.6'], python_requires = '>=3.7')\n", "torch>=1.6 and Python>=3.7"),
    "pyproject.toml": ('[project]\nname = "p"\ndependencies = ["torch>=1.12"]\n', "torch>=1.12"),
    "requirements.txt": ("einops\ntorch  # any\n", "torch"),
    "setup.cfg": ("[options]\npython_requires = >=3.8\ninstall_requires =\n    torch>=2.1\n", "Python>=3.8"),
}


@pytest.mark.parametrize("manifest", OLD)
def test_what_a_project_admits_is_compared_with_what_the_file_needs(repo: Path, manifest: str) -> None:
    """One line, wherever the file is about to come in, and in the pull request."""
    text, said = OLD[manifest]
    (repo / "pyproject.toml").unlink()
    commit(write_files(repo, {manifest: text}))
    line = f"{manifest} allows {said}, but the file needs torch 2.0 and Python 3.10 or later"
    for command in (
        ("plan",),
        ("migrate", "--to", "vendored"),
        ("migrate", "--to", "package"),
        ("vendor", "spear-tts"),
    ):
        assert line in done(*command, repo), command
    assert f"Changes: {line}" in json.loads(run("plan", repo, "--json").stdout)["pull_request"]
    commit(write_files(repo, {manifest: text.replace("1.6", "2.0").replace("1.12", "2.1")}))
    new = '[project]\nname = "p"\nrequires-python = ">=3.10"\ndependencies = ["torch>=2"]\n'
    (repo / manifest).unlink()
    commit(write_files(repo, {"pyproject.toml": new}))
    assert "the oldest that works" not in done("plan", repo)


def test_a_dependency_that_is_listed_is_left_alone(repo: Path) -> None:
    """Whatever version it asks for."""
    edit(repo / PROJECT.dependencies, '"torch>=2.0",', '"torch>=2.0",\n    "spear_tts_distributed==0.0.1",')
    commit(repo)
    done("migrate", repo, "--to", "package", "--write")
    assert git(repo, "status", "--short") == f" M {PROJECT.copy}\n"


# ------------------------------------------------------------------ refused


def test_a_name_that_the_adapter_lacks_is_refused(repo: Path) -> None:
    """With file and line, before the copy that defines it is replaced."""
    edit(repo / PROJECT.user, "\nclass Aligned", "from .distributed import own_rows\n\nclass Aligned")
    commit(repo)
    for command in (("migrate", "--to", "vendored"), ("migrate", "--to", "package"), ("vendor", "spear-tts")):
        assert refused(run(*command, repo, "--write"), f"{PROJECT.user}:4: own_rows")
    assert git(repo, "status", "--short") == ""


@pytest.mark.parametrize("stage", ["vendored", "package", "core"])
def test_an_edited_copy_is_refused(tmp_path: Path, stage: str) -> None:
    """With the definitions that differ; --accept-edits goes on."""
    repo = EDITED.make(tmp_path, "edited")
    result = run("migrate", repo, "--to", stage, "--write")
    assert refused(result, "rank_of_rows: extra")
    assert refused(result, "all_gather_variable_dim: changed: not in the original: lines ")
    assert "adapters parity" in result.output
    done("migrate", repo, "--to", stage, "--accept-edits", "--write")
    assert look_at(repo).stage == stage


# ------------------------------------------------------------------ which stage


def test_several_copies_have_to_be_told_apart(repo: Path) -> None:
    """With --path, which may be written in any way but must lie in the repo."""
    write_files(repo, {"second.py": PROJECT.files[PROJECT.copy]})
    commit(repo)
    for command in (("plan",), ("migrate", "--to", "vendored")):
        assert refused(run(*command, repo), "say which with --path")
    plan = json.loads(run("plan", repo, "--path", "./spear_tts_pytorch/../second.py", "--json").stdout)
    assert plan["copy"] == "second.py"
    done("migrate", repo, "--to", "vendored", "--path", "./second.py", "--write")
    assert git(repo, "status", "--short") == " M second.py\n"


def status(repo: Path) -> dict[str, Any]:
    """What the command says about one project; its exit code is what it says too."""
    result = run("status", repo, "--json")
    said: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == said["exit_code"]
    (line,) = said["projects"]
    return dict(line)


ON_CORE = {
    PROJECT.user: ("from spear_tts_pytorch.distributed import", "from shared_distributed import"),
    "pyproject.toml": ('"torch>=2.0",', '"torch>=2.0", "shared-distributed",'),
}


@pytest.mark.parametrize(
    ("at", "edits", "gone", "told"),
    [
        (None, {}, "", ("original", "original", 1, "next: `adapters migrate REPO --to vendored`")),
        ("vendored", {}, "", ("vendored", "current", 0, "next: `adapters migrate REPO --to package`")),
        ("package", {}, "", ("package", "shim", 0, "next: `adapters migrate REPO --to core`")),
        (None, ON_CORE, PROJECT.copy, ("core", "current", 0)),
        ("vendored", {PROJECT.copy: ("import torch\n", "import torch  # mine\n")}, "", ("vendored", "edited", 1)),
        # where a known project keeps it, a file with an AllGather is its copy, however it is written
        ("package", {PROJECT.copy: ("__all__", "AllGather = 1\n__all__")}, "", ("original", "original, edited", 1)),
        ("vendored", {PROJECT.copy: ("# body", "# Body")}, "", ("vendored", "edited", 1)),
        (None, {}, "spear_tts_pytorch", ("", "no copy", 0)),
    ],
)
def test_every_state_is_told(
    repo: Path, at: str | None, edits: dict[str, tuple[str, str]], gone: str, told: tuple[object, ...]
) -> None:
    """Read off the files: nothing of ours lies in the repo but the one file."""
    moved(repo, *([at] if at else []))
    for path, (old, new) in edits.items():
        edit(repo / path, old, new)
    if gone:
        git(repo, "rm", "-q", "-r", gone)
    said = status(repo)
    assert (said["stage"], said["state"], said["exit_code"], said["note"])[: len(told)] == told


def test_projects_that_cannot_be_moved_are_told(tmp_path: Path) -> None:
    """A copy in a larger file, none, an edited one, two of them; one that cannot be read hides no other."""
    inlined = write_files(tmp_path / "inlined", {"train.py": ORIGINALS["musiclm"] + STEPS})
    assert status(inlined)["state"] == "a copy in a larger file"
    for command in (("plan",), ("migrate", "--to", "vendored")):
        assert refused(run(*command, inlined), "Move these definitions into a file of their own")
        assert refused(run(*command, write_files(tmp_path / "empty", {"x": ""})), "no copy found")
    edited = EDITED.make(tmp_path, "edited")
    assert status(edited)["state"].startswith("original, edited, ")
    assert status(edited)["state"].endswith(" % like the original")
    (edited / "second.py").write_text((edited / EDITED.copy).read_text())
    assert status(edited)["state"] == "several copies"
    broken = write_files(tmp_path / "broken", {"spear_tts_pytorch/__init__.py": "", "x/y": ""})
    (broken / "spear_tts_pytorch/distributed.py").symlink_to(tmp_path / "elsewhere")
    result = run("status", broken, edited, "--json")
    states = [one["state"] for one in json.loads(result.stdout)["projects"]]
    assert (states, result.exit_code) == (["cannot be read", "several copies"], 2)


def test_the_page_is_the_table(repo: Path, tmp_path: Path) -> None:
    """It stands alone; whatever a project is called is text. A link, a device or a missing folder is refused."""
    nasty = PROJECTS["mirasol"].make(tmp_path, "[bold]<script>&")
    page = tmp_path / "wall.html"
    result = run("status", repo, nasty, "--html", page)
    assert result.exit_code == 1
    assert nasty.name in result.output
    text = page.read_text(encoding="utf-8")
    assert "[bold]&lt;script&gt;&amp;" in text
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org", "")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for place, because in (
        ("nowhere/wall.html", "cannot be written to"),
        ("link", "is not a plain file"),
        ("/dev/null", "is not a plain file"),
    ):
        assert refused(run("status", repo, "--html", tmp_path / place), because)
    assert not (tmp_path / "elsewhere").exists()
