"""A Prometheus histogram, and what can honestly be said from its buckets."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import inf, isinf
from typing import NamedTuple


class Quantile(NamedTuple):
    """A quantile as buckets know it: surely between `low` and `high`, drawn at `value`.

    value   linear inside the bucket, as Prometheus does; the last finite bound when above it   [unit of the metric]
    low     lower bound of its bucket                                                           [unit of the metric]
    high    upper bound of its bucket; inf is "above the last bucket"                           [unit of the metric]
    """

    value: float
    low: float
    high: float

    @property
    def is_above_buckets(self) -> bool:
        return isinf(self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Observations counted by upper bound.

    bounds   upper bounds, ascending; the last is inf   [unit of the metric]
    counts   observations at or below each bound        [observations]
    total    sum of what was observed                   [unit of the metric]
    """

    bounds: tuple[float, ...]
    counts: "array[float]"
    total: float

    @property
    def count(self) -> float:
        return self.counts[-1]

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def quantile(self, q: float) -> Quantile | None:
        """The q-quantile with its interval, or None when nothing was observed or there are no finite buckets.

        >>> Histogram(bounds=(1.0, 2.0, inf), counts=array("d", [2, 6, 8]), total=12.0).quantile(0.5)
        Quantile(value=1.5, low=1.0, high=2.0)
        """
        if not self.count or len(self.bounds) < 2:
            return None
        rank = q * self.count
        bucket = bisect_left(self.counts, rank)
        low = self.bounds[bucket - 1] if bucket else min(0.0, self.bounds[0])
        high = self.bounds[bucket]
        below = self.counts[bucket - 1] if bucket else 0.0
        inside = self.counts[bucket] - below
        value = low if isinf(high) or not inside else low + (high - low) * (rank - below) / inside
        return Quantile(value, low, high)

    def since(self, earlier: "Histogram") -> "Histogram | None":
        """What was observed after `earlier`, or None when that cannot be told: a reset, or other buckets."""
        if self.bounds != earlier.bounds:
            return None
        counts = array("d", (now - then for now, then in zip(self.counts, earlier.counts, strict=True)))
        if counts[-1] < 0:
            return None
        return Histogram(bounds=self.bounds, counts=_ascending(counts), total=max(0.0, self.total - earlier.total))


class Shape(NamedTuple):
    """Where the buckets and the sum of a histogram stand among its series.

    bounds  upper bounds, ascending; the last is inf   [unit of the metric]
    places  of each bound's count                      [position]
    total   where the sum is, None where it is not     [position]
    """

    bounds: tuple[float, ...]
    places: tuple[int, ...]
    total: int | None

    def histogram(self, numbers: Sequence[float]) -> Histogram:
        counts = _ascending([numbers[place] for place in self.places])
        return Histogram(bounds=self.bounds, counts=counts, total=0.0 if self.total is None else numbers[self.total])


@lru_cache(maxsize=1024)
def shape(pieces: tuple[str, ...]) -> Shape | None:
    """Of series named by their bucket's bound, "sum" or "count"; None when the number of observations is not there.

    Lost pieces are left out, not guessed. Cached: thousands of histograms share their bounds. Raises ValueError for a
    bound that is no number.

    >>> shape(("sum", "+Inf", "0.5"))
    Shape(bounds=(0.5, inf), places=(2, 1), total=0)
    """
    buckets = {float(piece): place for place, piece in enumerate(pieces) if piece not in ("sum", "count")}
    if "count" in pieces:
        buckets.setdefault(inf, pieces.index("count"))
    if inf not in buckets:
        return None
    bounds, places = zip(*sorted(buckets.items()), strict=True)
    return Shape(bounds, places, pieces.index("sum") if "sum" in pieces else None)


def _ascending(counts: Iterable[float]) -> "array[float]":
    """Buckets are written one after the other while requests finish: a bucket may lag the one before it."""
    return array("d", [*accumulate(counts, max)])
