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

from harness import World, Worlds

WORLD_SIZES = (1, 2, 3, 4, 8)
ADAPTERS = ("musiclm", "spear-tts", "mirasol", "st-moe")
SUITES = ("core", *ADAPTERS, "tools")
VENDORED = ("test_bad_input.py", "test_contract.py", "test_gradients.py", "test_matrix.py")
VENDORED_SIZES = (1, 2, 3)  # the same code as the packages': fewer worlds than they get


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ranks")
    group.addoption("--suite", choices=SUITES, help="only the tests of one adapter, of the core, or of the tools")
    group.addoption("--backend", default="gloo", choices=("gloo", "nccl"), help="what the ranks speak over")
    group.addoption("--world-size", type=int, action="append", help="only worlds of this size (may be repeated)")
    group.addoption("--vendored", action="store_true", help="the adapter suites, against the rendered files")
    group.addoption("--require-nccl", action="store_true", help="fail where NCCL tests would be skipped")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "suite(name): the suite that a test belongs to; core where it has none")
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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A suite's own files only. The rendered files answer to the adapters' tests; the others need the core."""
    suite = config.getoption("--suite")
    if suite and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return collection_path.name.startswith("test_tools") != (suite == "tools") or None
    if not config.getoption("--vendored") or collection_path.suffix != ".py":
        return None
    return (collection_path.name.startswith("test_") and collection_path.name not in VENDORED) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the chosen suite. A test's suite is its marker's, else that of its file's name, else core."""
    chosen = [config.getoption("--suite")] if config.getoption("--suite") else list(SUITES)
    if config.getoption("--vendored"):
        chosen = list(ADAPTERS)

    def suite_of(item: pytest.Item) -> str:
        marker = item.get_closest_marker("suite")
        if marker is not None:
            return str(marker.args[0])
        return "tools" if item.path.name.startswith("test_tools") else "core"

    deselected = [item for item in items if suite_of(item) not in chosen]
    items[:] = [item for item in items if suite_of(item) in chosen]
    config.hook.pytest_deselected(items=deselected)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`world_size` runs over every world size that the options and the machine allow."""
    if "world_size" in metafunc.fixturenames:
        sizes = metafunc.config.getoption("--world-size") or (
            VENDORED_SIZES if metafunc.config.getoption("--vendored") else WORLD_SIZES
        )
        if metafunc.config.getoption("--backend") == "nccl":
            sizes = [size for size in sizes if size <= torch.cuda.device_count()]
        metafunc.parametrize("world_size", sizes, ids=[f"W{size}" for size in sizes])


class AvailableWorlds(Worlds):
    """Worlds, as far as the machine has devices for them."""

    def get(self, backend: str, size: int) -> World:
        """A world, or a skip that says what is missing."""
        if backend == "nccl" and size > torch.cuda.device_count():
            pytest.skip(f"needs {size} CUDA devices, found {torch.cuda.device_count()}")
        return super().get(backend, size)


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    """The persistent worlds of this run."""
    worlds = AvailableWorlds()
    yield worlds
    worlds.close()


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """What the ranks speak over."""
    return str(request.config.getoption("--backend"))
