# SPDX-License-Identifier: MIT
"""Runs a command on emulated GPUs: python -m tests.emulated [--devices N] MODULE [arguments of the module]."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from .emulation import compiler_missing, environment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulated", description=__doc__)
    parser.add_argument("--devices", type=int, default=4, help="how many GPUs there are")
    parser.add_argument("module", help="a module to run, such as pytest")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    reason = compiler_missing()
    if reason:
        parser.error(reason)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="emulated-", dir=memory if memory.is_dir() else None) as folder:
        command = [sys.executable, "-m", given.module, *given.arguments]
        return subprocess.run(command, env=environment(given.devices, folder)).returncode


sys.exit(main())
