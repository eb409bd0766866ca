# SPDX-License-Identifier: MIT
"""Compiles the libraries, and gives the environment in which a process finds emulated GPUs."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent / "libraries"
BUILT = Path(sys.prefix) / "emulated"  # in the environment whose torch they are made for
COMPILERS = ("g++", "gcc")

RUNTIME = ("settings.cpp", "devices.cpp", "streams.cpp", "kernels.cpp", "nccl.cpp")
OPTIONS = ("-std=c++20", "-shared", "-fPIC", "-Wall", "-Wno-interference-size")
TORCH_LIBRARIES = ("-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda")


def compiler_missing() -> str:
    """What there is no compiler for; empty if there is one."""
    missing = [name for name in COMPILERS if shutil.which(name) is None]
    return f"needs a C++ compiler: {' and '.join(missing)} not found" if missing else ""


def packages() -> Path:
    """Where torch and the packages with CUDA's headers are."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None, "no torch in this environment"
    assert torch.origin is not None
    return Path(torch.origin).parents[1]


def commands(into: Path) -> list[list[str]]:
    """What compiles the libraries."""
    torch = packages() / "torch"
    headers = [torch / "include", torch / "include/torch/csrc/api/include"]
    headers += [packages() / "nvidia/cu13/include", packages() / "nvidia/nccl/include"]
    include = [f"-I{folder}" for folder in headers]
    runtime = ["g++", "-O1", *OPTIONS, *include, *RUNTIME, "-o", f"{into}/libemulated.so", "-lpthread", "-ldl"]
    operators = ["g++", "-O0", *OPTIONS, *include, "-DUSE_CUDA", "operators.cpp", "-o", f"{into}/liboperators.so"]
    # torch's libraries are linked with others that are not at hand here
    operators += [f"-L{torch}/lib", *TORCH_LIBRARIES, "-Wl,--unresolved-symbols=ignore-all"]
    driver = ["gcc", "-shared", "-fPIC", "driver.c", "-o", f"{into}/libcuda.so.1"]
    return [runtime, operators, driver]


def build() -> Path:
    """The folder with the libraries; compiled if their sources, or torch, changed since."""
    torch_version = (packages() / "torch/version.py").read_bytes()
    sources = [path.read_bytes() for path in sorted(SOURCES.iterdir())]
    wanted = hashlib.sha256(b"".join([torch_version, *sources, Path(__file__).read_bytes()])).hexdigest()
    stamp = BUILT / "built"
    if stamp.exists() and stamp.read_text() == wanted:
        return BUILT
    shutil.rmtree(BUILT, ignore_errors=True)
    BUILT.mkdir()
    compilers = [subprocess.Popen(command, cwd=SOURCES) for command in commands(BUILT)]
    exit_codes = [compiler.wait() for compiler in compilers]
    if any(exit_codes):
        raise SystemExit("the emulation could not be compiled: see the messages above")
    stamp.write_text(wanted)
    return BUILT


def environment(devices: int, folder: str) -> dict[str, str]:
    """Variables for a process that is to find this many GPUs; its ranks exchange files in `folder`."""
    libraries = build()
    return {
        **os.environ,
        "LD_PRELOAD": str(libraries / "libemulated.so"),
        "LD_LIBRARY_PATH": os.pathsep.join([str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]),
        "EMULATED_OPERATORS": str(libraries / "liboperators.so"),
        "EMULATED_DEVICES": str(devices),
        "EMULATED_FOLDER": folder,
        "OMP_NUM_THREADS": "1",
    }
