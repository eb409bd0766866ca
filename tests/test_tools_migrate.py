# SPDX-License-Identifier: MIT
"""Migrate and rollback: every shape through every stage and back, what is refused, and what a crash leaves behind."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import Result

from downstream.commands import CHECKOUT, migrate, moved, refused, run
from downstream.projects import PROJECTS, Project, known_variants
from downstream.trees import commit, edit, git, write_files
from harness import Worlds
from ranks.projects import check_all
from shared_distributed_tools import sources
from shared_distributed_tools.catalog import adapter_named
from shared_distributed_tools.files import write_atomically
from shared_distributed_tools.migration import journal, metadata
from shared_distributed_tools.migration.origin import Requirement, find
from shared_distributed_tools.migration.record import RECORD, Record, add_parity, read_record
from shared_distributed_tools.render import render
from shared_distributed_tools.shim import shim

STAGES = ("vendored", "package", "core")
ALIGN = "spear_tts_pytorch/align.py"  # what uses the copy in the project that most tests look at


def snapshot(repo: Path) -> dict[str, tuple[bytes, int]]:
    """Every file outside .git: its bytes and its permissions."""
    files = (path for path in repo.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {
        path.relative_to(repo).as_posix(): (path.read_bytes(), path.stat().st_mode)
        for path in files
        if path.suffix != ".pyc"
    }


@pytest.fixture
def project() -> Project:
    return PROJECTS["spear-tts"]


@pytest.fixture
def repo(project: Project, tmp_path: Path) -> Path:
    """A project with its own copy, committed."""
    return project.make(tmp_path, "repo")


# ------------------------------------------------------------------ there and back


def test_every_shape_goes_through_every_stage_and_back(tmp_path: Path, worlds: Worlds) -> None:
    """Each works at each stage, alone and on two ranks; its call sites end as they should; back byte for byte."""
    known = known_variants(tmp_path)
    repos = {name: project.make(tmp_path / "repos", name) for name, project in PROJECTS.items()}
    folders = [str(repo) for repo in repos.values()]
    seen: dict[str, list[dict[str, tuple[bytes, int]]]] = {name: [] for name in repos}

    def work() -> None:
        assert check_all(folders) == list(repos)
        assert worlds.get("gloo", 2).run("ranks.projects:check_all", folders) == [list(repos)] * 2

    work()
    for stage in STAGES:
        for name, repo in repos.items():
            seen[name].append(snapshot(repo))
            result = migrate(repo, stage, "--known", known, "--write")
            assert result.exit_code == 0, result.output
            assert ("is not as any known copy" in result.output) == (name == "edited" and stage == "vendored")
            assert ("a pair is assigned as if" in result.output) == (name == "mirasol" and stage == "core")
            commit(repo)
        work()
    for name, project in PROJECTS.items():
        repo, adapter = repos[name], adapter_named(project.adapter)
        assert seen[name][1][project.copy][0].decode() == render(project.adapter)
        assert seen[name][2][project.copy][0].decode() == shim(adapter)
        assert adapter.distribution.encode() in seen[name][2][project.metadata][0]
        assert not (repo / project.copy).exists()
        listed = (repo / project.metadata).read_text()
        assert (adapter.distribution in listed, "shared-distributed" in listed) == (False, True)
        for path in project.in_core:
            assert (repo / path).read_text() == project.expected_in_core(path)
        for before in reversed(seen[name]):
            assert run("rollback", repo, "--write").exit_code == 0
            assert _without_record(snapshot(repo)) == _without_record(before)
        assert not (repo / RECORD).exists()
    work()


def _without_record(files: dict[str, tuple[bytes, int]]) -> dict[str, tuple[bytes, int]]:
    return {path: content for path, content in files.items() if path != RECORD}


def test_without_write_nothing_is_written(repo: Path) -> None:
    """Not at any stage, nor on the way back: the diff is shown, that is all."""
    for stage, shown in zip(STAGES, ("@generated", "from spear_tts_distributed import", "grad = 'local'"), strict=True):
        before = snapshot(repo)
        result = migrate(repo, stage)
        assert (result.exit_code, shown in result.output, "--write does it" in result.output) == (0, True, True)
        assert snapshot(repo) == before
        moved(repo, stage)
    result = run("rollback", repo)
    assert (result.exit_code, "+        target, _           = all_gather(target, 0, batch_sizes)" in result.output) == (
        0,
        True,
    )
    assert git(repo, "status", "--short") == ""


def test_windows_newlines_are_kept(project: Project, tmp_path: Path) -> None:
    """A checkout with CRLF has CRLF at every stage, and the old bytes in the end."""
    repo = project.make(tmp_path, "repo")
    for path in project.files:
        (repo / path).write_bytes((repo / path).read_bytes().replace(b"\n", b"\r\n"))
    commit(repo)
    before = snapshot(repo)
    for stage in STAGES:
        moved(repo, stage)
        for path in project.files:
            content = (repo / path).read_bytes() if (repo / path).exists() else b""
            assert content.count(b"\n") == content.count(b"\r\n"), (stage, path)
    for _ in STAGES:
        run("rollback", repo, "--write")
    assert snapshot(repo) == before


def test_permissions_come_back(repo: Path, project: Project) -> None:
    """Those of a file that was deleted, too."""
    (repo / project.copy).chmod(0o751)
    before = snapshot(repo)
    moved(repo, *STAGES)
    for _ in STAGES:
        run("rollback", repo, "--write")
    assert snapshot(repo) == before


def test_a_repo_vendored_before_goes_on_from_there(repo: Path, project: Project) -> None:
    """By `adapters vendor`, without a record: the next stage is the package; rollback ends where the record begins."""
    assert run("vendor", "spear-tts", repo).exit_code == 0
    commit(repo)
    assert refused(migrate(repo, "vendored"), "is at vendored already")
    before = snapshot(repo)
    moved(repo, "package")
    assert run("rollback", repo, "--write").exit_code == 0
    assert snapshot(repo) == before
    assert refused(run("rollback", repo, "--write"), "no stage on record")


# ------------------------------------------------------------------ refused


def test_no_stage_is_skipped_or_repeated(repo: Path) -> None:
    """And backwards is another command."""
    assert refused(migrate(repo, "core"), "migrate --to vendored first")
    moved(repo, "vendored", "package")
    assert refused(migrate(repo, "package"), "is at package already")
    assert refused(migrate(repo, "vendored"), "adapters rollback")


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_not_committed_is_refused(repo: Path, project: Project, stage: str) -> None:
    """For each file that the stage would touch; a change elsewhere does not matter."""
    moved(repo, *STAGES[: STAGES.index(stage)])
    (repo / "notes.txt").write_text("mine")
    touched = {"vendored": project.copy, "package": project.metadata, "core": ALIGN}[stage]
    text = (repo / touched).read_text()
    (repo / touched).write_text(f"# mine\n{text}")
    assert refused(migrate(repo, stage, "--write"), f"{touched} has changes that are not committed")
    (repo / touched).write_text(text)
    assert migrate(repo, stage, "--write").exit_code == 0


def test_outside_git_the_record_is_what_brings_a_file_back(project: Project, tmp_path: Path) -> None:
    """No version control, no refusal: the old bytes are in the record."""
    repo = write_files(tmp_path / "repo", project.files)
    before = snapshot(repo)
    assert migrate(repo, "vendored", "--write").exit_code == 0
    assert run("rollback", repo, "--write").exit_code == 0
    assert snapshot(repo) == before


def test_a_rollback_over_later_changes_is_refused(repo: Path, project: Project) -> None:
    """Committed or not; nothing is written."""
    moved(repo, "vendored")
    with (repo / project.copy).open("a") as stream:
        stream.write("# mine\n")
    commit(repo)
    before = snapshot(repo)
    assert refused(run("rollback", repo, "--write"), f"{project.copy} was changed since")
    assert snapshot(repo) == before


def test_a_name_that_the_adapter_lacks_is_refused(repo: Path) -> None:
    """With file and line, before the copy that defines it is replaced."""
    edit(repo / ALIGN, "\nclass Aligned", "from .distributed import own_rows\n\nclass Aligned")
    commit(repo)
    assert refused(migrate(repo, "vendored", "--write"), f"{ALIGN}:5: own_rows")
    assert git(repo, "status", "--short") == ""


def test_edits_of_a_vendored_file_stop_the_package(repo: Path, project: Project) -> None:
    """The package has none of them."""
    moved(repo, "vendored")
    with (repo / project.copy).open("a") as stream:
        stream.write("# mine\n")
    commit(repo)
    assert refused(migrate(repo, "package", "--write"), "locally edited. The package has none of that")


def test_what_needs_a_person_stops_the_core(repo: Path) -> None:
    """All such places at once, with file and line; nothing is written."""
    moved(repo, "vendored", "package")
    function = "def f(x):\n    x, s = all_gather(x, 0, None)\n    return s\n"
    edit(repo / ALIGN, "\nclass Aligned", f"{function}\nclass Aligned")
    (repo / "other.py").write_text("from spear_tts_pytorch.distributed import *\n")
    commit(repo)
    result = migrate(repo, "core", "--write")
    assert refused(result, f"{ALIGN}:7: s becomes a tuple of ints")
    assert refused(result, "other.py:1: a star import")
    assert git(repo, "status", "--short") == ""


def test_a_shim_with_more_in_it_stops_the_core(repo: Path, project: Project) -> None:
    """Deleting it would lose that."""
    moved(repo, "vendored", "package")
    with (repo / project.copy).open("a") as stream:
        stream.write("\nMINE = 1\n")
    commit(repo)
    assert refused(migrate(repo, "core", "--write"), "is not the shim any more")


@pytest.mark.parametrize(
    ("stage", "name"), [("package", "spear_tts_distributed.py"), ("core", "shared_distributed/__init__.py")]
)
def test_a_module_in_the_way_is_refused(repo: Path, stage: str, name: str) -> None:
    """The project's own file of that name would be imported in place of what is installed."""
    moved(repo, *STAGES[: STAGES.index(stage)])
    (repo / name).parent.mkdir(exist_ok=True)
    (repo / name).touch()
    assert refused(migrate(repo, stage, "--write"), "would be imported in place of the installed")


def test_metadata_that_packs_a_flat_copy_stops_the_core(tmp_path: Path) -> None:
    """The build would miss the file."""
    repo = moved(PROJECTS["flat"].make(tmp_path, "flat"), "vendored", "package")
    (repo / "setup.py").write_text("setup(py_modules = ['musiclm', 'distributed'])\n")
    assert refused(migrate(repo, "core", "--write"), "setup.py:1: packs the module distributed")


@pytest.mark.parametrize("link", ["spear_tts_pytorch/distributed.py", "spear_tts_pytorch"])
def test_a_symlink_is_refused(repo: Path, tmp_path: Path, link: str) -> None:
    """What it points to is not touched."""
    (repo / link).rename(tmp_path / "elsewhere")
    (repo / link).symlink_to(tmp_path / "elsewhere")
    result = migrate(repo, "vendored", "--write")
    assert result.exit_code == 1
    assert not (repo / RECORD).exists()


def test_from_belongs_to_the_package(repo: Path) -> None:
    """Elsewhere it would mean nothing."""
    assert refused(run("migrate", repo, "--to", "vendored", "--from", "index"), "belongs to --to package")


# ------------------------------------------------------------------ where a distribution comes from


def test_the_package_needs_to_know_where_from(repo: Path) -> None:
    """The three ways to say it."""
    moved(repo, "vendored")
    result = run("migrate", repo, "--to", "package", "--write")
    assert refused(result, "--from index")
    assert "--from PATH" in result.output
    assert "--from git+https://" in result.output
    assert git(repo, "status", "--short") == ""


def found(origin: object, adapter: str = "musiclm") -> list[str]:
    return [str(requirement) for requirement in find(adapter_named(adapter), str(origin))]


def test_a_checkout_is_a_source(tmp_path: Path) -> None:
    """Its root, or the adapter's folder in it; the core comes along, since no index has it."""
    places = [CHECKOUT / "packages/musiclm", CHECKOUT / "shared/distributed"]
    expected = [
        f"{name} @ {place.as_uri()}"
        for name, place in zip(("musiclm-distributed", "shared-distributed"), places, strict=True)
    ]
    assert found(CHECKOUT) == expected
    assert found(places[0]) == expected
    assert refused(_package_from(tmp_path, tmp_path), "no checkout of the monorepo")


def _package_from(folder: Path, origin: object) -> Result:
    repo = PROJECTS["musiclm"].make(folder, "musiclm")
    moved(repo, "vendored")
    return run("migrate", repo, "--to", "package", "--from", origin)


def test_a_requirement_that_works_on_this_machine_only_is_pointed_at(tmp_path: Path) -> None:
    """A path: it would be committed, and fail for everybody else."""
    assert "is a path on this machine" in _package_from(tmp_path, CHECKOUT).output


def test_wheels_are_a_source(tmp_path: Path) -> None:
    """A folder of them, the newest of each; or one, with the core's beside it. Another distribution's is refused."""
    old, new, core = (
        tmp_path / name
        for name in (
            "musiclm_distributed-0.9.0-py3-none-any.whl",
            "musiclm_distributed-0.10.0-py3-none-any.whl",
            "shared_distributed-0.10.0.tar.gz",
        )
    )
    for file in (old, new):
        file.touch()
    (tmp_path / "notes.whl").touch()
    assert refused(_package_from(tmp_path / "a", new), "no wheel or sdist of shared-distributed")
    core.touch()
    assert found(tmp_path) == [f"musiclm-distributed @ {new.as_uri()}", f"shared-distributed @ {core.as_uri()}"]
    assert found(old) == [f"musiclm-distributed @ {old.as_uri()}", f"shared-distributed @ {core.as_uri()}"]
    assert refused(_package_from(tmp_path / "b", core), "is no wheel or sdist of musiclm-distributed")
    assert refused(_package_from(tmp_path / "c", tmp_path / "nowhere"), "no checkout of the monorepo")


def test_a_git_reference_is_a_source(tmp_path: Path) -> None:
    """With a branch, a commit or nothing after the @; one that is not there is refused."""
    remote = PROJECTS["flat"].make(tmp_path, "remote")
    git(remote, "branch", "-M", "main")
    head = git(remote, "rev-parse", "HEAD").strip()
    url = remote.as_uri()
    for ref in ("", "@main", f"@{head}"):
        assert found(f"git+{url}{ref}") == [
            f"musiclm-distributed @ git+{url}{ref}#subdirectory=packages/musiclm",
            f"shared-distributed @ git+{url}{ref}#subdirectory=shared/distributed",
        ]
    assert found(f"git+{url}@main#subdirectory=packages/musiclm") == found(f"git+{url}@main")
    for wrong in (f"git+{url}@nowhere", f"git+{url}/nowhere"):
        assert refused(_package_from(tmp_path / wrong[-12:].strip("/"), wrong), "cannot be reached")
    assert refused(_package_from(tmp_path / "x", "git+nonsense"), "is no reference to the monorepo")
    assert refused(_package_from(tmp_path / "y", f"git+{url}#subdirectory=other"), "is no reference to the monorepo")


def test_an_index_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through pip, as it is configured; refused in pip's words where nothing is found."""
    version = sources.core_version()
    wheel = tmp_path / "index/musiclm-distributed" / f"musiclm_distributed-{version}-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    info = f"musiclm_distributed-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: musiclm-distributed\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    (wheel.parent / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    assert found("index") == [f"musiclm-distributed>={version}"]
    assert "on this machine" not in _package_from(tmp_path / "found", "index").output
    (wheel.parent / "index.html").write_text("")
    assert refused(_package_from(tmp_path, "index"), f"pip finds no musiclm-distributed>={version}")


# ------------------------------------------------------------------ metadata

INDEX = [Requirement("x-distributed", minimum="1.0")]
GIT = [
    Requirement(name, url="https://host/repo.git", ref="v1", folder=folder)
    for name, folder in (("x-distributed", "packages/x"), ("shared-distributed", "shared/distributed"))
]
X, CORE = (f"{one.name} @ git+https://host/repo.git@v1#subdirectory={one.folder}" for one in GIT)
# file, before, with a version, with git references, then without the adapter again
FORMATS = {
    "setup.py, a line each": (
        "setup.py",
        "setup(\n  install_requires=[\n    'einops',  # shapes\n    'torch>=1.6'  # last\n  ],\n)\n",
        "setup(\n  install_requires=[\n    'einops',  # shapes\n    'torch>=1.6',  # last\n"
        "    'x-distributed>=1.0'\n  ],\n)\n",
        "setup(\n  install_requires=[\n    'einops',  # shapes\n    'torch>=1.6',  # last\n"
        f"    '{X}',\n    '{CORE}'\n  ],\n)\n",
    ),
    "setup.py, a trailing comma": (
        "setup.py",
        'setup(install_requires = [\n    "torch",\n])\n',
        'setup(install_requires = [\n    "torch",\n    "x-distributed>=1.0",\n])\n',
        f'setup(install_requires = [\n    "torch",\n    "{X}",\n    "{CORE}",\n])\n',
    ),
    "setup.py, one line": (
        "setup.py",
        "setup(install_requires=['torch', 'einops'])\n",
        "setup(install_requires=['torch', 'einops', 'x-distributed>=1.0'])\n",
        f"setup(install_requires=['torch', 'einops', '{X}', '{CORE}'])\n",
    ),
    "setup.cfg": (
        "setup.cfg",
        "[options]\ninstall_requires =\n  torch\n  # a word\n  einops\n\n"
        "[options.extras_require]\ninstall_requires =\n  no\n",
        "[options]\ninstall_requires =\n  torch\n  # a word\n  einops\n  x-distributed>=1.0\n\n"
        "[options.extras_require]\ninstall_requires =\n  no\n",
        f"[options]\ninstall_requires =\n  torch\n  # a word\n  einops\n  {X}\n  {CORE}\n\n"
        "[options.extras_require]\ninstall_requires =\n  no\n",
    ),
    "setup.cfg, on the key's line": (
        "setup.cfg",
        "[options]\ninstall_requires = torch\nzip_safe = no\n",
        "[options]\ninstall_requires =\n    torch\n    x-distributed>=1.0\nzip_safe = no\n",
        f"[options]\ninstall_requires =\n    torch\n    {X}\n    {CORE}\nzip_safe = no\n",
    ),
    "pyproject": (
        "pyproject.toml",
        '[project]\nname = "p"  # us\ndependencies = [\n  "torch",  # big\n]\n\n[tool.x]\ny = 1\n',
        '[project]\nname = "p"  # us\ndependencies = [\n  "torch",  # big\n'
        '  "x-distributed>=1.0",\n]\n\n[tool.x]\ny = 1\n',
        '[project]\nname = "p"  # us\ndependencies = [\n  "torch",  # big\n'
        f'  "{X}",\n  "{CORE}",\n]\n\n[tool.x]\ny = 1\n',
    ),
    "pyproject without any": (
        "pyproject.toml",
        '[project]\nname = "p"\n',
        '[project]\nname = "p"\ndependencies = ["x-distributed>=1.0"]\n',
        f'[project]\nname = "p"\ndependencies = ["{X}", "{CORE}"]\n',
    ),
    "poetry": (
        "pyproject.toml",
        '[tool.poetry.dependencies]\npython = "^3.10"  # or later\n\n[tool.x]\ny = 1\n',
        '[tool.poetry.dependencies]\npython = "^3.10"  # or later\nx-distributed = ">=1.0"\n\n[tool.x]\ny = 1\n',
        '[tool.poetry.dependencies]\npython = "^3.10"  # or later\n'
        'x-distributed = {git = "https://host/repo.git", rev = "v1", subdirectory = "packages/x"}\n'
        'shared-distributed = {git = "https://host/repo.git", rev = "v1", subdirectory = "shared/distributed"}\n\n'
        "[tool.x]\ny = 1\n",
    ),
    "requirements": (
        "requirements.txt",
        "# ours\ntorch\n-r more.txt",
        "# ours\ntorch\n-r more.txt\nx-distributed>=1.0\n",
        f"# ours\ntorch\n-r more.txt\n{X}\n{CORE}\n",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_dependencies_are_added_in_the_projects_format(tmp_path: Path, name: str) -> None:
    """And changed for the core: in the adapter's place from an index, the adapter's line gone otherwise."""
    file, before, with_version, with_git = FORMATS[name]
    path = tmp_path / file
    for wanted, expected in ((INDEX, with_version), (GIT, with_git)):
        path.write_text(before)
        change = metadata.change(tmp_path, wanted)
        assert change is not None
        assert change.new == expected.encode()
        path.write_text(expected)
        assert metadata.change(tmp_path, wanted) is None
    core = [Requirement("shared-distributed", minimum="1.0")]
    path.write_text(with_version)
    change = metadata.change(tmp_path, core, remove="x-distributed")
    assert change is not None
    assert change.new == with_version.replace("x-distributed", "shared-distributed").encode()
    path.write_text(with_git)
    change = metadata.change(tmp_path, core, remove="x-distributed")
    assert change is not None
    assert b"x-distributed" not in change.new
    assert b"shared-distributed" in change.new


def test_the_file_that_lists_dependencies_is_the_one_changed(tmp_path: Path) -> None:
    """A pyproject for the build alone is passed over, and a setup.py that reads requirements.txt."""
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = ["setuptools"]\n')
    (tmp_path / "setup.py").write_text("setup(install_requires = open('requirements.txt').read().split())\n")
    (tmp_path / "requirements.txt").write_text("torch\n")
    change = metadata.change(tmp_path, INDEX)
    assert change is not None
    assert change.path == "requirements.txt"


@pytest.mark.parametrize(
    ("file", "text", "because"),
    [
        ("README.md", "", "put `x-distributed @ git"),
        ("setup.py", "setup(install_requires = NAMES)\n", "put `x-distributed @ git"),
        ("setup.py", "setup(install_requires = [*BASE])\n", "put `x-distributed @ git"),
        ("setup.py", "setup(\n", "setup.py cannot be read"),
        ("pyproject.toml", "[project\n", "pyproject.toml cannot be read"),
        ("pyproject.toml", '[build-system]\nbuild-backend = "hatchling.build"\n[project]\nname = "p"\n', "hatchling"),
    ],
)
def test_metadata_that_cannot_be_changed_is_refused(tmp_path: Path, file: str, text: str, because: str) -> None:
    """In words, with what to do."""
    (tmp_path / file).write_text(text)
    with pytest.raises(metadata.RefusalError, match=because):
        metadata.change(tmp_path, GIT)


# ------------------------------------------------------------------ cut off

KILLED = """
import os, signal, sys
from pathlib import Path
from click.testing import CliRunner
from shared_distributed_tools.catalog import adapter_named
from shared_distributed_tools.cli import main
from shared_distributed_tools.migration import journal
from shared_distributed_tools.migration.overview import look_at
from shared_distributed_tools.migration.record import Done, Pending, Trace, read_record
from shared_distributed_tools.migration.stages import next_step
from shared_distributed_tools.migration.standing import stand
from shared_distributed_tools.migration.tree import SourceTree

EFFECTS = {"tempfile.mkstemp", "open", "os.chmod", "os.rename", "os.remove"}  # audited before they happen
repo = Path(sys.argv[1])

def snapshot():
    folders = [repo, repo / "spear_tts_pytorch"]
    files = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    return {str(path.relative_to(repo)): (path.read_bytes(), path.stat().st_mode) for path in files}

def restore(files):
    for name in set(snapshot()) - set(files):
        (repo / name).unlink()
    for name, (content, mode) in files.items():
        (repo / name).write_bytes(content)
        (repo / name).chmod(mode)

def code(files):
    return {name: content for name, content in files.items() if name != ".adapters.json" and not name.endswith(".tmp")}

def is_killed_at(moment, pending):
    child = os.fork()
    if child == 0:
        count = 0
        def look(event, arguments):
            nonlocal count
            if event not in EFFECTS or str(repo) not in str(arguments[0]) or (event == "open" and arguments[1] == "rb"):
                return
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(look)
        journal.carry_out(repo, read_record(repo), pending)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0

tree = SourceTree(repo)
step = next_step(stand(repo, tree), tree, "core", None)
done = Done(step.stage, "0", "now", tuple(map(Trace.of, step.changes)))
there = Pending(done, True, step.changes), ["migrate", str(repo), "--to", "core", "--write"]
back = Pending(done, False, tuple(change.back for change in step.changes)), ["rollback", str(repo), "--write"]
old = snapshot()
journal.carry_out(repo, read_record(repo), there[0])
new = snapshot()
seen = set()
for (pending, command), (_, other), begin, end in ((there, back, old, new), (back, there, new, old)):
    moment, was_killed = 0, True
    while was_killed and moment < 200:
        moment += 1
        for way in (command, other):
            restore(begin)
            was_killed = is_killed_at(moment, pending)
            left, said = code(snapshot()), look_at(repo)
            is_half, is_said = left not in (code(begin), code(end)), said.state == "cut off"
            seen.add((command[0], is_half, is_said))
            if is_said:
                assert "finishes it" in said.note
                result = CliRunner().invoke(main, way)
                assert result.exit_code == 0, (moment, result.output)
                assert code(snapshot()) == code(end if way is command else begin), (moment, way)
                assert look_at(repo).tone == "good"
    assert 15 < moment < 200, moment
print(sorted(seen))
"""


def test_a_kill_before_any_write_is_seen_and_settled(repo: Path) -> None:
    """There and back, before every file is made, renamed, deleted: what is half done is said to be so; then one
    command finishes it byte for byte, and the other undoes it.
    """
    moved(repo, "vendored", "package")
    command = [sys.executable, "-c", KILLED, str(repo)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    states = {(command, half, said) for command in ("migrate", "rollback") for half, said in _STATES}
    assert done.stdout.strip() == str(sorted(states))


# half written or not, said to be cut off or not: never half written without a word
_STATES = ((False, False), (False, True), (True, True))


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int, *command: object) -> None:
    """A command that is interrupted after some files."""
    left = [after]
    real = journal._put

    def put(*arguments: object) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(journal, "_put", put)
        run(*command)


def cut_off(repo: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> Path:
    """A repo whose migration to the core was interrupted after some files."""
    interrupted(monkeypatch, after, "migrate", repo, "--to", "core", "--write")
    return repo


@pytest.mark.parametrize("way", [("migrate", "--to", "core"), ("rollback",)])
def test_settling_can_be_cut_off_as_well(repo: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]) -> None:
    """What was cut off stays known until it is settled, and settles from wherever it got to."""
    before = snapshot(moved(repo, "vendored", "package"))
    cut_off(repo, monkeypatch, after=2)
    for after in (0, 1, 2):
        interrupted(monkeypatch, after, way[0], repo, *way[1:], "--write")
        assert refused(run("plan", repo), "was cut off")
    assert run(way[0], repo, *way[1:], "--write").exit_code == 0
    assert run("plan", repo).exit_code == 0
    if way[0] == "migrate":
        assert run("rollback", repo, "--write").exit_code == 0
    assert snapshot(repo) == before


def test_after_an_interruption_every_command_says_so(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far it came, and both ways on; without --write nothing happens."""
    cut_off(moved(repo, "vendored", "package"), monkeypatch, after=1)
    before = snapshot(repo)
    for command in (
        ("plan", repo),
        ("migrate", repo, "--to", "core"),
        ("migrate", repo, "--to", "vendored", "--write"),
        ("rollback", repo),
    ):
        result = run(*command)
        assert refused(result, "a migration to core was cut off: 1 of 3 files written")
        assert "--to core --write` finishes it" in result.output
        assert "`adapters rollback --write` undoes it" in result.output
    assert snapshot(repo) == before


def test_somebody_elses_work_in_between_is_not_overwritten(
    repo: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is neither old nor new stops both ways, until it is put back."""
    cut_off(moved(repo, "vendored", "package"), monkeypatch, after=1)
    (repo / project.metadata).write_text("mine")
    for command in (("migrate", repo, "--to", "core", "--write"), ("rollback", repo, "--write")):
        assert refused(run(*command), f"{project.metadata} is neither")
    git(repo, "checkout", "-q", project.metadata)
    assert run("rollback", repo, "--write").exit_code == 0
    assert git(repo, "status", "--short") == ""


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_change_that_fails_is_taken_back(repo: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """A folder that cannot be written to, from the record on: the message says so, and nothing is different."""
    moved(repo, "vendored")
    before = snapshot(repo)
    count = [0]

    def write(path: Path, content: bytes) -> None:
        count[0] += 1
        if count[0] == failing:
            raise PermissionError(13, "Permission denied", str(path))
        write_atomically(path, content)

    monkeypatch.setattr(journal, "write_atomically", write)
    monkeypatch.setattr("shared_distributed_tools.migration.record.write_atomically", write)
    result = migrate(repo, "package", "--write")
    assert result.exit_code == 1
    assert "Permission denied" in str(result.output) + str(result.exception)
    assert snapshot(repo) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_tree_is_refused(repo: Path, project: Project) -> None:
    """With the folder's name."""
    folder = (repo / project.copy).parent
    folder.chmod(0o555)
    try:
        assert refused(migrate(repo, "vendored", "--write"), "cannot be written to")
    finally:
        folder.chmod(0o755)
    assert git(repo, "status", "--short") == ""


# ------------------------------------------------------------------ the record


def test_the_record_says_what_was_done(repo: Path, project: Project) -> None:
    """Stages in order, with hashes before and after; parity results beside them, the latest for each file."""
    moved(repo, "vendored", "package")
    entry: dict[str, object] = {"file": project.copy, "adapter": "spear-tts", "result": "same"}
    add_parity(repo, {**entry, "result": "different"})
    add_parity(repo, entry)
    add_parity(repo, {**entry, "adapter": "mirasol"})
    record = read_record(repo)
    assert (record.adapter, record.copy) == ("spear-tts", project.copy)
    assert [done.stage for done in record.stages] == ["vendored", "package"]
    assert [trace.path for trace in record.stages[1].files] == [project.copy, f"{project.copy}.lock", "pyproject.toml"]
    assert record.stages[0].files[0].after == record.stages[1].files[0].before
    assert [(one["adapter"], one["result"]) for one in record.parity] == [("spear-tts", "same"), ("mirasol", "same")]
    assert all(one["when"] for one in record.parity)


def test_parity_alone_makes_a_record(repo: Path) -> None:
    """And it survives a migration there and back."""
    add_parity(repo, {"file": "x", "adapter": "musiclm", "result": "same"})
    moved(repo, "vendored")
    run("rollback", repo, "--write")
    record = read_record(repo)
    assert (record.stages, len(record.parity)) == ((), 1)


@pytest.mark.parametrize(
    ("old", "new", "because"),
    [
        ("{", "[", "is damaged"),
        ('"before": "', '"before": "0', "was edited"),
        ("migration 1", "migration 2", "upgrade shared-distributed-tools"),
        ('"path": "spear_tts_pytorch/distributed.py"', '"path": "../elsewhere"', "is outside"),
        ('"path": "spear_tts_pytorch/distributed.py"', '"path": ".git/config"', "is outside"),
    ],
)
def test_a_record_that_was_tampered_with_is_refused(repo: Path, old: str, new: str, because: str) -> None:
    """And writes nothing, least of all outside the repo."""
    moved(repo, "vendored")
    edit(repo / RECORD, old, new)
    before = snapshot(repo.parent)
    assert refused(run("rollback", repo, "--write"), because)
    assert snapshot(repo.parent) == before


def test_files_put_back_without_the_record_are_noticed(repo: Path, project: Project) -> None:
    """The record says one stage, the file another: no command goes on from there."""
    moved(repo, "vendored")
    git(repo, "checkout", "-q", "HEAD~1", "--", project.copy)
    assert refused(migrate(repo, "package", "--write"), "put back without the other")
    assert json.loads(run("status", repo, "--json").stdout)["projects"][0]["state"] == "not as recorded"


def test_a_torch_that_is_too_old_for_the_file_is_noted(tmp_path: Path) -> None:
    """The project's setup.py allows one: said with the diff, and left to whoever looks after it."""
    result = migrate(PROJECTS["musiclm"].make(tmp_path, "repo"), "vendored")
    assert "or later, and this project allows less: torch>=1.6 (setup.py)" in result.stderr


def test_a_deleted_file_is_called_deleted(repo: Path, project: Project) -> None:
    """Not taken for one half of a restore; with what to delete as well, if that was meant."""
    for stage, left in (("vendored", f"{RECORD} and distributed.py.lock"), ("package", RECORD)):
        moved(repo, stage)
        (repo / project.copy).unlink()
        said = f"{project.copy} was deleted, and {RECORD} says that this repo is at {stage}. Restore it from version"
        result = migrate(repo, "core", "--write")
        assert refused(result, said)
        assert f"if nothing here gathers any more, delete {left} too" in result.output
        git(repo, "checkout", "-q", "--", project.copy)


def test_an_empty_record_is_no_file(repo: Path) -> None:
    """Nothing to say, nothing on disk."""
    assert read_record(repo) == Record()
    moved(repo, "vendored")
    assert (repo / RECORD).exists()
    run("rollback", repo, "--write")
    assert not (repo / RECORD).exists()
