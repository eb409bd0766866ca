# SPDX-License-Identifier: MIT
"""What a call costs on NCCL: launches, kernels, copies between host and device, waits of the host."""

from pathlib import Path

import pytest

from tests.emulated.calls import Counts
from tests.emulated.counts import WORLD, counts_by_rank, table

PAGE = "shared/distributed/docs/promises.md"


@pytest.fixture(scope="module", params=["nccl", "nccl-legacy"])
def counts(request: pytest.FixtureRequest) -> dict[str, Counts]:
    """Those of rank 0; every rank does the same, but for who has to pad."""
    by_rank = counts_by_rank(request.param)
    print(table(by_rank[0]))  # pytest shows it where a test fails
    for label, expected in by_rank[0].items():
        if not label.startswith("pad"):
            assert [found[label].without_allocations() for found in by_rank] == [expected.without_allocations()] * WORLD
    return by_rank[0]


@pytest.mark.parametrize("who", ["package", "vendored"])
@pytest.mark.parametrize("kind", ["small ragged", "ragged", "ragged along dim 1", "even"])
def test_a_gather_with_sizes_is_one_launch(who: str, kind: str, counts: dict[str, Counts], backend: str) -> None:
    """The host neither waits nor copies rows; one kernel puts this rank's rows in place, for dim 1 another."""
    found = counts[f"{who}, {kind}, sizes given"]
    assert found.nccl_launches == 1
    assert found.syncs == found.device_to_host == 0
    assert found.kernels <= (2 if "dim 1" in kind else 1)
    assert found.host_to_device == (1 if who == "vendored" else 0)  # the adapter returns a tensor of sizes


@pytest.mark.parametrize("who", ["package", "vendored"])
@pytest.mark.parametrize("kind", ["small ragged", "ragged", "even"])
def test_a_gather_without_sizes_waits_once(who: str, kind: str, counts: dict[str, Counts], backend: str) -> None:
    """One launch for the header and one for the rows; the package sends few rows with the header."""
    found = counts[f"{who}, {kind}, sizes not given"]
    assert found.nccl_launches == (1 if who == "package" and kind == "small ragged" else 2)
    assert found.syncs == found.device_to_host == 1


@pytest.mark.parametrize("who", ["package", "vendored"])
@pytest.mark.parametrize("kind", ["ragged", "even", "ragged along dim 1"])
def test_a_summed_backward_is_one_launch(who: str, kind: str, counts: dict[str, Counts], backend: str) -> None:
    """The host neither waits nor copies."""
    found = counts[f"{who}, {kind}, summed backward"]
    assert found.nccl_launches == 1
    assert found.syncs == found.device_to_host == found.host_to_device == 0


def test_copies_do_not_grow_with_the_number_of_ranks(counts: dict[str, Counts], backend: str) -> None:
    """Where the gradient is expanded or the gather is along dim 1, one kernel puts it in order."""
    for kind in ("ragged, summed backward of an expanded gradient", "ragged along dim 1, summed backward"):
        assert counts[f"package, {kind}"].kernels < WORLD, kind


def test_even_gathers_are_what_torch_has(counts: dict[str, Counts], backend: str) -> None:
    """One operation, and beyond torch's only the kernel that puts this rank's rows in place."""
    found, bare = counts["package, even, sizes given"], counts["torch's all_gather_into_tensor, even, sizes given"]
    assert found.nccl_operations == bare.nccl_operations == 1
    assert found.kernels <= bare.kernels + 1


def test_the_page_has_these_counts(backend: str) -> None:
    """The table of docs/promises.md, row by row."""
    page = Path(PAGE).read_text().splitlines()
    measured = table(counts_by_rank("nccl")[0])
    assert [row for row in measured.splitlines() if row not in page] == []
