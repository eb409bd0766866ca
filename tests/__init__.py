# SPDX-License-Identifier: MIT
"""The tests, as a package: ranks import the functions that they run from the module of the test."""
