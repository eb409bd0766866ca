# SPDX-License-Identifier: MIT
"""Downstream projects made by chance: imports x bindings x uses x scopes, run with the adapter and with the core.

Most pieces are ones that a person might write; some are there to lead a rewriter astray.
"""

import importlib
import random
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.migrate.to_core import look_at_files
from shared_distributed_tools.render.shim import shim
from shared_distributed_tools.repo.tree import Tree
from shared_distributed_tools.repo.uses import find_uses

from .trees import write_files

MODULES = {"musiclm": True, "st-moe": True, "spear-tts": False, "mirasol": False}  # whether AllGather is a module

# of each list, those above the dots are proven forms
IMPORTS: list[Any] = [
    "from .distributed import {names}",
    "from pkg.distributed import (\n    {names},  # those of all ranks\n)",
    ...,
    "from .distributed import {name} as {name}",
    "from .distributed import *",
    "from . import distributed\n{name} = distributed.{name}",
    "from .utils import {names}",
    "try:\n    from .distributed import {names}\nexcept ImportError:\n    {name} = None",
    "if True:\n    from .distributed import {names}",
    "import pkg\nimport pkg.distributed\n{name} = pkg.distributed.{name}",
]
BUILDS: list[Any] = [  # in __init__, and what is called
    ("self.gather = AllGather({dim})", "self.gather"),
    ("self.all_gather  =  AllGather( {dim} )", "self.all_gather"),
    ("self.gather = AllGather({dim}, all_reduce_grads = True)", "self.gather"),
    ("self.gather = AllGather({dim}, all_reduce_grads=False)", "self.gather"),
    ("pass", "AllGather({dim})"),
    ...,
    ("self.gather = AllGather({dim}, all_reduce_grads = True if self.training else False)", "self.gather"),
    ("self.gather: torch.nn.Module = AllGather({dim})", "self.gather"),
    ("self.gather = self.other = AllGather({dim})", "self.other"),
    ("self.gathers = torch.nn.ModuleList([AllGather({dim})])", "self.gathers[0]"),
    ("self.gather = AllGather({dim})", "getattr(self, 'gather')"),
    ("self.gather = AllGather({dim})", "next(self.children())"),
    ("self.gather = AllGather({dim}); self.gather = AllGather({dim}, all_reduce_grads = True)", "self.gather"),
    ("self.make = lambda dim = 0, AllGather = AllGather: AllGather(dim = dim)", "self.make()"),
    ("self.gather = (AllGather)({dim})", "self.gather"),
]
GATHERS: list[Any] = [
    "x, sizes = {x}",
    "(x, sizes) = {x}",
    "x, sizes = ({x})",
    ...,
    "pair = {x}\nx, sizes = pair",
    "x, (*sizes,) = {x}",
    "x, self.sizes = {x}\nsizes = self.sizes",
    "if (pair := {x}):\n    x, sizes = pair",
    "for x, sizes in [{x}]: pass",
    "x, sizes = {x}\nif sizes is None: sizes = torch.tensor([1])",
]
READS: list[Any] = [
    "out.append(exists(sizes))",
    "out.append(sizes is None)",
    "out.append(not sizes is not None and 1)",
    "if exists(sizes): out.append(sizes.tolist())",
    "if sizes is not None:\n    out.append(sizes.tolist())",
    "out += [sizes.sum().item()] if exists(sizes) else []",
    "y, _ = {y}",
    "def later(): return exists(sizes)\nout.append(later())",
    "y = {y}[0]",
    ...,
    "out.append(len(sizes) if exists(sizes) else 0)",
    "out.append(sizes[-1:].tolist() if exists(sizes) else 0)",
    "out.append(sizes[sizes.numel() - 1].item() if exists(sizes) else 0)",
    "out.append(f'{sizes.tolist()}' if exists(sizes) else '')",
    "out.append(sizes.float().mean().item() if exists(sizes) else 0)",
    "out.append([n.tolist() for n in [sizes] if exists(n)])",
    "out.append(str(type(locals()['sizes']).__name__))",
    "out.append(exists(sizes) and max(sizes.tolist()))",
    "out.append((lambda sizes = sizes: exists(sizes))())",
    "if exists(sizes): sizes = sizes + 1; out.append(sizes.tolist())",
    "y, sizes = {y}\nout.append(exists(sizes) and sizes.tolist())",
]
ODDITIES: list[Any] = [  # at the top of the file
    "",
    ...,
    "def is_distributed(): return False",
    "def unrelated(max = 10, list = 3): return list",
    "list = tuple",
    "def exists(value): return bool(value is not None)",
    "import builtins as sum",
    "def unrelated(AllGather = None, all_gather = None): return AllGather",
    "from math import *",
    "class Sub(torch.nn.Module):\n    is_distributed = 3",
    "def _(text): return text",
]


SCOPES = [  # where the gather is built and called; the last two for what is not kept in `self`
    "class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        {build}\n"
    "    def forward(self, x, y):\n        {body}\n        return x, y, out\n",
    "class Model:\n    def __call__(self, x, y):\n        {build}\n        {body}\n        return x, y, out\n",
    "def run(x, y):\n        {build}\n        def inner(x, y):\n            if True:\n                {body}\n"
    "            return x, y, out\n        return inner(x, y)\nModel = lambda: run\n",
]


def _pick(chance: random.Random, pieces: list[Any], odd: float = 0.12) -> Any:
    dots = pieces.index(...)
    return chance.choice(pieces[dots + 1 :] if chance.random() < odd else pieces[:dots])


def _code(chance: random.Random, name: str) -> str:
    is_module = MODULES[name]
    main = "AllGather" if is_module else "all_gather"
    dim = "dim = 0" if name == "st-moe" else chance.choice(["dim = 0", "0", "dim=0", "dim = (0)"])
    build, gather = _pick(chance, BUILDS) if is_module else ("pass", "all_gather")
    scope = chance.choice(SCOPES)
    if scope != SCOPES[0]:  # a local variable in place of an attribute
        build, gather = (re.sub(r"self\.(gather|all_gather|other)\b", r"\1", one) for one in (build, gather))
    sizes = chance.choice(["sizes", "sizes = sizes", "sizes=sizes"]) if is_module else "sizes"
    flag = "" if is_module else _pick(chance, ["", ", True", ", all_reduce_grads = False", ..., ", *()"])
    first, again = (f"{gather}(x{flag})", f"{gather}(y, {sizes}{flag})")
    if not is_module:
        first, again = (f"{gather}({one}, 0, {given}{flag})" for one, given in (("x", "None"), ("y", "sizes")))
    body = ["out = []", _pick(chance, GATHERS), *{_pick(chance, READS): 0 for _ in range(chance.randint(0, 4))}]
    asks = {"mirasol": "get_is_distributed()", "musiclm": f"{gather}.is_distributed"}.get(name, "0")
    odd = "get_is_distributed.cache_clear()" if name == "mirasol" else f"out.append({gather}.dim)"
    body.append(_pick(chance, [f"out.append({asks})", "pass", ..., odd]))
    text = "\n".join(body).replace("{x}", first).replace("{y}", again)
    indent = re.search(r"( *)\{body\}", scope)[1]  # type: ignore[index]
    scope = scope.replace("{build}", build).replace("{body}", text.replace("\n", f"\n{indent}"))
    names = main + (", get_is_distributed" if name == "mirasol" else "")
    imports = _pick(chance, IMPORTS).format(names=names, name=main)
    exists = "def exists(val):" + chance.choice(["\n    ", " "]) + "return val is not None\n"
    return f"import torch\n{imports}\n{exists}{_pick(chance, ODDITIES)}\n{scope}".replace("{dim}", dim)


def make(seed: int, folder: Path) -> tuple[str, str]:
    """A project, and what the tools make of it, "" where it stays; in folders `before` and `after`."""
    chance = random.Random(seed)
    adapter = ADAPTERS[chance.choice([*MODULES])]
    code = _code(chance, adapter.name)
    before = {"pkg/__init__.py": "", "pkg/distributed.py": shim(adapter), "pkg/use.py": code}
    before["pkg/utils.py"] = "from .distributed import *\n"
    tree = Tree(write_files(folder / "before", before))
    files = look_at_files(tree, find_uses(tree, "pkg/distributed.py", [*adapter.api]), adapter)
    file = next(one for one in files if one.source.path == "pkg/use.py")
    result = file.edits.result if file.is_proven else ""
    write_files(folder / "after", {**before, "pkg/use.py": result})
    return code, result


def outcomes(folders: list[str]) -> list[Any]:
    """On a rank, or alone: what each project does, as plain values. Seeds differ by rank, shapes too."""
    return [_outcome(folder) for folder in folders]


def _outcome(folder: str) -> Any:
    rank = dist.get_rank() if dist.is_initialized() else 0
    generator = torch.Generator().manual_seed(rank)
    x, y = (torch.rand(2 + rank, 3, generator=generator, requires_grad=True) for _ in range(2))
    sys.path.insert(0, folder)
    try:
        warnings.simplefilter("ignore")
        a, b, out = importlib.import_module("pkg.use").Model()(x, y)
        weights = torch.arange(a.numel()).view_as(a) * (rank + 1.0)
        ((a * weights).sum() + (b * b).sum() * (rank + 2)).backward()
        return [one if one is None else one.tolist() for one in (a, b, x.grad, y.grad)], out
    except Exception as error:
        return type(error).__name__
    finally:
        sys.path.remove(folder)
        for module in [one for one in sys.modules if one.partition(".")[0] == "pkg"]:
            del sys.modules[module]
        importlib.invalidate_caches()
