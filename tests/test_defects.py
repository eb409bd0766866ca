# SPDX-License-Identifier: MIT
"""What the original files get wrong, one by one. Each of these tests fails with the defect put in.

| defect                                          | tested in                                              |
|-------------------------------------------------|--------------------------------------------------------|
| names that are never defined                    | here                                                   |
| the incoming gradient is written to             | test_matrix (asserted on the ranks), test_gradients    |
| non-contiguous tensors reach a collective       | here, test_matrix                                      |
| the second derivative of a summed gradient      | test_gradients                                         |
| ranks that disagree abort or hang               | test_bad_input                                         |
| padding travels, and is selected away           | test_core: only real rows travel                       |
| device-to-host syncs                            | here                                                   |
| int16, fp8, unsigned 16-bit                     | test_core: every dense dtype                           |
| no group argument; nothing compiles             | test_core: subgroups; test_compile                     |
"""

import builtins
import dis
import importlib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ADAPTERS
from harness import World, Worlds
from oracle import Case
from test_matrix import SUBJECTS

CORE = [path.stem for path in sorted((Path(__file__).parent.parent / "shared").rglob("shared_distributed/_[a-z]*.py"))]


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


@pytest.mark.parametrize(
    "module",
    [f"shared_distributed.{name}" for name in CORE]
    + [pytest.param(f"{a.replace('-', '_')}_distributed", marks=pytest.mark.suite(a)) for a in ADAPTERS],
)
def test_every_name_resolves(module: str) -> None:
    """No function reads a global that nobody defines (three of the originals do, at their first gather)."""
    loaded = importlib.import_module(module)
    assert loaded.__file__ is not None
    source = compile(Path(loaded.__file__).read_text(), loaded.__file__, "exec")
    names = {
        instruction.argval
        for code in code_objects(source)
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    unknown = {name for name in names if not hasattr(loaded, name) and not hasattr(builtins, name)}
    assert not unknown - {"__name__", "__module__", "__qualname__"}, unknown


@pytest.mark.parametrize("subject", [pytest.param(s, marks=pytest.mark.suite(s.split()[0])) for s in SUBJECTS])
@pytest.mark.parametrize("dim", [0, 1])
def test_what_reaches_a_collective_is_contiguous(subject: str, dim: int, worlds: Worlds) -> None:
    """A transposed input and gradient, small and large: the watched process group sees contiguous tensors only."""
    for rows in (5, 60000):
        case = Case((rows, 2, 0, 3), dim, "float32", contiguous=False, other=(2, 9))
        for forward, _ in worlds.get("gloo", 4).run("ranks.core:counted", subject, case):
            assert len(forward) >= 2


def test_device_to_host_syncs_on_cuda() -> None:
    """Simulated (fake tensors, no GPU): none when sizes are known on the host, one when not, none backward."""
    for world, rank in ((4, 1), (1024, 700)):
        with World("gloo", 1, join=False) as fresh:
            (seen,) = fresh.run("ranks.fake:syncs_on_cuda", world, rank)
        sizes = [r % 3 + 1 for r in range(world)]
        shape = (sum(sizes), 5)
        assert seen["sum"] == seen["local"] == (shape, "cuda", (sizes[rank], 5), "cuda")
        assert seen["reads with sizes known"] == 0
        assert seen["passed back"] == (shape, "cuda", 0)
        assert seen["written to"] == "DataDependentOutputException"
        assert seen["not known"] == (shape, True, 1)
