# SPDX-License-Identifier: MIT
"""The overview as one HTML page that needs nothing else: no script, no font, no address."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from .overview import BAD, GOOD, LOOK, Project
from .standing import STAGES

_TEMPLATE = Path(__file__).with_name("overview.html")
_SIGNS = {BAD: "▲", LOOK: "◐", GOOD: "●"}  # beside the colour, for those who do not see it


def page(projects: Sequence[Project], version: str, when: str) -> str:
    """The page for some projects: what is wrong first, then in the order given."""
    by_tone = {tone: [project for project in projects if project.tone == tone] for tone in _SIGNS}
    many = f"{len(projects)} project{'' if len(projects) == 1 else 's'}"
    headline = f"{many}: {len(by_tone[BAD])} with something wrong, {len(by_tone[LOOK])} worth a look"
    stages = [project.stage for project in projects]
    counts = "\n".join(f"<li><b>{stages.count(stage)}</b>{stage}</li>" for stage in STAGES)
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        headline=escape(headline),
        counts=counts,
        projects="\n".join(_article(project) for group in by_tone.values() for project in group),
        when=_time(when),
        version=escape(version),
    )


def _article(project: Project) -> str:
    facts = ""
    if project.copy:
        rows = (
            ("adapter", escape(project.adapter) or "none covers it"),
            ("file", _path(project.copy)),
            ("edits", "<br>".join(map(_path, project.edits)) or "none"),
            ("parity", _parity(project)),
        )
        facts = "<dl>" + "".join(f"<dt>{label}</dt><dd>{value}</dd>" for label, value in rows) + "</dl>"
    note = re.sub("`([^`]+)`", r"<code>\1</code>", escape(project.note))
    return (
        f'<article class="{project.tone}"><h2>{escape(project.name)}</h2>{_way(project.stage)}'
        f'<div><p class="state">{_SIGNS[project.tone]} {escape(project.state)}</p><p class="note">{note}</p></div>'
        f"{facts}</article>"
    )


def _path(path: str) -> str:
    """A path that may be broken after a slash, and not in the middle of a word."""
    return f"<code>{escape(path).replace('/', '/<wbr>')}</code>"


def _parity(project: Project) -> str:
    parity = project.parity
    if parity is None:
        return "not run"
    sign = f"{_SIGNS[parity.tone]} {escape(parity.result)}"
    return f'<span class="{parity.tone} state">{sign}</span> on {_time(parity.when)}'


def _time(when: str) -> str:
    return f'<time datetime="{escape(when)}">{escape(when.partition("T")[0])}</time>'


def _way(stage: str) -> str:
    """The four stages, as far as the project has come."""
    if not stage:
        return ""
    reached = STAGES.index(stage)
    words = ["past"] * reached + ["here"] + [""] * (len(STAGES) - reached - 1)
    steps = zip(STAGES, words, strict=True)
    marks = "".join(
        f'<li class="{word}"{" aria-current=step" if word == "here" else ""}>{name}</li>' for name, word in steps
    )
    return f'<ol class="way">{marks}</ol>'
