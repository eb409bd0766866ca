# SPDX-License-Identifier: MIT
"""`python -m shared_distributed_tools` is the console script `adapters`."""

from .cli import main

main(prog_name="adapters")
