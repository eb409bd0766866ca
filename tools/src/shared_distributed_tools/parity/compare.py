# SPDX-License-Identifier: MIT
"""All of it: every case played by the old file and by the adapter, every pair of observations judged."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from ..catalog import Adapter
from ..errors import ToolError
from ..ranks import HUNG, Deadlines, RankError, World, WorldFailure, preload
from ..render import render
from ..render.sources import version
from ..repo.tree import Tree
from ..scan.fingerprint import known_originals
from ..scan.survey import find_copy
from ..terminal import Report
from .cases import Case, generate
from .load import describe
from .play import Observation, play
from .verdict import Finding, Verdict, judge

HANGS = 3  # of one function at one world size: the rest is taken for hung as well, or a run would have no end
# the parent ends ranks that wait for each other: all have the same work, so the others are done soon after the first
DEADLINES = Deadlines(collective=600.0, case=30.0, after_first=5.0)
# what ranks import, but for a user's code; the last is what a first backward imports
PRELOADED = (f"{__package__}.play", "einops", "torch.fx.experimental.symbolic_shapes")


def compare(file: Path, adapter: Adapter, worlds: Sequence[int], progress: Report) -> dict[str, Any]:
    """Play the cases of the functions that both have, in child processes only; returns the report that `--json` prints.

    Cases that come out the same are only counted.
    """
    old, undefined = _described(file)
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        ours = Path(folder) / f"{adapter.module}.py"
        ours.write_text(render(adapter.name), encoding="utf-8")
        # the contract says what is public: a file has names of its own, and imported ones
        new = {name: kind for name, kind in _described(ours)[0].items() if name in adapter.api}
        kinds = {name: kind for name, kind in old.items() if name in new}
        if not kinds:
            msg = f"{file} has none of {adapter.name}'s names ({', '.join(new)}); give the file that it replaces"
            raise ToolError(msg)
        # the adapter may sum gradients beyond the old file; but a module where it has a Function cannot be called as
        # one: that they differ in kind says it all
        alike = {name: kind for name, kind in kinds.items() if new[name] in (kind, f"summing {kind}")}
        cases = [Case(name, kind, 0) for name, kind in kinds.items() if name not in alike] + generate(alike, worlds)
        observed: list[list[Observation]] = []
        for who, path in (("old file", file), ("adapter", ours)):
            for case, by_rank in zip(cases, play_all(path, cases), strict=True):
                observed.append(by_rank)
                progress(len(observed), 2 * len(cases), f"{who}, {case.function}")
    triples = zip(cases, observed[: len(cases)], observed[len(cases) :], strict=True)
    findings = [judge(case, was, now, adapter.alone) for case, was, now in triples]
    copy = find_copy(Tree(file), file.name)
    differences = copy.differences if copy and copy.adapter == adapter.name else ()
    return {
        "file": str(file),
        "adapter": adapter.name,
        "adapter_version": version(),
        "world_sizes": sorted(set(worlds)),
        **undefined,
        "only_in_adapter": [name for name in new if name not in old],  # so not compared
        # what whoever imports it from the old file would miss
        "lacking": [
            name for name in known_originals().get(adapter.name, ()) if name in old and name not in adapter.api
        ],
        # those that are not the original's, and how they differ
        "edited_definitions": {one.name: one.detail for one in differences if one.how == "changed"},
        "counts": _counts(findings),
        "functions": {name: _counts([one for one in findings if one.case.function == name]) for name in kinds},
        "findings": [
            {"function": one.case.function, "world_size": one.case.world, **one._asdict(), "case": one.case.title}
            for one in findings
            if one.verdict != "same"
        ],
    }


def _counts(findings: list[Finding]) -> dict[str, int]:
    """How many cases ended how."""
    counts = Counter(finding.verdict for finding in findings)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


class Ranks(World):
    """Ranks that load a file, then join the process group. After a crash or a hang, the next case gets new ones."""

    def __init__(self, file: Path, size: int, *, join: bool) -> None:
        preload(*PRELOADED)
        self.file, self.path = file, str(file.resolve())
        super().__init__(size, join=join, deadlines=DEADLINES, prepare=partial(describe, self.path))

    def _start(self) -> None:
        try:
            super()._start()
        except WorldFailure as failure:
            errors = [answer for answer in failure.answers.values() if isinstance(answer, RankError)]
            problem = f"{errors[0].type}: {errors[0].message}" if errors else f"the process {failure.end}"
            hint = "Run this where the file's project runs, with all that it imports; its package's __init__ is not run"
            msg = f"{self.file} cannot be loaded: {problem}. {hint}"
            raise ToolError(msg) from failure

    def ask(self, case: Case) -> list[Observation]:
        """What each rank observes of a case."""
        try:
            return self.run(play, self.path, case)
        except WorldFailure as failure:
            raised = [answer.raised[0] for answer in failure.answers.values() if answer.raised]
            message = f"after another rank raised {raised[0]}" if raised and failure.end == HUNG else ""
            return [Observation({}, broken=failure.end, message=message)] * self.size


def _described(file: Path) -> Any:
    with Ranks(file, 1, join=False) as alone:
        return alone.run(describe, alone.path)[0]


def play_all(file: Path, cases: Sequence[Case]) -> Iterator[list[Observation]]:
    """What the ranks observe, case by case. Ranks are kept for as long as they are in step; then there are new ones."""
    hangs: Counter[tuple[str, int]] = Counter()
    for world, batch in groupby(cases, key=lambda case: case.world):
        with Ranks(file, max(world, 1), join=world > 0) as ranks:
            for case in batch:
                if hangs[case.function, world] >= HANGS:
                    yield [Observation({}, broken=HUNG)] * ranks.size
                    continue
                if case.alone:
                    ranks.close()
                ranks.join = world > 0 and not case.late  # takes effect at their next start
                is_new = not ranks.processes
                observed = ranks.ask(case)
                if observed[0].broken and not is_new:  # an earlier case may have damaged memory: try new ranks
                    observed = ranks.ask(case)
                if case.alone or (world > 1 and any(one.raised for one in observed)):  # others may still wait
                    ranks.close()
                hangs[case.function, world] += observed[0].broken == HUNG
                yield observed
