# SPDX-License-Identifier: MIT
"""How large a number is, and how sure that is."""

from collections.abc import Iterable, Sequence
from math import exp, log, sqrt
from typing import NamedTuple

import torch

FEWEST = 6  # values, for an interval of 95 %


class Estimate(NamedTuple):
    """The centre of positive numbers, and its 95 % confidence interval."""

    centre: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """How many times the upper end is the lower."""
        return self.high / self.low

    def __str__(self) -> str:
        return f"{self.centre:.3g} [{self.low:.3g}, {self.high:.3g}]"


def estimate(values: Sequence[float]) -> Estimate:
    """The Hodges-Lehmann centre of the logarithms, and the interval of Wilcoxon's signed-rank test.

    The median of the means of all pairs: as hard to upset by single values as a quantile, nearly as sharp as a mean.
    """
    logs, n = torch.tensor(values, dtype=torch.float64).log(), len(values)
    rows, columns = torch.triu_indices(n, n)
    means = ((logs[rows] + logs[columns]) / 2).sort().values
    cut = max(0, int(n * (n + 1) / 4 - 0.5 - 1.96 * sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return Estimate(exp(means.quantile(0.5)), exp(means[cut]), exp(means[-1 - cut]))


def geometric_mean(estimates: Iterable[Estimate]) -> Estimate:
    """Of independent estimates: their errors add up in squares."""
    logs = [tuple(map(log, one)) for one in estimates]
    centre = sum(middle for middle, _, _ in logs) / len(logs)
    below, above = (sqrt(sum((row[0] - row[end]) ** 2 for row in logs)) / len(logs) for end in (1, 2))
    return Estimate(exp(centre), exp(centre - below), exp(centre + above))
