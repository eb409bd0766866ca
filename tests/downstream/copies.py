# SPDX-License-Identifier: MIT
"""The right copy in the shapes that copies take: rewritten; a relative; and every kind of syntax."""

import ast

from .old_copies import RIGHT

DEFINITIONS = ["all_gather_same_dim", "lengthen", "all_gather_variable_dim", "AllGatherFunction", "AllGather"]

# the same code: without comments, in another layout and order, with other local names, annotations and imports
_REWRITTEN = {
    "import torch.distributed as dist": "from torch import distributed as td",
    "dist.": "td.",
    "from torch import nn\n": "import torch.nn as N\n",
    "nn.Module": "N.Module",
    "from torch.autograd import Function": "import torch.autograd as autograd",
    "(Function)": "(autograd.Function)",
    "def lengthen(t, length, dim):": "def lengthen(t: torch.Tensor, length: int, dim: int) -> torch.Tensor:",
    "    missing = ": '    """Zeros behind t."""\n    missing: list[int]\n    missing: list[int] = ',
    "missing": "m",
    "kept": "k",
    "        mine = ": "        import torch.distributed\n        mine = ",
}
REWRITTEN = ast.unparse(ast.Module([*(tree := ast.parse(RIGHT).body)[:4], *reversed(tree[4:])], []))
for _old, _new in _REWRITTEN.items():
    assert _old in REWRITTEN, _old
    REWRITTEN = REWRITTEN.replace(_old, _new)

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
