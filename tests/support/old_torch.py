# SPDX-License-Identifier: MIT
"""What the oldest supported torch lacks, as marks that skip a test and say so. `nox -s floor` runs the tests there."""

import pytest
import torch

OLD = f"torch {torch.__version__}"
VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])

needs_compile = pytest.mark.skipif(VERSION < (2, 4), reason=f"{OLD} is too old to compile with: needs 2.4")
WHOLE = VERSION >= (2, 11)  # a region with a gather is one graph; before, the gather breaks it
needs_whole_graphs = pytest.mark.skipif(not WHOLE, reason=f"{OLD} breaks the graph at a gather: there it is eager")
needs_dtensor = pytest.mark.skipif(VERSION < (2, 5), reason=f"{OLD} has no public DTensor")
needs_fake_group = pytest.mark.skipif(VERSION < (2, 4), reason=f"{OLD} has no fake process group")
needs_fsdp_on_cpu = pytest.mark.skipif(VERSION < (2, 6), reason=f"FSDP of {OLD} needs a GPU, or has no fully_shard")
needs_lazy_zeros = pytest.mark.skipif(VERSION < (2, 1), reason=f"{OLD} cannot tell lazy zeros or batched gradients")
needs_func = pytest.mark.skipif(VERSION < (2, 10), reason=f"torch.func of {OLD} wraps the tensors of an exchange too")
needs_gloo_reduce_scatter = pytest.mark.skipif(VERSION < (2, 4), reason=f"gloo of {OLD} has no reduce_scatter")


def dtypes(names: tuple[str, ...]) -> list[object]:
    """Parameters: dtypes by name, those that this torch does not have skipped."""
    return [
        pytest.param(name, marks=pytest.mark.skipif(not hasattr(torch, name), reason=f"{OLD} has no {name}"))
        for name in names
    ]
