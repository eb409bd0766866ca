# SPDX-License-Identifier: MIT
"""What runs on the ranks. Tests name these functions; arguments and results are plain data."""
