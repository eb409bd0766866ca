# SPDX-License-Identifier: MIT
"""Downstream projects of our own writing: the four shapes of call sites, a flat fork, and an edited copy.

Each has an old `distributed.py` that pads to the longest, code that uses it, and dependencies in a format of its own.
"""

from dataclasses import dataclass
from pathlib import Path

from .old_copies import RIGHT as MUSICLM
from .trees import committed, write_files

# ------------------------------------------------------------------ the old copies

_IMPORTS = """\
import torch
from torch import nn
from torch.autograd import Function
import torch.distributed as dist
"""

_GATHER = """
def all_gather_variable_dim(t, dim = 0, sizes = None):
    rows = t.movedim(dim, 0).contiguous()

    if sizes is None:
        own   = torch.tensor([rows.shape[0]])
        every = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own)
        sizes = torch.cat(every)

    room = rows.new_zeros((int(sizes.max()), *rows.shape[1:]))
    room[:rows.shape[0]] = rows
    parts = [torch.empty_like(room) for _ in sizes]
    dist.all_gather(parts, room)

    kept = [part[:size] for part, size in zip(parts, sizes.tolist())]
    return torch.cat(kept).movedim(0, dim), sizes

def own_rows(ctx, grads):
    return grads.split(ctx.sizes, dim = ctx.dim)[dist.get_rank()]
"""

_PAD = """
def pad_dim_to(t, length, dim = 0):
    missing = list(t.shape)
    missing[dim] = length - t.shape[dim]
    return torch.cat((t, t.new_zeros(missing)), dim = dim)
"""

_AUTOGRAD = """
class AllGather(Function):
    @staticmethod
    def forward(ctx, x, dim, sizes):
        gathered, sizes = all_gather_variable_dim(x, dim, sizes)
        ctx.dim, ctx.sizes = dim, sizes.tolist()
        return gathered, sizes

    @staticmethod
    def backward(ctx, grads, _):
        return own_rows(ctx, grads), None, None
"""

SPEAR_TTS = (
    _IMPORTS
    + _GATHER
    + _AUTOGRAD
    + """
def gather_if_there_are_others(x, dim, sizes):
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return x, None
    return AllGather.apply(x, dim, sizes)

all_gather = gather_if_there_are_others
"""
)

MIRASOL = (
    "from functools import cache\n\n"
    + _IMPORTS
    + _GATHER
    + """
@cache
def get_is_distributed():
    return dist.is_initialized() and dist.get_world_size() > 1
"""
    + _PAD
    + _AUTOGRAD
    + "\nall_gather = AllGather.apply\n"
)

ST_MOE = (
    _IMPORTS
    + _GATHER
    + _PAD
    + """
def gather_sizes(t, *, dim):
    return all_gather_variable_dim(torch.tensor([t.shape[dim]]))[0]

def has_only_one_value(t):
    return (t == t[0]).all()

def split_by_rank(x):
    own = x[dist.get_rank()]
    sizes = [t.shape[0] for t in x] if isinstance(x, tuple) else [x.shape[1]] * x.shape[0]
    return own, torch.tensor(sizes)
"""
    + _AUTOGRAD.replace("class AllGather(", "class AllGatherFunction(")
    + """
class AllGather(nn.Module):
    def __init__(self, *, dim = 0):
        super().__init__()
        self.dim = dim

    def forward(self, x, sizes = None):
        return AllGatherFunction.apply(x, self.dim, sizes)
"""
)

# ------------------------------------------------------------------ the code that uses them

_CONTRAST = """\
import torch
from torch import nn

from {module} import AllGather

class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.all_gather  = AllGather(dim = 2)   # stacked: two, layers, batch, features
        self.gather_text = AllGather(dim = 1, all_reduce_grads = True)

    def forward(self, both, text):
        if self.all_gather.is_distributed:
            both, _ = self.all_gather(both)

        text, rank_sizes = self.gather_text(text)
        labels           = torch.eye(text.shape[1])

        if rank_sizes is not None:
            labels = labels.split(rank_sizes.tolist(), dim = 0)

        return both, text, labels
"""

_ALIGN = """\
import torch

from spear_tts_pytorch.distributed import all_gather

class Aligned(torch.nn.Module):
    # cosine similarity of source and target rows, those of all ranks

    def forward(self, source, target, mask):
        source, batch_sizes = all_gather(source, 0, None)
        target, _           = all_gather(target, 0, batch_sizes)
        mask, _             = all_gather(mask, 0, batch_sizes)
        return (source @ target.t()).masked_fill(~mask[None, :], 0.)
"""

_FUSED = """\
from torch import einsum
from mirasol_pytorch.distributed import all_gather, get_is_distributed

def similarities(av_embed, text_embed):
    if get_is_distributed():
        av_embed = all_gather(av_embed, 0, None)
        text_embed = all_gather(text_embed, 0, None)

    return tuple(map(lambda t: einsum('i d, j d -> i j', t, t), (av_embed, text_embed)))
"""

_EXPERTS = """\
from torch import nn

from st_moe_pytorch.distributed import (
    AllGather,
    split_by_rank,
    gather_sizes,
    pad_dim_to,
    has_only_one_value  # of the sequence lengths
)

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.all_gather = AllGather()

    def forward(self, x):
        seq_sizes = gather_sizes(x, dim = 1)

        if not has_only_one_value(seq_sizes):
            x = pad_dim_to(x, seq_sizes.amax().item(), dim = 1)

        x, batch_sizes   = self.all_gather(x)
        x, experts_sizes = split_by_rank(x.split(batch_sizes.tolist(), dim = 0))
        outs, _          = self.all_gather(x, sizes = experts_sizes)
        return outs
"""

_SETUP_PY = """\
from setuptools import setup, find_packages

setup(
  name = 'musiclm-pytorch',
  packages = find_packages(exclude = []),
  install_requires=[
    'einops>=0.6',
    'torch>=1.6'      # and whatever it brings
  ],
)
"""
_PYPROJECT = """\
[project]
name = "spear-tts-pytorch"
version = "0.4"
dependencies = [
    "einops>=0.6",  # shapes
    "torch>=2.0",
]
"""
_SETUP_CFG = "[metadata]\nname = mirasol-pytorch\n\n[options]\ninstall_requires =\n    einops\n    torch\n"
_POETRY = '[tool.poetry]\nname = "st-moe-pytorch"\n\n[tool.poetry.dependencies]\npython = "^3.10"\ntorch = "*"  # any\n'


@dataclass(frozen=True)
class Project:
    """A tree, and the adapter for it."""

    adapter: str
    copy: str
    user: str  # the module that uses the copy
    files: dict[str, str]
    dependencies: str  # the file that lists them
    is_edited: bool = True  # whether they can be added there; otherwise the line is printed

    def make(self, folder: Path, name: str) -> Path:
        """The project on disk, committed."""
        return committed(write_files(folder / name, self.files))


def _package(adapter: str, old: str, user: str, code: str, file: str, listed: str, is_edited: bool = True) -> Project:
    package = f"{adapter.replace('-', '_')}_pytorch"
    copy, module = f"{package}/distributed.py", f"{package}/{user}.py"
    files = {f"{package}/__init__.py": "", copy: old, module: code.replace("{module}", f"{package}.distributed")}
    return Project(adapter, copy, module, {**files, file: listed}, file, is_edited)


_FLAT = {
    "distributed.py": MUSICLM,
    "musiclm.py": _CONTRAST.replace("{module}", "distributed"),
    "requirements.txt": "torch>=1.6\n",
}
PROJECTS = {
    "musiclm": _package("musiclm", MUSICLM, "contrast", _CONTRAST, "setup.py", _SETUP_PY, is_edited=False),
    "spear-tts": _package("spear-tts", SPEAR_TTS, "align", _ALIGN, "pyproject.toml", _PYPROJECT),
    "mirasol": _package("mirasol", MIRASOL, "fused", _FUSED, "setup.cfg", _SETUP_CFG, is_edited=False),
    "st-moe": _package("st-moe", ST_MOE, "experts", _EXPERTS, "pyproject.toml", _POETRY, is_edited=False),
    "flat": Project("musiclm", "distributed.py", "musiclm.py", _FLAT, "requirements.txt"),
}
PROJECT = PROJECTS["spear-tts"]  # which most tests look at
TARGET = PROJECT.copy

# with a change of its own in the copy, and a function more
_OWN = "\n# ours\n\ndef rank_of_rows(sizes):\n    return torch.arange(len(sizes)).repeat_interleave(sizes)\n"
_CHANGED = SPEAR_TTS.replace("int(sizes.max())", "max(size.item() for size in sizes)")
EDITED = _package("spear-tts", _CHANGED + _OWN, "align", _ALIGN, "pyproject.toml", _PYPROJECT)

# what a project has around a pasted copy
STEPS = "".join(f"\n\ndef step_{n}(x):\n    y = x + {n}\n    y = y * 2\n    return y\n" for n in range(20))
# by the name that `scan` gives them in the tests
ORIGINALS = {"musiclm": MUSICLM, "spear-tts": SPEAR_TTS, "mirasol": MIRASOL, "st-moe": ST_MOE}
