# SPDX-License-Identifier: MIT
"""The console script: what it imports, what it says of itself, and how it is shipped."""

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import click
import pytest
from rich.console import Console
from rich.table import Table

from shared_distributed_tools import terminal
from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.cli import COMMANDS
from shared_distributed_tools.errors import ToolError
from shared_distributed_tools.render import render, rendered_parts, sources
from tests.downstream.commands import refused, run
from tests.downstream.projects import PROJECTS

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"

IMPORTED = """
import sys
from click.testing import CliRunner
from shared_distributed_tools.cli import main

HEAVY = {"torch", "einops", "rich", "tomlkit"}
assert CliRunner().invoke(main, ["--help"]).exit_code == 0
print(sorted(HEAVY & set(sys.modules)))
for command in sys.argv[1:]:
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code in (0, 1), (command, result.output)
print("torch" in sys.modules)
"""
RUN = (
    *("list", "render mirasol", "vendor mirasol . --accept-edits", "scan .", "plan ."),
    *("migrate . --to vendored --accept-edits --write", "check", "update .", "status . --html wall.html"),
)


def test_no_command_imports_torch_but_parity(tmp_path: Path) -> None:
    """The help imports none of the heavy libraries; nothing that renders, checks or migrates imports torch."""
    repo = PROJECTS["mirasol"].make(tmp_path, "mirasol")
    command = [sys.executable, "-c", IMPORTED, *RUN]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[]", "False"], done.stderr
    assert {*(one.split()[0] for one in RUN), "parity", "new"} == set(COMMANDS)


def test_a_command_is_found_by_its_name() -> None:
    """In the module of its name, or in `command` of the room of its name; the help has a line for each."""
    output = run("--help").output
    for name, (module, _) in COMMANDS.items():
        assert module.split(".")[-1] == name or module == f"{name}.command"
        command = import_module(f"shared_distributed_tools.{module}").command
        assert isinstance(command, click.Command)
        assert command.name == name
        assert f"\n  {name} " in output


def test_there_are_three_exit_codes(tmp_path: Path) -> None:
    """0 good, 1 findings, 2 could not: wrong usage, a refusal, an error of ours; these are messages, not tracebacks."""
    assert run("vend").exit_code == 2
    assert run("list").exit_code == 0
    assert refused(run("check", tmp_path), "nothing is vendored here")
    with mock.patch.object(sources, "root", side_effect=ToolError("no sources here; install again")):
        result = run("list")
    assert (result.exit_code, result.stderr.strip()) == (2, "Error: no sources here; install again")


@pytest.mark.parametrize("coding", ["latin-1", "ascii", "cp1252", "utf-8"])
def test_a_terminal_that_lacks_a_character_gets_an_escape(tmp_path: Path, coding: str) -> None:
    """Whatever files are called and code says: no traceback in any command that shows it."""
    repo = PROJECTS["musiclm"].make(tmp_path, "→ ☃")
    (repo / "musiclm_pytorch/☃.py").write_text("from .distributed import AllGather  # → ñ\n")
    environment = {**os.environ, "PYTHONIOENCODING": coding}
    environment.pop("PYTHONUTF8", None)
    for words in ("plan", "scan", "status", "check", "migrate --to vendored --accept-edits"):
        command = [sys.executable, "-m", "shared_distributed_tools", *words.split(), str(repo)]
        ran = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert b"Traceback" not in ran.stderr, ran.stderr.decode()
        assert ran.returncode in (0, 1, 2)


def test_an_interrupted_command_could_not_do_it(tmp_path: Path) -> None:
    """Exit code 2, and not that of findings."""
    with mock.patch.object(sources, "root", side_effect=KeyboardInterrupt):
        result = run("list")
    assert (result.exit_code, result.stderr.strip()) == (2, "Error: interrupted")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from shared_distributed_tools.cli import main
main(prog_name="adapters")
"""


def test_a_command_that_lacks_a_package_says_which() -> None:
    """Exit code 2 and what to install from where, no traceback. Its help is there all the same."""

    def without_torch(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = without_torch("parity", __file__, "--adapter", "musiclm")
    assert done.returncode == 2
    hint = "Error: this needs torch; in a checkout of shared-distributed: pip install './tools[torch]'\n"
    assert done.stderr == hint
    done = without_torch("parity", "--help")
    assert (done.returncode, done.stderr, "Usage: adapters parity" in done.stdout) == (0, "", True)


def test_list_gives_every_adapter_its_file() -> None:
    """One row an adapter, whole paths, though nothing here is a terminal. `render` prints what `vendor` writes."""
    output = run("list").output
    for adapter in ADAPTERS.values():
        assert adapter.target in output
        assert adapter.downstream in output
    assert "distributed.py beside musiclm.py" in output
    assert f"version {sources.version()}, revision {sources.revision()}" in output
    assert run("render", "musiclm").stdout_bytes == render("musiclm").encode()
    assert refused(run("render", "whisper"), f"'whisper' is not one of {', '.join(map(repr, ADAPTERS))}")


def test_a_narrow_terminal_loses_nothing() -> None:
    """A cell goes on in the next line: the end of a path is where the line number is. Brackets are no markup."""
    site, shown = "package/[id]/a_module_with_a_long_name.py:1234", io.StringIO()
    table = Table("site", "core")
    table.add_row(site, "unchanged")
    Console(width=30, file=shown, markup=False).print(terminal.whole(table))
    first = [line.split("│")[1].strip() for line in shown.getvalue().splitlines() if line.startswith("│")]
    assert "".join(first) == site


def test_a_run_without_a_terminal_says_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line on standard error, not for every step: a log should be neither silent for a minute nor full of them."""
    seconds = iter(range(0, 100, terminal.SECONDS_A_LINE // 2))
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with terminal.progress() as report:
        for done in range(5):
            report(done, 8, f"step {done}")
    assert capsys.readouterr() == ("", "step 1: 12%\nstep 3: 38%\n")


# ------------------------------------------------------------------ the wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The sdist, the wheel built from it far from the checkout, and the wheel built in the checkout."""
    folder = tmp_path_factory.mktemp("built")

    def build(project: Path, target: str, into: str) -> Path:
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder / into)]
        subprocess.run(command, cwd=project, capture_output=True, check=True)
        return next((folder / into).iterdir())

    sdist = build(TOOLS, "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (project,) = (folder / "unpacked").iterdir()
    return sdist, build(project, "wheel", "from_sdist"), build(TOOLS, "wheel", "from_checkout")


def test_the_sdist_builds_the_same_wheel_outside_the_checkout(built: tuple[Path, Path, Path]) -> None:
    """Same files, same contents: nothing of the checkout is needed."""
    contents = []
    for wheel in built[1:]:
        with zipfile.ZipFile(wheel) as archive:
            # RECORD lists the same files, in the order they were packed
            contents.append({name: archive.read(name) for name in archive.namelist() if "RECORD" not in name})
    assert contents[0] == contents[1]
    assert any(name.endswith("licenses/LICENSE") for name in contents[0])
    assert "shared_distributed_tools/py.typed" in contents[0]
    assert "shared_distributed_tools/render/released/README.md" in contents[0]


def test_the_wheel_carries_its_sources_and_their_revision(built: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Unpacked anywhere, it renders what the checkout renders, from the same sources, and names the same commit."""
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(tmp_path)
    carried = tmp_path / "shared_distributed_tools" / "_sources"
    for adapter in ADAPTERS.values():
        assert (carried / adapter.source).read_bytes() == (ROOT / adapter.source).read_bytes()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from shared_distributed_tools.render import rendered_parts, sources\n"
        "print(sources.root())\n"
        "print(rendered_parts('spear-tts')[0])\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(carried), str(rendered_parts("spear-tts")[0])]
    assert len(rendered_parts("spear-tts")[0].revision) >= 40
