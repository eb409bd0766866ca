# SPDX-License-Identifier: MIT
"""NCCL emulated: torch's own CUDA build and its own ProcessGroupNCCL on a machine without a GPU. No NCCL kernel runs.

    python -m tests.emulated --devices 4 pytest --backend=nccl

Everything above the CUDA runtime is torch's and unchanged: ProcessGroupNCCL, the caching allocator, streams, events,
`record_stream`, CUDA graphs, DDP, autograd's handling of streams. Below it are the libraries in `libraries/`:

    libemulated.so    libcudart and libnccl: host memory, threads for streams, files for what ranks exchange
    liboperators.so   the operators of CUDA tensors, run on the CPU
    libcuda.so.1      a driver that says "not supported"

Needs a CUDA build of torch (any torch from PyPI for Linux is one), the headers of CUDA, and a C++ compiler.
"""
