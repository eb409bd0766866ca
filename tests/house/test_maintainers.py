# SPDX-License-Identifier: MIT
"""The page for maintainers: its examples pass with the vendored file, and fail with the old kind."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared_distributed_tools.render import render
from shared_distributed_tools.scan import fingerprint, survey
from tests.downstream.commands import done
from tests.downstream.old_copies import RIGHT, WITHOUT_NAMES, copy_with
from tests.downstream.projects import PROJECTS
from tests.house.pages import ROOT, blocks, shown
from tests.support import World, WorldFailure, Worlds
from tests.support.adapters import ADAPTERS

pytestmark = pytest.mark.only_over("gloo", reason="documents are the same over every backend")

PAGE = "shared/distributed/docs/maintainers.md"
EXAMPLES = blocks(PAGE)
OVERWRITES = copy_with("a write to the incoming gradient")
DEFECTIVE = [WITHOUT_NAMES, OVERWRITES, OVERWRITES, RIGHT, RIGHT, RIGHT]  # RIGHT cannot do these either


def played(source: str, example: str) -> str:
    """What goes wrong in an example, with a `distributed.py` of this text."""
    names = {"__name__": "distributed", "torch": torch}
    exec(compile(source, "distributed.py", "exec"), names)
    return shown(example, names)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_pass_with_the_vendored_file(example: str, worlds: Worlds) -> None:
    """On both ranks."""
    problems = worlds.get("gloo", 2).run(played, render("musiclm"), example)
    assert not any(problems), problems[0]


@pytest.mark.parametrize(("example", "copy"), list(zip(EXAMPLES, DEFECTIVE, strict=True)), ids=range(len(EXAMPLES)))
def test_examples_fail_with_the_old_kind_of_file(example: str, copy: str) -> None:
    """Another result, an error, or the end of a process."""
    with World(2) as world:
        try:
            problems = world.run(played, copy, example)
        except WorldFailure:
            return
    assert any(problems)


def test_lengths() -> None:
    """The table gives the shortest and the longest vendored file, to ten lines."""
    lengths = [len(re.findall(r"^ *[^ #\n]", render(name), re.MULTILINE)) for name in ADAPTERS]
    assert f"| {round(min(lengths), -1)} to {round(max(lengths), -1)} |" in (ROOT / PAGE).read_text()


def test_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sample project whose copy is known as an original. An ellipsis stands for anything."""
    known = {"musiclm": fingerprint.record(WITHOUT_NAMES)}
    for module in (fingerprint, survey):
        monkeypatch.setattr(module, "known_originals", lambda: known)
    project = PROJECTS["musiclm"]
    files = {**project.files, project.copy: WITHOUT_NAMES}
    monkeypatch.chdir(replace(project, files=files).make(tmp_path, "musiclm-pytorch"))
    consoles = blocks(PAGE, "console")
    assert consoles
    for console in consoles:
        command, _, printed = console.partition("\n")
        pattern = ".*".join(re.escape(part) for part in printed.strip().split("…"))
        actual = done(*command.removeprefix("$ adapters ").split())
        assert re.fullmatch(pattern, actual.strip(), re.DOTALL), f"{command}\n{actual}"
