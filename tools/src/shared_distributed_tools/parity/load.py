# SPDX-License-Identifier: MIT
"""A file or an adapter as a module. Runs on ranks only: what is loaded is somebody's code.

An old file that lies in a package is loaded as a module of it, so that relative imports work. The package's own
`__init__` is not run at first: it often brings in the whole project. It is, if the file cannot do without.

Three of the four originals use names that they never define. A file gets builtins of its own, which know what such
names obviously mean; each use is noted, since without us it would be a NameError.
"""

import ast
import builtins
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from ..render.verify import undefined_names
from .cases import Kind

_STAND_IN = "old_distributed"  # the name of a flat file whose own name is another module's


class Subject(NamedTuple):
    """What is to be loaded: a file of ours, or a user's."""

    how: Literal["rendered", "file"]
    what: str


class Description(NamedTuple):
    """A subject as the parent needs to know it."""

    api: dict[str, Kind]  # its public names that can be called
    own: list[str]  # those of them that it does not have from elsewhere
    not_defined: list[str]  # names with an obvious meaning that nothing defines
    not_importable: list[str]  # the same, imported from a module that is not there
    unknown: list[str]  # names that nothing defines, and that mean nothing to us
    where: str  # how it was loaded, in words


@dataclass
class Loaded:
    """A module, and the names that it uses and does not define."""

    module: ModuleType
    builtins: "Builtins" = field(default_factory=lambda: Builtins())
    undefined: frozenset[str] = frozenset()
    where: str = "loaded from its path"

    def describe(self) -> Description:
        """The module's public names and what each is."""
        public = [name for name in vars(self.module) if not name.startswith("_")]
        names = sorted(name for name in getattr(self.module, "__all__", public) if self._is_callable(name))
        own = [name for name in names if _is_from(self.module, getattr(self.module, name))]
        absent = sorted(name for name in self.builtins.imported if name not in vars(self.module))
        not_defined = sorted(name for name in self.undefined if name in MEANINGS)
        api = {name: kind_of(getattr(self.module, name)) for name in names}
        return Description(api, own, not_defined, absent, sorted(self.undefined - set(not_defined)), self.where)

    def _is_callable(self, name: str) -> bool:
        return callable(getattr(self.module, name, None))


def load(subject: Subject) -> Loaded:
    """The subject, imported."""
    path = Path(subject.what)
    if subject.how == "rendered":
        sys.path.insert(0, str(path.parent))
        return Loaded(importlib.import_module(path.stem))
    return _load_old(path)


def kind_of(value: Any) -> Kind:
    """What a public name is, as far as calling it goes."""
    if inspect.isclass(value) and issubclass(value, nn.Module):
        return "summing module" if "all_reduce_grads" in inspect.signature(value.__init__).parameters else "module"
    if inspect.isclass(value) and issubclass(value, Function):
        return "summing function" if "all_reduce_grads" in inspect.signature(value.forward).parameters else "function"
    return "callable"


def _is_from(module: ModuleType, value: Any) -> bool:
    # `all_gather = AllGather.apply` has no module of its own, but one bound to a class that has
    return getattr(getattr(value, "__self__", value), "__module__", None) == module.__name__


def _load_old(path: Path) -> Loaded:
    packages = list(_packages_around(path))
    sys.path.insert(0, str(packages[0][1].parent if packages else path.parent))
    if not packages:
        is_taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
        return _executed(path, "", _STAND_IN if is_taken else path.stem)
    package = packages[-1][0]
    for name, folder in packages:
        sys.modules[name] = _new_module(name, folder / "__init__.py", name, search=folder)
    try:
        loaded = _executed(path, package, f"{package}.{path.stem}")
        loaded.where = "loaded without its package's __init__"
    except ImportError as first:
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{packages[0][0]}.")]:
            del sys.modules[name]
        try:
            importlib.import_module(package)
            loaded = _executed(path, package, f"{package}.{path.stem}")
        except ImportError as second:
            msg = f"{first}; and after its package's __init__: {second}"
            raise ImportError(msg) from second
        loaded.where = "loaded after its package's __init__"
    return loaded


def _executed(path: Path, package: str, name: str) -> Loaded:
    tree = ast.parse(path.read_bytes(), str(path))
    undefined = frozenset(undefined_names(ast.unparse(tree)))
    loaded = Loaded(_new_module(name, path, package), Builtins(_tolerate_absent_helpers(tree)), undefined)
    vars(loaded.module)["__builtins__"] = loaded.builtins
    sys.modules[name] = loaded.module
    exec(compile(tree, str(path), "exec"), vars(loaded.module))
    loaded.builtins.used_at_import = frozenset(loaded.builtins.used)
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


def _tolerate_absent_helpers(tree: ast.Module) -> frozenset[str]:
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
    return frozenset(names)


class Builtins(dict[str, Any]):
    """Python's builtins, and behind them the names of MEANINGS. A lookup of one of these is noted.

    Python asks here last, for names that neither a function nor its module defines.
    """

    def __init__(self, imported: frozenset[str] = frozenset()) -> None:
        super().__init__(vars(builtins))
        self.imported = imported  # from a module that may not be there: not noted, as that is no fault of the file's
        self.used: set[str] = set()
        self.used_at_import: frozenset[str] = frozenset()  # and so in every case

    def __missing__(self, name: str) -> Any:
        if name not in MEANINGS:
            raise KeyError(name)  # which becomes a NameError
        if name not in self.imported:
            self.used.add(name)
        meaning = MEANINGS[name]
        return pkgutil.resolve_name(meaning) if isinstance(meaning, str) else meaning


def pad_dim_to(t: Tensor, length: int, dim: int = 0) -> Tensor:
    """Zeros at the end of `dim`, or a shorter `dim`: `(… n …) -> (… length …)`."""
    after = t.ndim - 1 - dim % t.ndim
    return functional.pad(t, [0] * (2 * after) + [0, length - t.shape[dim]])


# what projects keep in a module of their own, and import from there
HELPERS: dict[str, Callable[..., Any]] = {
    "exists": lambda val: val is not None,
    "default": lambda val, d: d if val is None else val,
    "divisible_by": lambda num, den: num % den == 0,
    "has_only_one_value": lambda t: (t == t[0]).all(),
    "pad_dim_to": pad_dim_to,
}
# names that old files use and do not define -> what they obviously mean, or where that is found
MEANINGS: dict[str, Callable[..., Any] | str] = {
    **HELPERS,
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "torch": "torch",
    "dist": "torch.distributed",
    "distributed": "torch.distributed",
    "Function": "torch.autograd:Function",
    "Tensor": "torch:Tensor",
    **{name: f"einops:{name}" for name in ("rearrange", "repeat", "reduce", "pack", "unpack")},
    **{name: f"functools:{name}" for name in ("cache", "lru_cache", "partial", "wraps")},
}
