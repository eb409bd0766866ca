# SPDX-License-Identifier: MIT
"""The proof that an adapter can take an old file's place: both, side by side on real ranks, over generated cases.

cases     what is called, and how
load      the file, or the adapter, as a module, with the names that the file fails to define (on ranks only)
play      one case on one rank (on ranks only)
observed  what a rank observed, as data
truth     what it should observe, computed in one process
verdict   same, better or different
compare   all of it
report    the table, and the same for scripts
command   `adapters parity`
"""
