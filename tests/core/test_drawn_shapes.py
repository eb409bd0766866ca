# SPDX-License-Identifier: MIT
"""Shapes and sizes that nobody thought of, drawn here and gathered on the ranks."""

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import Worlds
from tests.support.gather import run_cases
from tests.support.oracle import DTYPES, Case, gathered, gradient, same

WORLD = 3


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to five dimensions, any of them empty, any dim, any sizes."""
    other = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)))
    dim = draw(st.integers(-len(other), len(other) - 1))
    sizes = tuple(draw(st.lists(st.integers(0, 6), min_size=WORLD, max_size=WORLD)))
    # each rank's tensor stays small, whatever is drawn
    while math.prod(other) * max(sizes, default=0) > 4000:
        other = tuple(n // 2 for n in other)
    return Case(
        sizes,
        dim,
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from(["no", "list", "tensor"])),
        draw(st.booleans()),
        other,
    )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(batch=st.lists(cases(), min_size=1, max_size=20))
def test_any_shape_and_any_sizes(worlds: Worlds, backend: str, batch: list[Case]) -> None:
    """Values and both gradients are those of one process."""
    for how in ("sum", "local"):
        by_rank = worlds.get(backend, WORLD).run(run_cases, f"core {how}", batch)
        for rank, results in enumerate(by_rank):
            for case, result in zip(batch, results, strict=True):
                assert same(result.gathered, gathered(case)), case
                assert result.sizes == case.sizes
                assert result.gradient is None or same(result.gradient, gradient(case, rank, how)), case
