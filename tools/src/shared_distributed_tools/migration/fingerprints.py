# SPDX-License-Identifier: MIT
"""The known variants, as facts: names, signatures and hashes of normal forms. No source text."""

import builtins
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import RefusalError, ToolError
from ..files import read, write_atomically
from .definitions import Definition, NotTextError, Parsed, decode, parse

SHIPPED = Path(__file__).with_name("known.json")
_FORMAT = 1
_TELLING = {"autograd function": 5, "function": 10}  # statements; a module around them looks like any module
_FIELDS = {"name": str, "kind": str, "hash": str, "signature": dict, "uses": list, "statements": str, "gathers": bool}


@dataclass(frozen=True)
class KnownDefinition:
    """One definition of a variant."""

    name: str
    kind: str
    hash: str
    signature: dict[str, list[str]]
    uses: tuple[str, ...]
    statements: tuple[str, ...]
    gathers: bool

    @property
    def is_telling(self) -> bool:
        """Whether the family is recognised by it: it gathers, and is large enough to be no coincidence."""
        return self.gathers and self.kind in _TELLING and len(self.statements) >= _TELLING[self.kind]


@dataclass(frozen=True)
class Variant:
    """A file of the family that somebody has: its definitions, and the adapter that covers it, if one does."""

    name: str
    adapter: str | None
    definitions: tuple[KnownDefinition, ...]
    outside: dict[str, str]  # names that it uses and does not define -> where they come from


class FingerprintError(ToolError):
    """A file of fingerprints that cannot be used, or a file that has no fingerprint."""


def record(name: str, adapter: str | None, parsed: Parsed) -> Variant:
    """A file's fingerprint. FingerprintError where there is nothing to recognise it by."""
    if parsed.problem:
        msg = f"{name}: {parsed.problem}; a fingerprint is taken from a file that parses"
        raise FingerprintError(msg)
    outermost = [definition for definition in parsed.definitions if definition.parent is None]
    known = [_known(definition) for definition in outermost if definition.kind != "assignment" or definition.gathers]
    if not any(one.is_telling for one in known):
        msg = f"{name}: no autograd Function in it gathers, and no function of some length; scan would never find it"
        raise FingerprintError(msg)
    return Variant(name, adapter, tuple(known), outside(outermost, parsed))


def _known(definition: Definition) -> KnownDefinition:
    normal = definition.normal
    return KnownDefinition(
        definition.name,
        definition.kind,
        normal.hash,
        normal.signature,
        normal.uses,
        tuple(statement.hash for statement in normal.statements),
        definition.gathers,
    )


def outside(definitions: list[Definition], parsed: Parsed) -> dict[str, str]:
    """What definitions use from outside the file: the module that a name is imported from, or "undefined"."""
    module = parsed.scopes.module
    used = {name for definition in definitions for name in definition.normal.uses}
    found = {}
    for name in sorted(used - set(dir(builtins))):
        if name in module.imports:
            found[name] = module.imports[name].rpartition(".")[0] or "."
        elif name not in module.bound:
            found[name] = "undefined"
    return found


def record_file(path: Path, name: str, adapter: str | None) -> Variant:
    """The fingerprint of a file on disk."""
    content = read(path)
    if content is None:
        msg = f"{path} is not there"
        raise FingerprintError(msg)
    try:
        text, problem = decode(content)
        parsed = parse(text)
        parsed.problem = parsed.problem or problem
        return record(name, adapter, parsed)
    except (NotTextError, RecursionError) as error:
        msg = f"{path}: {error}"
        raise FingerprintError(msg) from error


@cache
def shipped() -> tuple[Variant, ...]:
    """The variants that this release knows."""
    return load(SHIPPED)


def load(path: Path) -> tuple[Variant, ...]:
    """The variants in a file. FingerprintError where it is none of ours."""
    content = read(path)
    if content is None:
        msg = f"{path} is not there; `adapters fingerprint` makes one"
        raise FingerprintError(msg)
    try:
        stored = json.loads(content)
        if stored["format"] != _FORMAT:
            msg = (
                f"{path} has format {stored['format']}, this release reads {_FORMAT}; upgrade shared-distributed-tools"
            )
            raise FingerprintError(msg)
        return tuple(_variant(one) for one in stored["variants"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path} is no file of fingerprints ({error!r}); make it with `adapters fingerprint`"
        raise FingerprintError(msg) from error


def _variant(stored: dict[str, Any]) -> Variant:
    definitions = []
    for one in stored["definitions"]:
        if any(not isinstance(one[key], kind) for key, kind in _FIELDS.items()):
            msg = f"a definition of {stored['name']} is not as it was written"
            raise ValueError(msg)
        lists = {"uses": tuple(one["uses"]), "statements": tuple(one["statements"].split())}
        definitions.append(KnownDefinition(**{key: one[key] for key in _FIELDS} | lists))
    return Variant(stored["name"], stored["adapter"], tuple(definitions), dict(stored["outside"]))


def add(variant: Variant, path: Path) -> bool:
    """Add a variant to a file, made where there is none. False where it is there already."""
    if {"site-packages", "dist-packages"} & set(path.resolve().parts):
        msg = f"{path} belongs to an installed package; give a file of your own with --into"
        raise RefusalError(msg)
    known = {one.name: one for one in load(path)} if path.exists() else {}
    if variant.name in known:
        if known[variant.name] == variant:
            return False
        msg = f"{path} has another variant called {variant.name!r}; choose another --name, or delete that one there"
        raise RefusalError(msg)
    known[variant.name] = variant
    write_atomically(path, encode([known[name] for name in sorted(known)]))
    return True


def encode(variants: list[Variant]) -> bytes:
    """Variants as a file holds them: the same bytes for the same facts."""
    stored: dict[str, Any] = {"format": _FORMAT, "variants": [asdict(variant) for variant in variants]}
    for variant in stored["variants"]:
        for definition in variant["definitions"]:
            definition["statements"] = " ".join(definition["statements"])
    return (json.dumps(stored, indent=1, sort_keys=True) + "\n").encode()
