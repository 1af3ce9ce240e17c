"""Which vLLM releases can have written a page, from the names on it."""

from collections.abc import Collection
from typing import NamedTuple

from monitor.metrics import AVG_OUTPUT_RATE, METRICS, NEWEST, OPEN, Version
from monitor.metrics import version as parsed

LAST_V0: Version = (0, 11, 0)
"""The last release whose source has the V0 engine."""

_SPANS = {
    (metric.key, rank): span for metric in METRICS for rank, span in enumerate(metric.spans) if metric.scope == "engine"
}
_ALWAYS_SINCE = {
    (metric.key, rank): first
    for metric in METRICS
    for rank, (first, last) in enumerate(metric.spans)
    if metric.scope == "engine" and last == OPEN and not metric.needs
}
"""Names that every V1 server writes from this release on."""


class VersionRange(NamedTuple):
    """The oldest and the newest release that fit, both included. As text in minor releases, or one exact release.

    >>> str(VersionRange((0, 24, 0), (0, 30, 99))), str(VersionRange((0, 12, 0), (0, 12, 99)))
    ('0.24-0.30', '0.12')
    >>> str(VersionRange.exactly("0.32.0"))
    '0.32.0'
    """

    low: Version
    high: Version

    @classmethod
    def exactly(cls, text: str) -> "VersionRange":
        return cls(parsed(text), parsed(text))

    @property
    def newest(self) -> str:
        """The newest release that fits; its first, where all of a minor release do.

        >>> VersionRange((0, 24, 0), (0, 30, 99)).newest
        '0.30.0'
        """
        return release((*self.high[:2], 0) if self.high[2] == 99 else self.high)

    def __str__(self) -> str:
        if self.low == self.high:
            return release(self.low)
        low, high = (".".join(map(str, version[:2])) for version in self)
        return low if low == high else f"{low}-{high}"


def version_range(seen: Collection[tuple[str, int]], *, is_v0: bool, is_complete: bool) -> VersionRange | None:
    """Releases with all the names seen and, for a complete page, none of those absent; None when there is none.

    `seen` holds each metric's key with the rank of its name. A page that a proxy or Ray has thinned is not complete.
    """
    spans = [_SPANS[name] for name in seen if name in _SPANS]
    low = max((first for first, _ in spans), default=(0, 0, 0))
    high = min((*(last for _, last in spans), LAST_V0 if is_v0 else NEWEST))
    if not low[1] or low > high:
        return None
    if is_complete and is_v0 and (AVG_OUTPUT_RATE.key, 0) not in seen:
        low = max(low, _after(AVG_OUTPUT_RATE.last))
    elif is_complete:
        absent = (first for name, first in _ALWAYS_SINCE.items() if name not in seen and first > low)
        high = min((high, *map(_before, absent)))
    return VersionRange(low, max(low, high))


def release(version: Version) -> str:
    """
    >>> release((0, 9, 2))
    '0.9.2'
    """
    return ".".join(map(str, version))


def _before(version: Version) -> Version:
    major, minor, patch = version
    return (major, minor, patch - 1) if patch else (major, minor - 1, 99)


def _after(version: Version) -> Version:
    major, minor, _ = version
    return major, minor + 1, 0
