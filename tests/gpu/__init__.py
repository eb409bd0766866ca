# SPDX-License-Identifier: MIT
"""The first run on a machine with GPUs, as one command with one report: nox -s gpu."""
