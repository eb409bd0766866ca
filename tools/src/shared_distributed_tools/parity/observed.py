# SPDX-License-Identifier: MIT
"""What a rank observed, as text that can be sent, compared and shown.

A tensor's text has its dtype, its shape and every number in full: two texts are equal if the tensors are.
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

_LONG = 90  # characters of a value in a report


class Raised(NamedTuple):
    """An exception: what was being done, the names of its class and of all that this one is made from, its words."""

    step: str
    bases: tuple[str, ...]
    message: str

    @property
    def name(self) -> str:
        """Its class."""
        return self.bases[0]


class Observation(NamedTuple):
    """What one rank observed of one case: named parts, up to where something was raised."""

    parts: Mapping[str, str]
    raised: Raised | None = None
    not_defined: tuple[str, ...] = ()  # names used that the file does not define: without us, a NameError


class Outcome(NamedTuple):
    """What all ranks observed. `broken`: how the ranks ended where not all of them answered."""

    by_rank: tuple[Observation | None, ...]
    broken: str = ""

    @property
    def raised(self) -> list[Raised]:
        """What ranks raised."""
        return [one.raised for one in self.by_rank if one is not None and one.raised is not None]


def as_text(value: object) -> str:
    """A value; containers with their type's name, so that a list is no tuple."""
    if isinstance(value, Tensor):
        numbers = " ".join(map(str, value.detach().flatten().tolist()))
        return f"{str(value.dtype).removeprefix('torch.')} tensor {tuple(value.shape)}: {numbers}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {', '.join(map(as_text, value)) or 'nothing'}"
    if value is None or isinstance(value, str):
        return str(value)
    return f"{type(value).__name__} {value if isinstance(value, bool | int | float) else '…'}"


def pair_in_words(old: str | None, new: str | None) -> tuple[str, str]:
    """Two texts that differ, for a report. Of two tensors of one shape, the first place at which they do."""
    (head, _, was), (other, _, now) = (text.partition(": ") if text else ("", "", "") for text in (old, new))
    if " tensor " in head and head == other:
        pairs = enumerate(zip(was.split(), now.split(), strict=True))
        at, (a, b) = next(pair for pair in pairs if len(set(pair[1])) == 2)
        return f"{head}, number {at}: {a}", f"{head}, number {at}: {b}"
    return shortened(old or "not given", _LONG), shortened(new or "not given", _LONG)


def shortened(text: str, length: int) -> str:
    """Some text on one line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
