# SPDX-License-Identifier: MIT
"""The recipes in shared/distributed/docs, run as they stand: `nox -s frameworks`."""
