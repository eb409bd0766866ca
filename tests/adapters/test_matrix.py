# SPDX-License-Identifier: MIT
"""Values, sizes and gradients against the oracle, subject by subject and world by world.

Dim, kind of sizes, dtype, sizes given or not, contiguous or not: any two options of these meet in every test, and any
three in those of the core on two and three ranks. Each test chooses cases of its own, the same in every run.
"""

import pytest
import torch

from tests.support import WorldFailure, Worlds
from tests.support.adapters import CONTRACTS, SUBJECTS, marked
from tests.support.gather import run_cases
from tests.support.oracle import Case, Result, cases_of, gathered, gradient, same


def complaints(case: Case, rank: int, result: Result, subject: str) -> list[str]:
    """What is wrong with a rank's result; empty if nothing is."""
    who, _, how = subject.partition(" ")
    world, found = len(case.sizes), []
    if not same(result.gathered, gathered(case)):
        found.append(f"gathered {result.gathered.tolist()}, expected {gathered(case).tolist()}")
    if not result.contiguous and world > 1:
        found.append("the gathered tensor is not contiguous")
    if who == "core":
        expected_sizes: object = case.sizes
    else:
        expected_sizes = None if world == 1 and CONTRACTS[who]["alone"] == "input" else list(case.sizes)
    sizes = result.sizes
    if isinstance(sizes, torch.Tensor):
        if sizes.dtype != torch.int64:
            found.append(f"sizes are {sizes.dtype}")
        sizes = sizes.tolist()
    if sizes != expected_sizes or not isinstance(sizes, type(expected_sizes)):
        found.append(f"sizes {sizes!r}, expected {expected_sizes!r}")
    if (result.gradient is None) != (case.dtype in ("bool", "int16", "int64")):
        found.append(f"gradient {result.gradient}")
    elif result.gradient is not None and not same(result.gradient, gradient(case, rank, how)):
        found.append(f"gradient {result.gradient.tolist()}, expected {gradient(case, rank, how).tolist()}")
    return [f"rank {rank} of {world}, {case}: {text}" for text in found]


@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_gather_matches_the_oracle(subject: str, world_size: int, backend: str, worlds: Worlds) -> None:
    """Values, sizes and gradients are those of one process, on every rank, bit for bit."""
    who = subject.split()[0]
    cases = cases_of(world_size, 3 if who == "core" and world_size in (2, 3) else 2, f"{subject} {world_size}")
    if world_size == 1 and who != "core" and CONTRACTS[who]["alone"] == "raises":
        with pytest.raises(WorldFailure, match="AssertionError"):
            worlds.get(backend, 1).run(run_cases, subject, cases)
        return
    by_rank = worlds.get(backend, world_size).run(run_cases, subject, cases)
    found = [
        line
        for rank, results in enumerate(by_rank)
        for case, result in zip(cases, results, strict=True)
        for line in complaints(case, rank, result, subject)
    ]
    assert not found, "\n".join(found[:5])
