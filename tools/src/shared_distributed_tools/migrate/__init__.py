# SPDX-License-Identifier: MIT
"""Moving a project over, stage by stage: original, vendored, package, core.

stages    at which stage a project is, read off its files, and what the next one changes
to_core   what each use of the copy would become in the core
risks     call sites that deserve a look
command   `adapters migrate`
plan      `adapters plan`
status    `adapters status`
"""
