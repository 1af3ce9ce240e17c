"""What was recorded, read back: pages between two moments, about so many; events; what is usual at this hour."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf, nextafter
from statistics import median
from typing import Any

from sqlalchemy import BigInteger, Connection, cast, func, select

from monitor import metrics
from monitor.finding import Change, Event
from monitor.snapshot import Snapshot
from monitor.tables import DAY, EVENTS, HOUR, KEPT, PAGES, SERVERS, forms
from monitor.window import window
from planner.verdict import Level

BASELINE_DAYS = range(1, 15)
"""Which earlier days tell what is usual: two weeks, so that each weekday counts alike  [days]."""
LEAST_DAYS = 3
"""Fewer are no habit  [days]."""
BUSY = 1.0
"""Requests running on average, below which an hour says nothing of what the server can do  [requests]."""


def snapshots(connection: Connection, name: str, start: float, end: float, points: int) -> list[Snapshot]:
    """About so many pages between two Unix times, oldest first, spread evenly.

    The coarsest resolution with so many points is read, or the finest; coarser ones where it reaches less far back, and
    finer ones after its last minute or hour.
    """
    if not start < end or points < 1:
        return []
    wanted = next((one for one in sorted(KEPT, reverse=True) if (end - start) >= points * max(one, 1)), 0)
    every = (end - start) / points
    found = _rows(connection, name, wanted, start, end, every)
    for resolution in sorted(one for one in KEPT if one > wanted):
        found = _rows(connection, name, resolution, start, found[0].at if found else end, every) + found
    for resolution in sorted((one for one in KEPT if one < wanted), reverse=True):
        after = nextafter(found[-1].at, inf) if found else start
        found += _rows(connection, name, resolution, after, end, every)
    return _unpacked(connection, found)


def events(connection: Connection, start: float, end: float, name: str | None) -> list[Event]:
    """The timeline between two Unix times, oldest first, of one server or of all."""
    asked = select(EVENTS).where(EVENTS.c.at >= start, EVENTS.c.at < end).order_by(EVENTS.c.at, EVENTS.c.id)
    rows = connection.execute(asked if name is None else asked.where(EVENTS.c.target == name))
    return [
        Event(
            at=row.at,
            target=row.target,
            engine=row.engine,
            rule=row.rule,
            change=Change(row.change),
            level=Level(row.level),
            word=row.word,
            reason=row.reason,
            action=row.action,
        )
        for row in rows
    ]


def baseline(connection: Connection, name: str, at: float) -> float | None:
    """Output tokens a second as usual in this hour of the day: the median over earlier days on which it was busy.

    One question for all days: every server's baseline is asked for at the same moment, when an hour begins.
    """
    hour = at // HOUR * HOUR
    days = [hour - days * DAY for days in BASELINE_DAYS]
    rows = _rows(connection, name, HOUR, days[-1] - HOUR, days[0] + HOUR, 0.0)
    pages = _unpacked(connection, [row for row in rows if (row.at - hour + HOUR) % DAY < 2 * HOUR])
    rates = [_rate([page for page in pages if day - HOUR <= page.at < day + HOUR], day) for day in days]
    known = [rate for rate in rates if rate is not None]
    return median(known) if len(known) >= LEAST_DAYS else None


def _rate(pages: Sequence[Snapshot], hour: float) -> float | None:
    """Output tokens a second in the hour that begins then, from its pages and those of the hour before.

    None when it was not busy or was not recorded.
    """
    before = [page for page in pages if page.at < hour][-1:]
    pages = before + [page for page in pages if page.at >= hour]
    spreads = [engine.spread.get(metrics.RUNNING.key) for engine in pages[-1].engines] if pages else []
    if not before or len(pages) < 2 or sum(spread.mean for spread in spreads if spread) < BUSY:
        return None
    tokens = 0.0
    for earlier, later in pairwise(pages):
        between = window(earlier, later)
        rates = [engine.output_tokens_per_s for engine in between.engines]
        if None in rates:
            return None
        tokens += sum(filter(None, rates)) * between.seconds
    return tokens / (pages[-1].at - pages[0].at)


def _rows(connection: Connection, name: str, resolution: int, start: float, end: float, every: float) -> list[Any]:
    """The last page in each so many seconds, and the first after a restart; oldest first.

    Where a clock was set back, two stretches have the same times: the one written later is believed.
    """
    here = (
        PAGES.c.server == select(SERVERS.c.id).where(SERVERS.c.name == name).scalar_subquery(),
        PAGES.c.resolution == resolution,
        PAGES.c.at >= start,
        PAGES.c.at < end,
    )
    asked = select(PAGES).where(*here)
    if every > max(resolution, 1):
        bucket = cast(PAGES.c.at / every, BigInteger)  # the same ones while the window moves on
        asked = select(PAGES).where(
            PAGES.c.id.in_(select(func.max(PAGES.c.id)).where(*here).group_by(bucket, PAGES.c.began))
        )
    rows: list[Any] = []
    for row in connection.execute(asked.order_by(PAGES.c.id.desc())):
        if not rows or row.at < rows[-1].at:
            rows.append(row)
    return rows[::-1]


def _unpacked(connection: Connection, rows: Sequence[Any]) -> list[Snapshot]:
    known = forms(connection, {row.form for row in rows}) if rows else {}
    return [
        known[row.form].snapshot(row.content, row.at, row.gauges if row.resolution else b"")
        for row in rows
        if row.form in known
    ]
