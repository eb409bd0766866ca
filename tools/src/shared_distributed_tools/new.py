# SPDX-License-Identifier: MIT
"""`adapters new`: a further adapter, as a working copy of the one that is nearest to it.

What makes a package an adapter is its `contract.json`: the catalogue, the tests and nox find it by that.
"""

import json
import re
from pathlib import Path

import click

from .catalog import adapter_named
from .errors import RefusalError
from .repo.files import read, write_atomically
from .scan.fingerprint import with_original

_KNOWN = "tools/src/shared_distributed_tools/scan/known.json"


@click.command("new")
@click.argument("name")
@click.option("--like", required=True, help="The adapter to copy.")
@click.option("--replaces", required=True, help="The file that it replaces downstream: newproj/distributed.py.")
@click.option("--original", type=click.Path(path_type=Path), help="That file, to take its fingerprint.")
def command(name: str, like: str, replaces: str, original: Path | None) -> None:
    """Scaffold a further adapter called NAME in this checkout: its package, its contract, its fingerprint."""
    checkout = Path()
    if not (checkout / "noxfile.py").is_file() or not (checkout / "packages").is_dir():
        msg = "this is not a checkout of shared-distributed; run `adapters new` at the root of one"
        raise RefusalError(msg)
    for file in scaffold(checkout, name, like, replaces, original):
        click.echo(f"wrote {file}")
    module = f"{name.replace('-', '_')}_distributed"
    click.echo(
        f"Now change what differs from {like} in packages/{name}/src/{module}/__init__.py and contract.json, then run\n"
        f'  nox -s "suite({name}, gloo)" lint types'
    )


def scaffold(checkout: Path, name: str, like: str, replaces: str, original: Path | None) -> list[str]:
    """Write an adapter's files; their paths. RefusalError before anything is written."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        msg = f"{name!r} is no name for an adapter; use small letters, digits and single hyphens"
        raise RefusalError(msg)
    folder, model = checkout / "packages" / name, checkout / adapter_named(like).folder
    if folder.exists():
        msg = f"packages/{name} is there already; move it away, or choose another name"
        raise RefusalError(msg)
    known = None if original is None else _with_original(name, original)

    written = []
    for file in sorted(path for path in model.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        path = checkout / "packages" / _renamed(file.relative_to(model.parent).as_posix(), like, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        path.write_text(text if file.name == "LICENSE" else _renamed(text, like, name), encoding="utf-8")
        written.append(path)
    contract = folder / "contract.json"
    said = json.loads(contract.read_text(encoding="utf-8"))
    said |= {"downstream": f"{name}-pytorch", "replaces": replaces, "flat_beside": None}
    contract.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")

    manifest = checkout / "pyproject.toml"
    text = manifest.read_text(encoding="utf-8")
    source = f":packages/{like}/src"
    after = text.replace(source, f"{source}:packages/{name}/src", 1)
    write_atomically(manifest, after.encode(), text.encode())
    written.append(manifest)
    if known is not None:
        write_atomically(checkout / _KNOWN, known.encode(), read(checkout / _KNOWN))
        written.append(checkout / _KNOWN)
    return [path.relative_to(checkout).as_posix() for path in written]


def _with_original(name: str, original: Path) -> str:
    try:
        return with_original(name, name, (read(original) or b"").decode())
    except (SyntaxError, UnicodeDecodeError) as error:
        msg = f"{original} does not parse: {error}"
        raise RefusalError(msg) from error


def _renamed(text: str, old: str, new: str) -> str:
    return text.replace(old, new).replace(old.replace("-", "_"), new.replace("-", "_"))
