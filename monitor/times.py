"""Moments as people read them, always UTC, and the spans of time that a page can look back on."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta

from planner.errors import InputError
from planner.units import duration

SPANS: Mapping[str, float] = {"15 min": 900.0, "1 h": 3600.0, "6 h": 21600.0, "1 day": 86400.0, "1 week": 604800.0,
                              "1 month": 2592000.0, "1 year": 31536000.0}  # fmt: skip
"""How far back  [s]."""


def moment(at: float) -> str:
    """A Unix time [s].

    >>> moment(1_790_000_000)
    '2026-09-21 14:13:20 UTC'
    """
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def since(at: float, now: float) -> str:
    """Both Unix times [s]: when it began, and how long it has lasted; the date only where it is another day's.

    >>> since(1_790_000_000, 1_790_000_300), since(1_790_000_000, 1_790_172_800)
    ('14:13:20 UTC (5 min)', '2026-09-21 14:13:20 UTC (2 d)')
    """
    began, then = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    text = f"{began:%H:%M:%S} UTC" if began.date() == then.date() else moment(at)
    return f"{text} ({duration(max(0.0, now - at))})"


def back(span: str, now: float) -> tuple[float, float]:
    """From so long ago until now, both Unix time [s]."""
    return now - SPANS[span], now


def between(first: date, last: date) -> tuple[float, float]:
    """Whole days in UTC, the last one included, both Unix time [s]. Raises InputError in the wrong order.

    >>> between(date(2026, 9, 21), date(2026, 9, 21))
    (1789948800.0, 1790035200.0)
    """
    if last < first:
        raise InputError("to", str(last), f"a day not before {first}")
    start, end = (datetime.combine(day, time(), UTC) for day in (first, last + timedelta(days=1)))
    return start.timestamp(), end.timestamp()
