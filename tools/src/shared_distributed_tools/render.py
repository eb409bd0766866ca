# SPDX-License-Identifier: MIT
"""An adapter as the text of one self-contained module: a pure function of the sources."""

from functools import lru_cache

from .bundle import bundle
from .catalog import adapter_named
from .header import Header, hash_of
from .sources import Sources, load


def render(name: str) -> str:
    """The file that `adapters vendor` writes, as text."""
    header, body = rendered_parts(name)
    return (header.encode() + body).decode()


def rendered_parts(name: str) -> tuple[Header, bytes]:
    """The file's header and body."""
    adapter = adapter_named(name)
    sources = load(adapter)
    body = _body(sources, adapter.distribution)
    return Header(name, sources.adapter_version, sources.core_version, sources.sha256, hash_of(body)), body


@lru_cache(maxsize=16)  # several files of one repo are checked in a run
def _body(sources: Sources, distribution: str) -> bytes:
    return bundle(dict(sources.core), sources.adapter, distribution, sources.licence).encode()
