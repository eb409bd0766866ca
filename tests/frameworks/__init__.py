# SPDX-License-Identifier: MIT
"""The framework pages in shared/distributed/docs, run as a reader runs them: `nox -s frameworks`."""
