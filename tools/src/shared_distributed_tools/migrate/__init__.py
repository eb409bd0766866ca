# SPDX-License-Identifier: MIT
"""Moving a project over, stage by stage: original, vendored, package, core.

stages    at which stage a project is, read off its files, and what the next one changes
proof     what each use of the copy becomes in the core, if it has a proven form
to_core   which files move to the core, and what refers to a module that goes
risks     call sites that deserve a look
command   `adapters migrate`
plan      `adapters plan`
status    `adapters status`
"""
