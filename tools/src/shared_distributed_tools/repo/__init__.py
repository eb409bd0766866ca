# SPDX-License-Identifier: MIT
"""Somebody's repository, read and written safely.

files          which files it has, how they are read, and how one is replaced in one step
tree           its Python files: walked once, parsed once
uses           who imports, builds and calls what a file defines
edits          code put in the place of nodes of a file
git            the one module that starts a program: git, so that nothing of the repository runs
changes        what a command would write: allowed, shown, written, and the git commands that keep or undo it
dependencies   where a project lists its dependencies, and one more there
"""
