# SPDX-License-Identifier: MIT
"""A file or an adapter as a module. Runs in child processes only: what is loaded is somebody's code.

An old file that lies in a package is loaded as a module of it, so that relative imports work. The package's own
`__init__` is not run at first: it often brings in the whole project. Where the file cannot do without, it is.
"""

import ast
import builtins
import dis
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.autograd import Function

from .cases import Kind
from .supplied import HELPERS, Supply

_STAND_IN = "old_distributed"  # the name of a flat file whose own name is another module's


class Subject(NamedTuple):
    """What is to be loaded: a module by its name, a file of ours, or a user's file with or without its package."""

    how: Literal["installed", "rendered", "file", "file in its package"]
    what: str


@dataclass
class Loaded:
    """A module, and what had to be supplied to it."""

    module: ModuleType
    supply: Supply = field(default_factory=Supply)
    not_defined: list[str] = field(default_factory=list)  # supplied
    not_importable: list[str] = field(default_factory=list)  # supplied too: imported from what is not there
    unknown: list[str] = field(default_factory=list)  # not defined, and without an obvious meaning


class Description(NamedTuple):
    """A subject as the parent needs to know it."""

    api: dict[str, Kind]  # its public names that can be called, but for those that were supplied
    own: list[str]  # those of them that it does not have from elsewhere
    not_defined: list[str]
    not_importable: list[str]
    unknown: list[str]


def load(subject: Subject) -> Loaded:
    """The subject, imported."""
    if subject.how == "installed":
        return Loaded(importlib.import_module(subject.what))
    path = Path(subject.what)
    if subject.how == "rendered":
        sys.path.insert(0, str(path.parent))
        return Loaded(importlib.import_module(path.stem))
    return _load_old(path, with_package=subject.how == "file in its package")


def describe(loaded: Loaded) -> Description:
    """The module's public names and what each is."""
    module, supplied = loaded.module, {*loaded.not_defined, *loaded.not_importable}
    public = [name for name in vars(module) if not name.startswith("_")]
    names = sorted(name for name in getattr(module, "__all__", public) if callable(getattr(module, name, None)))
    api = {name: kind_of(getattr(module, name)) for name in names if name not in supplied}
    own = [name for name in api if _is_from(module, getattr(module, name))]
    return Description(api, own, loaded.not_defined, loaded.not_importable, loaded.unknown)


def kind_of(value: Any) -> Kind:
    """What a public name is, as far as calling it goes."""
    if inspect.isclass(value) and issubclass(value, nn.Module):
        return "summing module" if _takes_all_reduce(value.__init__) else "module"
    if inspect.isclass(value) and issubclass(value, Function):
        return "summing function" if _takes_all_reduce(value.forward) else "function"
    return "callable"


def _takes_all_reduce(function: Any) -> bool:
    return "all_reduce_grads" in inspect.signature(function).parameters


def _is_from(module: ModuleType, value: Any) -> bool:
    # `all_gather = AllGather.apply` has no module of its own, but one bound to a class that has
    return getattr(getattr(value, "__self__", value), "__module__", None) == module.__name__


def _load_old(path: Path, *, with_package: bool) -> Loaded:
    packages = list(_packages_around(path))
    root = path.parent if not packages else packages[0][1].parent
    sys.path.insert(0, str(root))
    for name, folder in packages:
        if with_package or name in sys.modules:
            importlib.import_module(name)
        else:
            sys.modules[name] = _new_module(name, folder / "__init__.py", name, search=folder)
    package = packages[-1][0] if packages else ""
    name = f"{package}.{path.stem}" if package else path.stem
    if not packages and (path.stem in sys.modules or path.stem in sys.stdlib_module_names):
        name = _STAND_IN

    tree = ast.parse(path.read_bytes(), str(path))
    imported = _tolerate_absent_helpers(tree)
    code = compile(tree, str(path), "exec")
    supply = Supply()
    given: dict[str, Any] = {}
    while True:  # ends: a name is given once, and there are only so many
        module = sys.modules[name] = _new_module(name, path, package)
        vars(module).update(given)
        try:
            exec(code, vars(module))
            break
        except NameError as error:
            missing = error.name
            if missing is None or missing in given or not supply.knows(missing):
                raise
            given[missing] = supply.get(missing, noted=missing not in imported)
    supply.keep()

    loaded = Loaded(module, supply)
    for missing in sorted(_undefined(code, module) | set(given)):
        if supply.knows(missing):
            vars(module).setdefault(missing, supply.get(missing, noted=missing not in imported))
            (loaded.not_importable if missing in imported else loaded.not_defined).append(missing)
        else:
            loaded.unknown.append(missing)
    return loaded


def _packages_around(path: Path) -> Iterator[tuple[str, Path]]:
    """The packages that a file lies in, from the outermost: dotted name and folder."""
    folders: list[Path] = []
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folders.insert(0, folder)
        folder = folder.parent
    for depth, folder in enumerate(folders):
        yield ".".join(part.name for part in folders[: depth + 1]), folder


def _new_module(name: str, path: Path, package: str, *, search: Path | None = None) -> ModuleType:
    places = None if search is None else [str(search)]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = package
    return module


def _tolerate_absent_helpers(tree: ast.Module) -> set[str]:
    """Let a file live without the module that it has its small helpers from; the names of these helpers.

    `from musiclm import exists` would need all that musiclm needs, for a function of one line.
    """
    names: set[str] = set()
    for at, node in enumerate(tree.body):
        if isinstance(node, ast.ImportFrom) and all(alias.name in HELPERS and not alias.asname for alias in node.names):
            names |= {alias.name for alias in node.names}
            handler = ast.ExceptHandler(ast.Name("ImportError", ast.Load()), None, [ast.Pass()])
            tolerant = ast.copy_location(ast.Try([node], [handler], [], []), node)
            tree.body[at] = ast.fix_missing_locations(tolerant)
    return names


def _undefined(code: CodeType, module: ModuleType) -> set[str]:
    """Global names that some function reads and nothing defines."""
    read, written = set(), {*vars(module), *vars(builtins)}
    waiting = [code]
    while waiting:
        current = waiting.pop()
        waiting += [constant for constant in current.co_consts if isinstance(constant, CodeType)]
        for instruction in dis.get_instructions(current):
            if instruction.opname == "LOAD_GLOBAL":
                read.add(str(instruction.argval))
            elif instruction.opname == "STORE_GLOBAL":
                written.add(str(instruction.argval))
    return read - written
