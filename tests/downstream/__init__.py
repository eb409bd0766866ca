# SPDX-License-Identifier: MIT
"""Small downstream projects, in each layout that the tools know."""
