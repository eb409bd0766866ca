# SPDX-License-Identifier: MIT
"""Finding copies: what a known file is recognised by, and what a tree holds of it."""
