# SPDX-License-Identifier: MIT
"""The benchmark: the core beside every gather that a user could pick instead, interleaved in one run.

cases → contenders → measure (in each rank) → world (ranks as processes) → run → record → bars, tables, plot → main.
"""
