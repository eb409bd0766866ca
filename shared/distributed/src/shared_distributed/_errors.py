# SPDX-License-Identifier: MIT
"""What can go wrong, as a tree.

GatherError (RuntimeError)                the root: everything raised here on purpose
├── BadInputError (ValueError, IndexError)    one rank's own arguments cannot be used
├── DisagreementError                     each rank's arguments are fine alone, not together
└── TransportError                        a collective failed underneath: a rank died, stopped or went another way

StaleAnswerWarning (UserWarning)          "not distributed" was remembered from before the process group
"""


class GatherError(RuntimeError):
    """Root of every error that is raised here on purpose."""


class BadInputError(GatherError, ValueError, IndexError):
    """A rank's own arguments cannot be used. (torch raises IndexError for a dim out of range.)"""


class DisagreementError(GatherError):
    """The ranks' arguments do not fit together: shapes, dtypes, operations, grad modes."""


class TransportError(GatherError):
    """A collective failed underneath: a rank died, stopped, or is in another call. The group is lost."""


class StaleAnswerWarning(UserWarning):
    """An answer from before the process group came up is still used."""
