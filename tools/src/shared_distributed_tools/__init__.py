# SPDX-License-Identifier: MIT
"""Puts an adapter into a downstream repo as one self-contained file, keeps it current, and moves projects over.

cli        the console script `adapters`: which command is where
errors     what can go wrong; terminal: how tables, diffs and progress are shown
catalog    the adapters, and where their sources are
repo       somebody's repository, read and written safely
render     from the sources to the text of one file
scan       finding copies in any tree
vendor     the vendored file in its repo
migrate    moving a project over, stage by stage
ranks      rank processes, and the oracle
parity     an old file and its adapter side by side on real ranks
list, new  the adapters there are; a further one
"""
