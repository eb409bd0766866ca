# SPDX-License-Identifier: MIT
"""The proof that an adapter can take an old file's place: both, side by side on real ranks, over generated cases.

cases       what is called, and how
oracle      what goes in, and what should come out
supplied    names that old files use and do not define
loading     the file, or the adapter, as a module            (in child processes only)
worker      one case on one rank                             (in child processes only)
seen        what a rank saw, as data
ranks       the processes; a crash or a hang is an outcome
verdict     same, better or different
sides, run  what is compared; all of it
report      the table, and the same for scripts
cli         the command
"""
