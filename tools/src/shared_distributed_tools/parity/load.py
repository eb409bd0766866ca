# SPDX-License-Identifier: MIT
"""A file as a module. Runs on ranks only: what is loaded is somebody's code.

A file that lies in a package is loaded as a module of it, so that relative imports work; the package's own `__init__`
is not run, since it often brings in the whole project.

Three of the four originals use names that they never define. A file gets builtins of its own, which know what such
names obviously mean; each use is noted, since without us it would be a NameError.
"""

import builtins
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn
from torch.autograd import Function
from torch.nn.functional import pad

from ..render.verify import undefined_names
from .cases import Kind

ADDED = "all_reduce_grads"  # every adapter takes it, beyond what its original takes
_STAND_IN = "old_distributed"  # the name of a flat file whose own name is another module's


def kind_of(value: Any) -> Kind:
    """What a public name is, as far as calling it goes."""
    if inspect.isclass(value) and issubclass(value, nn.Module):
        return "summing module" if ADDED in inspect.signature(value.__init__).parameters else "module"
    if inspect.isclass(value) and issubclass(value, Function):
        return "summing function" if ADDED in inspect.signature(value.forward).parameters else "function"
    return "callable"


@cache
def load(file: str) -> ModuleType:
    """The file as a module, which has builtins of its own."""
    path = Path(file)
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folder = folder.parent
    sys.path.insert(0, str(folder))
    parts = path.with_suffix("").relative_to(folder).parts
    for depth in range(1, len(parts)):
        package = ModuleType(".".join(parts[:depth]))
        package.__path__ = [str(folder.joinpath(*parts[:depth]))]
        sys.modules[package.__name__] = package
    name = ".".join(parts)
    name = _STAND_IN if name in sys.modules or name in sys.stdlib_module_names else name
    module, given = ModuleType(name), Builtins()
    vars(module).update(__file__=file, __package__=name.rpartition(".")[0], __builtins__=given)
    sys.modules[name] = module
    exec(compile(path.read_bytes(), file, "exec"), vars(module))
    given.used_at_import = frozenset(given.used)
    return module


def describe(file: str) -> tuple[dict[str, Kind], dict[str, list[str]]]:
    """What can be called in a file, by name; and the names that it does not define, under the report's keys."""
    undefined = undefined_names(importlib.util.decode_source(Path(file).read_bytes()))
    return {name: kind_of(value) for name, value in sorted(vars(load(file)).items()) if callable(value)}, {
        "undefined_and_known": sorted(undefined & MEANINGS.keys()),
        "undefined_and_unknown": sorted(undefined - MEANINGS.keys()),
    }


class Builtins(dict[str, Any]):
    """Python's builtins, and behind them the names of MEANINGS. A lookup of one of these is noted.

    Python asks here last, for names that neither a function nor its module defines.
    """

    def __init__(self) -> None:
        super().__init__(vars(builtins))
        self.used: set[str] = set()
        self.used_at_import: frozenset[str] = frozenset()  # and so in every case

    def __missing__(self, name: str) -> Any:
        if name not in MEANINGS:
            raise KeyError(name)  # which becomes a NameError
        self.used.add(name)
        meaning = MEANINGS[name]
        return pkgutil.resolve_name(meaning) if isinstance(meaning, str) else meaning


# names that old files use and do not define -> what they obviously mean, or where that is found
MEANINGS: dict[str, Callable[..., Any] | str] = {
    "exists": lambda val: val is not None,
    "default": lambda val, d: d if val is None else val,
    "divisible_by": lambda num, den: num % den == 0,
    "has_only_one_value": lambda t: (t == t[0]).all(),
    "pad_dim_to": lambda t, length, dim=0: pad(t, [0, 0] * (t.ndim - 1 - dim % t.ndim) + [0, length - t.shape[dim]]),
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
