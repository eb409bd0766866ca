# SPDX-License-Identifier: MIT
"""Bad input that nobody thought of: one documented error, the same on every rank, and a group that goes on.

A valid call is drawn, and one to three of its arguments, each on some rank, are replaced by something else. What should
come of it is told here from the arguments alone; what does come is tried on real ranks. After each such call comes the
valid one in the same group.
"""

import importlib
import os
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support import Worlds
from tests.support.adapters import ADAPTERS, SUBJECTS, adapter, core, marks_of
from tests.support.calls import Outcome, attempt
from tests.support.gather import gather_by, scatter_in_memory
from tests.support.oracle import DTYPES, same, values
from tests.support.world import device

# ------------------------------------------------------------------ on ranks

HELPERS = ("all_gather_variable_dim", "all_gather_same_dim", "gather_sizes", "reduce_scatter")


class Call(NamedTuple):
    """What one rank passes. What is no plain data is named by a text, and made on the rank."""

    shape: tuple[int, ...]
    dim: Any = 0
    sizes: Any = None
    dtype: str = "float32"
    kind: str = "dense"
    wants_grad: bool = False
    grad_mode: bool = True


class Trial(NamedTuple):
    """One call on every rank, with the full check of given sizes on or off."""

    subject: str
    by_rank: tuple[Call, ...]
    check: bool = False


def run_trials(trials: list[Trial]) -> list[Outcome]:
    """What each of them gives on this rank: a tensor, or an error. A lost group ends them."""
    outcomes: list[Outcome] = []
    for trial in trials:
        call = trial.by_rank[dist.get_rank()]
        os.environ["SHARED_DISTRIBUTED_CHECK"] = "1" if trial.check else "0"
        x, dim, sizes = make_tensor(call), make_dim(call.dim), make_sizes(call.sizes)
        with torch.set_grad_enabled(call.grad_mode):
            outcomes.append(attempt(partial(call_by, trial.subject, x, dim, sizes)))
        if outcomes[-1].error == "TransportError":
            break
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "0"
    return outcomes


def call_by(subject: str, x: Any, dim: Any, sizes: Any) -> Tensor:
    """The tensor that matters of what a subject returns. A subject is a way to gather, or whose function it is."""
    who, _, what = subject.partition(" ")
    if what not in HELPERS:
        return gather_by(subject)(x, dim, sizes)[0].detach()
    helper = getattr(core() if who == "core" else adapter(who), what)
    if what == "all_gather_same_dim":
        return torch.stack(helper(x))
    if what == "gather_sizes":
        return helper(x, dim=dim)  # type: ignore[no-any-return]
    if what == "reduce_scatter":
        return helper(x, dim, sizes=sizes).detach()  # type: ignore[no-any-return]
    return helper(x, dim, sizes)[0]  # type: ignore[no-any-return]


def make_tensor(call: Call) -> Any:
    if call.kind in ("number", "none", "text", "empty list"):
        return {"number": 1.0, "none": None, "text": "x", "empty list": []}[call.kind]
    if call.kind == "meta":
        return torch.empty(call.shape, device="meta")
    x = values(dist.get_rank(), call.shape, call.dtype).to(device())
    if call.kind == "sparse":
        return torch.ones(2, 3, device=device()).to_sparse()
    if call.kind == "csr":
        return torch.ones(2, 3, device=device()).to_sparse_csr()
    if call.kind == "nested":
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=device())
    if call.kind == "quantized":
        return torch.quantize_per_tensor(torch.ones(2, 3, device=device()), 0.5, 0, torch.quint8)
    if call.kind == "scattered" and x.ndim:
        x = scatter_in_memory(x)
    return x.requires_grad_() if call.wants_grad else x


def make_dim(dim: Any) -> Any:
    return {"a tensor": torch.tensor(0), "a float tensor": torch.tensor(0.5)}.get(dim, dim)


def make_sizes(sizes: Any) -> Any:
    """Tuples stand for tensors; a text for what a list of numbers cannot say."""
    if isinstance(sizes, tuple):
        return torch.tensor(sizes, dtype=torch.long, device=device())
    made = {
        "floats": lambda: [2.0, 2.0, 2.0],
        "a number": lambda: 2,
        "nested": lambda: [[1], [1], [1]],
        "none inside": lambda: [1, None, 1],
        "float tensor": lambda: torch.ones(3),
        "bool tensor": lambda: torch.ones(3, dtype=torch.bool),
        "2-d tensor": lambda: torch.ones(3, 3, dtype=torch.long),
        "0-d tensor": lambda: torch.tensor(2),
        "meta tensor": lambda: torch.ones(3, dtype=torch.long, device="meta"),
        "sparse tensor": lambda: torch.ones(3, dtype=torch.long).to_sparse(),
        "text": lambda: "22",
    }
    return made[sizes]() if isinstance(sizes, str) else sizes


# ------------------------------------------------------------------ tests

# for the core and each adapter, in a world of two and in one of three; with four adapters over 1400 on gloo
CASES, BATCH = {"gloo": 144, "nccl-rules": 36, "nccl": 144}, 60
FEWER = pytest.mark.only_over("gloo", "nccl", reason="three ranks, here too, can differ in more ways than two")
FLOATS = [dtype for dtype in DTYPES if "float" in dtype or "complex" in dtype]
NOT_DENSE = ["number", "none", "text", "empty list", "meta", "sparse", "csr", "nested", "quantized"]
WITH_SIZES = ["sparse", "csr", "quantized"]  # no dense tensors, but gather_sizes asks for no more than a size
NO_DIMS = ["x", None, 1.5, "a float tensor", 10**30]
NO_SIZES = [
    "floats", "a number", "nested", "none inside", "text", "float tensor", "bool tensor", "2-d tensor", "0-d tensor",
    "meta tensor", "sparse tensor",
]  # fmt: skip


# ------------------------------------------------------------------ drawing


def ways(suite: str) -> list[str]:
    """Every way to gather, and every helper, of the core or an adapter."""
    module = importlib.import_module(
        "shared_distributed" if suite == "core" else f"{suite.replace('-', '_')}_distributed"
    )
    gathers = [subject for subject in SUBJECTS if subject.split()[0] == suite]
    return gathers + [f"{suite} {helper}" for helper in HELPERS if helper in module.__all__]


def drawn(count: int, number: int, strategy: st.SearchStrategy[tuple[Trial, Trial]]) -> list[tuple[Trial, Trial]]:
    """So many trials, no two alike, with the valid ones behind them; the same at every run."""
    pairs: dict[str, tuple[Trial, Trial]] = {}

    @seed(number)
    @settings(
        max_examples=2 * count + 2,  # some come up twice
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(pair: tuple[Trial, Trial]) -> None:
        pairs.setdefault(str(pair[0]), pair)

    draw()
    return list(pairs.values())[-count:]  # the first ones are the simplest


@st.composite
def trials(draw: st.DrawFn, world: int, subject: str, first: int) -> tuple[Trial, Trial]:
    """A trial of which one to three arguments are replaced (sometimes by what is valid too), and the valid one."""
    valid = draw(valid_trials(world, subject))
    calls = list(valid.by_rank)
    which = [first, *draw(st.lists(st.integers(0, len(replacements(calls[0])) - 1), max_size=2))]
    for replacement in which:
        rank = draw(st.integers(0, world - 1))
        replaced = replacements(calls[rank])[replacement]
        calls[rank] = calls[rank]._replace(**{name: draw(value) for name, value in replaced.items()})
    # given sizes are promised an error on every rank only where they are checked
    given = any(call.sizes is not None for call in calls)
    return Trial(valid.subject, tuple(calls), given or draw(st.booleans())), valid


@st.composite
def valid_trials(draw: st.DrawFn, world: int, subject: str) -> Trial:
    other = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    dim = draw(st.integers(-len(other), len(other) - 1))
    rows = draw(st.lists(st.integers(0, 3), min_size=world, max_size=world))
    if subject.endswith("same_dim"):
        rows = rows[:1] * world
    whole = [sum(rows)] * world if subject.endswith("reduce_scatter") else rows
    sizes = draw(st.sampled_from([list(rows), tuple(rows)] + [None] * (not subject.endswith("reduce_scatter"))))
    dtype = draw(st.sampled_from(DTYPES))
    wants_grad = dtype in FLOATS and draw(st.booleans())
    shapes = [(*other[: dim % len(other)], n, *other[dim % len(other) + 1 :]) for n in whole]
    return Trial(subject, tuple(Call(shape, dim, sizes, dtype, "dense", wants_grad) for shape in shapes), check=True)


def replacements(call: Call) -> list[dict[str, st.SearchStrategy[Any]]]:
    """What one of a call's arguments, or two that go together, may become."""
    sizes = call.sizes if isinstance(call.sizes, (list, tuple)) else []
    return [
        {"shape": nudged(call.shape, [0, 1, 2, 3, 4])},
        {"shape": st.lists(st.integers(0, 3), max_size=5).map(tuple)},
        {"shape": st.integers(24, 30).map(lambda ndim: (1,) * ndim)},
        {"dim": st.integers(-6, 6)},
        {"dim": st.sampled_from([*NO_DIMS, True, "a tensor"])},
        {"sizes": nudged(sizes, [-1, 0, 1, 2, -1, 3])},
        {"sizes": st.none() | st.lists(st.integers(0, 3), max_size=4)},
        {"sizes": st.sampled_from(NO_SIZES)},
        {"dtype": st.sampled_from(["int32", "float16", "int64"]), "wants_grad": st.just(False)},
        {"kind": st.sampled_from([*NOT_DENSE, "scattered"])},
        {"wants_grad": st.booleans(), "dtype": st.sampled_from(["float32", "float64"])},
        {"grad_mode": st.just(False)},
    ]


def nudged(numbers: Any, others: list[int]) -> st.SearchStrategy[Any]:
    """The same row of numbers but for one of them."""
    if not numbers:
        return st.just(numbers)
    places = st.tuples(st.integers(0, len(numbers) - 1), st.sampled_from(others))
    return places.map(lambda at: type(numbers)([*numbers[: at[0]], at[1], *numbers[at[0] + 1 :]]))


# ------------------------------------------------------------------ what should come of it


def is_bad_alone(trial: Trial, rank: int) -> bool:
    """Whether a rank's own arguments cannot be used, whatever the others pass."""
    call, what = trial.by_rank[rank], trial.subject.split()[-1]
    if call.kind in NOT_DENSE:
        return True
    if what == "all_gather_same_dim":
        return False
    if call.dim in NO_DIMS or front(call) is None:
        return True
    if what == "gather_sizes" or (call.sizes is None and what != "reduce_scatter"):
        return False
    return not sizes_fit(trial, rank)


def front(call: Call) -> int | None:
    """The dim counted from the front, if there is one."""
    dim, ndim = 0 if call.dim == "a tensor" else int(call.dim), len(call.shape)
    return dim % ndim if -ndim <= dim < ndim else None


def sizes_fit(trial: Trial, rank: int) -> bool:
    call, at = trial.by_rank[rank], front(trial.by_rank[rank])
    assert at is not None
    is_row = isinstance(call.sizes, (list, tuple)) and len(call.sizes) == len(trial.by_rank)
    if not is_row or min(call.sizes) < 0:
        return False
    expected = sum(call.sizes) if trial.subject.endswith("reduce_scatter") else call.sizes[rank]
    return bool(expected == call.shape[at])


def verdict(trial: Trial) -> str:
    """The error that every rank should raise, or none."""
    calls, what = trial.by_rank, trial.subject.split()[-1]
    if any(is_bad_alone(trial, rank) for rank in range(len(calls))):
        return "BadInputError"
    if what == "gather_sizes":  # ranks may differ in all but the call itself
        return ""
    claims = set()
    for call in calls:
        at = None if what == "all_gather_same_dim" else front(call)
        ragged = slice(0, 0) if at is None or what == "reduce_scatter" else slice(at, at + 1)
        others = (*call.shape[: ragged.start], *call.shape[ragged.stop :])
        sizes = None if call.sizes is None or what == "all_gather_same_dim" else tuple(call.sizes)
        claims.add((call.dtype, len(call.shape), at, others, sizes))
    if len(claims) > 1:
        return "DisagreementError"
    wanting = any(call.wants_grad and call.grad_mode for call in calls)
    summed = what in ("sum", "reduce_scatter")
    return "DisagreementError" if summed and wanting and not all(call.grad_mode for call in calls) else ""


def expected_value(trial: Trial, rank: int) -> Tensor:
    calls, what = trial.by_rank, trial.subject.split()[-1]
    tensors = [values(r, call.shape, call.dtype) for r, call in enumerate(calls)]
    if what == "all_gather_same_dim":
        return torch.stack(tensors)
    at = front(calls[0])
    assert at is not None
    if what == "gather_sizes":
        return torch.tensor([call.shape[front(call) or 0] for call in calls])
    if what != "reduce_scatter":
        return torch.cat(tensors, at)
    return summed(tensors).split(list(calls[0].sizes), at)[rank]


def summed(tensors: list[Tensor]) -> Tensor:
    """The sum as it is documented: in 32 bits or more, bools or-ed."""
    dtype = tensors[0].dtype
    if dtype == torch.bool:
        return torch.stack(tensors).any(0)
    wide = torch.float32 if dtype.is_floating_point and torch.finfo(dtype).bits < 32 else dtype
    return torch.stack([t.to(wide) for t in tensors]).sum(0).to(dtype)


# ------------------------------------------------------------------ what does


def complaint(trial: Trial, outcomes: list[Any]) -> str:
    """What is wrong with what the ranks made of a trial; empty if nothing is."""
    if trial.subject.endswith("gather_sizes") and any(call.kind in WITH_SIZES for call in trial.by_rank):
        return "" if len({outcome.error for outcome in outcomes}) == 1 else "not one answer on every rank"
    error = verdict(trial)
    if any(outcome.error != error for outcome in outcomes):
        return f"expected {error or 'no error'}"
    if error and (len({outcome.message for outcome in outcomes}) > 1 or "GatherError" not in outcomes[0].bases):
        return "not the same documented error on every rank"
    if not error and not all(same(outcome.value, expected_value(trial, rank)) for rank, outcome in enumerate(outcomes)):
        return "not the oracle's values"
    return ""


@pytest.mark.parametrize("world", [pytest.param(2, marks=FEWER), 3], ids="W{}".format)
@pytest.mark.parametrize("suite", [pytest.param(suite, marks=marks_of(suite)) for suite in ("core", *ADAPTERS)])
def test_bad_input_ends_in_one_error_and_the_next_call_works(
    suite: str, world: int, backend: str, worlds: Worlds
) -> None:
    """Every case ends as its arguments say it must, on all ranks alike, and so does the valid call after it."""
    firsts = range(len(replacements(Call(()))))
    kinds = [trials(world, subject, first) for subject in ways(suite) for first in firsts]
    each = max(1, CASES[backend] // len(kinds))
    pairs = [pair for number, kind in enumerate(kinds) for pair in drawn(each, number, kind)]
    ends = Counter(verdict(trial) for trial, _ in pairs)
    assert len(pairs) == len(kinds) * each
    assert min(ends["BadInputError"], ends["DisagreementError"], ends[""]) >= len(pairs) // 40, ends
    ranks = worlds.get(backend, world)
    for start in range(0, len(pairs), BATCH):
        in_turn = [trial for pair in pairs[start : start + BATCH] for trial in pair]
        for trial, *outcomes in zip(in_turn, *ranks.run(run_trials, in_turn), strict=True):
            if wrong := complaint(trial, outcomes):
                ranks.close()  # they may be out of step
                pytest.fail("\n".join([wrong, str(trial), *map(str, outcomes)]))
