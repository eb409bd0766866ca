# SPDX-License-Identifier: MIT
"""The proof of equality, proven: it sees every planted difference, sees none where there is none, and survives."""

import importlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result
from torch import nn

from downstream.old_copies import RIGHT, WITHOUT_NAMES, copy_with
from shared_distributed_tools.catalog import ADAPTERS, adapter_named
from shared_distributed_tools.cli import main
from shared_distributed_tools.errors import ToolError
from shared_distributed_tools.parity import compare as compare_module
from shared_distributed_tools.parity import load
from shared_distributed_tools.parity.cases import (
    ONE_NEEDS_GRADIENT,
    OTHER_NDIM,
    OTHER_SHAPE,
    SIGNATURE,
    Case,
    Kind,
    Upstream,
    every_three,
    generate,
)
from shared_distributed_tools.parity.compare import DEADLINES, Comparison, Ranks, compare
from shared_distributed_tools.parity.load import Loaded, Subject
from shared_distributed_tools.parity.observed import Observation, Outcome, Raised
from shared_distributed_tools.parity.play import signature
from shared_distributed_tools.parity.truth import truth
from shared_distributed_tools.parity.verdict import Verdict, is_same_error
from shared_distributed_tools.ranks import CRASHED, HUNG
from shared_distributed_tools.render import render

Keep = Callable[[Case], bool]

GATHERS = ("AllGather", "AllGatherFunction", "all_gather_variable_dim")
SUMMING = ("AllGather", "AllGatherFunction")


def in_everyday_use(case: Case) -> bool:
    """Calls that nothing is wrong with, and no second derivative of a sum: the right copy cannot do that."""
    return not (
        case.may_raise_only or case.variant == ONE_NEEDS_GRADIENT or (case.upstream == "second" and case.summed)
    )


def a_few(case: Case) -> bool:
    """Some dozens of cases that touch every part, without a group and on two ranks."""
    usual = case.dtype == "float32" and case.dim in (0, 1) and case.given != "list" and not case.strided
    return in_everyday_use(case) and usual and not case.late and case.upstream in ("none", "ranked")


def no_group(case: Case) -> bool:
    return case.world == 0


def compared(folder: Path, text: str, keep: Keep | list[Case] = a_few, **options: Any) -> Comparison:
    """A musiclm-like file, on two ranks: those of the usual cases that are wanted, or others."""
    file = folder / "distributed.py"
    file.write_text(text)
    return compare(file, adapter_named("musiclm"), [2], choose=chosen(keep), **options)


def chosen(keep: Keep | list[Case]) -> Callable[[Mapping[str, Kind], Sequence[int]], list[Case]]:
    if isinstance(keep, list):
        return lambda _api, _worlds: keep
    return lambda api, worlds: [case for case in generate(api, worlds) if keep(case)]


def different(found: Comparison) -> set[tuple[str, str]]:
    """What differs: function and part."""
    return {(f.case.function, f.difference.part) for f in found.findings if f.verdict is Verdict.DIFFERENT}


def better(found: Comparison) -> set[tuple[str, str]]:
    """Where the adapter is better: function, and what the old file gave."""
    return {(f.case.function, f.difference.old) for f in found.findings if f.verdict is Verdict.BETTER}


def api_of(adapter: str) -> dict[str, Kind]:
    return Loaded(importlib.import_module(f"{adapter.replace('-', '_')}_distributed")).describe().api


def rendered(folder: Path, adapter: str) -> Subject:
    """An adapter's file, to be loaded on ranks."""
    file = folder / f"{adapter_named(adapter).module}.py"
    file.write_text(render(adapter))
    return Subject("rendered", str(file))


def adapters(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


# ------------------------------------------------------------------ what it sees


def test_a_right_copy_is_the_same_everywhere(tmp_path: Path) -> None:
    """Hundreds of cases: dims, dtypes, layouts, sizes given or not, every kind of upstream gradient, no group."""
    found = compared(tmp_path, RIGHT, lambda case: in_everyday_use(case) and case.function != "AllGatherFunction")
    assert (different(found), better(found)) == (set(), set())
    assert found.counts()["same"] > 300
    assert found.functions == ["AllGather", "all_gather_same_dim", "all_gather_variable_dim"]  # its Function is in it
    assert (found.only_new, found.only_old) == ([], ["lengthen"])


NEED_A_GROUP = ("AllGatherFunction", "all_gather_same_dim", "all_gather_variable_dim")
PLANTED: dict[str, set[tuple[str, str]]] = {
    "a wrong slice": {(name, "gradient") for name in SUMMING},
    "a mean instead of a sum": {(name, "gradient") for name in SUMMING},
    "a zero gradient": {(name, "gradient") for name in SUMMING},
    "a swapped order": {(name, "output") for name in GATHERS},
    "sizes as a list": {("AllGather", "sizes")},
    "a different exception": {(name, "exception") for name in NEED_A_GROUP},
    "another message": {(name, "exception") for name in NEED_A_GROUP},
    "another default": {("all_gather_variable_dim", "signature")},
}


@pytest.mark.parametrize("edit", PLANTED)
def test_a_planted_difference_is_found(tmp_path: Path, edit: str) -> None:
    """In the functions that have it, in the part that has it, and nowhere else."""
    assert different(compared(tmp_path, copy_with(edit))) == PLANTED[edit]


def test_a_planted_difference_in_what_is_remembered_is_found(tmp_path: Path) -> None:
    """A module that asks at every call whether there is a process group, where the adapter asks when it is built."""
    found = compared(tmp_path, copy_with("an answer that is not remembered"), lambda case: case.late)
    assert different(found) == {("AllGather", "after")}


def test_a_difference_says_who_is_right(tmp_path: Path) -> None:
    """It comes with its case, its rank, both values, and what one process gives."""
    case = Case("AllGather", "summing module", 2, sizes=(3, 1), upstream="ranked", summed=True)
    found = compared(tmp_path, copy_with("a mean instead of a sum"), [case])
    (finding,) = found.findings
    old, new = finding.difference.old, finding.difference.new
    assert (finding.verdict, finding.right, finding.difference.rank) == (Verdict.DIFFERENT, "the adapter's", 0)
    assert finding.case.title == "2 ranks, sizes (3, 1), dim 0, float32, all_reduce_grads"
    assert old.startswith("float32 tensor (3, 3, 4), number ")
    assert float(new.rpartition(" ")[2]) == 2 * float(old.rpartition(" ")[2]) != 0


def test_two_exceptions_where_one_is_due_are_both_right(tmp_path: Path) -> None:
    """Ranks that disagree: whoever catches the old error misses the new one, and the report takes no side."""
    case = Case("all_gather_same_dim", "callable", 2, sizes=(2, 2), variant=OTHER_SHAPE)
    found = compared(tmp_path, copy_with("an error of its own"), [case])
    (finding,) = found.findings
    assert (finding.verdict, finding.right) == (Verdict.DIFFERENT, "")
    assert finding.difference.old == "KeyError in the call: 'always'"


def test_a_call_that_returned_and_is_refused_now_is_stricter_and_not_better(tmp_path: Path) -> None:
    """Ranks that disagree on the number of dims, of which the old file knows nothing: somebody may rely on it."""
    case = Case("all_gather_same_dim", "callable", 2, sizes=(2, 2), variant=OTHER_NDIM)
    found = compared(tmp_path, RIGHT, [case])
    (finding,) = found.findings
    assert (finding.verdict, finding.difference.old) == (Verdict.STRICTER, "returned")
    assert finding.difference.new.startswith("DisagreementError in the call")


def test_what_an_adapter_takes_beyond_its_original_is_no_difference() -> None:
    """`all_reduce_grads`, in signatures and as an attribute; where the original has it, it counts."""

    class Plain(nn.Module):
        def __init__(self, *, dim: int = 0) -> None: ...
        def forward(self, x: object) -> None: ...

    class Summing(nn.Module):
        def __init__(self, *, dim: int = 0, all_reduce_grads: bool = False) -> None: ...
        def forward(self, x: object) -> None: ...

    plain, summing = (Case("AllGather", kind, 0, variant=SIGNATURE) for kind in ("module", "summing module"))
    assert signature(Plain, plain) == signature(Summing, plain) == ["module", "(self, *, dim=0)", "(self, x)"]
    assert signature(Summing, summing) != signature(Plain, summing)
    assert compare_module._does_for("summing module", "module")
    assert not compare_module._does_for("module", "summing module")


def test_a_name_of_another_kind_is_different_and_not_called(tmp_path: Path) -> None:
    """A module where the adapter has a Function: whatever calling it would raise says nothing more."""
    file = tmp_path / "distributed.py"
    file.write_text(RIGHT)
    found = compare(file, adapter_named("spear-tts"), [2], choose=chosen(no_group))
    assert different(found) == {("AllGather", "signature")}
    assert found.counts("AllGather") == {"same": 0, "better": 0, "stricter": 0, "different": 1}
    assert found.only_new == ["all_gather"]


def test_an_exception_is_the_same_where_code_that_handles_it_still_does() -> None:
    """A subclass will do; of one class, messages must be alike but for numbers; and it must come at the same step."""
    old = Raised("the call", ("ValueError", "Exception"), "got 3 ranks")
    assert is_same_error(old, old._replace(message="got 17 ranks"))
    assert is_same_error(old, Raised("the call", ("BadInputError", "ValueError", "Exception"), "in other words"))
    assert not is_same_error(old, old._replace(message="got no ranks"))
    assert not is_same_error(old, Raised("the call", ("KeyError", "LookupError", "Exception"), "got 3 ranks"))
    assert not is_same_error(old, old._replace(step="the backward"))
    assert not is_same_error(Raised("the call", ("BadInputError", "ValueError", "Exception"), ""), old)


# ------------------------------------------------------------------ what is better


def test_names_that_are_not_defined_are_supplied_and_reported(tmp_path: Path) -> None:
    """What would be a NameError is better; with the names supplied all is the same."""
    found = compared(tmp_path, WITHOUT_NAMES)
    assert found.old.description.not_defined == ["exists", "pad_dim_to"]
    assert different(found) == set()
    assert {(name, "NameError: exists, pad_dim_to") for name in GATHERS} <= better(found)
    assert found.counts("all_gather_same_dim")["better"] == 0


def test_helpers_from_a_module_that_is_not_there_are_supplied(tmp_path: Path) -> None:
    """`from musiclm import exists` would need all of musiclm. That is no fault of the file's: the same."""
    found = compared(tmp_path, "from musiclm import exists, pad_dim_to\n" + WITHOUT_NAMES)
    assert found.old.description.not_importable == ["exists", "pad_dim_to"]
    assert found.old.description.not_defined == []
    assert found.counts() == {"same": len(found.findings), "better": 0, "stricter": 0, "different": 0}


def test_a_name_that_is_missing_at_import_is_supplied(tmp_path: Path) -> None:
    """A base class that nothing imports: no case would get as far as the call."""
    text = RIGHT.replace("from torch.autograd import Function\n", "")
    found = compared(tmp_path, text, lambda case: a_few(case) and case.world == 0)
    assert found.old.description.not_defined == ["Function"]
    assert found.counts() == {"same": 0, "better": len(found.findings), "stricter": 0, "different": 0}


def test_a_name_without_an_obvious_meaning_is_left_and_reported(tmp_path: Path) -> None:
    """It stays the NameError that it is."""
    case = Case("all_gather_variable_dim", "callable", 2, sizes=(3, 1))
    found = compared(tmp_path, RIGHT.replace("if sizes is None:", "if not is_given(sizes):"), [case])
    assert found.old.description.unknown == ["is_given"]
    assert better(found) == {(case.function, "NameError in the call: name 'is_given' is not defined")}


def test_every_name_in_the_table_means_something() -> None:
    """Each can be looked up, and its use is noted, unless the file imports it; Python's builtins are not noted."""
    for name in load.MEANINGS:
        found = load.Builtins()
        assert callable(found[name]) or hasattr(found[name], "__name__")
        assert found.used == {name}
    found = load.Builtins(frozenset({"exists"}))
    assert (found["exists"](0), found["len"]("ab"), found.used) == (True, 2, set())
    with pytest.raises(KeyError):
        found["is_given"]


@pytest.mark.parametrize(
    ("edit", "upstreams"),
    [
        ("a write to the incoming gradient", ["ranked", "transposed", "expanded"]),
        ("a write behind the incoming gradient", ["expanded"]),
    ],
)
def test_a_write_to_memory_of_others_is_better(tmp_path: Path, edit: str, upstreams: list[Upstream]) -> None:
    """The gradient is right, but the incoming one is overwritten, or what lies behind its one number."""
    summing = Case("AllGather", "summing module", 2, sizes=(3, 1), summed=True)
    found = compared(tmp_path, copy_with(edit), [replace(summing, upstream=each) for each in upstreams])
    assert {(f.verdict, f.difference.part) for f in found.findings} == {(Verdict.BETTER, "upstream gradient")}
    assert better(found) == {("AllGather", "overwritten")}


def test_an_error_where_the_adapter_gives_the_right_answer_is_better(tmp_path: Path) -> None:
    """Sizes in a list: the copy raises, as the originals do."""
    cases = [Case("all_gather_variable_dim", "callable", 2, sizes=sizes, given="list") for sizes in ((3, 1), (0, 0))]
    found = compared(tmp_path, copy_with("an error for sizes in a list"), cases)
    assert found.counts() == {"same": 0, "better": 2, "stricter": 0, "different": 0}
    assert better(found) == {(cases[0].function, "AttributeError in the call: 'list' object has no attribute 'to'")}


# ------------------------------------------------------------------ what it survives


@pytest.mark.parametrize(
    ("edit", "gave"),
    [
        ("an abort in the backward", CRASHED),
        ("an exit in the backward", "left with exit code 3"),
        ("a rank that never comes back", f"{HUNG}, after another rank raised OSError"),
    ],
)
def test_a_copy_that_takes_its_process_down_is_contained(tmp_path: Path, edit: str, gave: str) -> None:
    """It is a finding of that case; the next one is compared as ever."""
    plain = Case("AllGather", "summing module", 2, sizes=(3, 1), upstream="ranked")
    cases = [replace(plain, summed=True), plain]
    found = compared(tmp_path, copy_with(edit), cases, deadlines=DEADLINES._replace(after_first=3.0))
    assert [finding.verdict for finding in found.findings] == [Verdict.BETTER, Verdict.SAME]
    assert found.findings[0].difference.old == gave


def test_a_crash_without_a_group_is_contained(tmp_path: Path) -> None:
    """The next case gets a new process there too. No answer is right for all adapters, so that it is different."""
    gather = Case("all_gather_same_dim", "callable", 0, sizes=(3,))
    cases = [replace(gather, variant=SIGNATURE), gather, replace(gather, variant=SIGNATURE)]
    found = compared(tmp_path, copy_with("an abort without a group"), cases)
    assert [finding.verdict for finding in found.findings] == [Verdict.SAME, Verdict.DIFFERENT, Verdict.SAME]
    assert found.findings[1].difference.old == CRASHED


def test_a_rank_that_died_since_it_answered_is_a_crash(tmp_path: Path) -> None:
    """Memory that a case damaged may take its process down when nobody looks."""
    case = Case("all_gather_same_dim", "callable", 1, sizes=(3,))
    with Ranks(rendered(tmp_path, "musiclm"), 1, joined=True) as ranks:
        assert ranks.ask(case).broken == ""
        (process,) = ranks.processes
        assert process.pid is not None
        os.kill(process.pid, signal.SIGABRT)
        process.join(30)
        assert ranks.ask(case).broken == CRASHED


class Scripted:
    """Stands for Ranks: answers from a list, and remembers how many sets of ranks were started and ended."""

    answers: ClassVar[list[Outcome]] = []
    started = 0

    def __init__(self, *_args: Any, **_options: Any) -> None:
        type(self).started += 1

    def ask(self, _case: Case) -> Outcome:
        return type(self).answers.pop(0)

    def kill(self) -> None:
        pass


GOOD = Outcome((Observation({}), Observation({})))
SOME_CASES = [Case("AllGather", "module", 2, sizes=(3, 3), dim=dim) for dim in range(3)] * 2


def played(monkeypatch: pytest.MonkeyPatch, answers: list[Outcome]) -> tuple[list[Outcome], int]:
    monkeypatch.setattr(compare_module, "Ranks", Scripted)
    Scripted.answers, Scripted.started = answers, 0
    return list(compare_module.play_all(Subject("file", ""), 2, SOME_CASES)), Scripted.started


def test_after_some_hangs_the_rest_is_taken_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of one function at one world size, each in ranks of its own, and nobody waits any more."""
    hung = Outcome((None, None), HUNG)
    outcomes, started = played(monkeypatch, [hung] * compare_module.HANGS)
    assert (outcomes, started) == ([hung] * len(SOME_CASES), compare_module.HANGS)


def test_a_crash_is_blamed_on_a_case_only_if_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may have been damaged by an earlier case: in new ranks this one shows what it does itself."""
    crashed = Outcome((None, None), CRASHED)
    outcomes, started = played(monkeypatch, [GOOD, crashed, GOOD, GOOD, GOOD, GOOD, GOOD])
    assert (outcomes, started) == ([GOOD] * 6, 2)
    outcomes, started = played(monkeypatch, [GOOD, crashed, crashed, GOOD, GOOD, GOOD, GOOD])
    assert (outcomes, started) == ([GOOD, crashed, GOOD, GOOD, GOOD, GOOD], 3)


def test_ranks_that_raised_are_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may have left where others still wait: the next case would meet their messages."""
    raised = Outcome((Observation({}), Observation({}, Raised("the call", ("OSError",), ""))))
    outcomes, started = played(monkeypatch, [GOOD, raised, GOOD, GOOD, GOOD, GOOD])
    assert (outcomes, started) == ([GOOD, raised, GOOD, GOOD, GOOD, GOOD], 2)


# ------------------------------------------------------------------ the cases, and what is right


ALONE = [Case("AllGather", "summing module", world, sizes=(3,), upstream="ranked") for world in (0, 1)]


def test_an_error_alone_is_better_where_the_adapter_does_as_its_contract_says(tmp_path: Path) -> None:
    """Its input and no sizes, from musiclm's: right for this adapter, if not for all."""
    found = compared(tmp_path, copy_with("an error in the backward when alone"), ALONE)
    assert found.counts() == {"same": 0, "better": 2, "stricter": 0, "different": 0}
    ((function, gave),) = better(found)
    assert (function, gave.partition(":")[0]) == ("AllGather", "AttributeError in the backward")


def test_alone_the_report_takes_no_side(tmp_path: Path) -> None:
    """The copy has sizes where its adapter has none: it could be another adapter's copy."""
    found = compared(tmp_path, copy_with("sizes when alone"), ALONE)
    assert {(f.verdict, f.difference.part, f.right) for f in found.findings} == {(Verdict.DIFFERENT, "sizes", "")}


@pytest.mark.parametrize(
    ("adapter", "functions"), [("musiclm", GATHERS), ("st-moe", ("gather_sizes", "split_by_rank"))]
)
def test_one_process_agrees_with_the_adapter_wherever_it_knows(
    tmp_path: Path, adapter: str, functions: tuple[str, ...]
) -> None:
    """The right answers that verdicts lean on, for every case that stays in its ranks."""
    api = {name: kind for name, kind in api_of(adapter).items() if name in functions}
    cases = [case for case in generate(api, [2]) if case.world and not case.alone and truth(case, 0, "")]
    assert {case.function for case in cases} == set(functions)
    with Ranks(rendered(tmp_path, adapter), 2, joined=True) as ranks:
        for case in cases:
            for rank, seen in enumerate(ranks.ask(case).by_rank):
                right = truth(case, rank, "")
                assert right is not None
                assert seen is not None
                assert seen.raised is None, case.title
                assert {part: seen.parts.get(part) for part in right} == right, case.title


@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_one_process_agrees_with_the_adapter_alone(tmp_path: Path, adapter: str, world: int) -> None:
    """Where its contract has it return; where the contract has it raise there is no right answer, and it raises."""
    alone, gathers = adapter_named(adapter).alone, ("AllGather", "all_gather")
    api = {name: kind for name, kind in api_of(adapter).items() if name in gathers}
    cases = [case for case in generate(api, [1]) if case.world == world and case.depends_on_adapter]
    with Ranks(rendered(tmp_path, adapter), 1, joined=world == 1) as ranks:
        for case in cases:
            right = truth(case, 0, alone)
            assert (right is not None) == (alone == "input" or (alone == "gathers" and world == 1))
            (seen,) = ranks.ask(case).by_rank
            assert seen is not None
            assert (seen.raised is None) == (right is not None), case.title
            if right is not None:
                assert {part: seen.parts.get(part) for part in right} == right, case.title
    assert cases


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_name_that_an_adapter_offers_has_cases(adapter: str) -> None:
    """More than its signature; no case twice."""
    api = api_of(adapter)
    cases = generate(api, [1, 2])
    assert {case.function for case in cases if case.variant != SIGNATURE} == set(api)
    assert len(cases) == len(set(cases))


def test_any_three_options_meet() -> None:
    """In a third of the full product."""
    axes = [range(4), range(5), range(5), range(2), range(2)]
    chosen = every_three(axes)
    assert len(chosen) < 140
    for at in combinations(range(len(axes)), 3):
        wanted = len(axes[at[0]]) * len(axes[at[1]]) * len(axes[at[2]])
        assert len({tuple(choice[i] for i in at) for choice in chosen}) == wanted


# ------------------------------------------------------------------ loading


def test_the_file_runs_in_child_processes_only(tmp_path: Path) -> None:
    """Whatever it does at import, it does elsewhere."""
    log = tmp_path / "pids"
    compared(tmp_path, f"import os\nprint(os.getpid(), file=open({str(log)!r}, 'a'))\n" + RIGHT, no_group)
    pids = {int(line) for line in log.read_text().split()}
    assert pids
    assert os.getpid() not in pids


def package(folder: Path, init: str, text: str) -> Path:
    """`musiclm_pytorch` with `distributed.py` and a sibling that it imports from."""
    home = folder / "musiclm_pytorch"
    home.mkdir()
    (home / "__init__.py").write_text(init)
    (home / "small.py").write_text("def exists(x):\n    return x is not None\n\n\ndef widen(t):\n    return t\n")
    (home / "distributed.py").write_text(text)
    return home / "distributed.py"


def test_a_file_in_a_package_imports_its_siblings(tmp_path: Path) -> None:
    """Without the package's own `__init__`, which may bring in the whole project."""
    text = "from .small import exists, widen\nfrom musiclm_pytorch.small import widen as wide\n" + RIGHT
    file = package(tmp_path, "raise RuntimeError('nobody needs me')\n", text)
    found = compare(file, adapter_named("musiclm"), [2], choose=chosen(no_group))
    assert found.old.description.where == "loaded without its package's __init__"
    assert (found.counts()["same"], found.old.description.not_importable) == (len(found.findings), [])


def test_a_file_that_needs_its_package_gets_it(tmp_path: Path) -> None:
    """The `__init__` runs where the file imports what is made there."""
    file = package(tmp_path, "def made_here():\n    pass\n", "from . import made_here\n" + RIGHT)
    found = compare(file, adapter_named("musiclm"), [2], choose=chosen(no_group))
    assert found.old.description.where == "loaded after its package's __init__"
    assert found.counts()["same"] == len(found.findings)


def test_a_package_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    """Both attempts are told."""
    file = package(tmp_path, "import not_installed_anywhere\n", "from . import made_here\n" + RIGHT)
    with pytest.raises(ToolError, match=r"made_here.*not_installed_anywhere.*where the file's project runs"):
        compare(file, adapter_named("musiclm"), [2])


def test_a_flat_file_sees_what_lies_beside_it(tmp_path: Path) -> None:
    """As a fork without a package does; though what lies there imports the file in turn."""
    (tmp_path / "musiclm.py").write_text(
        "def exists(x):\n    return x is not None\n\n\nfrom distributed import AllGather\n"
    )
    found = compared(tmp_path, RIGHT + "\n\nfrom musiclm import exists\n", no_group)
    assert found.counts()["same"] == len(found.findings)
    assert found.old.description.not_importable == []


# ------------------------------------------------------------------ the command


SMALL = "def exists(val):\n    return val is not None\n\n\ndef default(val, d):\n    return val if exists(val) else d\n"
WRONG = SMALL.replace("val if exists(val) else d", "val or d")


def test_the_table_and_the_exit_code(tmp_path: Path) -> None:
    """Counts by function, then what differs in detail; the same text at every run."""
    file = tmp_path / "distributed.py"
    file.write_text(WRONG)
    first, second = adapters("parity", file, "--adapter", "st-moe"), adapters("parity", file, "--adapter", "st-moe")
    assert (first.exit_code, first.stdout) == (1, second.stdout)
    assert "not in the old file, so not compared: AllGather, " in first.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in first.output.splitlines() if "│" in line]
    assert rows == [["default", "3", "0", "0", "1"], ["exists", "4", "0", "0", "0"], ["all", "7", "0", "0", "1"]]
    detail = first.output.partition("different: ")[2]
    assert detail.splitlines() == [
        "default, result (1 case)",
        "  no process group, zero",
        "    old  int 5",
        "    new  int 0",
    ]
    file.write_text(SMALL)
    assert adapters("parity", file, "--adapter", "st-moe").exit_code == 0


def test_json_for_scripts(tmp_path: Path) -> None:
    """The facts, the counts, and every case that is not the same."""
    file = tmp_path / "distributed.py"
    file.write_text(WRONG)
    result = adapters("parity", file, "--adapter", "st-moe", "--world-size", "1", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == found["exit_code"] == 1
    assert found["functions"]["default"] == {"same": 3, "better": 0, "stricter": 0, "different": 1}
    assert found["world_sizes"] == [1]
    (finding,) = found["findings"]
    assert finding == {
        "function": "default",
        "case": "no process group, zero",
        "world_size": 0,
        "verdict": "different",
        "part": "result",
        "old": "int 5",
        "new": "int 0",
        "rank": None,
        "right": "",
    }


BAD_FILES: dict[str, tuple[bytes | None, list[str]]] = {
    "missing": (None, ["cannot be read: No such file or directory", "give the old distributed.py"]),
    "a syntax error": (b"def f(:\n", ["cannot be loaded: SyntaxError: invalid syntax"]),
    "raises at import": (b"raise LookupError('not today')\n", ["cannot be loaded: LookupError: not today"]),
    "dies at import": (b"import os\nos.abort()\n", ["cannot be loaded: the process crashed"]),
    "needs what is not there": (b"import not_installed_anywhere\n", ["No module named 'not_installed_anywhere'"]),
    "none of the names": (b"def gather(t):\n    return t\n", ["has none of spear-tts's names (AllGather, "]),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_that_cannot_be_compared_is_an_error(tmp_path: Path, kind: str) -> None:
    """Exit code 2, what is wrong with which file, no traceback."""
    content, words = BAD_FILES[kind]
    file = tmp_path / "distributed.py"
    if content is not None:
        file.write_bytes(content)
    result = adapters("parity", file, "--adapter", "spear-tts")
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    for word in ["Error: ", "distributed.py", *words]:
        assert word in result.output
