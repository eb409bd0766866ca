# SPDX-License-Identifier: MIT
"""The console script: what it imports, what it says of itself, and how it is shipped."""

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table
from shared_distributed_tools.demo import WAYS

from downstream.commands import run
from downstream.projects import PROJECTS
from shared_distributed_tools import terminal
from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.render import render, rendered_parts

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"

IMPORTED = """
import sys
from click.testing import CliRunner
from shared_distributed_tools.cli import main

HEAVY = {"torch", "einops", "libcst", "rich"}
assert CliRunner().invoke(main, ["--help"]).exit_code == 0
print(sorted(HEAVY & set(sys.modules)))
for command in sys.argv[1:]:
    assert CliRunner().invoke(main, command.split()).exit_code == 0, command
print(sorted(HEAVY & set(sys.modules)))
"""
COMMANDS = (
    *("list", "render mirasol", "vendor mirasol . --dry-run", "scan setup.cfg"),
    "fingerprint mirasol_pytorch/distributed.py --name x --into x.json",
    *("plan .", "migrate . --to vendored --write", "check", "diff .", "update ."),
    *("status . --html wall.html", "rollback . --write"),
)
NEED_TORCH = ("bench", "demo", "parity")


def test_no_command_imports_torch_but_those_that_need_it(tmp_path: Path) -> None:
    """The help imports none of the heavy libraries; all that render, check and migrate import LibCST, never torch."""
    repo = PROJECTS["mirasol"].make(tmp_path, "mirasol")
    command = [sys.executable, "-c", IMPORTED, *COMMANDS]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[]", "['libcst', 'rich']"], done.stderr


def test_help_lists_every_command_with_a_line() -> None:
    """Those that other packages are needed for too."""
    output = run("--help").output
    for name in (*(command.split()[0] for command in COMMANDS), "new", *NEED_TORCH):
        assert f"\n  {name} " in output
    assert "Exit codes:" in output


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from shared_distributed_tools.cli import main
main(prog_name="adapters")
"""


def without_torch(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["bench"], ["demo"], ["parity", __file__, "--adapter", "musiclm"]])
def test_a_command_that_lacks_a_package_says_which(arguments: list[str]) -> None:
    """Exit code 1 and what to install, no traceback. Its help is there all the same."""
    done = without_torch(*arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: this needs torch: pip install 'shared-distributed-tools[torch]', or in a checkout",
        "  pip install ./shared/distributed ./packages/* './tools[torch]'",
    ]
    done = without_torch(arguments[0], "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: adapters " + arguments[0] in done.stdout


def test_what_the_demo_imports_comes_with_the_extra() -> None:
    """The core and every adapter that it shows: the hint above would otherwise lead to the same error again."""
    manifest = (TOOLS / "pyproject.toml").read_text()
    extra = manifest.partition("\ntorch = [")[2].partition("]")[0]
    for way in WAYS:
        assert f'"{"shared" if way.adapter == "core" else way.adapter}-distributed' in extra


def test_the_demo_fits_on_a_screen() -> None:
    """Every way to gather on a line of its own, exact, in a terminal of the usual width."""
    command, screen = [sys.executable, "-m", "shared_distributed_tools", "demo"], {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(command, env=screen, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for way in WAYS:
        assert any(line.startswith(way.adapter) and f" {way.call} " in line and "exact" in line for line in lines)


def test_an_unknown_command_is_wrong_usage() -> None:
    """Exit code 2, as click has it."""
    assert run("vend").exit_code == 2


def test_list_gives_every_adapter_its_file_and_versions() -> None:
    """One row an adapter, whole paths, though nothing here is a terminal."""
    output = run("list").output
    for adapter in ADAPTERS.values():
        assert adapter.target in output
        assert adapter.downstream in output
    assert "distributed.py beside musiclm.py" in output


def test_a_narrow_terminal_loses_nothing() -> None:
    """A cell goes on in the next line: the end of a path is where the line number is."""
    site, shown = "package/a_module_with_a_long_name.py:1234", io.StringIO()
    table = Table("site", "core")
    table.add_row(site, "unchanged")
    Console(width=30, file=shown).print(terminal.whole(table))
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


def test_render_prints_the_file_and_nothing_else() -> None:
    """Byte for byte what `vendor` writes."""
    assert run("render", "musiclm").stdout_bytes == render("musiclm").encode()


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


def test_the_wheel_carries_its_sources(built: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Unpacked anywhere, it renders what the checkout renders, from the same sources."""
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(tmp_path)
    carried = tmp_path / "shared_distributed_tools" / "_sources"
    for adapter in ADAPTERS.values():
        assert (carried / adapter.source).read_bytes() == (ROOT / adapter.source).read_bytes()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from shared_distributed_tools import render, sources\n"
        "print(sources.root())\n"
        "print(render.rendered_parts('spear-tts')[0])\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(carried), str(rendered_parts("spear-tts")[0])]
