# SPDX-License-Identifier: MIT
"""`nox -s bench`: the core and what else a user could pick, side by side on this machine."""
