# SPDX-License-Identifier: MIT
"""All of it: every case played by the old file and by the adapter, every pair of outcomes judged."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, get_args

from ..catalog import Adapter
from ..errors import ToolError
from ..ranks import HUNG, Deadlines, RankError, World, WorldFailure, preload
from ..render import render
from ..render.sources import version
from ..repo.tree import Tree
from ..scan.survey import find_copy
from ..terminal import Report
from .cases import Case, Kind, generate
from .load import Description
from .play import play, start
from .verdict import Finding, Outcome, Verdict, judge

HANGS = 3  # of one function at one world size: the rest is taken for hung as well, or a run would have no end
# the parent ends ranks that wait for each other: all have the same work, so the others are done soon after the first
DEADLINES = Deadlines(collective=600.0, case=30.0, kill=30.0, after_first=5.0)
_LOADING = Deadlines(collective=600.0, case=120.0, kill=120.0)
# what ranks import, but for a user's code; the last is what a first backward imports
PRELOADED = (f"{__package__}.play", "einops", "torch.fx.experimental.symbolic_shapes")


class Ranks(World):
    """A world whose ranks have a file loaded; in a process group unless a case is to make it."""

    def __init__(self, file: Path, size: int, *, joined: bool, deadlines: Deadlines = DEADLINES) -> None:
        preload(*PRELOADED)
        super().__init__(size, join=False, deadlines=_LOADING)
        try:
            self.description: Description = self.run(start, str(file.resolve()), joined)[0]
        except WorldFailure as failure:
            errors = [answer for answer in failure.answers.values() if isinstance(answer, RankError)]
            problem = f"{errors[0].type}: {errors[0].message}" if errors else f"the process {failure.end}"
            msg = (
                f"{file} cannot be loaded: {problem}. Run this where the file's project runs, with all that it imports"
            )
            raise ToolError(msg) from failure
        self.deadlines = deadlines

    def ask(self, case: Case) -> Outcome:
        """What the ranks observe of a case. Ranks that crashed or hung are not to be asked again."""
        try:
            return Outcome(tuple(self.run(play, case)))
        except WorldFailure as failure:
            return Outcome(tuple(failure.answers.get(rank) for rank in range(self.size)), failure.end)


class Comparison(NamedTuple):
    """What a run found."""

    file: str
    adapter: str
    adapter_version: str
    world_sizes: list[int]
    undefined_and_known: list[str]  # names that the old file does not define, supplied
    imported_from_absent_modules: list[str]  # the same, imported from what cannot be imported here
    undefined_and_unknown: list[str]
    only_in_adapter: list[str]  # so not compared
    edited_definitions: dict[str, str]  # those that are not the original's, and how they differ
    findings: list[Finding]

    def counts(self, function: str | None = None) -> dict[str, int]:
        """How many cases ended how, of one function or of all."""
        ends = Counter(f.verdict for f in self.findings if function in (None, f.case.function))
        return {verdict: ends[verdict] for verdict in get_args(Verdict)}

    @property
    def functions(self) -> dict[str, dict[str, int]]:
        """What was compared, with its counts."""
        return {name: self.counts(name) for name in dict.fromkeys(f.case.function for f in self.findings)}

    def as_json(self) -> dict[str, Any]:
        """Everything but the cases that came out the same, which are counted."""
        findings = [
            {"function": f.case.function, "world_size": f.case.world, **f._asdict(), "case": f.case.title}
            for f in self.findings
            if f.verdict != "same"
        ]
        return {**self._asdict(), "counts": self.counts(), "functions": self.functions, "findings": findings}


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
    old = _described(file)
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        ours = Path(folder) / f"{adapter.module}.py"
        ours.write_text(render(adapter.name), encoding="utf-8")
        # the contract says what is public: the file has no `__all__`, and imports names of its own
        new = {name: kind for name, kind in _described(ours).api.items() if name in adapter.api}
        kinds = {name: kind for name, kind in old.api.items() if name in new}
        if not kinds:
            msg = f"{file} has none of {adapter.name}'s names ({', '.join(new)}); give the file that it replaces"
            raise ToolError(msg)
        # the adapter may sum gradients beyond the old file; but a module where it has a Function cannot be called as
        # one: that they differ in kind says it all
        alike = {name: kind for name, kind in kinds.items() if new[name] in (kind, f"summing {kind}")}
        cases = [Case(name, kind, 0) for name, kind in kinds.items() if name not in alike] + choose(alike, worlds)
        findings: list[Finding] = []
        done = 0
        for world, batch in ((world, list(group)) for world, group in groupby(cases, key=lambda case: case.world)):
            outcomes: dict[str, list[Outcome]] = {"old file": [], "adapter": []}
            for (who, found), path in zip(outcomes.items(), (file, ours), strict=True):
                for outcome in play_all(path, world, batch, deadlines):
                    found.append(outcome)
                    done += 1
                    progress(done, 2 * len(cases), f"{who}, {f'world size {world}' if world else 'no group'}")
            findings += [judge(*each, adapter.alone) for each in zip(batch, *outcomes.values(), strict=True)]
    return Comparison(
        str(file),
        adapter.name,
        version(),
        sorted(set(worlds)),
        *old[1:],
        only_in_adapter=[name for name in new if name not in old.api],
        edited_definitions=_edited(file, adapter),
        findings=findings,
    )


def _edited(file: Path, adapter: Adapter) -> dict[str, str]:
    copy = find_copy(Tree(file), file.name)
    differences = copy.differences if copy and copy.adapter == adapter.name else ()
    return {one.name: one.detail for one in differences if one.how == "changed"}


def _described(file: Path) -> Description:
    with Ranks(file, 1, joined=False) as alone:
        return alone.description


def play_all(file: Path, world: int, cases: list[Case], deadlines: Deadlines = DEADLINES) -> Iterator[Outcome]:
    """One outcome a case. Ranks are kept for as long as they are in step; then there are new ones."""
    size = max(world, 1)

    def started(case: Case) -> Ranks:
        return Ranks(file, size, joined=world > 0 and not case.late, deadlines=deadlines)

    ranks: Ranks | None = None
    hangs: Counter[str] = Counter()
    try:
        for case in cases:
            if hangs[case.function] >= HANGS:
                yield Outcome((None,) * size, HUNG)
                continue
            if ranks is not None and case.alone:
                ranks.kill()
                ranks = None
            is_new = ranks is None
            ranks = ranks or started(case)
            outcome = ranks.ask(case)
            if outcome.broken and not is_new:  # an earlier case may have damaged memory: this one is asked again
                ranks.kill()
                ranks = started(case)
                outcome = ranks.ask(case)
            if case.alone or outcome.broken or (world > 1 and outcome.raised):  # some may still wait for who raised
                ranks.kill()
                ranks = None
            hangs[case.function] += outcome.broken == HUNG
            yield outcome
    finally:
        if ranks is not None:
            ranks.kill()
