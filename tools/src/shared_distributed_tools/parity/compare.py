# SPDX-License-Identifier: MIT
"""All of it: every case played by the old file and by the adapter, every pair of outcomes judged."""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from ..catalog import Adapter
from ..errors import ToolError
from ..ranks import HUNG, Deadlines, RankError, World, WorldFailure, preload
from ..render import render, rendered_parts
from ..terminal import Report
from .cases import SIGNATURE, Case, Kind, generate
from .load import Description, Subject
from .observed import Outcome
from .play import play, start
from .verdict import Finding, Verdict, judge

HANGS = 3  # of one function at one world size: the rest is taken for hung as well, or a run would have no end
# the parent ends ranks that wait for each other: all have the same work, so the others are done soon after the first
DEADLINES = Deadlines(collective=600.0, case=30.0, kill=30.0, after_first=5.0)
_LOADING = Deadlines(collective=600.0, case=120.0, kill=120.0)
# what ranks import, but for a user's code; the last is what a first backward imports
PRELOADED = (f"{__package__}.play", "einops", "torch.fx.experimental.symbolic_shapes")


class NotLoadedError(ToolError):
    """A subject could not be loaded in a process of its own."""


class Ranks(World):
    """A world whose ranks have a subject loaded; in a process group unless a case is to make it."""

    def __init__(self, subject: Subject, size: int, *, joined: bool, deadlines: Deadlines = DEADLINES) -> None:
        preload(*PRELOADED)
        super().__init__(size, join=False, deadlines=_LOADING)
        try:
            self.description: Description = self.run(start, subject, joined)[0]
        except WorldFailure as failure:
            errors = [answer for answer in failure.answers.values() if isinstance(answer, RankError)]
            problem = f"{errors[0].type}: {errors[0].message}" if errors else f"the process {failure.end}"
            raise NotLoadedError(problem) from failure
        self.deadlines = deadlines

    def ask(self, case: Case) -> Outcome:
        """What the ranks observe of a case. Ranks that crashed or hung are not to be asked again."""
        try:
            return Outcome(tuple(self.run(play, case)))
        except WorldFailure as failure:
            return Outcome(tuple(failure.answers.get(rank) for rank in range(self.size)), failure.end)


class Side(NamedTuple):
    """What to load on ranks, what is in it, and which one it is."""

    subject: Subject
    description: Description
    version: str  # of the adapter; the old file's is its sha256


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
    deadlines: Deadlines = DEADLINES,
) -> Comparison:
    """Play the cases that `choose` makes of the functions that both have. The file runs in child processes only."""
    old = old_side(file)
    with adapter_side(adapter) as new:
        kinds = {name: kind for name, kind in old.description.api.items() if name in new.description.api}
        if not kinds:
            names = ", ".join(new.description.api)
            msg = f"{file} has none of {adapter.name}'s names ({names}); give the file that this adapter replaces"
            raise ToolError(msg)
        # a module where the adapter has a Function cannot be called as one: that they differ in kind says it all
        alike = {name: kind for name, kind in kinds.items() if _does_for(new.description.api[name], kind)}
        cases = [Case(name, kind, 0, variant=SIGNATURE) for name, kind in kinds.items() if name not in alike]
        cases += choose(alike, worlds)
        findings: list[Finding] = []
        played = 0
        for world, batch in ((world, list(group)) for world, group in groupby(cases, key=lambda case: case.world)):
            outcomes: list[list[Outcome]] = []
            for side, who in ((old, "old file"), (new, "adapter")):
                outcomes.append([])
                for outcome in play_all(side.subject, world, batch, deadlines):
                    outcomes[-1].append(outcome)
                    played += 1
                    progress(played, 2 * len(cases), f"{who}, {f'world size {world}' if world else 'no group'}")
            for case, was, now in zip(batch, *outcomes, strict=True):
                findings.append(judge(case, was, now, adapter.alone))
    return Comparison(file, adapter.name, tuple(sorted(set(worlds))), old, new, tuple(findings))


def _does_for(new: Kind, old: Kind) -> bool:
    """Whether what the adapter has can be called as what the old file has: it may sum gradients beyond that."""
    return new in (old, f"summing {old}")


def play_all(subject: Subject, world: int, cases: list[Case], deadlines: Deadlines = DEADLINES) -> Iterator[Outcome]:
    """One outcome a case. Ranks are kept for as long as they are in step; then there are new ones."""
    size = max(world, 1)

    def started(*, joined: bool) -> Ranks:
        try:
            return Ranks(subject, size, joined=joined, deadlines=deadlines)
        except NotLoadedError as error:
            msg = f"{subject.what} was loaded before, but not on {size} ranks in a process group: {error}"
            raise ToolError(msg) from error

    ranks: Ranks | None = None
    hangs: Counter[str] = Counter()
    try:
        for case in cases:
            if hangs[case.function] >= HANGS:
                yield Outcome((None,) * size, HUNG)
                continue
            if case.alone:
                with started(joined=not case.late) as own:
                    yield own.ask(case)
                continue
            is_new = ranks is None
            ranks = ranks or started(joined=world > 0)
            outcome = ranks.ask(case)
            if outcome.broken and not is_new:  # an earlier case may have damaged memory: this one is asked again
                ranks.kill()
                ranks = started(joined=world > 0)
                outcome = ranks.ask(case)
            is_out_of_step = world > 1 and any(one is not None and one.raised for one in outcome.by_rank)
            if outcome.broken or is_out_of_step:
                ranks.kill()
                ranks = None
            hangs[case.function] += outcome.broken == HUNG
            yield outcome
    finally:
        if ranks is not None:
            ranks.kill()


# ------------------------------------------------------------------ the two sides


def old_side(file: Path) -> Side:
    """The user's file, loaded once in a process of its own. ToolError where that cannot be done."""
    try:
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        subject = Subject("file", str(file.resolve()))
        return Side(subject, _description(subject), sha256)
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror}; give the old distributed.py"
        raise ToolError(msg) from error
    except NotLoadedError as error:
        msg = f"{file} cannot be loaded: {error}. Run this where the file's project runs, with all that it imports"
        raise ToolError(msg) from error


@contextmanager
def adapter_side(adapter: Adapter) -> Iterator[Side]:
    """The adapter as `adapters vendor` writes it."""
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        file = Path(folder) / f"{adapter.module}.py"
        file.write_text(render(adapter.name), encoding="utf-8")
        subject = Subject("rendered", str(file))
        description = _description(subject)
        # the contract says what is public: the file has no `__all__`, and imports names of its own
        api = {name: kind for name, kind in description.api.items() if name in adapter.api}
        yield Side(subject, description._replace(api=api), rendered_parts(adapter.name)[0].version)


def _description(subject: Subject) -> Description:
    with Ranks(subject, 1, joined=False) as alone:
        return alone.description
