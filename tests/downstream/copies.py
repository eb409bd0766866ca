# SPDX-License-Identifier: MIT
"""A small family of our own writing, in the shapes that copies take: rewritten, edited, pasted, broken, related."""

FAMILY = '''\
"""Rows from every rank, ragged along one dim."""

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.nn import functional


def is_given(value):
    return value is not None


def widen(x, width, dim=0):
    """Zeros behind x, up to a width."""
    after = x.ndim - 1 - dim % x.ndim
    return functional.pad(x, [0, 0] * after + [0, width - x.shape[dim]])


def gather_even(x):
    # every rank has the same shape
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return parts


def gather_lengths(x, *, dim):
    mine = torch.tensor([x.shape[dim]], device=x.device)
    return torch.cat(gather_even(mine))


def gather_ragged(x, dim=0, lengths=None):
    if not is_given(lengths):
        lengths = gather_lengths(x, dim=dim)
    longest = int(lengths.max())
    widened = widen(x, longest, dim)
    together = torch.cat(gather_even(widened), dim=dim)
    places = torch.arange(longest, device=x.device)
    is_real = places[None, :] < lengths[:, None]
    is_real = is_real.flatten()
    wanted = is_real.nonzero().flatten()
    return together.index_select(dim, wanted), lengths


class RaggedGather(Function):
    @staticmethod
    def forward(ctx, x, dim, lengths):
        out, lengths = gather_ragged(x, dim, lengths)
        ctx.dim = dim
        ctx.lengths = lengths.tolist()
        return out, lengths

    @staticmethod
    def backward(ctx, grad, _):
        rank = dist.get_rank()
        begin = sum(ctx.lengths[:rank])
        return grad.narrow(ctx.dim, begin, ctx.lengths[rank]), None, None


class Gather(nn.Module):
    def __init__(self, dim=0):
        super().__init__()
        self.dim = dim

    def forward(self, x, lengths=None):
        return RaggedGather.apply(x, self.dim, lengths)


def share_of(parts):
    own = parts[dist.get_rank()]
    if isinstance(parts, tuple):
        lengths = [len(part) for part in parts]
    else:
        lengths = [parts.shape[1]] * parts.shape[0]
    return own, torch.tensor(lengths)


gather = RaggedGather.apply
'''

DEFINITIONS = [
    *("is_given", "widen", "gather_even", "gather_lengths", "gather_ragged"),
    *("RaggedGather", "Gather", "share_of", "gather"),
]

# the same code: other comments, docstrings, layout, local names, annotations, imports and order
REWRITTEN = '''\
from __future__ import annotations
import torch, torch.nn as N
from torch import distributed as td, Tensor
from torch.nn.functional import pad
import torch.autograd as autograd
from typing import Any

def gather_even(x: Tensor) -> list[Tensor]:
    """Docstring."""
    buffers: list[Tensor] = [
        torch.empty_like(x)
        for anything in range(td.get_world_size())
    ]
    td.all_gather(buffers, x.contiguous()); return buffers

def gather_lengths(x: Tensor, *, dim: int):
    n = torch.tensor([ x.shape[dim] ], device = x.device)
    return torch.cat(gather_even(n))

def is_given(value: Any) -> bool: return (value is not None)

def widen(x: Tensor, width: int, dim: int = 0):
    number = x.ndim - 1 - dim % x.ndim
    return pad(x, ([0, 0] * number) + [0, width - x.shape[dim]])

class RaggedGather(autograd.Function):
    """A class docstring."""

    @staticmethod
    def forward(ctx, x, dim, lengths):
        """Docstring."""
        result, lengths = gather_ragged(x, dim, lengths)
        ctx.dim = dim
        ctx.lengths = lengths.tolist()
        return result, lengths
    @staticmethod
    def backward(ctx, grad, _):
        import torch.distributed
        me = torch.distributed.get_rank()
        start = sum(ctx.lengths[:me])
        return grad.narrow(ctx.dim, start, ctx.lengths[me]), None, None

def gather_ragged(x, dim = 0, lengths = None):
    "Docstring."
    if not is_given(lengths):
        # a comment
        lengths = gather_lengths(x, dim = dim)
    m = int(lengths.max())
    w = widen(x, m, dim)
    t = torch.cat(
        gather_even(w),
        dim = dim,
    )
    s = torch.arange(m, device = x.device)
    k = s[None, :] < lengths[:, None]
    k = k.flatten()
    i = k.nonzero().flatten()
    return t.index_select(dim, i), lengths

class Gather(N.Module):
    def __init__(self, dim: int = 0) -> None:
        super().__init__()
        self.dim = dim
    def forward(self, x, lengths = None):
        return RaggedGather.apply(x, self.dim, lengths)

def share_of(parts):
    mine = parts[td.get_rank()]
    if isinstance(parts, tuple):
        ns = [len(p) for p in parts]
    else:
        ns = [parts.shape[1]] * parts.shape[0]
    return mine, torch.tensor(ns)

gather = RaggedGather.apply
'''

# what a project would have around a pasted copy
LARGER = """

class Block{0}(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.into = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)
        self.scale = width**-0.5

    def forward(self, x):
        hidden = self.into(x) * self.scale
        hidden = hidden.relu()
        return self.out(hidden)
"""

# the same idea and none of the same code: all in one Function, lengths as objects, rows into one tensor
RELATIVE = """\
import torch
from torch.autograd import Function
from torch.distributed import all_gather_into_tensor as collect
from torch.distributed import all_gather_object, get_rank, get_world_size


class Spread(Function):
    @staticmethod
    def forward(ctx, rows):
        world = get_world_size()
        counts = [None] * world
        all_gather_object(counts, rows.size(0))
        block = rows.new_zeros(max(counts), *rows.shape[1:])
        block[: rows.size(0)] = rows
        everything = block.new_empty(world * max(counts), *rows.shape[1:])
        collect(everything, block)
        ctx.window = slice(sum(counts[: get_rank()]), sum(counts[: get_rank() + 1]))
        blocks = everything.chunk(world)
        return torch.cat([piece[:count] for piece, count in zip(blocks, counts)])

    @staticmethod
    def backward(ctx, gradient):
        return gradient[ctx.window]
"""

# every kind of syntax whose tree has changed between versions of Python, or might
SYNTAX = """\
def gather_syntax(a, /, b=1.5, *rest, key="é\\ud800", **options):
    global counter
    counter = 0xFFFF_FFFF_FFFF_FFFF_FFFF + -1 + 2j + len(b"\\xff") + len(u"x")
    text = "plain " f"{a!r:>{b}} and {b=}" " more" f"{{}}"
    numbers: list[int] = [y := x + 1 for x in range(3) if x if not x]
    unused: int
    table = {**options, "k": lambda z=1, *, w: (z, w, ...)}
    try:
        with open(a) as one, open(b) as (two, *three):
            del one.x, two[1:2, ::3]
    except (OSError, ValueError) as error:
        raise RuntimeError from error
    else:
        assert a, "message"
    finally:
        pass
    match a:
        case {"k": [1, *others], **remaining} if others:
            yield remaining
        case str() | None as found:
            yield from found
        case _:
            return
    async def inner():
        nonlocal numbers
        async for numbers[0] in table:
            await a
    @inner
    class Local(dict, metaclass=type):
        x, y = 1, True
        def method(self): return super().method()
    while a @ b < 1 <= 2 is not None:
        a //= 2
        break
    else:
        return inner, Local, text, (a if b else None), not a or b and ~a
"""
