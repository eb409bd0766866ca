# SPDX-License-Identifier: MIT
"""Moving a project from its own copy to the core: find the copies, plan, move one stage at a time, and go back."""
