# SPDX-License-Identifier: MIT
"""The proof of equality, proven: it sees every planted difference, sees none where there is none, and survives."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.parity import compare as compare_module
from shared_distributed_tools.parity.cases import DISAGREEING, QUESTIONS, Case, called, gather_call, generate
from shared_distributed_tools.parity.command import show
from shared_distributed_tools.parity.compare import Ranks, compare, play_all
from shared_distributed_tools.parity.load import describe
from shared_distributed_tools.parity.play import Observation, as_text, truth
from shared_distributed_tools.parity.verdict import is_same_end, judge
from shared_distributed_tools.ranks import CRASHED, HUNG
from shared_distributed_tools.render import render
from tests.downstream.commands import run
from tests.downstream.old_copies import RIGHT, WITHOUT_NAMES, copy_with
from tests.downstream.projects import ORIGINALS
from tests.downstream.trees import write_files
from tests.support.adapters import UNLIKE

Keep = Callable[[Case], bool]

SUMMING = ("AllGather", "AllGatherFunction")
GATHERS = (*SUMMING, "all_gather_variable_dim")


def in_everyday_use(case: Case) -> bool:
    """Calls that nothing is wrong with, and no second derivative of a sum: the right copy cannot do that."""
    return not (case.raises or case.upstream == "rank 0" or (case.upstream == "second" and case.summed))


def a_few(case: Case) -> bool:
    """Some dozens of cases that touch every part, without a group and on two ranks."""
    usual = case.dtype == "float32" and case.dim in (0, 1) and "sizes=[" not in case.call and not case.strided
    return in_everyday_use(case) and usual and not case.late and case.upstream in ("none", "ranked")


def no_group(case: Case) -> bool:
    return case.world == 0


def compared(file: Path, text: str, keep: Keep | list[Case] = a_few, adapter: str = "musiclm") -> dict[str, Any]:
    """A file of that text and an adapter on two ranks: those of the usual cases that are wanted, or others."""
    file = file / "distributed.py" if file.is_dir() else file
    file.write_text(text)

    def choose(api: Any, worlds: Any) -> list[Case]:
        return keep if isinstance(keep, list) else list(filter(keep, generate(api, worlds)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_module, "generate", choose)
        return compare(file, ADAPTERS[adapter], [2], lambda *_: None)


def different(found: dict[str, Any]) -> set[tuple[str, str]]:
    """What differs: function and part."""
    return {(f["function"], f["part"]) for f in found["findings"] if f["verdict"] == "different"}


# ------------------------------------------------------------------ what it sees


def test_a_right_copy_is_the_same_everywhere(tmp_path: Path) -> None:
    """Hundreds of cases: dims, dtypes, layouts, sizes given or not, every kind of upstream gradient, no group."""
    found = compared(tmp_path, RIGHT, lambda case: in_everyday_use(case) and case.function != "AllGatherFunction")
    assert found["counts"]["same"] > 300
    assert (found["findings"], found["only_in_adapter"]) == ([], [])
    compared_functions = {name for name, counts in found["functions"].items() if counts["same"]}
    assert compared_functions == {"AllGather", "all_gather_same_dim", "all_gather_variable_dim"}


NEED_A_GROUP = ("AllGatherFunction", "all_gather_same_dim", "all_gather_variable_dim")


@pytest.mark.parametrize(
    ("edit", "functions", "part", "keep"),
    [
        ("a wrong slice", SUMMING, "gradient", a_few),
        ("a swapped order", GATHERS, "output", a_few),
        ("sizes as a list", ("AllGather",), "sizes", a_few),
        ("a different exception", NEED_A_GROUP, "how it ends", no_group),
        ("another default", ("all_gather_variable_dim",), "signature", a_few),
        ("sums without being asked", ("AllGather",), "signature", lambda case: not case.call),
        ("an answer that is not remembered", ("AllGather",), "after", lambda case: case.late),
    ],
)
def test_a_planted_difference_is_found(
    tmp_path: Path, edit: str, functions: tuple[str, ...], part: str, keep: Keep
) -> None:
    """In the functions that have it, in the part that has it, and nowhere else."""
    assert different(compared(tmp_path, copy_with(edit), keep)) == {(name, part) for name in functions}


MODULE = gather_call(Case("AllGather", "summing module", 2, sizes=(3, 1), upstream="ranked", summed=True))
EVEN = called(Case("all_gather_same_dim", "callable", 2, sizes=(2, 2)), "x")
RAGGED = gather_call(Case("all_gather_variable_dim", "callable", 2, sizes=(3, 1)))
ALONE = [gather_call(replace(MODULE, world=world, sizes=(3,), summed=False)) for world in (0, 1)]
OVERWRITTEN = ["better", "upstream gradient", "overwritten"]
VERDICTS: dict[str, tuple[list[Case], list[str]]] = {
    # edit: the cases, what is said of each: verdict, part, what the old file gave, who is right where that is said
    "a mean instead of a sum": (
        [MODULE],
        ["different", "gradient", "float32 tensor (3, 3, 4), number ", "the adapter's"],
    ),
    # ranks that disagree: whoever catches the old error misses the new one, and the report takes no side
    "an error of its own": (
        [called(replace(EVEN, raises=True), DISAGREEING[0])],
        ["different", "how it ends", "KeyError in the call: 'always'"],
    ),
    # ranks that disagree, of which the old file knows nothing: somebody may rely on what it returned
    "": ([called(replace(EVEN, raises=True), DISAGREEING[2])], ["stricter", "how it ends", "returned"]),
    "an error for sizes in a list": (
        [gather_call(replace(RAGGED, sizes=sizes), given="list") for sizes in ((3, 1), (0, 0))],
        ["better", "how it ends", "AttributeError in the call: 'list' object has no attribute 'to'"],
    ),
    "a name without an obvious meaning": (
        [RAGGED],
        ["better", "how it ends", "NameError in the call: name 'is_given' is not defined"],
    ),
    # the gradient is right, but the incoming one is overwritten, or what lies behind its one number
    "a write to the incoming gradient": (
        [MODULE, replace(MODULE, upstream="transposed"), replace(MODULE, upstream="expanded")],
        OVERWRITTEN,
    ),
    "a write behind the incoming gradient": ([replace(MODULE, upstream="expanded")], OVERWRITTEN),
    # its input and no sizes, from musiclm's: right for this adapter, if not for all
    "an error in the backward when alone": (ALONE, ["better", "how it ends", "AttributeError in the backward:"]),
    # the copy has sizes where its adapter has none: it could be another adapter's copy
    "sizes when alone": (ALONE, ["different", "sizes", "int64 tensor"]),
    "an abort without a group": ([replace(EVEN, world=0, sizes=(3,))], ["different", "how it ends", CRASHED]),
    "an abort in the backward": ([MODULE], ["better", "how it ends", CRASHED]),
    "a rank that never comes back": (
        [MODULE],
        ["better", "how it ends", f"{HUNG}, after another rank raised ValueError in the backward"],
    ),
}


@pytest.mark.parametrize("edit", VERDICTS)
def test_a_finding_says_what_is_different_and_who_is_right(tmp_path: Path, edit: str) -> None:
    """Same, better, stricter or different, by the rules of `verdict`; whatever happens, the next case is compared."""
    cases, (verdict, part, gave, *right) = VERDICTS[edit]
    found = compared(tmp_path, copy_with(edit) if edit else RIGHT, [*cases, replace(cases[0], call="")])
    assert found["counts"]["same"] == 1
    assert len(found["findings"]) == len(cases)
    for one in found["findings"]:
        assert (one["verdict"], one["part"], one["right"]) == (verdict, part, "".join(right))
        assert one["old"].startswith(gave)


def test_a_difference_is_shown_with_its_case_its_rank_and_both_values() -> None:
    """The call as a user writes it, and the first number that differs."""
    call = "gather = AllGather(dim=0, all_reduce_grads=True); gather(x, sizes=None)"
    assert MODULE.title == f"2 ranks, {call}, sizes=(3, 1), upstream=ranked, summed=True"
    old, new = ([Observation({"gradient": as_text(torch.tensor(n))})] * 2 for n in ([1, 2], [1, 3]))
    expected = ("gradient", "int64 tensor (2,), number 1: 2", "int64 tensor (2,), number 1: 3", 0)
    assert judge(MODULE, old, new, "input")[2:6] == expected


@pytest.mark.usefixtures("known")
def test_a_definition_that_is_not_the_originals_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report says so, and not who is right: the file has another function of that name."""
    text = ORIGINALS["st-moe"].replace("return own, torch.tensor(sizes)", "return own")
    case = called(Case("split_by_rank", "callable", 1, sizes=(3,)), "tuple(parts)")
    found = compared(tmp_path, text, [case], "st-moe")
    assert different(found) == {("split_by_rank", "result")}
    assert found["edited_definitions"].keys() == {"split_by_rank"}
    show(found)
    printed = capsys.readouterr().out
    assert "split_by_rank is not the original's definition" in printed
    assert "is right" not in printed
    assert not compared(tmp_path, ORIGINALS["st-moe"], [case], "st-moe")["edited_definitions"]


def test_a_text_tells_apart_what_differs() -> None:
    """Dtypes, shapes, every number to the last bit, the sign of a zero, a list and a tuple."""
    third = torch.tensor([1 / 3], dtype=torch.float64)
    every = [None, True, 1, 1.0, [], (), [1], (1,), [[1]], torch.tensor([]), torch.zeros(0, 2), third.float().double()]
    every += [third, third.float(), third.bfloat16(), third.nextafter(third + 1), torch.tensor(0.0), torch.tensor(-0.0)]
    every += [torch.tensor(0), torch.tensor([0]), torch.arange(6).view(2, 3), torch.arange(6).view(3, 2)]
    assert len(set(map(as_text, every))) == len(every)
    assert as_text(torch.arange(6).view(2, 3).T) == as_text(torch.tensor([[0, 3], [1, 4], [2, 5]]))


def test_what_an_adapter_takes_beyond_its_original_is_no_difference(tmp_path: Path) -> None:
    """`all_reduce_grads`, in signatures and as an attribute; in copies that have it, it counts (see above)."""
    module = Case("AllGather", "module", 0)
    cases = [module, gather_call(replace(module, world=1, sizes=(3,)))]
    assert compared(tmp_path, ORIGINALS["st-moe"], cases, "st-moe")["counts"]["same"] == 2


def test_a_name_of_another_kind_is_different_and_not_called(tmp_path: Path) -> None:
    """A module where the adapter has a Function: whatever calling it would raise says nothing more."""
    found = compared(tmp_path, RIGHT, no_group, "spear-tts")
    assert different(found) == {("AllGather", "signature")}
    assert found["functions"]["AllGather"] == {"same": 0, "better": 0, "stricter": 0, "different": 1}
    assert found["only_in_adapter"] == ["all_gather"]


OLD = Observation({}, ("ValueError in the call", "Exception in the call"), "got 3 ranks")
SUBCLASS = OLD._replace(raised=("BadInputError in the call", *OLD.raised), message="in other words")


def test_an_exception_is_the_same_where_code_that_handles_it_still_does() -> None:
    """A subclass will do; of one class, messages must be alike but for numbers; and it must come at the same step."""
    assert is_same_end(OLD, OLD._replace(message="got 17 ranks"))
    assert is_same_end(OLD, SUBCLASS)
    assert not is_same_end(SUBCLASS, OLD)
    assert not is_same_end(OLD, OLD._replace(message="got no ranks"))
    assert not is_same_end(OLD, OLD._replace(raised=("KeyError in the call", "Exception in the call")))
    assert not is_same_end(OLD, OLD._replace(raised=("ValueError in the backward", "Exception in the backward")))


@pytest.mark.parametrize(
    ("text", "not_defined", "better"),
    [
        (WITHOUT_NAMES, ["exists", "pad_dim_to"], set(GATHERS)),  # what would be a NameError
        # a base class that nothing imports: no case would get as far as the call
        (RIGHT.replace("from torch.autograd import Function\n", ""), ["Function"], {*GATHERS, EVEN.function}),
    ],
)
def test_names_with_an_obvious_meaning_are_supplied_and_reported(
    tmp_path: Path, text: str, not_defined: list[str], better: set[str]
) -> None:
    """With the names supplied all is the same; that is better than the NameError of the file alone."""
    found = compared(tmp_path, text)
    assert found["undefined_and_known"] == not_defined
    gave = {(f["function"], f["old"]) for f in found["findings"] if f["verdict"] == "better"}
    assert gave >= {(name, f"NameError: {', '.join(not_defined)}") for name in better}
    assert {name for name, _ in gave} == better
    assert different(found) == set()


GOOD = [Observation({}), Observation({})]
RAISED = [Observation({}), OLD]
CRASH, HANG = ([Observation({}, broken=end)] * 2 for end in (CRASHED, HUNG))


@pytest.mark.parametrize(
    ("answers", "outcomes", "started"),
    [
        # three hangs of one function, each in ranks of its own, and nobody waits any more
        ([HANG] * 3, [HANG] * 6, 3),
        # an earlier case may have damaged memory: in new ranks this one shows what it does itself
        ([GOOD, CRASH, GOOD, *[GOOD] * 4], [GOOD] * 6, 2),
        ([GOOD, CRASH, CRASH, *[GOOD] * 4], [GOOD, CRASH, *[GOOD] * 4], 3),
        # one may have left where others still wait: the next case would meet their messages
        ([GOOD, RAISED, *[GOOD] * 4], [GOOD, RAISED, *[GOOD] * 4], 2),
    ],
)
def test_ranks_are_kept_while_they_are_in_step(
    monkeypatch: pytest.MonkeyPatch, answers: list[list[Observation]], outcomes: list[list[Observation]], started: int
) -> None:
    """After a crash, a hang or an error there are new ones; a crash is blamed on a case only if it comes again."""
    left, starts = list(answers), []

    def ask(ranks: Ranks, _case: Case) -> list[Observation]:
        if not ranks.processes:
            starts.append(ranks)
        answer = left.pop(0)
        ranks.processes = [] if answer[0].broken else ["a process"]
        return answer

    monkeypatch.setattr(Ranks, "ask", ask)
    monkeypatch.setattr(Ranks, "close", lambda ranks: ranks.processes.clear())
    assert list(play_all(Path(), [MODULE] * 6)) == outcomes
    assert len(starts) == started


@pytest.mark.parametrize("adapter", UNLIKE)
def test_one_process_agrees_with_the_adapter_wherever_it_knows(tmp_path: Path, adapter: str) -> None:
    """The right answers that verdicts lean on. Where the contract has it raise there is none, and it raises."""
    contract, file = ADAPTERS[adapter], tmp_path / "distributed.py"
    file.write_text(render(adapter))
    with Ranks(file, 1, join=False) as ranks:
        api = {name: kind for name, kind in ranks.run(describe, ranks.path)[0][0].items() if name in contract.api}
    cases = [case for case in generate(api, [1, 2]) if not case.alone]
    assert {case.function for case in cases if case.call} == set(api)  # each has some
    known = set()
    for case, observed in zip(cases, play_all(file, cases), strict=True):
        for rank, seen in enumerate(observed):
            right = truth(case, rank, contract.alone)
            if case.depends_on_adapter:
                assert (right is None) == (
                    contract.alone == "raises" or (contract.alone == "gathers" and not case.world)
                )
            if right or case.depends_on_adapter:
                assert bool(seen.raised) == (right is None), case.title
                assert (right or {}).items() <= seen.parts.items(), case.title
            known |= {case.function} if right else set()
    others = {"exists", "default", "divisible_by", "has_only_one_value", "pad_dim_to", *QUESTIONS}
    assert known == set(api) - others


HELPERS = (
    "def exists(val):\n    return val is not None\n\n\ndef default(val, d):\n    return val if exists(val) else d\n"
)


@pytest.mark.parametrize(
    ("files", "imports"),
    [
        # without the package's own `__init__`, which may bring in the whole project
        (
            {"pkg/__init__.py": "raise RuntimeError('nobody needs me')\n", "pkg/small.py": HELPERS},
            "from .small import exists\nfrom pkg.small import exists as there\n",
        ),
        # as a fork without a package, though what lies beside it imports the file in turn
        ({"pkg/musiclm.py": f"{HELPERS}\n\nimport distributed\n"}, "from musiclm import exists\n"),
    ],
)
def test_a_file_finds_what_lies_around_it(tmp_path: Path, files: dict[str, str], imports: str) -> None:
    """And runs in child processes only, whatever it does at import."""
    write_files(tmp_path, files)
    log = tmp_path / "pids"
    noted = f"import os\nprint(os.getpid(), file=open({str(log)!r}, 'a'))\n"
    found = compared(tmp_path / "pkg", noted + imports + RIGHT, no_group)
    assert not found["findings"]
    assert os.getpid() not in map(int, log.read_text().split())


# ------------------------------------------------------------------ the command


def test_the_command_counts_and_shows_what_differs(tmp_path: Path) -> None:
    """By function, then in detail; in JSON every case that is not the same. The same text at every run."""
    file = tmp_path / "distributed.py"
    unknown = "\n\ndef unused():\n    return unheard_of\n"
    file.write_text(HELPERS.replace("val if exists(val) else d", "val or d") + unknown)
    arguments = ("parity", file, "--adapter", "st-moe", "--world-size", "1")
    first, second, in_json = run(*arguments), run(*arguments), run(*arguments, "--json")
    assert (first.exit_code, first.stdout, in_json.exit_code) == (1, second.stdout, 1)
    assert "not in the old file, so not compared: AllGather, " in first.output
    assert "not defined by the old file, and not known here: unheard_of\n" in first.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in first.output.splitlines() if "│" in line]
    assert rows == [["default", "3", "0", "0", "1"], ["exists", "4", "0", "0", "0"], ["all", "7", "0", "0", "1"]]
    detail = ["result (default 1)", "  no process group, default(0, 5)", "    old  int 5", "    new  int 0"]
    assert first.output.partition("different: ")[2].splitlines() == detail
    found = json.loads(in_json.stdout)
    assert (found["exit_code"], found["world_sizes"]) == (1, [1])
    assert found["functions"]["default"] == {"same": 3, "better": 0, "stricter": 0, "different": 1}
    case = {"function": "default", "case": detail[1].strip(), "world_size": 0, "verdict": "different"}
    assert found["findings"] == [{**case, "part": "result", "old": "int 5", "new": "int 0", "rank": None, "right": ""}]
    file.write_text(HELPERS)
    assert run(*arguments).exit_code == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"def f(:\n", "cannot be loaded: SyntaxError: invalid syntax"),
        (b"raise LookupError('not today')\n", "cannot be loaded: LookupError: not today"),
        (b"import os\nos.abort()\n", "cannot be loaded: the process crashed"),
        (b"import not_installed_anywhere\n", "No module named 'not_installed_anywhere'"),
        (b"def gather(t):\n    return t\n", "has none of spear-tts's names (AllGather, "),
    ],
)
def test_a_file_that_cannot_be_compared_is_an_error(tmp_path: Path, content: bytes, words: str) -> None:
    """Exit code 2, what is wrong with which file, no traceback; first that parity, and no other command, runs it."""
    file = tmp_path / "distributed.py"
    file.write_bytes(content)
    result = run("parity", file, "--adapter", "spear-tts")
    assert (result.exit_code, type(result.exception)) == (2, SystemExit)
    assert result.stderr.startswith(f"parity runs {file}, in child processes\nError: {file}")
    assert words in result.output
