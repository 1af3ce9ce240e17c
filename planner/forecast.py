"""Forecast: when a growing load gets where it must not, from what was measured until now."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

LEAST = 8
"""Measurements that a trend rests on at least  [points]."""
SIGNIFICANT = 2.0
"""Slopes of fewer standard errors are no trend  [ratio]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A straight line through what was measured.

    level  value of the line at the last measurement  [unit measured]
    slope  growth a second                            [unit/s]
    error  standard error of the slope                [unit/s]
    """

    level: float
    slope: float
    error: float

    @property
    def is_growing(self) -> bool:
        """Whether the growth is more than chance."""
        return self.slope > SIGNIFICANT * self.error and self.slope > 0

    def seconds_to(self, ceiling: float) -> tuple[float, float, float] | None:
        """Middle, soonest and latest time until the line reaches the ceiling [s]; None where it does not grow.

        >>> Forecast(level=10.0, slope=2.0, error=0.5).seconds_to(20.0)
        (5.0, 3.3333333333333335, 10.0)
        """
        if not self.is_growing:
            return None
        left = max(0.0, ceiling - self.level)
        slow, fast = self.slope - SIGNIFICANT * self.error, self.slope + SIGNIFICANT * self.error
        return left / self.slope, left / fast, left / slow if slow > 0 else inf


def forecast(times: Sequence[float], values: Sequence[float]) -> Forecast | None:
    """The least-squares line through measurements at these times [s]; None where there are too few.

    Raises ValueError for times and values of different lengths.

    >>> line = forecast(range(10), [5 + 2 * t for t in range(10)])
    >>> round(line.level, 6), round(line.slope, 6), round(line.error, 6)
    (23.0, 2.0, 0.0)
    """
    if len(times) != len(values):
        raise ValueError(f"{len(times)} times and {len(values)} values")
    if len(times) < LEAST or times[0] == times[-1]:
        return None
    x = np.asarray(times, float) - times[-1]
    y = np.asarray(values, float)
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    level = float(y.mean() - slope * x.mean())
    residual = y - (level + slope * x)
    error = float(np.sqrt(residual @ residual / (len(x) - 2) / spread))
    return Forecast(level=level, slope=slope, error=error)
