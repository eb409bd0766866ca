# SPDX-License-Identifier: MIT
"""From the sources to the text of one file.

sources    the core and one adapter, as text; version and revision
bundle     the parts of the core that an adapter reaches, and the adapter, as one module
verify     the last look at a rendered file
header     what the file says about where it came from
released   the bodies of earlier releases, by their hash
shim       what stands in the old place once the code is installed
command    `adapters render`
"""

from ..catalog import ADAPTERS
from .bundle import bundle
from .header import Header, hash_of
from .sources import load, revision, version


def render(name: str) -> str:
    """The file that `adapters vendor` writes, as text."""
    header, body = rendered_parts(name)
    return (header.encode() + body).decode()


def rendered_parts(name: str) -> tuple[Header, bytes]:
    """The file's header and body."""
    body = bundle(*load(ADAPTERS[name]), ADAPTERS[name].distribution).encode()
    return Header(name, version(), revision(), hash_of(body)), body
