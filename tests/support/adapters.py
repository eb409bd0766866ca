# SPDX-License-Identifier: MIT
"""What each adapter promises, from the `contract.json` beside its sources: adding one adds its tests."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

CONTRACTS: dict[str, dict[str, Any]] = {
    contract.parent.name: json.loads(contract.read_text())
    for contract in sorted((Path(__file__).resolve().parents[2] / "packages").glob("*/contract.json"))
}
ADAPTERS = tuple(CONTRACTS)
# all ways to gather with a gradient, of the core and of every adapter
GRADIENTS = {"core": ["sum", "local"], **{name: contract["gradients"] for name, contract in CONTRACTS.items()}}
SUBJECTS = tuple(f"{name} {gradient}" for name, gradients in GRADIENTS.items() for gradient in gradients)


def adapter(name: str) -> Any:
    """An adapter's module: the package, or the vendored file where those are tested."""
    return importlib.import_module(f"{name.replace('-', '_')}_distributed")


def core() -> Any:
    """The core, imported when asked for: the vendored files are tested where there is none."""
    return importlib.import_module("shared_distributed")


def gather_of(name: str) -> Any:
    """The function that an adapter's `AllGather` runs."""
    cls = adapter(name).AllGather
    return cls.forward if issubclass(cls, nn.Module) else cls.apply


# of adapters that run one function the first is tested in full; the others behave like it: that name -> the first's
_FIRST: dict[Any, str] = {}
LIKE = {name: _FIRST.setdefault(gather_of(name), name) for name in ADAPTERS}
UNLIKE = tuple(name for name in ADAPTERS if LIKE[name] == name)
_SHARED = importlib.import_module("shared_distributed.adapters")
# the names that an adapter takes from the core as they are
TAKEN = {
    name: {one for one, value in vars(adapter(name)).items() if value is vars(_SHARED).get(one) and one[0] != "_"}
    for name in ADAPTERS
}


def family(name: str) -> list[str]:
    """The adapters that gather by the same function as this one."""
    return [other for other in ADAPTERS if LIKE[other] == LIKE[name]]


def those_that_take(function: str) -> list[str]:
    """The adapters that have a function of the core's under its own name."""
    return [name for name in ADAPTERS if function in TAKEN[name]]


def marked(subjects: "list[str] | tuple[str, ...]") -> list[Any]:
    """Parameters: adapters or subjects, each of the suite that its first word names, or else of the core's.

    A subject ("st-moe sum") of an adapter that gathers by another's function is marked as like that one.
    """
    parameters = []
    for subject in subjects:
        name, _, gradient = subject.partition(" ")
        parameters.append(pytest.param(subject, marks=marks_of(name) if gradient else marks_of(name)[:1]))
    return parameters


def marks_of(name: str) -> list[Any]:
    """Of a test that is about how one adapter gathers: its suite, and whether the adapter gathers like another one."""
    if name not in ADAPTERS:
        return [pytest.mark.suite("core")]
    like = [pytest.mark.like(LIKE[name])] if LIKE[name] != name else []
    return [pytest.mark.suite(name), *like]


def function_of(name: str) -> str:
    """The name of an adapter's autograd Function."""
    return "AllGatherFunction" if "AllGatherFunction" in CONTRACTS[name]["api"] else "AllGather"


def arguments_of(name: str) -> int:
    """How many arguments its `apply` takes in the original."""
    forward, _ = CONTRACTS[name]["api"][function_of(name)]
    return len(forward.strip("()").split(", ")) - 1


of_adapter = pytest.mark.parametrize("name", marked(ADAPTERS))
