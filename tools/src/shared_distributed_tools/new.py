# SPDX-License-Identifier: MIT
"""`adapters new`: a further adapter, as a working copy of the one that is nearest to it.

What makes a package an adapter is its `contract.json`: the catalogue, the tests and nox find it by that.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

import click

from .catalog import ADAPTERS, CORE_FOLDER
from .errors import RefusalError
from .scan.compare import paired, similarity
from .scan.fingerprint import definitions, known_originals, with_original
from .scan.signatures import api_of, with_sums

_KNOWN = "tools/src/shared_distributed_tools/scan/known.json"
_SHARED = f"{CORE_FOLDER}/src/shared_distributed/adapters.py"


@click.command("new")
@click.argument("name")
@click.option("--like", type=click.Choice(list(ADAPTERS)), required=True, help="The adapter to copy.")
@click.option("--replaces", required=True, help="The file that it replaces downstream: newproj/distributed.py.")
@click.option(
    "--original",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="That file, to take its names, its signatures and its fingerprint.",
)
def command(name: str, like: str, replaces: str, original: Path | None) -> None:
    """Scaffold a further adapter called NAME in this checkout: its package, its contract, its fingerprint."""
    _refuse_what_cannot_be(name)
    files = _copy_of(like, name)
    folder = Path("packages", name)
    source = folder / "src" / _module(name) / "__init__.py"
    contract = json.loads(files[folder / "contract.json"])
    contract |= {"downstream": f"{name}-pytorch", "replaces": replaces, "flat_beside": None}
    notes = [f"Now change what differs from {like} in {source.as_posix()}, then run"]
    if original is not None:
        files[Path(_KNOWN)] = with_original(name, original)  # refuses what does not parse
        tree = ast.parse(original.read_text(encoding="utf-8"))
        api = api_of(tree)
        contract |= {"api": api, "adds": with_sums(api)}
        files[source] = _with_names(files[source], set(api))
        notes = [*_what_is_left(files[source], set(api)), *_if_another_is_nearer(tree, like), *notes]
    files[folder / "contract.json"] = json.dumps(contract, indent=2) + "\n"
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        click.echo(f"wrote {path.as_posix()}")
    click.echo("\n".join(notes))
    click.echo(f'  nox -s "suite({name}, gloo)" lint types')


def _refuse_what_cannot_be(name: str) -> None:
    if not Path("noxfile.py").is_file() or not Path("packages").is_dir():
        raise RefusalError("this is not a checkout of shared-distributed; run `adapters new` at the root of one")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        msg = f"{name!r} is no name for an adapter; use small letters, digits and single hyphens"
        raise RefusalError(msg)
    if Path("packages", name).exists():
        msg = f"packages/{name} is there already; move it away, or choose another name"
        raise RefusalError(msg)


def _module(name: str) -> str:
    return f"{name.replace('-', '_')}_distributed"


def _copy_of(like: str, name: str) -> dict[Path, str]:
    """The files of one adapter under the name of another."""
    files = {}
    model = Path("packages", like)
    for file in sorted(path for path in model.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        text = file.read_text(encoding="utf-8")
        if file.name != "LICENSE":
            text = text.replace(_module(like), _module(name)).replace(like, name)
        below = file.relative_to(model).as_posix().replace(_module(like), _module(name))
        files[Path("packages", name, below)] = text
    return files


# ------------------------------------------------------------------ names of the original


def _with_names(text: str, wanted: set[str]) -> str:
    """An adapter's module with the names that the core has for it: in its import of them, and in `__all__`."""
    shared = _defined(Path(_SHARED).read_text(encoding="utf-8"))
    tree = ast.parse(text)
    lines = text.splitlines()
    statements = [node for node in tree.body if _is_import_of_the_core(node) or _is_list_of_names(node)]
    own = _defined(text)
    for node in reversed(statements):  # from below, so that lines keep their numbers
        if isinstance(node, ast.ImportFrom):
            private = [alias.name for alias in node.names if alias.name.startswith("_") or alias.name not in shared]
            names = [*private, *sorted((wanted & shared) - own)]
            new = [f"from {node.module} import (", *(f"    {name}," for name in names), ")"]
        else:
            names = sorted(wanted & (shared | own), key=lambda name: (not name[0].isupper(), name))
            new = ["__all__ = [", *(f'    "{name}",' for name in names), "]"]
        lines[node.lineno - 1 : node.end_lineno] = new
    return "\n".join(lines) + "\n"


def _is_import_of_the_core(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "shared_distributed.adapters"


def _is_list_of_names(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def _defined(text: str) -> set[str]:
    """The public names that a module itself defines."""
    names = {one.name for one in definitions(ast.parse(text))}
    return {name for name in names if not name.startswith("_")}


def _what_is_left(text: str, wanted: set[str]) -> list[str]:
    """What a person has to write, and to take away."""
    imported = {alias.name for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) for alias in node.names}
    own = _defined(text)
    missing = sorted(wanted - own - imported)
    beyond = sorted(own - wanted)
    notes = []
    if missing:
        notes.append(f"The original has, and the core has not: {', '.join(missing)}. Define these")
    if beyond:
        notes.append(f"The original has no {', '.join(beyond)}. Remove that")
    return notes


def _if_another_is_nearer(tree: ast.Module, like: str) -> list[str]:
    found = definitions(tree)
    alike: dict[str, Any] = {name: similarity(paired(found, known), known) for name, known in known_originals().items()}
    nearest = max(alike, key=lambda name: alike[name], default=like)
    if alike.get(like, 0) >= alike.get(nearest, 0):
        return []
    return [
        f"The original is nearer to {nearest}'s ({alike[nearest]:.0%}) than to {like}'s ({alike.get(like, 0):.0%}): "
        f"`--like {nearest}` may be less work"
    ]
