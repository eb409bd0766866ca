# SPDX-License-Identifier: MIT
"""Real use: in place, derivatives of every order, odd gradients and tensors, default devices, a torch without c10d."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.adapters.sound import (
    Mixture,
    compiled_on,
    curve,
    derivatives,
    derivatives_in_a_container,
    derivatives_or_zeros,
    factor,
    helpers_on_default_device,
    in_place,
    in_place_in_a_container,
    lazy_gradient,
    lookup,
    low_precision_gradient,
    mixture_of_experts,
    on_default_device,
    readmes_losses,
    reduced_in_place,
    sparse_gradient,
    sparse_gradient_of_the_adjoint,
    start,
    unusable_with_sizes,
)
from tests.support import Worlds
from tests.support.adapters import ADAPTERS, CONTRACTS, SUBJECTS, family, has_module, marked, marks_of, of_adapter
from tests.support.old_torch import WHOLE, needs_compile
from tests.support.oracle import Case, gathered, same, upstream, values

SUMMED = [subject for subject in SUBJECTS if subject.endswith("sum")]
RAGGED = Case((2, 0, 3), dtype="float64")


def own(case: Case, rank: int, whole: torch.Tensor) -> torch.Tensor:
    return whole.split(case.sizes, case.dim)[rank]


def total(case: Case, rank: int, subject: str, part: Any) -> torch.Tensor:
    """A rank's rows of what arrives: of the sum over ranks, or of its own part."""
    parts = [part(r) for r in range(len(case.sizes))]
    return own(case, rank, sum(parts) if subject.endswith("sum") else parts[rank])


# ------------------------------------------------------------------ in place


def expect_in_place(case: Case, subject: str, rank: int, answer: Any, shift: int = 0) -> None:
    whole = gathered(case) + shift
    changed, gradient = answer
    assert same(changed, whole * factor(rank, whole.shape) + rank)
    arriving = total(case, rank, subject, lambda r: upstream(r, whole.shape, "float64") * factor(r, whole.shape))
    assert same(gradient, arriving)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_the_gathered_tensor_may_be_changed_in_place(subject: str, dim: int, backend: str, worlds: Worlds) -> None:
    """`y *= w` and `y.add_(1)`, as the originals accept; the gradient is that of the changed tensor."""
    case = RAGGED._replace(dim=dim)
    for rank, answer in enumerate(worlds.get(backend, 3).run(in_place, subject, case)):
        expect_in_place(case, subject, rank, answer)


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "async"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_tensors_of_a_container_may_be_changed_in_place(
    kind: str, dim: int, waits: bool, backend: str, worlds: Worlds
) -> None:
    """Each of them, without the others' gradients."""
    case = RAGGED._replace(dim=dim)
    answers = worlds.get(backend, 3).run(in_place_in_a_container, kind, case, waits)
    for rank, (first, second) in enumerate(answers):
        expect_in_place(case, "core sum", rank, first)
        expect_in_place(case, "core sum", rank, second, shift=1)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
@pytest.mark.parametrize("dim", [0, 1])
def test_what_reduce_scatter_gives_may_be_changed_in_place(dim: int, dtype: str, backend: str, worlds: Worlds) -> None:
    """The adjoint's result is no view either."""
    sizes, shape = (2, 0, 3), [3, 3]
    shape[dim] = sum(sizes)
    summed = sum(
        values(r, shape, dtype).to(torch.complex128 if dtype == "complex64" else torch.float64) for r in range(3)
    )
    kind = getattr(torch, dtype)
    arriving = [values(r + 1, part.shape, dtype) for r, part in enumerate(summed.split(sizes, dim))]
    for rank, (changed, gradient) in enumerate(worlds.get(backend, 3).run(reduced_in_place, sizes, dim, dtype)):
        assert same(changed, summed.to(kind).split(sizes, dim)[rank] * 2 + rank)
        assert same(gradient, torch.cat(arriving, dim) * 2)


# ------------------------------------------------------------------ derivatives of higher order


BENT, LINEAR = "bent", "linear"
KINDS = {
    "linear on rank 1": [[BENT, LINEAR], [BENT, BENT], [BENT, BENT]],
    "linear on rank 0": [[LINEAR, BENT], [BENT, BENT], [BENT, BENT]],
    "linear by turns": [[BENT, LINEAR], [LINEAR, BENT], [BENT, LINEAR]],
    "linear on two of three": [[LINEAR, BENT, LINEAR], [BENT, LINEAR, LINEAR], [LINEAR, BENT, BENT]],
}
BY_RANK = pytest.mark.parametrize("kinds", [pytest.param(kinds, id=name) for name, kinds in KINDS.items()])


@pytest.mark.parametrize("subject", marked(SUMMED))
def test_the_readmes_losses_have_a_second_derivative(subject: str, backend: str, worlds: Worlds) -> None:
    """One rank's loss is linear: it stays in the backward that the other one enters."""
    assert worlds.get(backend, 2).run(readmes_losses, subject) == [[48.0, 56.0], [64.0]]


@BY_RANK
@pytest.mark.parametrize("subject", marked([*SUMMED, "reduce_scatter"]))
def test_derivatives_of_every_order_where_some_losses_are_linear(
    subject: str, kinds: list[list[str]], backend: str, worlds: Worlds
) -> None:
    """First, second and third, each of a loss of its own on every rank, are those of one process."""
    world = len(kinds[0])
    sizes = (2, 3, 1)[:world]
    if subject == "reduce_scatter":
        leaves = [start(rank, sum(sizes)).requires_grad_() for rank in range(world)]
        parts = sum(leaves).split(sizes)
    else:
        leaves = [start(rank, sizes[rank]).requires_grad_() for rank in range(world)]
        parts = [torch.cat(leaves)] * world
    expected = []
    for kind in kinds:
        loss = sum(curve(rank, kind[rank], parts[rank]) for rank in range(world))
        parts = torch.autograd.grad(loss, leaves, create_graph=True)
        expected.append([part.detach() for part in parts])
    answers = worlds.get(backend, world).run(derivatives, subject, kinds, sizes)
    for rank, found in enumerate(answers):
        torch.testing.assert_close(found, [derivative[rank] for derivative in expected])


@BY_RANK
def test_derivatives_of_containers_of_which_each_rank_uses_another_tensor(
    kinds: list[list[str]], backend: str, worlds: Worlds
) -> None:
    """Two tensors gathered together, and losses that look at one of them: derivatives of both, of every order."""
    world = len(kinds[0])
    sizes = (2, 3, 1)[:world]
    leaves = [[start(rank + 5 * i, sizes[rank], i + 1).requires_grad_() for rank in range(world)] for i in range(2)]
    parts: Any = [[torch.cat(column)] * world for column in leaves]
    expected = []
    for order, kind in enumerate(kinds):
        loss = sum(curve(rank, kind[rank], parts[(rank + order) % 2][rank]) for rank in range(world))
        flat = derivatives_or_zeros(loss, leaves[0] + leaves[1])
        parts = [flat[:world], flat[world:]]
        expected.append([[part.detach() for part in column] for column in parts])
    answers = worlds.get(backend, world).run(derivatives_in_a_container, kinds, sizes)
    for rank, found in enumerate(answers):
        torch.testing.assert_close(found, [[column[rank] for column in columns] for columns in expected])


# ------------------------------------------------------------------ gradients and tensors as they come


@pytest.mark.parametrize("sparse", [[True] * 3, [False, True, False]], ids=["everywhere", "on one rank"])
@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_a_sparse_gradient_is_right(subject: str, sparse: list[bool], backend: str, worlds: Worlds) -> None:
    """An embedding with `sparse=True` over gathered rows: on some ranks only, too."""
    case = Case((2, 0, 3), other=(1, 3))
    rows = sum(case.sizes)

    def arriving(rank: int) -> torch.Tensor:
        return torch.zeros(rows, 3).index_add_(0, lookup(rank, rows), upstream(rank, (4, 3), "float32"))

    answers = worlds.get(backend, 3).run(sparse_gradient, subject, case.sizes, sparse)
    for rank, gradient in enumerate(answers):
        assert same(gradient, total(case, rank, subject, arriving))


@pytest.mark.parametrize("sparse", [[True] * 3, [False, True, False]], ids=["everywhere", "on one rank"])
def test_a_sparse_gradient_of_reduce_scatter_is_right(sparse: list[bool], backend: str, worlds: Worlds) -> None:
    """The gather in its backward takes it as it comes."""
    sizes = (2, 1, 3)
    arriving = [(lookup(rank, rows), upstream(rank, (4, 3), "float32")) for rank, rows in enumerate(sizes)]
    parts = [torch.zeros(n, 3).index_add_(0, *found) for n, found in zip(sizes, arriving, strict=True)]
    for gradient in worlds.get(backend, 3).run(sparse_gradient_of_the_adjoint, sizes, sparse):
        assert same(gradient, torch.cat(parts))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_lazily_conjugated_and_negated_gradients_are_right(
    subject: str, dim: int, backend: str, worlds: Worlds
) -> None:
    """They are views with a note on them: what travels and is summed are the numbers that they stand for."""
    case = Case((2, 0, 3), dim, "complex64")
    shape = gathered(case).shape
    answers = worlds.get(backend, 3).run(lazy_gradient, subject, case)
    for rank, (gradient, real) in enumerate(answers):
        expected = total(case, rank, subject, lambda r: upstream(r, shape, "complex64").conj().resolve_conj())
        assert same(gradient.resolve_conj(), expected)
        assert same(real.resolve_neg(), expected.imag)


@pytest.mark.parametrize("kind", ["sparse", "nested", "quantized"])
@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_unusable_tensors_raise_at_once_where_sizes_are_given(
    subject: str, kind: str, backend: str, worlds: Worlds
) -> None:
    """What each rank sees alone."""
    outcomes = worlds.get(backend, 2).run(unusable_with_sizes, subject, [kind] * 2)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2
    assert ["rank 0" in outcomes[0].message, "rank 1" in outcomes[1].message] == [True, True]


@pytest.mark.parametrize(("dtype", "large", "right"), [("bfloat16", 256.0, 260.0), ("float16", 2048.0, 2052.0)])
@pytest.mark.parametrize("subject", marked(SUMMED))
def test_half_precision_is_summed_in_float32(
    subject: str, dtype: str, large: float, right: float, backend: str, worlds: Worlds
) -> None:
    """256 + 1 + 1 + 1 is 259, and 260 as bfloat16; whoever rounds between may stay at 256, in one order or another."""
    answers = worlds.get(backend, 4).run(low_precision_gradient, subject, dtype, large)
    assert answers == [[right] * 4] * 4


# ------------------------------------------------------------------ default devices


@pytest.mark.parametrize("how", ["context", "default"])
@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_a_default_device_changes_nothing(subject: str, how: str, backend: str, worlds: Worlds) -> None:
    """`torch.set_default_device` and `torch.device(…)` as a context, here the meta device, which holds no numbers."""
    case = Case((2, 0, 3), 1, "float32")
    for rank, seen in enumerate(worlds.get(backend, 3).run(on_default_device, subject, how, case)):
        assert same(seen["gathered"], gathered(case))
        assert same(seen["again"], gathered(case))
        assert seen["sizes"] == [2, 0, 3]
        assert same(seen["gradient"], total(case, rank, subject, lambda r: upstream(r, (2, 5, 4), "float32")))
        assert seen["clash"].error == "DisagreementError"


@of_adapter
def test_a_default_device_changes_no_helper(name: str, backend: str, worlds: Worlds) -> None:
    """The gathers without a gradient, and what is beside them."""
    parts = [values(rank, (rank + 1, 2), "float32") for rank in range(2)]
    for seen in worlds.get(backend, 2).run(helpers_on_default_device, name):
        assert same(seen["variable"], torch.cat(parts))
        assert seen.get("same", [5.0, 36.0]) == [5.0, 36.0]
        assert seen.get("sizes", [1, 2]) == [1, 2]


# ------------------------------------------------------------------ in a fresh process


RUN_EACH = """
import json, os, sys, traceback
import torch, torch.autograd, torch.distributed, torch.nn

answers = {}
for name, script in json.loads(sys.argv[1]).items():
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            exec(script, {})
            os.write(writing, b"done")
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        os._exit(0)
    os.close(writing)
    answers[name] = os.fdopen(reading).read()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """What became of each script below, in a process forked from one that has imported torch and no more."""
    scripts = {name: WITHOUT_C10D + script for name, script in ALONE.items()}
    scripts |= {module: IMPORTED.format(module=module) for module in MODULES}
    command = [sys.executable, "-W", "ignore", "-c", RUN_EACH, json.dumps(scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


WITHOUT_C10D = """
import sys
import torch
import torch.distributed as dist

stays = {"is_available", "ProcessGroup", "torch", "os", "sys", "logging"}
for name in [name for name in vars(dist) if not name.startswith("__") and name not in stays]:
    delattr(dist, name)
dist.is_available = lambda: False
for module in [module for module in sys.modules if module.startswith("torch.distributed.")]:
    sys.modules[module] = None
x = torch.arange(6.0).view(3, 2).requires_grad_()

def raises(call):
    try:
        call()
    except Exception as error:
        return type(error)
"""
ALONE = {
    "core": """
import shared_distributed as core
assert core.all_gather(x) == (x, (3,)) and core.AllGather(dim=1)(x) == (x, (2,))
assert core.all_gather_async([x, x]).wait() == ([x, x], (3,))
assert core.reduce_scatter(x, sizes=[3]) is x and not core.is_distributed()
assert core.all_gather(x)[1].rows == slice(0, 3)
assert list(core.until_all_done([1, 2])) == [1, 2]
assert raises(lambda: core.all_gather(x, 2)) is core.BadInputError
assert issubclass(raises(lambda: core.gather_sizes(x, dim=0)), RuntimeError)
""",
    "musiclm": """
gathered, sizes = module.AllGather(dim=0)(x)
assert gathered is x and sizes is None
assert raises(lambda: module.AllGatherFunction.apply(x, 0, None, False)) is RuntimeError
assert raises(lambda: module.all_gather_same_dim(x)) is RuntimeError
assert raises(lambda: module.all_gather_variable_dim(x)) is RuntimeError
""",
    "spear-tts": """
gathered, sizes = module.all_gather(x, 0, None)
assert sizes is None and gathered.tolist() == x.tolist()
gathered.sum().backward()
assert x.grad.tolist() == [[1.0] * 2] * 3
assert raises(lambda: module.all_gather_variable_dim(x)) is RuntimeError
""",
    "mirasol": """
assert module.get_is_distributed() is False
assert raises(lambda: module.all_gather(x, 0, None)) is AssertionError
assert raises(lambda: module.all_gather_variable_dim(x, 0, [3])) is RuntimeError
""",
    "x-clip": """
assert raises(lambda: module.all_gather(x, 0, None)) is AssertionError
assert raises(lambda: module.all_gather_variable_dim(x, 0, [3])) is RuntimeError
""",
    "st-moe": """
calls = [module.AllGather(), module.split_by_rank, module.all_gather_same_dim, module.all_gather_variable_dim]
calls += [lambda x: module.gather_sizes(x, dim=0), lambda x: module.AllGatherFunction.apply(x, 0, None)]
assert {raises(lambda: call(x)) for call in calls} == {RuntimeError}
assert module.pad_dim_to(x, 4).shape == (4, 2)
""",
}
ALONE |= {
    other: f"import {other.replace('-', '_')}_distributed as module\n{script}"
    for name, script in ALONE.items()
    if name != "core"
    for other in family(name)
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)[:1]) for name in ALONE])
def test_a_torch_without_c10d(name: str, answers: dict[str, str]) -> None:
    """It imports, and behaves as without a process group; what is torch's own error there is a RuntimeError."""
    assert answers[name] == "done"


MODULES = {"shared_distributed": "core", **{f"{name.replace('-', '_')}_distributed": name for name in ADAPTERS}}
IMPORTED = """
import sys
before = set(sys.modules)
import {module}
loaded = sorted(name for name in set(sys.modules) - before if name.startswith("torch."))
assert not [name for name in loaded if name.startswith(("torch._dynamo", "torch._inductor"))], loaded
"""


@pytest.mark.parametrize("module", [pytest.param(m, marks=pytest.mark.suite(suite)) for m, suite in MODULES.items()])
def test_importing_loads_no_compiler(module: str, answers: dict[str, str]) -> None:
    """Dynamo takes seconds to load, and most programs never compile."""
    assert answers[module] == "done"


# ------------------------------------------------------------------ torch.compile


def spellings(name: str) -> list[str]:
    """How downstream code may write an adapter's gather."""
    api = CONTRACTS[name]["api"]
    found = ["module"] if has_module(name) else []
    found += ["function"] if not has_module(name) or "AllGatherFunction" in api else []
    return found + (["all_gather"] if "all_gather" in api else [])


# which ranks are compiled, whether gradients are summed, whether sizes are given
REGIONS = {
    "local": ([0], False, False),
    "sum, every rank compiled": ([0, 1, 2], True, False),
    "sum": ([0], True, False),
    "sum, sizes given": ([0], True, True),
}
# an adapter's spellings take turns: each adapter meets every region, and so does each way to spell it
COMPILED = [
    pytest.param(name, how, *REGIONS[region], marks=marks_of(name), id=f"{name}-{how}-{region}")
    for row, name in enumerate(ADAPTERS)
    for column, how in enumerate(spellings(name))
    for region in list(REGIONS)[(row // 2 + column) % 2 :: 2]
]


@needs_compile
@pytest.mark.parametrize(("name", "how", "compiled", "summed", "given"), COMPILED)
@pytest.mark.only_over("gloo", "nccl", reason="compiled code calls what the other tests call here")
def test_compiled_regions(
    name: str,
    how: str,
    compiled: list[int],
    summed: bool,
    given: bool,
    backend: str,
    worlds: Worlds,
    request: pytest.FixtureRequest,
) -> None:
    """However the gather is spelled: compiled ranks meet eager ones, with the values and gradients of eager mode.

    A vendored file is a graph break. The package compiles whole, but for a Function's `apply` without sizes.
    """
    case = Case((1, 2, 3), 0, "float32")
    shape = gathered(case).shape
    subject = f"{name} {'sum' if summed else 'local'}"
    whole = WHOLE and not request.config.getoption("--vendored") and (how != "function" or given)
    answers = worlds.get(backend, 3).run(compiled_on, compiled, whole, name, how, summed, given, case)
    for rank, (out, sizes, gradient, broken) in enumerate(answers):
        assert same(out, gathered(case) * 2 + 1)
        assert sizes == [1, 2, 3]
        assert same(gradient, 2 * total(case, rank, subject, lambda r: upstream(r, shape, "float32")))
        assert broken == (rank in compiled and not whole)


# ------------------------------------------------------------------ a mixture of experts


@pytest.mark.suite("st-moe")
@pytest.mark.parametrize("sizes", [(3, 5, 4), (6, 0, 3)], ids=str)
def test_experts_on_different_ranks_get_exact_gradients(sizes: tuple[int, ...], backend: str, worlds: Worlds) -> None:
    """st-moe with `all_reduce_grads`, a loss of each rank's own: gradients are those of one process.

    Left out, as in the original, an expert's gradient knows its own rank's loss only.
    """
    ranks = [Mixture(rank, sizes) for rank in range(3)]
    gate = ranks[0].gate
    order, parts = Mixture.routed(torch.cat([rank.tokens for rank in ranks]), gate)
    assert all(len(part) for part in parts), "every expert has something to do"
    answers = torch.cat([(part @ rank.expert).tanh() for part, rank in zip(parts, ranks, strict=True)])
    outputs = torch.zeros_like(answers).index_copy(0, order, answers).split(sizes)
    loss = sum(Mixture.loss(rank, outputs[rank]) for rank in range(3))
    leaves = [rank.tokens for rank in ranks] + [rank.expert for rank in ranks]
    *expected, of_gate = torch.autograd.grad(loss, [*leaves, gate])

    found = worlds.get(backend, 3).run(mixture_of_experts, True, sizes)
    torch.testing.assert_close([tokens for tokens, _, _ in found], list(expected[:3]))
    torch.testing.assert_close([expert for _, expert, _ in found], list(expected[3:]))
    torch.testing.assert_close(sum(gate for _, _, gate in found), of_gate)
    as_ever = worlds.get(backend, 3).run(mixture_of_experts, False, sizes)
    assert max(float((own[1] - right).abs().max()) for own, right in zip(as_ever, expected[3:], strict=True)) > 0.1
