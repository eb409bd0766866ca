# SPDX-License-Identifier: MIT
"""What a file in a repo becomes: the rendered file afresh, or this release merged with the edits made there."""

from collections.abc import Sequence

from ..catalog import Adapter
from ..errors import RefusalError
from ..render import render, rendered_parts
from ..render.header import hash_of, split
from ..render.released import released
from ..render.verify import undefined_names
from ..repo.changes import Change, checkout_of, unified
from ..repo.files import like, with_lf
from ..repo.git import merge
from ..repo.uses import Use
from ..scan.survey import Finding
from .state import Vendored


def afresh(seen: Vendored, adapter: Adapter) -> tuple[list[Change], str]:
    """The rendered file in the place of another, and the message of the commit."""
    change = Change(seen.path, seen.raw, like(render(adapter.name).encode(), seen.raw))
    return [change], f"{seen.path} vendored from shared-distributed"


def refuse_losses(
    seen: Vendored, adapter: Adapter, copy: Finding | None, uses: Sequence[Use], *, accept_edits: bool
) -> None:
    """RefusalError if a file has something that its adapter does not have: what it is, and how to go on.

    What a later release rendered is never made older, edits accepted or not. Names that the tree imports from the
    file must be the adapter's. copy: what a scan says of the file. uses: the places that use it.
    """
    _refuse_missing_names(adapter, uses)
    theirs = seen.header.adapter if seen.header else adapter.name
    why: list[str] = []
    if seen.state == "newer":
        why = [f"{seen.path}: {seen.meaning}"]
    elif accept_edits:
        return
    elif theirs != adapter.name:
        why = [f"{seen.path} is the adapter {theirs}; --accept-edits makes it {adapter.name}"]
    elif seen.state in ("edited", "both", "conflict"):
        why = [f"{seen.path}: {seen.meaning}. --accept-edits goes on without the edits; git keeps them in its history"]
    elif seen.state == "original" and seen.raw is not None:
        why = _edits_of_copy(seen, adapter, copy, uses)
    if why:
        raise RefusalError(*why)


def _edits_of_copy(seen: Vendored, adapter: Adapter, copy: Finding | None, uses: Sequence[Use]) -> list[str]:
    """What a project's own copy has that the original has not, line by line, and who uses that."""
    file, lines = seen.repo / seen.path, [f"nothing in it is known as the original of {adapter.name}"]
    if copy is not None and copy.adapter == adapter.name:
        if copy.kind == "exact":
            return []
        lines = [f"{one.name}: {one.how}" + (f": {one.detail}" if one.detail else "") for one in copy.differences]
        for use in uses:
            if use.kind != "import" and use.name in copy.changed:
                lines.append(f"{use.site.path}:{use.site.line} uses {use.name}, and may break: {use.site.text}")
    return [
        f"{seen.path} is not the original that {adapter.name} replaces:",
        *(f"  {line}" for line in lines),
        f"`adapters parity {file} --adapter {adapter.name}` shows what behaves differently; --accept-edits goes on",
    ]


def _refuse_missing_names(adapter: Adapter, uses: Sequence[Use]) -> None:
    """RefusalError if a tree imports from a file what its adapter does not have."""
    missing = [
        f"  {use.site.path}:{use.site.line}: {name}"
        for use in uses
        for name in (use.bound.values() if use.kind == "import" else [use.name])
        if name.partition("/")[0] not in (*adapter.api, "", "*")
    ]
    if missing:
        advice = f"{adapter.name} has no such name; move it to a file of your own, commit, and run this again:"
        raise RefusalError(advice, *dict.fromkeys(missing))


def updated(seen: Vendored) -> tuple[Change, str]:
    """A vendored file as this release has it, with the edits that were made to it; and what a merge leaves to do."""
    if seen.state in ("newer", "conflict") or seen.header is None:
        msg = f"{seen.path}: {seen.meaning}"
        raise RefusalError(msg)
    header, body = rendered_parts(seen.header.adapter)
    text, to_do = header.encode() + body, ""
    if seen.state == "both":
        merged, is_conflict = merge(seen.body, _base(seen, body), body)
        text = header.encode() + merged
        to_do = "conflict; resolve the markers before you commit" if is_conflict else _broken(text)
    return Change(seen.path, seen.raw, like(text, seen.raw)), to_do


def _broken(text: bytes) -> str:
    """What a merge that is clean as text got wrong as Python."""
    try:
        names = undefined_names(text.decode())
        why = f"nothing defines {', '.join(sorted(names))}" if names else ""
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = f"it no longer parses ({error})"
    return f"merged without a conflict, but {why}; correct it before you commit" if why else ""


# ------------------------------------------------------------------ the body before its edits


def _base(seen: Vendored, ours: bytes) -> bytes:
    """The body that has the header's hash: from a release, else from any commit. RefusalError where neither has it."""
    assert seen.header is not None
    wanted = seen.header.body
    found = released(wanted)
    if found is not None:
        return found
    checkout = checkout_of(seen.repo)
    nearest = None
    for blob in checkout.blobs_with(wanted):
        header, body = split(with_lf(blob))
        if hash_of(body) == wanted:
            return body
        if header is not None and header.body == wanted:
            nearest = body  # the last one is the oldest
    why = "no commit has it: its branch is gone, or it was never committed"
    if checkout.is_shallow:
        why = "this clone is shallow; `git fetch --unshallow` brings the rest"
    elif nearest is not None:
        why = "the first commit that has it has edits already: squashed, reformatted by a hook, or made at once"
    start, label = (seen.body, "your file") if nearest is None else (nearest, "as first committed")
    lines = [
        f"{seen.path} has edits, and the body that they were made to is lost: no release rendered it, and {why}.",
        "Merge by hand: `adapters vendor --accept-edits` renders it anew; then make the edits again.",
        *unified(start, seen.body, label, "your edits").split("\n"),
        *unified(start, ours, label, "this release").split("\n"),
    ]
    raise RefusalError(*lines)
