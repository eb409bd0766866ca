# SPDX-License-Identifier: MIT
"""Runs a module on emulated GPUs: python -m tests.emulated [--devices N] [--late US] MODULE [its arguments]."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from .emulation import compiler_missing, environment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulated", description=__doc__)
    parser.add_argument("--devices", type=int, default=4, help="how many GPUs there are")
    parser.add_argument("--late", type=int, default=0, help="kernels are late by up to so many microseconds")
    parser.add_argument("module", help="a module to run, such as pytest")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    reason = compiler_missing()
    if reason:
        parser.error(reason)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="emulated-", dir=memory if memory.is_dir() else None) as folder:
        variables = environment(given.devices, folder)
        if given.late:
            variables["EMULATED_KERNEL_DELAY_US"] = str(given.late)
            variables["EMULATED_NCCL_DELAY_US"] = str(10 * given.late)
        command = [sys.executable, "-m", given.module, *given.arguments]
        return subprocess.run(command, env=variables).returncode


sys.exit(main())
