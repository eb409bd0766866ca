# SPDX-License-Identifier: MIT
"""The proof that an adapter can take an old file's place: both, side by side on real ranks, over generated cases.

cases     what is called, and how
load      a file as a module, with the names that it fails to define (on ranks only)
play      one case on one rank, and what it should observe, computed in one process
verdict   same, better, stricter or different
compare   all of it
command   `adapters parity`, and the report for people
"""
