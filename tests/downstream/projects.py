# SPDX-License-Identifier: MIT
"""Downstream projects of our own writing: the four shapes of call sites, a flat fork, an inlined and an edited copy.

Each has an old `distributed.py` that pads to the longest, code that uses it, dependencies in a format of its own, and
a `check.py` whose `check(rank, world)` compares what the project computes, and its gradients, with one process.
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
from torch import nn, einsum
import torch.nn.functional as F
import torch.distributed as dist

from {module} import AllGather

# functions

def exists(val):
    return val is not None

# losses

class SoftmaxContrast(nn.Module):
    def __init__(self, *, temperature = 1.):
        super().__init__()
        self.temperature = temperature
        self.all_gather  = AllGather(dim = 2)   # stacked: two, layers, batch, features

    def forward(self, audio, text):
        if self.all_gather.is_distributed:
            both        = torch.stack((audio, text))
            both, _     = self.all_gather(both)
            audio, text = both

        sims = einsum('l i d, l j d -> l i j', audio, text) / self.temperature
        return (sims.logsumexp(dim = -1) - sims.diagonal(dim1 = -2, dim2 = -1)).mean()

class SigmoidContrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.all_gather = AllGather(dim = 1, all_reduce_grads = True)

    def forward(self, audio, text):
        text, rank_sizes = self.all_gather(text)   # layers, all batches, features
        labels           = torch.eye(text.shape[1])

        if exists(rank_sizes):
            labels_by_rank = labels.split(rank_sizes.tolist(), dim = 0)
            labels         = labels_by_rank[dist.get_rank()]

        sims = einsum('l i d, l j d -> l i j', audio, text)
        return -F.logsigmoid((2 * labels - 1) * sims).sum()
"""

_CONTRAST_CHECK = """\
import torch
from {package} import SigmoidContrast, SoftmaxContrast

def rows(rank, world):
    sizes = [3, 1][:world]
    start = sum(sizes[:rank])
    whole = [torch.arange(2. * sum(sizes) * 5).view(2, -1, 5).add(k).sin().requires_grad_() for k in (0, 7)]
    own   = [t.detach()[:, start:start + sizes[rank]].clone().requires_grad_() for t in whole]
    return slice(start, start + sizes[rank]), whole, own

def check(rank, world):
    own_rows, whole, own = rows(rank, world)
    loss = SoftmaxContrast(temperature = .5)(*own)
    audio, text = whole
    sims = torch.einsum('l i d, l j d -> l i j', audio, text) / .5
    expected = (sims.logsumexp(dim = -1) - sims.diagonal(dim1 = -2, dim2 = -1)).mean()
    same(loss, expected, own, whole, own_rows)

    own_rows, whole, own = rows(rank, world)
    loss = SigmoidContrast()(*own)
    audio, text = whole
    signs = 2 * torch.eye(audio.shape[1]) - 1
    losses = -torch.nn.functional.logsigmoid(signs * torch.einsum('l i d, l j d -> l i j', audio, text))
    # its own rows of audio, and the gradients of all ranks' losses: those of the whole
    same(loss, losses[:, own_rows].sum(), own, whole, own_rows, total = losses.sum())

def same(loss, expected, own, whole, own_rows, total = None):
    torch.testing.assert_close(loss, expected)
    loss.backward()
    (expected if total is None else total).backward()
    for mine, all_of_it in zip(own, whole):
        torch.testing.assert_close(mine.grad, all_of_it.grad[:, own_rows])
"""

_SETUP_PY = """\
from setuptools import setup, find_packages

setup(
  name = '{name}',
  packages = find_packages(exclude = []),
  version = '0.2.8',
  install_requires=[
    'einops>=0.6',
    'torch>=1.6'      # and whatever it brings
  ],
)
"""

_ALIGN = """\
import torch
import torch.distributed as dist

from spear_tts_pytorch.distributed import all_gather

class Aligned(torch.nn.Module):
    # cosine similarity of source and target rows, those of all ranks

    def forward(self, source, target, mask):
        source, batch_sizes = all_gather(source, 0, None)
        target, _           = all_gather(target, 0, batch_sizes)
        mask, _             = all_gather(mask, 0, batch_sizes)

        sims  = torch.einsum('i d, j d -> i j', source, target)
        first = 0

        if batch_sizes is not None:
            first = sum(batch_sizes.tolist()[:dist.get_rank()])

        return sims.masked_fill(~mask[None, :], 0.).sin().sum(dim = -1), first
"""

_ALIGN_CHECK = """\
import torch
from spear_tts_pytorch.align import Aligned

def check(rank, world):
    sizes  = [2, 4][:world]
    start  = sum(sizes[:rank])
    own    = slice(start, start + sizes[rank])
    source = torch.arange(3. * sum(sizes)).view(-1, 3).sin().requires_grad_()
    target = torch.arange(3. * sum(sizes)).view(-1, 3).cos().requires_grad_()
    mask   = torch.arange(sum(sizes)) % 3 != 1
    mine   = [t.detach()[own].clone().requires_grad_() for t in (source, target)]

    found, first = Aligned()(*mine, mask[own])
    sims     = torch.einsum('i d, j d -> i j', source, target)
    expected = sims.masked_fill(~mask[None, :], 0.).sin().sum(dim = -1)
    torch.testing.assert_close(found, expected)
    assert first == start

    upstream = torch.arange(1., 1 + sum(sizes)) * (rank + 1)
    found.backward(upstream)
    expected.backward(upstream)
    for part, whole in zip(mine, (source, target)):
        torch.testing.assert_close(part.grad, whole.grad[own])   # of this rank's loss alone
"""

_FUSED = """\
from mirasol_pytorch.distributed import all_gather, get_is_distributed

def similarities(av_embed, text_embed):
    if get_is_distributed():
        av_embed = all_gather(av_embed, 0, None)

    # what follows wants a tensor: with other ranks there is a pair
    return av_embed, text_embed
"""

_FUSED_CHECK = """\
import torch
from mirasol_pytorch.fused import similarities

def check(rank, world):
    sizes = [1, 3][:world]
    start = sum(sizes[:rank])
    whole = torch.arange(4. * sum(sizes)).view(-1, 4).requires_grad_()
    own   = whole.detach()[start:start + sizes[rank]].clone().requires_grad_()

    gathered, _ = similarities(own, None)
    assert isinstance(gathered, tuple) == (world > 1)   # the mistake at the call site stays what it was
    gathered = gathered[0] if world > 1 else gathered
    torch.testing.assert_close(gathered, whole)
    upstream = torch.arange(4. * sum(sizes)).view(-1, 4) * (rank + 1)
    gathered.backward(upstream)
    torch.testing.assert_close(own.grad, upstream[start:start + sizes[rank]])
"""

_EXPERTS = """\
import torch
from torch import nn

from st_moe_pytorch.distributed import (
    AllGather,
    split_by_rank,
    gather_sizes,
    pad_dim_to,
    has_only_one_value  # of the sequence lengths
)

class Experts(nn.Module):
    # the one expert is on rank 0: the others send their rows there, and get them back

    def __init__(self, is_distributed = False):
        super().__init__()
        self.is_distributed = is_distributed
        self.all_gather     = AllGather()
        self.expert         = nn.Linear(2, 2)

    def forward(self, x):
        seq_len = x.shape[1]

        if self.is_distributed:
            seq_sizes = gather_sizes(x, dim = 1)

            if not has_only_one_value(seq_sizes):
                x = pad_dim_to(x, seq_sizes.amax().item(), dim = 1)

            x, batch_sizes = self.all_gather(x)
            total          = batch_sizes.sum().item()

            # none but the first rank has work to do
            x                = x.split((total,) + (0,) * (len(batch_sizes) - 1), dim = 0)
            x, experts_sizes = split_by_rank(x)

        x = self.expert(x)

        if self.is_distributed:
            x, _ = self.all_gather(x, sizes = experts_sizes)
            x    = x.split(batch_sizes.tolist(), dim = 0)
            x, _ = split_by_rank(x)

        return x[:, :seq_len]
"""

_EXPERTS_CHECK = """\
import torch
from st_moe_pytorch.experts import Experts

def check(rank, world):
    torch.manual_seed(0)
    experts = Experts(is_distributed = world > 1)
    shapes  = [(2, 3, 2), (1, 4, 2)]
    inputs  = [torch.arange(float(b * n * d)).view(b, n, d).add(b).requires_grad_() for b, n, d in shapes[:world]]
    own     = inputs[rank].detach().clone().requires_grad_()
    found   = experts(own)
    torch.testing.assert_close(found, experts.expert(inputs[rank]))
    # every rank's loss is its own rows'; through local gradients only rank 0, which has the expert, hears of its own
    found.sum().backward()
    expected = torch.autograd.grad(experts.expert(inputs[rank]).sum(), inputs[rank])[0]
    torch.testing.assert_close(own.grad, expected if rank == 0 else torch.zeros_like(own))
"""


@dataclass(frozen=True)
class Project:
    """A tree, and the adapter for it."""

    adapter: str
    copy: str
    files: dict[str, str]
    dependencies: str  # the file that lists them
    is_edited: bool = True  # whether they can be added there; otherwise the line is printed

    def make(self, folder: Path, name: str) -> Path:
        """The project on disk, committed."""
        return committed(write_files(folder / name, self.files))


def _package(name: str, old: str, module: str, code: str, check: str, metadata: tuple[str, str]) -> dict[str, str]:
    return {
        f"{name}/__init__.py": "",
        f"{name}/distributed.py": old,
        f"{name}/{module}.py": code,
        "check.py": check,
        metadata[0]: metadata[1],
    }


_SPEAR_FILES = _package(
    "spear_tts_pytorch",
    SPEAR_TTS,
    "align",
    _ALIGN,
    _ALIGN_CHECK,
    (
        "pyproject.toml",
        '[project]\nname = "spear-tts-pytorch"\nversion = "0.4"\ndependencies = [\n    "einops>=0.6",  # shapes\n'
        '    "torch>=2.0",\n]\n',
    ),
)
PROJECTS = {
    "musiclm": Project(
        "musiclm",
        "musiclm_pytorch/distributed.py",
        _package(
            "musiclm_pytorch",
            MUSICLM,
            "contrast",
            _CONTRAST.replace("{module}", "musiclm_pytorch.distributed"),
            _CONTRAST_CHECK.replace("{package}", "musiclm_pytorch.contrast"),
            ("setup.py", _SETUP_PY.replace("{name}", "musiclm-pytorch")),
        ),
        "setup.py",
    ),
    "spear-tts": Project("spear-tts", "spear_tts_pytorch/distributed.py", _SPEAR_FILES, "pyproject.toml"),
    "mirasol": Project(
        "mirasol",
        "mirasol_pytorch/distributed.py",
        _package(
            "mirasol_pytorch",
            MIRASOL,
            "fused",
            _FUSED,
            _FUSED_CHECK,
            (
                "setup.cfg",
                "[metadata]\nname = mirasol-pytorch\n\n[options]\ninstall_requires =\n    einops\n    torch\n",
            ),
        ),
        "setup.cfg",
        is_edited=False,
    ),
    "st-moe": Project(
        "st-moe",
        "st_moe_pytorch/distributed.py",
        _package(
            "st_moe_pytorch",
            ST_MOE,
            "experts",
            _EXPERTS,
            _EXPERTS_CHECK,
            (
                "pyproject.toml",
                '[tool.poetry]\nname = "st-moe-pytorch"\n\n[tool.poetry.dependencies]\n'
                'python = "^3.10"\ntorch = "*"  # any\n',
            ),
        ),
        "pyproject.toml",
        is_edited=False,
    ),
    "flat": Project(
        "musiclm",
        "distributed.py",
        {
            "distributed.py": MUSICLM,
            "musiclm.py": _CONTRAST.replace("{module}", "distributed"),
            "check.py": _CONTRAST_CHECK.replace("{package}", "musiclm"),
            "requirements.txt": "einops\ntorch>=1.6\n",
        },
        "requirements.txt",
        is_edited=False,
    ),
}

# with a change of its own in the copy, and a function more
EDITED = Project(
    "spear-tts",
    "spear_tts_pytorch/distributed.py",
    {
        **_SPEAR_FILES,
        "spear_tts_pytorch/distributed.py": SPEAR_TTS.replace("int(sizes.max())", "max(size.item() for size in sizes)")
        + "\n# ours\n\ndef rank_of_rows(sizes):\n    return torch.arange(len(sizes)).repeat_interleave(sizes)\n",
    },
    "pyproject.toml",
)

# everything in one file, which no adapter can take the place of
INLINED = Project(
    "musiclm",
    "train.py",
    {
        "train.py": MUSICLM
        + "\n".join(_CONTRAST.replace("from {module} import AllGather\n", "").splitlines()[4:])
        + "".join(f"\n\ndef step_{n}(x):\n    y = x + {n}\n    y = y * 2\n    return y\n" for n in range(20)),
        "requirements.txt": "torch\n",
    },
    "requirements.txt",
)
# by the name that `scan` gives them in the tests
ORIGINALS = {"musiclm": MUSICLM, "spear-tts": SPEAR_TTS, "mirasol": MIRASOL, "st-moe": ST_MOE}
