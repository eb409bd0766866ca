# SPDX-License-Identifier: MIT
"""What can go wrong, as a tree.

GatherError (RuntimeError)                the root: everything raised here on purpose
├── BadInputError (ValueError, IndexError)    one rank's own arguments cannot be used
├── DisagreementError                     each rank's arguments can be used, but they do not fit together
└── TransportError                        a collective failed: a rank died, stopped or made another call

StaleAnswerWarning (UserWarning)          "not distributed" was remembered from before the process group
"""

import warnings
from functools import cache


class GatherError(RuntimeError):
    """Root of every error that is raised here on purpose."""


class BadInputError(GatherError, ValueError, IndexError):
    """A rank's own arguments cannot be used. (torch raises IndexError for a dim out of range.)"""


class DisagreementError(GatherError):
    """The ranks' arguments do not fit together: shapes, dtypes, operations, grad modes."""


class TransportError(GatherError):
    """A collective failed: a rank died, stopped, or made another call. The process group is lost."""


class StaleAnswerWarning(UserWarning):
    """An answer from before the process group existed is still used."""


_warn_once = cache(warnings.warn)
