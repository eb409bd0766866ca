# SPDX-License-Identifier: MIT
"""More than one host, on one machine: each a network namespace with its own address. `nox -s multihost` runs this."""
