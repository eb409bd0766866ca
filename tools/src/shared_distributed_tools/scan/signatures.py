# SPDX-License-Identifier: MIT
"""A file's names with their signatures, as a `contract.json` has them. The file is read, and never imported.

Every function and class at the top of the file counts, helpers too, since another file may import them; of
assignments those that gather, such as `all_gather = AllGather.apply`.
"""

import ast
import copy
from typing import Any

from .fingerprint import definitions, gathers, imported_names, is_autograd_function

_SUMS = "all_reduce_grads"


def api_of(tree: ast.Module) -> dict[str, Any]:
    """Names -> signatures. A Function has two, its forward and backward; a module too, its __init__ and forward."""
    names = imported_names(tree)
    api: dict[str, Any] = {}
    for one in definitions(tree):
        node = one.node
        if isinstance(node, ast.ClassDef):
            pair = ("forward", "backward") if is_autograd_function(node, names) else ("__init__", "forward")
            methods = {inner.name: inner for inner in node.body if isinstance(inner, ast.FunctionDef)}
            api[one.name] = [_signature(methods[method]) for method in pair if method in methods]
        elif isinstance(node, ast.Assign):
            if gathers(node):
                value = ast.unparse(node.value)
                api[one.name] = api.get(value, value)  # another name of a function
        else:
            api[one.name] = _signature(node)
    return dict(sorted(api.items(), key=lambda item: (not item[0][0].isupper(), item[0])))


def with_sums(api: dict[str, Any]) -> dict[str, Any]:
    """The gathers among them whose adapter takes `all_reduce_grads` beyond the original, with the signatures then."""
    added = {}
    for name, signatures in api.items():
        if not isinstance(signatures, list) or len(signatures) != 2 or "gather" not in name.lower():
            continue
        first, second = signatures
        if f"{_SUMS}=" in first:
            continue
        inside = first.strip("()").removesuffix(f", {_SUMS}")
        is_keyword = inside.startswith("self") and "*" not in inside
        added[name] = [f"({inside}{', *' if is_keyword else ''}, {_SUMS}=False)", second]
    return added


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Without annotations, as `inspect` writes it."""
    arguments = copy.deepcopy(node.args)
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for one in every:
        if one is not None:
            one.annotation = None
    return f"({ast.unparse(arguments)})"
