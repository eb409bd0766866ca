# SPDX-License-Identifier: MIT
"""Where a distribution comes from, and the requirement that says so. What cannot be found is refused.

    index                     whatever index pip is configured with: pip is asked
    PATH                      a wheel or an sdist, a folder of them, or a checkout of the monorepo
    git+URL[@REF]             the monorepo's repository: git is asked

An adapter from anywhere but an index brings the core along as a requirement of its own: an installer
would look for that on an index.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from ..catalog import CORE_DISTRIBUTION, CORE_FOLDER, Adapter
from ..errors import RefusalError
from ..sources import core_version

_GIT = re.compile(r"git\+(?P<url>\w+://[^/]*/[^@#]+)(@(?P<ref>[^#]+))?(#subdirectory=(?P<folder>[^&]+))?")
_COMMIT = re.compile("[0-9a-f]{7,40}")
_SECONDS = 120


@dataclass(frozen=True)
class Requirement:
    """A distribution, by version from an index, or from one place."""

    name: str
    minimum: str = ""  # a version
    url: str = ""  # of a file or folder, or of a git repository
    ref: str = ""
    folder: str = ""  # in the git repository

    @property
    def is_git(self) -> bool:
        """Whether it comes from a git repository."""
        return bool(self.folder)

    def __str__(self) -> str:
        """As PEP 508 has it."""
        if self.is_git:
            ref = f"@{self.ref}" if self.ref else ""
            return f"{self.name} @ git+{self.url}{ref}#subdirectory={self.folder}"
        return f"{self.name} @ {self.url}" if self.url else f"{self.name}>={self.minimum}"

    def poetry(self) -> str | dict[str, str]:
        """As a value in poetry's table of dependencies."""
        if self.is_git:
            ref = {"rev": self.ref} if self.ref else {}
            return {"git": self.url, **ref, "subdirectory": self.folder}
        return {"url": self.url} if self.url else f">={self.minimum}"


def find(adapter: Adapter, origin: str | None) -> list[Requirement]:
    """The requirements for an adapter. RefusalError where it is not to be found there."""
    if origin is None:
        msg = (
            f"{adapter.distribution} is on no public index yet: say where it comes from. --from index (the index that "
            "pip is configured with), --from PATH (a wheel, a folder of wheels, a checkout of the monorepo), or "
            "--from git+https://HOST/OWNER/REPO.git@REF"
        )
        raise RefusalError(msg)
    if origin == "index":
        return [_on_index(adapter)]
    if origin.startswith("git+"):
        return _in_git(adapter, origin)
    return _in_files(adapter, Path(origin))


def _on_index(adapter: Adapter) -> Requirement:
    requirement = Requirement(adapter.distribution, minimum=core_version())
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
        asked = _run([*command, "-d", folder, str(requirement)])
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        msg = f"pip finds no {requirement}: {reason.removeprefix('ERROR: ')}. Name another place with --from"
        raise RefusalError(msg)
    return requirement


def _in_git(adapter: Adapter, origin: str) -> list[Requirement]:
    found = _GIT.fullmatch(origin)
    if found is None or found["folder"] not in (None, adapter.folder):
        msg = f"{origin} is no reference to the monorepo; give git+https://HOST/OWNER/REPO.git@REF"
        raise RefusalError(msg)
    url, ref = found["url"], found["ref"] or ""
    wanted = [] if _COMMIT.fullmatch(ref) else [ref or "HEAD"]  # commits are not listed; the repository is
    asked = _run(["git", "ls-remote", "--exit-code" if wanted else "-q", url, *wanted])
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or [f"no {wanted[0] if wanted else 'answer'} there"])[-1]
        msg = f"{origin} cannot be reached: {reason}"
        raise RefusalError(msg)
    places = ((adapter.distribution, adapter.folder), (CORE_DISTRIBUTION, CORE_FOLDER))
    return [Requirement(name, url=url, ref=ref, folder=folder) for name, folder in places]


def _in_files(adapter: Adapter, origin: Path) -> list[Requirement]:
    path = origin.resolve()
    checkout = next((folder for folder in (path, *path.parents[1:2]) if _is_checkout(folder, adapter)), None)
    if checkout is not None:
        places = ((adapter.distribution, adapter.folder), (CORE_DISTRIBUTION, CORE_FOLDER))
        return [Requirement(name, url=(checkout / folder).as_uri()) for name, folder in places]
    files = _distributions(path.parent if path.is_file() else path)
    if path.is_file():
        if adapter.distribution not in _distributions(path.parent, path.name):
            msg = f"{origin} is no wheel or sdist of {adapter.distribution}"
            raise RefusalError(msg)
        files[adapter.distribution] = path
    for name in (adapter.distribution, CORE_DISTRIBUTION):
        if name not in files:
            msg = f"{origin} has no wheel or sdist of {name}, and is no checkout of the monorepo; see --from in --help"
            raise RefusalError(msg)
    return [Requirement(name, url=files[name].as_uri()) for name in (adapter.distribution, CORE_DISTRIBUTION)]


def _is_checkout(folder: Path, adapter: Adapter) -> bool:
    return all((folder / part / "pyproject.toml").is_file() for part in (adapter.folder, CORE_FOLDER))


def _distributions(folder: Path, pattern: str = "*") -> dict[str, Path]:
    """Wheels and sdists by name; of each the newest."""
    found: dict[str, tuple[Version, Path]] = {}
    for file in sorted(folder.glob(pattern)) if folder.is_dir() else []:
        try:
            name, version = (
                parse_wheel_filename(file.name)[:2] if file.suffix == ".whl" else parse_sdist_filename(file.name)
            )
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue
        if name not in found or version > found[name][0]:
            found[name] = version, file
    return {name: file for name, (_, file) in found.items()}


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_TERMINAL_PROMPT"] = "0"  # a password that is missing is an answer, not a question
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_SECONDS
        )
    except FileNotFoundError as error:
        msg = f"{command[0]} is not installed; name another place with --from"
        raise RefusalError(msg) from error
    except subprocess.TimeoutExpired as error:
        msg = f"{command[0]} gave no answer in {_SECONDS} s; name another place with --from"
        raise RefusalError(msg) from error
