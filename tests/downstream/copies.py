# SPDX-License-Identifier: MIT
"""A small family of our own writing, in the shapes that copies take: rewritten, edited, pasted, broken, related."""

import ast

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

# the same code: without comments, in another layout and order, with other local names, annotations and imports
_REWRITTEN = {
    "import torch.distributed as dist": "from torch import distributed as td",
    "dist.": "td.",
    "from torch import nn\n": "import torch.nn as N\n",
    "nn.Module": "N.Module",
    "from torch.autograd import Function": "import torch.autograd as autograd",
    "(Function)": "(autograd.Function)",
    "from torch.nn import functional": "from torch.nn.functional import pad",
    "functional.pad(": "pad(",
    "def widen(x, width, dim=0):": "def widen(x: torch.Tensor, width: int, dim: int = 0) -> torch.Tensor:",
    "    mine = ": "    n: torch.Tensor = ",
    "gather_even(mine)": "gather_even(n)",
    "is_real": "k",
    "together": "t",
    "begin": "start",
    "own": "ours",
    "        rank = ": "        import torch.distributed\n        rank = ",
}
REWRITTEN = ast.unparse(ast.Module([*(tree := ast.parse(FAMILY).body)[:6], *reversed(tree[6:-1]), tree[-1]], []))
for _old, _new in _REWRITTEN.items():
    assert _old in REWRITTEN, _old
    REWRITTEN = REWRITTEN.replace(_old, _new)

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
