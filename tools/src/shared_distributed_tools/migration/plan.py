# SPDX-License-Identifier: MIT
"""The plan: every site, what it becomes at each stage, what needs a person, and what is worth a look. Reads only.

Beside the sites of the copy's names it lists the lines that only change because sizes become a tuple.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from .fingerprints import Variant
from .hidden import Remark
from .judge import Verdict, judge, span_of
from .rewrite import rewrite
from .risks import Risk, find_risks
from .sites import Site, Use
from .standing import CORE_STAGE, PACKAGE, VENDORED, Standing, stand
from .tree import SourceTree

UNCHANGED, BY_HAND = "unchanged", "by hand"


@dataclass(frozen=True)
class Planned:
    """A site, and what it becomes."""

    site: Site
    core: str  # its line, or lines, as `migrate --to core` writes them; "by hand" where it does not

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        becomes = {VENDORED: UNCHANGED, PACKAGE: UNCHANGED, CORE_STAGE: self.core}
        return {**self.site._asdict(), "becomes": becomes}


@dataclass(frozen=True)
class Plan:
    """Everything that `adapters plan` says."""

    standing: Standing
    planned: list[Planned] = field(default_factory=list)
    by_hand: list[Remark] = field(default_factory=list)
    risks: list[Risk] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)


def make_plan(repo: Path, path: str | None, known: Sequence[Variant] = ()) -> Plan:
    """Look at a repo. RefusalError where there is nothing to plan for."""
    tree = SourceTree(repo)
    standing = stand(repo, tree, path, known)
    if standing.adapter is None or standing.record.pending is not None:
        standing.ready()
    assert standing.adapter is not None
    verdict = judge(tree, standing.copy, standing.adapter)
    is_inlined = bool(standing.problem)  # then the copy's own file has its call sites
    uses = [use for use in verdict.uses if is_inlined or use.source.path != standing.copy]
    return Plan(
        standing,
        [Planned(use.site, BY_HAND) for use in uses] if is_inlined else _planned(tree, verdict, uses),
        verdict.by_hand,
        find_risks(uses, standing.adapter),
        tree.broken(),
    )


def _planned(tree: SourceTree, verdict: Verdict, uses: list[Use]) -> list[Planned]:
    by_hand = {(remark.path, remark.line) for remark in verdict.by_hand}
    planned = []
    for source, group in groupby(uses, key=lambda use: use.source):
        path = source.path
        after = _lines_after(tree.contents[path], path, verdict) if path in verdict.edits else {}
        seen: set[int] = set()
        for use in group:
            span = span_of(source, use.node)
            lines = range(span.line, span.end_line + 1)
            seen |= set(lines)
            new = "\n".join(after[line] for line in lines if line in after) or UNCHANGED
            planned.append(Planned(use.site, BY_HAND if any((path, line) in by_hand for line in lines) else new))
        for line in set(after) - seen:
            planned.append(Planned(Site(path, line, "sizes", "", source.line(line)), after[line]))
    return sorted(planned, key=lambda one: (one.site.path, one.site.line))


def _lines_after(content: bytes, path: str, verdict: Verdict) -> dict[int, str]:
    """What each changed line of a file becomes."""
    before = content.decode(errors="replace").splitlines()
    new = rewrite(path, content, verdict.edits[path]).decode(errors="replace").splitlines()
    changed: dict[int, str] = {}
    for tag, start, end, new_start, new_end in difflib.SequenceMatcher(None, before, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for offset, line in enumerate(range(start, end)):
            same_length = end - start == new_end - new_start
            lines = new[new_start + offset : new_start + offset + 1] if same_length else new[new_start:new_end]
            changed[line + 1] = "\n".join(text.strip() for text in lines)
    return changed
