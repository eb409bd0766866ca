# SPDX-License-Identifier: MIT
"""A run: every case played by the old file and by the adapter, every pair judged."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ..catalog import Adapter
from ..errors import ToolError
from ..processes import HUNG
from ..terminal import Report
from .cases import SIGNATURE, Case, Kind, generate
from .loading import Subject
from .ranks import Deadlines, NotLoadedError, Ranks
from .seen import Outcome
from .sides import Side, adapter_side, old_side
from .verdict import Finding, Verdict, judge

HANGS = 3  # of one function at one world size: the rest is taken for hung as well, or a run would have no end


@dataclass(frozen=True)
class Comparison:
    """What a run found."""

    file: Path
    adapter: str
    worlds: tuple[int, ...]
    old: Side
    new: Side
    findings: tuple[Finding, ...]

    @property
    def functions(self) -> list[str]:
        """What was compared."""
        return list(dict.fromkeys(finding.case.function for finding in self.findings))

    @property
    def only_new(self) -> list[str]:
        """Names of the adapter that the old file does not have: not compared."""
        return [name for name in self.new.description.api if name not in self.old.description.api]

    @property
    def only_old(self) -> list[str]:
        """Names that the old file defines and the adapter does not have: whoever imports them will miss them."""
        return [name for name in self.old.description.own if name not in self.new.description.api]

    def counts(self, function: str | None = None) -> dict[str, int]:
        """How many cases ended how, of one function or of all."""
        ends = Counter(f.verdict for f in self.findings if function in (None, f.case.function))
        return {verdict.value: ends[verdict] for verdict in Verdict}


def compare(
    file: Path,
    adapter: Adapter,
    worlds: Sequence[int],
    *,
    choose: Callable[[Mapping[str, Kind], Sequence[int]], list[Case]] = generate,
    progress: Report = lambda _done, _total, _what: None,
    deadlines: Deadlines | None = None,
) -> Comparison:
    """Play the cases that `choose` makes of the functions that both have. The file runs in child processes only."""
    deadlines = deadlines or Deadlines()
    old = old_side(file, deadlines)
    with adapter_side(adapter, deadlines) as new:
        both = {name: kind for name, kind in new.description.api.items() if name in old.description.api}
        if not both:
            names = ", ".join(new.description.api)
            msg = f"{file} has none of {adapter.name}'s names ({names}); give the file that this adapter replaces"
            raise ToolError(msg)
        # a module where the adapter has a Function cannot be called as one: that they differ in kind says it all
        alike = {name: kind for name, kind in both.items() if old.description.api[name] == kind}
        cases = [Case(name, kind, 0, variant=SIGNATURE) for name, kind in both.items() if name not in alike]
        cases += choose(alike, worlds)
        findings: list[Finding] = []
        played = 0
        for world, batch in ((world, list(group)) for world, group in groupby(cases, key=lambda case: case.world)):
            outcomes: list[list[Outcome]] = []
            for side, who in ((old, "old file"), (new, "adapter")):
                outcomes.append([])
                for outcome in _play(side.subject, world, batch, deadlines):
                    outcomes[-1].append(outcome)
                    played += 1
                    progress(played, 2 * len(cases), f"{who}, {f'world size {world}' if world else 'no group'}")
            for case, was, now in zip(batch, *outcomes, strict=True):
                findings.append(judge(case, was, now, adapter.alone))
    return Comparison(file, adapter.name, tuple(sorted(set(worlds))), old, new, tuple(findings))


def _play(subject: Subject, world: int, cases: list[Case], deadlines: Deadlines) -> Iterator[Outcome]:
    """One outcome a case. Ranks are kept for as long as they are in step; then there are new ones."""

    def start(*, joined: bool) -> Ranks:
        try:
            return Ranks(subject, max(world, 1), joined=joined, deadlines=deadlines)
        except NotLoadedError as error:
            msg = f"{subject.what} was loaded before, but not on {max(world, 1)} ranks in a process group: {error}"
            raise ToolError(msg) from error

    ranks: Ranks | None = None
    hangs: Counter[str] = Counter()
    try:
        for case in cases:
            if hangs[case.function] >= HANGS:
                yield Outcome((None,) * max(world, 1), HUNG)
                continue
            if case.alone:
                with start(joined=not case.late) as own:
                    yield own.ask(case)
                continue
            is_new = ranks is None
            ranks = ranks or start(joined=world > 0)
            outcome = ranks.ask(case)
            if outcome.broken and not is_new:  # an earlier case may have damaged memory: this one is asked again
                ranks.end()
                ranks = start(joined=world > 0)
                outcome = ranks.ask(case)
            out_of_step = world > 1 and any(seen is not None and seen.raised for seen in outcome.by_rank)
            if outcome.broken or out_of_step:
                ranks.end()
                ranks = None
            hangs[case.function] += outcome.broken == HUNG
            yield outcome
    finally:
        if ranks is not None:
            ranks.end()
