# SPDX-License-Identifier: MIT
"""The public names, and what they do alone."""

import pytest
import torch
import torch.distributed as dist

import shared_distributed as core
from tests.support import Worlds
from tests.support.world import device

# ------------------------------------------------------------------ on ranks


def modules_gradient(grad: str) -> list[float]:
    """The gradient through the core's module, on the default group."""
    rank = dist.get_rank()
    x = torch.ones(rank + 1, device=device(), requires_grad=True)
    gathered, _ = core.AllGather(grad=grad)(x)  # type: ignore[arg-type]
    (gathered * (rank + 1)).sum().backward()
    return list(x.grad.tolist())  # type: ignore[union-attr]


# ------------------------------------------------------------------ tests


def test_exported_names() -> None:
    """The public API, name by name."""
    assert sorted(core.__all__) == [
        "AllGather",
        "BadInputError",
        "DisagreementError",
        "GatherError",
        "RowLayout",
        "StaleAnswerWarning",
        "TransportError",
        "all_gather",
        "all_gather_async",
        "all_gather_each",
        "all_gather_same_dim",
        "all_gather_variable_dim",
        "all_to_all",
        "allow_no_rows",
        "gather_sizes",
        "has_only_one_value",
        "is_distributed",
        "pad_dim_to",
        "reduce_scatter",
        "split_by_rank",
        "until_all_done",
    ]


def test_alone_the_input_itself_comes_back() -> None:
    """No process group: x and its one size; nothing is copied, bad input is still bad."""
    x = torch.ones(2, 3, requires_grad=True)
    out, sizes = core.all_gather(x, -1)
    assert out is x
    assert sizes == (3,)
    assert core.reduce_scatter(x, sizes=[2]) is x
    assert not core.is_distributed()
    with pytest.raises(core.BadInputError, match=r"\(2, 3\).* along dim 2.*range of \[-2, 1\]"):
        core.all_gather(x, 2)
    with pytest.raises(core.BadInputError, match=r"sizes \(1, 1\) for 1 rank"):
        core.all_gather(x, sizes=[1, 1])
    with pytest.raises(core.BadInputError, match=r"sizes \(1, 1\) for 1 rank"):
        core.AllGather()(x, [1, 1])


@pytest.mark.parametrize(("grad", "each"), [("sum", [6.0] * 3), ("local", [1.0, 2.0, 3.0])])
def test_the_modules_gradient(grad: str, each: list[float], backend: str, worlds: Worlds) -> None:
    """`AllGather(grad=…)` hands its option on."""
    answers = worlds.get(backend, 3).run(modules_gradient, grad)
    assert answers == [[each[rank]] * (rank + 1) for rank in range(3)]
