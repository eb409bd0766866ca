# SPDX-License-Identifier: MIT
"""Options, and the fixtures that give tests their ranks."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared_distributed_tools.ranks import start_server
from tests.support import Worlds
from tests.support.adapters import ADAPTERS
from tests.support.world import is_emulated

BACKENDS = ("gloo", "nccl-rules", "nccl")
WORLD_SIZES = (1, 2, 3, 4, 8)
SUITES = ("core", *ADAPTERS, "tools")
HERE = Path(__file__).parent
# Fewer worlds for the vendored files, which are the packages' code, and over nccl-rules, where every operation costs an
# exchange. Left out there: the matrix on four and eight ranks (four meet in test_gradients and test_groups), most
# batches of test_fuzz, and what `only_over` gives a reason for.
FEWER_SIZES = (1, 2, 3)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ranks")
    group.addoption("--suite", choices=SUITES, help="only the tests of one adapter, of the core, or of the tools")
    group.addoption("--backend", default="gloo", choices=BACKENDS, help="what the ranks speak over")
    group.addoption("--world-size", type=int, action="append", help="only worlds of this size (may be repeated)")
    group.addoption("--vendored", action="store_true", help="the adapter suites, against the rendered files")
    group.addoption("--require-nccl", action="store_true", help="fail where NCCL tests would be skipped")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "suite(name): the suite that a test belongs to; core where it has none")
    config.addinivalue_line("markers", "like(name): of an adapter that gathers by the function of another one")
    config.addinivalue_line("markers", "only_over(*backends, reason): skipped, with this reason, over all others")
    if config.getoption("--vendored"):
        use_vendored_files(config)
    if config.getoption("--backend") == "nccl":
        sizes = config.getoption("--world-size") or [2]
        needed, found = max(2, min(sizes)), torch.cuda.device_count()
        if found < needed:
            reason = f"needs {needed} CUDA devices, found {found}"
            if config.getoption("--require-nccl"):
                raise pytest.UsageError(f"NCCL: {reason}")
            pytest.exit(f"skipped: {reason}", returncode=0)


def pytest_sessionstart(session: pytest.Session) -> None:
    """The server of the ranks imports torch while pytest imports the tests."""
    if session.config.getoption("--suite") != "tools" and not session.config.getoption("--collect-only"):
        start_server()


def use_vendored_files(config: pytest.Config) -> None:
    """Render every adapter into a folder that comes first on the path, and hide the core from every process.

    The workers start from a server that inherits this environment (see `sitecustomize.py` there).
    """
    from shared_distributed_tools.render import render

    folder = Path(tempfile.mkdtemp(prefix="vendored-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    for name in ADAPTERS:
        (folder / f"{name.replace('-', '_')}_distributed.py").write_text(render(name))
    hide = "import sys\n\nsys.modules['shared_distributed'] = None\n"
    (folder / "sitecustomize.py").write_text(hide)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(folder))
    for module in [m for m in sys.modules if m.partition(".")[0].endswith("_distributed")]:
        del sys.modules[module]
    sys.modules["shared_distributed"] = None  # type: ignore[assignment]


def room_of(path: Path) -> str:
    """The folder of the tests that a file is in, or the folder itself; empty for what is in none."""
    below = path.relative_to(HERE).parts if path.is_relative_to(HERE) else ()
    return below[0] if below and (HERE / below[0]).is_dir() else ""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A suite's own rooms only. The rendered files answer to the adapters' tests; the others need the core."""
    suite, room = config.getoption("--suite"), room_of(collection_path)
    if room == "hosts":
        return config.getoption("--hosts", None) is None or None  # an option of its plugin
    if (room == "emulated" and not is_emulated()) or (room == "nccl" and config.getoption("--backend") != "nccl"):
        return True
    if config.getoption("--vendored"):
        return room not in ("", "adapters", "support") or None
    return (suite is not None and room != "" and (room == "tools") != (suite == "tools")) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the chosen suite and what has to do with the chosen backend.

    A test's suite is its marker's, else tools in the room of that name, else core. A test without ranks says the same
    over every backend, and runs with gloo; so does one that takes `worlds` but no `backend`, for a reason that
    `only_over` gives. An adapter that gathers by another's function runs the matrix on two ranks, and all of it where
    its suite is asked for.
    """
    is_whole = config.getoption("--suite") is not None
    chosen = [config.getoption("--suite")] if config.getoption("--suite") else list(SUITES)
    if config.getoption("--vendored"):
        chosen = list(ADAPTERS)

    def suite_of(item: pytest.Item) -> str:
        marker = item.get_closest_marker("suite")
        if marker is not None:
            return str(marker.args[0])
        return "tools" if room_of(item.path) == "tools" else "core"

    backend = config.getoption("--backend")

    def belongs(item: pytest.Item) -> bool:
        if not is_whole and item.get_closest_marker("like") and parameter(item, "world_size") != 2:
            return False
        over_ranks = {"backend", "worlds"} & set(getattr(item, "fixturenames", ()))
        return suite_of(item) in chosen and (backend == "gloo" or bool(over_ranks))

    deselected = [item for item in items if not belongs(item)]
    items[:] = [item for item in items if belongs(item)]
    config.hook.pytest_deselected(items=deselected)
    for item in items:
        only = item.get_closest_marker("only_over")
        if only is not None and backend not in only.args:
            item.add_marker(pytest.mark.skip(reason=f"over {' and '.join(only.args)} only: {only.kwargs['reason']}"))
        elif only is None and backend != "gloo" and "backend" not in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(f"{item.nodeid} takes worlds but no backend: say by only_over why it is over gloo")


def parameter(item: pytest.Item, name: str) -> object:
    """A test's parameter, or None."""
    call = getattr(item, "callspec", None)
    return call.params.get(name) if call else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`world_size` runs over every world size that the options and the machine allow."""
    if "world_size" in metafunc.fixturenames:
        backend = metafunc.config.getoption("--backend")
        fewer = metafunc.config.getoption("--vendored") or backend == "nccl-rules"
        sizes = metafunc.config.getoption("--world-size") or (FEWER_SIZES if fewer else WORLD_SIZES)
        found = torch.cuda.device_count() if backend == "nccl" else max(sizes)
        too_many = pytest.mark.skip(reason=f"a rank per GPU: found {found}")
        chosen = [pytest.param(size, id=f"W{size}", marks=[too_many] if size > found else []) for size in sizes]
        metafunc.parametrize("world_size", chosen)


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    """The persistent worlds of this run."""
    worlds = Worlds()
    yield worlds
    worlds.close()


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """What the ranks speak over."""
    return str(request.config.getoption("--backend"))
