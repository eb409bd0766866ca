# SPDX-License-Identifier: MIT
"""The vendored file in its repo.

state     where it lies, and whether it is current, stale, edited, or something else
content   what it becomes: rendered afresh, or merged with the edits that were made there
command   `adapters vendor`
check     `adapters check`
update    `adapters update`
"""
