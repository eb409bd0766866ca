# SPDX-License-Identifier: MIT
"""The machine: versions, GPUs, how they are connected; and why torch does not see them."""

import platform
import shutil
import subprocess

import torch

from tests.support.world import is_emulated


def nvidia_smi(*arguments: str) -> str:
    """What the driver's tool says; empty if it is not there."""
    if shutil.which("nvidia-smi") is None:
        return ""
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=False).stdout.strip()


def facts() -> str:
    """Versions, GPUs and topology, as text."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "not asked"
    lines = [
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}",
        f"{torch.cuda.device_count()} GPUs: {', '.join(names())}",
    ]
    if is_emulated():
        lines.append("EMULATED: no kernel of CUDA or NCCL runs, and times mean nothing")
    lines.append(nvidia_smi("--query-gpu=name,driver_version,memory.total", "--format=csv") or "no nvidia-smi here")
    lines.append(nvidia_smi("topo", "-m"))
    return "\n".join(line for line in lines if line)


def names() -> list[str]:
    return [torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())]


def missing() -> str:
    """Why there are fewer than two GPUs for torch, and what to do; empty if there are two."""
    found = torch.cuda.device_count()
    if found >= 2:
        return ""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA: name an index that has one, with -- --index-url URL"
    listed = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    if len(listed) > found:
        return (
            f"nvidia-smi lists {len(listed)} GPUs, torch sees {found}: the driver {listed[0]} is too old for CUDA "
            f"{torch.version.cuda}. Choose PyTorch's index for an older CUDA, such as cu126, with -- --index-url URL"
        )
    return f"needs 2 GPUs, found {found}"
