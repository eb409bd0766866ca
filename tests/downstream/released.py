# SPDX-License-Identifier: MIT
"""The released packages of the projects that adapters are for: scanned, planned, vendored, migrated, compared.

`nox -s released` runs it: it downloads them, and runs their `distributed.py`. Their code is not kept, and of the
packages nothing else runs.
"""

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shared_distributed_tools.catalog import ADAPTERS, CORE_DISTRIBUTION, Adapter
from shared_distributed_tools.scan.fingerprint import known_originals
from shared_distributed_tools.scan.signatures import api_of, with_sums
from shared_distributed_tools.scan.sisters import ADVICE
from tests.downstream.commands import done, run
from tests.downstream.trees import commit, committed, write_files
from tests.support.adapters import CONTRACTS

PLACE = "git+https://host.invalid/repo.git@v1#subdirectory="
MANIFEST = '[project]\nname = "downstream"\nversion = "1"\ndependencies = [\n    "torch>=2.0",\n]\n'
# the file by its path alone: the package's own __init__ would bring in the whole project
LOAD = """
import runpy, sys
found = runpy.run_path(sys.argv[1])
missing = [name for name in sys.argv[2:] if name not in found]
assert not missing, missing
"""


def unpacked(distribution: str, folder: Path) -> Path:
    """The newest release of a distribution as a repo, committed."""
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", distribution]
    subprocess.run([*download, "--dest", folder], check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    repo = folder / "repo"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(repo)
    return committed(write_files(repo, {"pyproject.toml": MANIFEST}))


def scanned(repo: Path) -> dict[str, Any]:
    """What scan says of a repo's only copy."""
    (finding,) = json.loads(run("scan", repo, "--json").output)["findings"]
    return dict(finding)


@pytest.fixture(scope="module", params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]


@pytest.fixture(scope="module")
def repo(adapter: Adapter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    package, _, _ = adapter.target.partition("/")
    return unpacked(package.replace("_", "-"), tmp_path_factory.mktemp(adapter.name))


def load(repo: Path, adapter: Adapter) -> None:
    """The file of the repo, in a process of its own."""
    command = [sys.executable, "-c", LOAD, adapter.target, *adapter.api]
    subprocess.run(command, cwd=repo, check=True, timeout=120)


def test_the_original_is_known_and_its_contract_is_whole(adapter: Adapter, repo: Path) -> None:
    """Scan says exact; the contract has every name and signature of the release."""
    finding = scanned(repo)
    assert (finding["path"], finding["kind"], finding["adapter"]) == (adapter.target, "exact", adapter.name)
    tree = ast.parse((repo / adapter.target).read_text())
    assert api_of(tree) == adapter.api
    assert with_sums(api_of(tree)) == CONTRACTS[adapter.name]["adds"]
    assert known_originals()[adapter.name].keys() <= adapter.api.keys()


def test_the_adapter_does_what_the_original_does(adapter: Adapter, repo: Path) -> None:
    """Parity finds nothing that is different."""
    report = json.loads(run("parity", repo / adapter.target, "--adapter", adapter.name, "--json").stdout)
    assert [one for one in report["findings"] if one["verdict"] == "different"] == []
    assert report["lacking"] == []
    assert report["exit_code"] == 0


def test_the_project_moves_to_the_package(adapter: Adapter, repo: Path) -> None:
    """Planned, vendored and migrated; the file is imported at both stages."""
    result = run("plan", repo)
    assert result.exit_code == 0, result.output
    assert f"{adapter.target}: adapter {adapter.name}, exact; at original" in result.output
    done("vendor", adapter.name, repo, "--write")
    commit(repo)
    done("check", repo)
    load(repo, adapter)
    wanted = [f"{adapter.distribution} @ {PLACE}packages/{adapter.name}"]
    wanted.append(f"{CORE_DISTRIBUTION} @ {PLACE}shared/distributed")
    options = [word for one in wanted for word in ("--requirement", one)]
    done("migrate", repo, "--to", "package", *options, "--write")
    commit(repo)
    assert adapter.module in (repo / adapter.target).read_text()
    assert all(one in (repo / "pyproject.toml").read_text() for one in wanted)
    load(repo, adapter)


@pytest.mark.parametrize("project", ADVICE)
def test_projects_without_an_adapter_are_told_what_to_do(project: str, tmp_path: Path) -> None:
    """Scan says which project it is; plan says what its maintainer can do today."""
    repo = unpacked(project, tmp_path)
    finding = scanned(repo)
    assert finding["kind"] == "relative"
    assert finding["notes"][0] == ADVICE[project]
    result = run("plan", repo)
    assert result.exit_code == 2
    assert ADVICE[project] in result.output
