# SPDX-License-Identifier: MIT
"""What each adapter promises, from the `contract.json` beside its sources: adding one adds its tests."""

import ast
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

PACKAGES = Path(__file__).resolve().parents[2] / "packages"
CONTRACTS: dict[str, dict[str, Any]] = {
    contract.parent.name: json.loads(contract.read_text()) for contract in sorted(PACKAGES.glob("*/contract.json"))
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


def has_module(name: str) -> bool:
    """Whether an adapter's `AllGather` is an nn.Module; else it is an autograd Function."""
    return bool(CONTRACTS[name]["api"]["AllGather"][0].startswith("(self"))


def _source(name: str) -> list[ast.stmt]:
    """An adapter's statements. Read and not imported: ranks that test the vendored files have no core."""
    (file,) = (PACKAGES / name).glob("src/*/__init__.py")
    return ast.parse(file.read_text()).body


def _gather_of(name: str) -> str:
    """The class of the core that an adapter's `AllGather` is, or the adapter's name where it is one of its own."""
    for node in _source(name):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "AllGather":
            return ast.unparse(node.value)
        if isinstance(node, ast.ClassDef) and node.name == "AllGather":
            has_methods = any(isinstance(one, ast.FunctionDef) for one in node.body)
            return name if has_methods else ast.unparse(node.bases[0])
    return name


# of adapters that have one gather the first is tested in full; the others behave like it: that name -> the first's
_FIRST: dict[str, str] = {}
LIKE = {name: _FIRST.setdefault(_gather_of(name), name) for name in ADAPTERS}
UNLIKE = tuple(name for name in ADAPTERS if LIKE[name] == name)
# the names that an adapter takes from the core as they are
TAKEN = {
    name: {alias.name for node in _source(name) if isinstance(node, ast.ImportFrom) for alias in node.names}
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
