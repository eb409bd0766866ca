# SPDX-License-Identifier: MIT
"""Puts an adapter into a downstream repo as one self-contained file, and keeps that file current.

catalog, sources   the adapters, and where their sources are; the text of these
modules, imports   one source module taken apart; imports merged
bundle, render     the parts an adapter reaches, as one module; the same with its header
shim               what stands in the old place once the code is installed
signatures         the head of a renamed function, laid out anew
verify             the last look at a rendered file
header, lock       what the file, and the lock beside it, say about where it came from
paths, files       which file in a repo, and how it is read and written safely
status             what a vendored file looks like now
vendoring, git     what would change in a repo; what git is asked
floor              whether a project allows an older Python or torch than the file needs
cli, commands      the console script `adapters`; terminal: how tables and diffs are shown
downstream         a rendered file tried inside a copy of a downstream checkout
migration          finding copies in any tree, and moving a project over, stage by stage
parity             an old file and its adapter side by side on real ranks
scaffold           a further adapter
bench, demo        the gathers measured; the main job on one screen
processes          ranks, for parity and bench
"""
