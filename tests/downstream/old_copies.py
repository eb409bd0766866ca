# SPDX-License-Identifier: MIT
"""Old-style `distributed.py` files, of our own writing: one that is right, and edits that make it wrong."""

# musiclm's API. Right, but for what its kind cannot do: errors that name the ranks, a true second derivative
RIGHT = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function


def all_gather_same_dim(t):
    mine = t.contiguous()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return parts


def lengthen(t, length, dim):
    missing = list(t.shape)
    missing[dim] = length - t.shape[dim]
    return torch.cat([t, t.new_zeros(missing)], dim)


def all_gather_variable_dim(t, dim=0, sizes=None):
    if sizes is None:
        sizes = torch.stack(all_gather_same_dim(torch.tensor(t.shape[dim])))
    sizes = torch.as_tensor(sizes)
    parts = all_gather_same_dim(lengthen(t, int(sizes.max()), dim))
    kept = [part.narrow(dim, 0, size) for part, size in zip(parts, sizes.tolist())]
    return torch.cat(kept, dim), sizes


class AllGatherFunction(Function):
    @staticmethod
    def forward(ctx, x, dim, sizes, all_reduce_grads):
        gathered, sizes = all_gather_variable_dim(x, dim, sizes)
        ctx.dim, ctx.sizes, ctx.all_reduce_grads = dim, sizes.tolist(), all_reduce_grads
        return gathered, sizes

    @staticmethod
    def backward(ctx, grads, _):
        if ctx.all_reduce_grads:
            grads = grads.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(grads)
        mine = grads.split(ctx.sizes, ctx.dim)[dist.get_rank()]
        return mine, None, None, None


class AllGather(nn.Module):
    def __init__(self, dim, *, all_reduce_grads=False):
        super().__init__()
        self.dim = dim
        self.all_reduce_grads = all_reduce_grads
        self.is_distributed = dist.is_initialized() and dist.get_world_size() > 1

    def forward(self, x, sizes=None):
        if not self.is_distributed:
            return x, None
        return AllGatherFunction.apply(x, self.dim, sizes, self.all_reduce_grads)
"""

# uses two names that nothing in it defines, as originals do
WITHOUT_NAMES = RIGHT.replace("if sizes is None:", "if not exists(sizes):").replace("(lengthen(t", "(pad_dim_to(t")

# name -> what to put in place of what
EDITS: dict[str, tuple[str, str]] = {
    "a wrong slice": ("[dist.get_rank()]", "[dist.get_rank() - 1]"),
    "a mean instead of a sum": ("dist.all_reduce(grads)", "dist.all_reduce(grads.div_(dist.get_world_size()))"),
    "a swapped order": ("torch.cat(kept, dim)", "torch.cat(kept[::-1], dim)"),
    "sizes as a list": (
        "return AllGatherFunction.apply(x, self.dim, sizes, self.all_reduce_grads)",
        "x, sizes = AllGatherFunction.apply(x, self.dim, sizes, self.all_reduce_grads); return x, sizes.tolist()",
    ),
    "a different exception": ("t.contiguous()", "t.contiguous() if dist.is_initialized() else {}['no group']"),
    "another default": ("(t, dim=0, sizes=None)", "(t, dim=1, sizes=None)"),
    "sums without being asked": ("*, all_reduce_grads=False", "*, all_reduce_grads=True"),
    "a write to the incoming gradient": ("grads = grads.clone(memory_format=torch.contiguous_format)", "pass"),
    "a write behind the incoming gradient": (
        "grads = grads.clone(",
        "grads.as_strided((2,), (1,))[1] = 5; grads = grads.clone(",
    ),
    "an error of its own": ("mine = t.contiguous()", "raise KeyError('always')"),
    "an abort without a group": ("t.contiguous()", "t if dist.is_initialized() else __import__('os').abort()"),
    "an error in the backward when alone": (
        "            return x, None\n",
        "            x.requires_grad and x.register_hook(lambda grad: grad.nowhere)\n            return x, None\n",
    ),
    "sizes when alone": ("            return x, None\n", "            return x, torch.tensor([x.shape[self.dim]])\n"),
    "an answer that is not remembered": ("if not self.is_distributed:", "if not dist.is_initialized():"),
    "an abort in the backward": ("dist.all_reduce(grads)", "__import__('os').abort()"),
    "a rank that never comes back": (
        "dist.all_reduce(grads)",
        "__import__('time').sleep(600 * (1 - 2 * dist.get_rank()))",  # rank 1 cannot sleep for so long, and raises
    ),
    "a name without an obvious meaning": ("if sizes is None:", "if not is_given(sizes):"),
    "an error for sizes in a list": ("torch.as_tensor(sizes)", "sizes.to(torch.long)"),
}


def copy_with(edit: str) -> str:
    """The right copy with one edit."""
    old, new = EDITS[edit]
    assert old in RIGHT, edit
    return RIGHT.replace(old, new)
