# SPDX-License-Identifier: MIT
"""`adapters new`: a further adapter, as a working copy of the one that is nearest to it.

What makes a package an adapter is its `contract.json`: the catalogue, the tests and nox find it by that.
"""

import json
import re
from pathlib import Path

import click

from .catalog import ADAPTERS
from .errors import RefusalError
from .scan.fingerprint import with_original

_KNOWN = "tools/src/shared_distributed_tools/scan/known.json"


@click.command("new")
@click.argument("name")
@click.option("--like", type=click.Choice(list(ADAPTERS)), required=True, help="The adapter to copy.")
@click.option("--replaces", required=True, help="The file that it replaces downstream: newproj/distributed.py.")
@click.option(
    "--original",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="That file, to take its fingerprint.",
)
def command(name: str, like: str, replaces: str, original: Path | None) -> None:
    """Scaffold a further adapter called NAME in this checkout: its package, its contract, its fingerprint."""
    if not Path("noxfile.py").is_file() or not Path("packages").is_dir():
        raise RefusalError("this is not a checkout of shared-distributed; run `adapters new` at the root of one")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        msg = f"{name!r} is no name for an adapter; use small letters, digits and single hyphens"
        raise RefusalError(msg)
    folder, model = Path("packages", name), Path("packages", like)
    if folder.exists():
        msg = f"packages/{name} is there already; move it away, or choose another name"
        raise RefusalError(msg)

    def renamed(text: str) -> str:
        return text.replace(like, name).replace(like.replace("-", "_"), name.replace("-", "_"))

    files = {}
    for file in sorted(path for path in model.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        text = file.read_text(encoding="utf-8")
        files[Path(renamed(file.as_posix()))] = text if file.name == "LICENSE" else renamed(text)
    contract = json.loads(files[folder / "contract.json"])
    contract |= {"downstream": f"{name}-pytorch", "replaces": replaces, "flat_beside": None}
    files[folder / "contract.json"] = json.dumps(contract, indent=2) + "\n"
    manifest, source = Path("pyproject.toml"), f":packages/{like}/src"
    text = manifest.read_text(encoding="utf-8")
    files[manifest] = text.replace(source, f"{source}:packages/{name}/src", 1)
    if original is not None:
        files[Path(_KNOWN)] = with_original(name, original)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        click.echo(f"wrote {path.as_posix()}")
    module = f"{name.replace('-', '_')}_distributed"
    click.echo(
        f"Now change what differs from {like} in packages/{name}/src/{module}/__init__.py and contract.json, then run\n"
        f'  nox -s "suite({name}, gloo)" lint types'
    )
