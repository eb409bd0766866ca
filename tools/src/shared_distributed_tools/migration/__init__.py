# SPDX-License-Identifier: MIT
"""Moving a project from its own copy to the core: find the copies, plan, move one stage at a time, and go back.

walk, definitions, scopes, normal files of any tree, taken apart, with local names and formatting out of the way
fingerprints, compare, relatives  the known variants; what is nearest; what resembles none
survey, scan_command              `adapters scan`
tree, syntax, sites               a repo's Python files; Python's rules of scope; where its copy is used
judge, hidden, rewrite            what a use becomes in the core, what a person has to do; edits made in a file
risks, plan                       call sites that deserve a look; everything that `adapters plan` says
origin, metadata, formatting      where a distribution comes from; a project's dependencies; one more item in a list
record, journal                   what was done, and what is under way; changes that can be cut off
standing, stages                  where a repo is; what its next stage changes
overview, page, commands          every project at once, as a page too; `adapters plan`, `migrate`, `rollback`, `status`
"""
