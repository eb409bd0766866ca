# SPDX-License-Identifier: MIT
"""Somebody's repo, read and written safely."""
