# SPDX-License-Identifier: MIT
"""What each use of a copy becomes in the core, for a person to write. The adapter and the core work side by side.

gradient   local, unless `all_reduce_grads`            ->  summed, unless `grad='local'`
sizes      a LongTensor, or None without other ranks   ->  a tuple of ints, always
the world  remembered by the object or the process     ->  asked at every call
"""

import ast
import copy
from collections.abc import Sequence

from ..catalog import CORE, Adapter
from ..repo.uses import Site, Use

UNCHANGED, BY_HAND = "unchanged", "by hand: "
_ASK = "is_distributed()"
ABOUT_SIZES = (
    "In the core, sizes are a tuple of ints: write list(sizes) for sizes.tolist(), sum(sizes) for sizes.sum().item(), "
    "is_distributed() for `sizes is not None`."
)


def planned(uses: Sequence[Use], adapter: Adapter) -> list[tuple[Site, str]]:
    """Every use and what it becomes; an import brings what the other lines of its file need."""
    found = [(use, becomes(use, adapter)) for use in uses]
    asking = {use.source.path for use, core in found if core == _ASK}
    return [
        (use.site, _with_question(core) if use.kind == "import" and use.source.path in asking else core)
        for use, core in found
    ]


def _with_question(line: str) -> str:
    needs = line.startswith(f"from {CORE} import ") and "is_distributed" not in line
    first, semicolon, rest = line.partition(";")
    return f"{first}, is_distributed{semicolon}{rest}" if needs else line


def becomes(use: Use, adapter: Adapter) -> str:
    """The code to write for a use; "unchanged"; or "by hand" and why."""
    if use.kind == "import":
        return _import(use, adapter)
    if isinstance(use.node, ast.Attribute) and use.owner is not None:
        other = f"{BY_HAND}keep the flag yourself" if use.node.attr == "all_reduce_grads" else UNCHANGED
        return _ASK if use.node.attr == "is_distributed" else other
    name = _name_in_core(use.name, adapter)
    if name is None or use.owner is not None or not isinstance(use.node, ast.Call):
        return UNCHANGED
    if name == "is_distributed":
        return _ASK
    if any(isinstance(one, ast.Starred) for one in use.node.args) or any(not word.arg for word in use.node.keywords):
        return f"{BY_HAND}the arguments have to be written out"
    call = copy.deepcopy(use.node)
    call.func = ast.Name(name)
    _set_gradient(call)
    if name == "all_gather" and len(call.args) == 3:
        sizes = call.args.pop()
        if not (isinstance(sizes, ast.Constant) and sizes.value is None):
            call.keywords.insert(0, ast.keyword("sizes", sizes))
    return ast.unparse(call)


def _name_in_core(name: str, adapter: Adapter) -> str | None:
    """The core's name for what means the same there; None for what stays with the adapter."""
    if name == "get_is_distributed":
        return "is_distributed"
    if name == "AllGather":
        return "AllGather" if adapter.has_module else "all_gather"  # an autograd Function: `AllGather.apply`
    return "all_gather" if name == "all_gather" else None


def _set_gradient(call: ast.Call) -> None:
    flag = next((word.value for word in call.keywords if word.arg == "all_reduce_grads"), ast.Constant(value=False))
    grad: ast.expr = ast.IfExp(flag, ast.Constant("sum"), ast.Constant("local"))
    if isinstance(flag, ast.Constant):
        grad = ast.Constant("sum" if flag.value else "local")
    call.keywords = [word for word in call.keywords if word.arg != "all_reduce_grads"]
    call.keywords.append(ast.keyword("grad", grad))


def _import(use: Use, adapter: Adapter) -> str:
    if not use.is_direct:
        return UNCHANGED
    if use.name == "*" or "" in use.bound.values():
        return f"{BY_HAND}import the names that you use, one by one"
    core: dict[str, None] = {}
    stay: dict[str, None] = {}
    for local, name in use.bound.items():
        new = _name_in_core(name, adapter)
        kept = new or name
        renamed = f" as {local}" if local not in (name, kept) else ""
        (stay if new is None else core)[f"{kept}{renamed}"] = None
    lines = [
        f"from {module} import {', '.join(names)}" for module, names in ((CORE, core), (adapter.module, stay)) if names
    ]
    return "; ".join(lines)
