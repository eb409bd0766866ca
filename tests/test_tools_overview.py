# SPDX-License-Identifier: MIT
"""Status: the truth about every project, in a table, as JSON, and on a page for the wall."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from downstream.commands import moved, run
from downstream.projects import INLINED, PROJECTS, known_variants
from downstream.trees import copy_sources, edit, newer
from shared_distributed_tools import sources
from shared_distributed_tools.header import hash_of
from shared_distributed_tools.migration import overview, page
from shared_distributed_tools.migration.record import RECORD, add_parity

PROJECT = PROJECTS["mirasol"]


def status(repo: Path, *options: object) -> dict[str, Any]:
    """What the command says about one project, as JSON; its exit code is what it says too."""
    result = run("status", repo, "--json", *options)
    said: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == said["exit_code"]
    (project,) = said["projects"]
    return {**project, "exit_code": result.exit_code}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return PROJECT.make(tmp_path, "mirasol-pytorch")


# ------------------------------------------------------------------ the truth


def test_each_stage_is_told(repo: Path, tmp_path: Path) -> None:
    """Worth a look while it is the project's own copy, good from then on."""
    known = known_variants(tmp_path)
    seen = [status(repo, "--known", known)]
    for stage in ("vendored", "package", "core"):
        moved(repo, stage)
        seen.append(status(repo))
    assert [(one["stage"], one["state"], one["exit_code"]) for one in seen] == [
        ("original", "its own copy", 40),
        ("vendored", "current", 0),
        ("package", "current", 0),
        ("core", "done", 0),
    ]
    assert {(one["adapter"], one["copy"]) for one in seen} == {("mirasol", PROJECT.copy)}
    assert [one["note"] for one in seen[:3]] == [
        f"next: `adapters migrate REPO --to {stage}`" for stage in ("vendored", "package", "core")
    ]


def append(path: str) -> Callable[[Path], None]:
    def change(repo: Path) -> None:
        with (repo / path).open("a") as stream:
            stream.write("\n# mine\n")

    return change


def depend_on_nothing(repo: Path) -> None:
    (repo / "setup.cfg").write_text("[options]\ninstall_requires =\n    torch\n")


def use_the_old_file(repo: Path) -> None:
    (repo / "mirasol_pytorch/late.py").write_text("from .distributed import all_gather\n")


@pytest.mark.parametrize(
    ("stages", "change", "state", "exit_code", "edits"),
    [
        (["vendored"], append(PROJECT.copy), "locally edited", 40, [PROJECT.copy]),
        (["vendored"], append(f"{PROJECT.copy}.lock"), "tampered", 41, [f"{PROJECT.copy}.lock"]),
        (["vendored", "package"], append(PROJECT.copy), "locally edited", 40, [PROJECT.copy]),
        (["vendored", "package"], depend_on_nothing, "dependency missing", 41, ["setup.cfg"]),
        (["vendored", "package", "core"], depend_on_nothing, "dependency missing", 41, ["setup.cfg"]),
        (["vendored", "package", "core"], use_the_old_file, "uses left", 41, []),
        (["vendored", "package", "core"], append("mirasol_pytorch/fused.py"), "done", 0, ["mirasol_pytorch/fused.py"]),
    ],
)
def test_what_changed_since_is_told(
    repo: Path, stages: list[str], change: Callable[[Path], None], state: str, exit_code: int, edits: list[str]
) -> None:
    """Edits of what a stage wrote, dependencies that went, uses that came back."""
    change(moved(repo, *stages))
    said = status(repo)
    assert (said["state"], said["exit_code"], said["edits"]) == (state, exit_code, edits)


def test_stale_is_told(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this release renders something else."""
    moved(repo, "vendored")
    tree = newer(copy_sources(tmp_path / "sources"))
    monkeypatch.setattr(sources, "root", lambda: tree)
    assert (status(repo)["state"], status(repo)["exit_code"]) == ("stale", 40)


def test_a_deleted_file_is_told_without_a_record_too(repo: Path) -> None:
    """Put there by `vendor`, which leaves none: the lock says that something is missing."""
    assert run("vendor", "mirasol", repo).exit_code == 0
    (repo / PROJECT.copy).unlink()
    seen = status(repo)
    assert (seen["state"], seen["exit_code"]) == ("missing", 41)
    assert seen["note"].startswith(f"{PROJECT.copy}: deleted, but its lock is here")


def test_projects_that_cannot_be_moved_are_told(tmp_path: Path) -> None:
    """A copy in a larger file, one unlike any known, two of them, none."""
    known = known_variants(tmp_path)
    inlined = INLINED.make(tmp_path, "inlined")
    assert status(inlined, "--known", known)["state"] == "a copy in a larger file"
    edited = PROJECTS["edited"].make(tmp_path, "edited")
    assert re.fullmatch(r"its own copy, edited, \d\d % like our spear-tts", status(edited, "--known", known)["state"])
    (edited / "second.py").write_text((edited / PROJECTS["edited"].copy).read_text())
    assert status(edited, "--known", known)["state"] == "several copies"
    (tmp_path / "empty").mkdir()
    said = status(tmp_path / "empty")
    assert (said["state"], said["stage"], said["exit_code"]) == ("no copy", "", 0)


def test_a_damaged_record_hides_no_other_project(repo: Path, tmp_path: Path) -> None:
    """It is told of the one, and the other is told as ever; the exit code is the worst."""
    other = PROJECT.make(tmp_path, "other")
    (repo / RECORD).write_text("{")
    result = run("status", repo, other, "--json")
    states = [one["state"] for one in json.loads(result.stdout)["projects"]]
    assert states[0] == "cannot be read"
    assert states[1].startswith("its own copy")
    assert result.exit_code == 41


def test_parity_is_told_with_its_time(repo: Path) -> None:
    """A result about the copy as it was; about another version of it; a difference is worth a look at any stage."""
    assert status(repo)["parity"] is None
    entry: dict[str, object] = {"file": PROJECT.copy, "adapter": "mirasol", "result": "same"}
    add_parity(repo, {**entry, "sha256": hash_of((repo / PROJECT.copy).read_bytes())})
    moved(repo, "vendored")
    said = status(repo)
    assert (said["parity"]["result"], said["parity"]["tone"], said["exit_code"]) == ("same", "good", 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", said["parity"]["when"])
    add_parity(repo, {**entry, "sha256": "0" * 64})
    assert status(repo)["parity"]["result"] == "same, of another version"
    add_parity(repo, {**entry, "result": "different", "sha256": hash_of(PROJECT.files[PROJECT.copy].encode())})
    said = status(repo)
    assert (said["parity"]["tone"], said["exit_code"]) == ("bad", 40)
    assert "parity: different" in said["note"]


def test_the_table_has_a_line_for_each(repo: Path, tmp_path: Path) -> None:
    """Whole names and notes, though nothing here is a terminal."""
    name = "a-sister-project-with-a-name-that-is-longer-than-most-columns-would-like-it-to-be"
    output = run("status", moved(repo, "vendored"), PROJECT.make(tmp_path, name)).output
    assert "mirasol-pytorch" in output
    assert "current" in output
    assert name in re.sub(r"[^a-z-]", "", output)


def test_status_writes_nothing(repo: Path) -> None:
    """Nor does it need git."""
    before = sorted((path, path.stat().st_mtime_ns) for path in repo.rglob("*"))
    run("status", repo)
    assert sorted((path, path.stat().st_mtime_ns) for path in repo.rglob("*")) == before


def test_no_folder_is_refused(tmp_path: Path) -> None:
    """A typo is not a project without a copy."""
    result = run("status", tmp_path / "nowhere")
    assert (result.exit_code, "is not a folder" in result.output) == (1, True)


# ------------------------------------------------------------------ the page


def project(**fields: Any) -> overview.Project:
    base = {
        "path": "/somewhere",
        "state": "current",
        "tone": "good",
        "note": "",
        "adapter": "musiclm",
        "copy": "a/b.py",
    }
    return overview.Project(**{**base, **fields})


class Reader(HTMLParser):
    """The tags of a page, those that are open, and the text of each article."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.articles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)
        if tag == "article":
            self.articles.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "article" in self.open:
            self.articles[-1] += data


def test_the_page_stands_alone_and_is_well_formed(repo: Path, tmp_path: Path) -> None:
    """Nothing is loaded from anywhere, every tag is closed, and a phone is told to use its own width."""
    file = tmp_path / "wall.html"
    assert run("status", moved(repo, "vendored"), "--html", file).exit_code == 0
    text = file.read_text(encoding="utf-8")
    reader = Reader(text)
    assert reader.open == []
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in reader.tags}
    assert not re.search(r"https?:|url\(|@import|src=", text)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in reader.tags
    assert "mirasol-pytorch" in reader.articles[0]
    assert str(tmp_path) not in text  # a wall needs no path of anybody's machine


def test_the_page_shows_what_is_wrong_first() -> None:
    """With a sign beside the colour, and the way that each project has come."""
    text = page.page(
        [
            project(name="fine", stage="core"),
            project(name="edited", stage="vendored", tone="look", edits=("a/b.py",)),
            project(name="broken", stage="package", tone="bad", note="run `adapters rollback`"),
        ],
        "1.0",
        "2026-01-02T03:04:05+00:00",
    )
    reader = Reader(text)
    names = [next(name for name in ("fine", "edited", "broken") if name in article) for article in reader.articles]
    assert names == ["broken", "edited", "fine"]
    assert [sign in article for sign, article in zip("▲◐●", reader.articles, strict=True)] == [True] * 3
    assert "3 projects: 1 with something wrong, 1 worth a look" in text
    assert "<code>adapters rollback</code>" in text
    steps = [dict(attributes) for tag, attributes in reader.tags if tag == "li" and "class" in attributes]
    assert [step["class"] for step in steps[:4]] == ["past", "past", "here", ""]
    assert [step.get("aria-current") for step in steps[:4]] == [None, None, "step", None]


def test_names_cannot_break_the_page() -> None:
    """Whatever a folder, a file or a note is called, it is text."""
    nasty = '<script>alert("x")</script>&`<b>`$headline'
    said = project(name=nasty, stage="core", state=nasty, note=nasty, adapter=nasty, copy=nasty, edits=(nasty,))
    text = page.page([said], nasty, nasty)
    reader = Reader(text)
    assert reader.open == []
    assert not {"script", "b"} & {tag for tag, _ in reader.tags[reader.tags.index(("article", {"class": "good"})) :]}
    assert nasty in reader.articles[0]


def test_every_colour_can_be_read_on_its_ground() -> None:
    """Text on paper and on cards, in light and in dark: at least 4.5 to 1."""
    style = Path(page.__file__).with_name("overview.html").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    )
    for colours in (light, dark):
        for ground in ("paper", "card"):
            for ink in ("ink", "quiet", "good", "look", "bad"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def contrast(one: str, other: str) -> float:
    """As WCAG has it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_a_page_that_cannot_be_written_is_refused(repo: Path, tmp_path: Path) -> None:
    """With the folder's name."""
    result = run("status", repo, "--html", tmp_path / "nowhere/wall.html")
    assert (result.exit_code, "cannot be written to" in result.output) == (1, True)


def test_the_page_replaces_an_older_one_in_one_step(repo: Path, tmp_path: Path) -> None:
    """And leaves nothing else behind."""
    file = tmp_path / "wall/index.html"
    file.parent.mkdir()
    file.write_text("old")
    run("status", repo, "--html", file)
    assert list(file.parent.iterdir()) == [file]
    edit(file, "Where every project stands", "")
