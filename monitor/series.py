"""Snapshots of one target -> lines over time. A gap stays a gap, and a rate is over the time between two points."""

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from io import StringIO
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from monitor.metrics import METRICS, Metric
from monitor.snapshot import EngineSnapshot, Snapshot
from monitor.window import EngineWindow, window

POINTS = 120
"""Points a line at most: as many as a chart of this width can show  [points]."""
GAP = 2.5
"""A pause this many times longer than usual is a gap  [ratio]."""
PAIRS = 4096
"""Pairs of Snapshots whose rates are kept: a line is drawn every few seconds, and only its end is new  [pairs]."""


class Series(NamedTuple):
    """One line.

    name    what it is, and of which engine where there are several
    times   Unix time  [s]
    values  None where there is nothing to draw  [unit of the quantity]
    """

    name: str
    times: tuple[float, ...]
    values: tuple[float | None, ...]

    @property
    def known(self) -> tuple[float, ...]:
        """What there is to draw  [unit of the quantity]."""
        return tuple(value for value in self.values if value is not None)

    @property
    def moments(self) -> list[int]:
        """Times as charts take them  [ms]."""
        return [round(time * 1e3) for time in self.times]

    @property
    def plotted(self) -> list[float | None]:
        """Values as exact as a chart can show, which makes them a third as long  [unit of the quantity]."""
        return [None if value is None else float(f"{value:.5g}") for value in self.values]

    @property
    def mean(self) -> float | None:
        """Of the points, each as long as the others  [unit of the quantity]."""
        return fmean(self.known) if self.known else None

    @property
    def finding(self) -> str:
        """What the line says in words, for those who do not see it."""
        known = self.known
        if not known:
            return "nothing reported"
        return f"{known[-1]:.3g} now, {min(known):.3g} to {max(known):.3g}"


def gauges(history: Sequence[Snapshot], *quantities: str) -> list[Series]:
    """Properties of EngineSnapshot, or gauges by their key, over time: a line for each engine and quantity.

    Where a page stands for a minute or an hour, its mean is drawn.
    """
    pages = _thinned(history)
    points = [(page.wall or page.at, page.engines) for page in pages]
    return _series(points, quantities, _gauge)


def peaks(history: Sequence[Snapshot], *quantities: str) -> list[Series]:
    """The highest that was seen in the minute or hour each page stands for; none where each is but a moment."""
    pages = _thinned(history)
    spread = {quantity for page in pages for engine in page.engines for quantity in engine.spread}
    points = [(page.wall or page.at, page.engines) for page in pages]
    return _series(points, [quantity for quantity in quantities if quantity in spread], _peak)


def rates(history: Sequence[Snapshot], *quantities: str) -> list[Series]:
    """Between one point and the next: properties of EngineWindow, counters by key, and ttft_p99, step_tokens_mean, …"""
    pages = _thinned(history)
    points = [(after.wall or after.at, _between(before, after)) for before, after in pairwise(pages)]
    return _series(points, quantities, _Drawn.rate)


def splits(history: Sequence[Snapshot], metric: Metric) -> list[Series]:
    """A line for each label of a gauge, or of a counter's increase a second, its engines added: why, whence, how."""
    pages = _thinned(history)
    if metric.kind == "gauge":
        points = [(page.wall or page.at, _added(engine.split(metric) for engine in page.engines)) for page in pages]
    else:
        points = [
            (after.wall or after.at, _added(engine.split(metric) for engine in _between(before, after)))
            for before, after in pairwise(pages)
        ]
    labels = dict.fromkeys(label for _, split in points for label in split)
    return [_line(label, [(time, split.get(label)) for time, split in points]) for label in labels]


def restarts(history: Sequence[Snapshot]) -> list[float]:
    """When counters began anew: Unix times of the points drawn  [s]."""
    pages = _thinned(history)
    found = ((after, _between(before, after)) for before, after in pairwise(pages))
    return [after.wall or after.at for after, engines in found if any(each.has_restarted for each in engines)]


def _thinned(history: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Every n-th page, counted from the newest, so that the last point is always there."""
    return history[:: -max(1, -(-len(history) // POINTS))][::-1]


_BY_KEY = {metric.key: metric for metric in METRICS}


def _gauge(engine: EngineSnapshot, quantity: str) -> float | None:
    if quantity in engine.spread:
        return engine.spread[quantity].mean
    if hasattr(EngineSnapshot, quantity):
        value: float | None = getattr(engine, quantity)
        return value
    return engine.number(_BY_KEY[quantity])


def _peak(engine: EngineSnapshot, quantity: str) -> float | None:
    return engine.spread[quantity].high if quantity in engine.spread else _gauge(engine, quantity)


class Heat(NamedTuple):
    """How observations spread over a histogram's buckets between one point and the next; all engines together.

    times   ends of the spans, Unix time           [s]
    bounds  upper bounds of the buckets in use     [unit of the metric]
    counts  one row a time: observations a bucket  [observations]
    """

    times: tuple[float, ...]
    bounds: tuple[float, ...]
    counts: tuple[tuple[float, ...], ...]

    @property
    def moments(self) -> list[int]:
        """Times as charts take them  [ms]."""
        return [round(time * 1e3) for time in self.times]

    @property
    def shares(self) -> list[list[float | None]]:
        """One row a bucket: its part of all at each time; None where nothing was observed  [ratio]."""
        totals = [sum(row) for row in self.counts]
        columns = zip(*self.counts, strict=True)
        return [
            [round(count / total, 4) if total else None for count, total in zip(column, totals, strict=True)]
            for column in columns
        ]

    @property
    def fullest(self) -> float | None:
        """Upper bound of the bucket that holds the most  [unit of the metric]."""
        sums = [sum(column) for column in zip(*self.counts, strict=True)]
        return self.bounds[sums.index(max(sums))] if any(sums) else None


def heat(history: Sequence[Snapshot], metric: Metric) -> Heat:
    """What a histogram counted between the points; buckets beyond the lowest and highest in use are left out."""
    pages = _thinned(history)
    times: list[float] = []
    rows: list[Counter[float]] = []
    usual = median([after.at - before.at for before, after in pairwise(pages)] or [0.0])
    for before, after in pairwise(pages):
        time = after.wall or after.at
        if times and after.at - before.at > GAP * usual:  # nothing was looked at in between
            times += [times[-1] + usual, time - usual]
            rows += [Counter(), Counter()]
        row: Counter[float] = Counter()
        for engine in _between(before, after):
            row.update(engine.buckets(metric))
        times.append(time)
        rows.append(row)
    bounds = sorted({bound for row in rows for bound in row})
    used = [bound for bound in bounds if any(row[bound] for row in rows)]
    shown = [bound for bound in bounds if used and used[0] <= bound <= used[-1]]
    return Heat(tuple(times), tuple(shown), tuple(tuple(row[bound] for bound in shown) for row in rows))


def as_csv(charts: Mapping[str, Sequence[Series]]) -> str:
    """Every point of these charts: time (UTC), chart, line, value; a gap has no value."""
    text = StringIO()
    rows = csv.writer(text)
    rows.writerow(("time", "chart", "line", "value"))
    for title, lines in charts.items():
        for line in lines:
            for time, value in zip(line.times, line.values, strict=True):
                rows.writerow((datetime.fromtimestamp(time, UTC).isoformat(), title, line.name, value))
    return text.getvalue()


class _Drawn:
    """One engine between two points, with what has been drawn of it."""

    def __init__(self, found: EngineWindow) -> None:
        self.engine, self.model_name, self.has_restarted = found.engine, found.model_name, found.has_restarted
        self._window = found
        self._rates: dict[str, float | None] = {}
        self._splits: dict[str, Mapping[str, float]] = {}

    def rate(self, quantity: str) -> float | None:
        if quantity not in self._rates:
            self._rates[quantity] = self._rate(quantity)
        return self._rates[quantity]

    def _rate(self, quantity: str) -> float | None:
        if hasattr(EngineWindow, quantity):
            value: float | None = getattr(self._window, quantity)
            return value
        if quantity in _BY_KEY:
            return self._window.rate(_BY_KEY[quantity])
        key, _, which = quantity.rpartition("_")
        if which == "mean":
            return self._window.mean(_BY_KEY[key])
        found = self._window.quantile(_BY_KEY[key], int(which[1:]) / 100)
        return found and found.value

    def buckets(self, metric: Metric) -> Mapping[float, float]:
        """Observations by the upper bound of their bucket."""
        found = self._window.histogram(metric)
        if found is None:
            return {}
        inside = (count - below for below, count in pairwise((0.0, *found.counts)))
        return dict(zip(found.bounds, inside, strict=True))

    def split(self, metric: Metric) -> Mapping[str, float]:
        if metric.key not in self._splits:
            increases = self._window.increases(metric)
            self._splits[metric.key] = {label: count / self._window.seconds for label, count in increases.items()}
        return self._splits[metric.key]


class _Pair(NamedTuple):
    """Two Snapshots by identity: they are never compared by what they hold."""

    before: Snapshot
    after: Snapshot

    def __hash__(self) -> int:
        return hash((id(self.before), id(self.after)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Pair) and self.before is other.before and self.after is other.after


def _between(before: Snapshot, after: Snapshot) -> tuple[_Drawn, ...]:
    return _engines(_Pair(before, after))


@lru_cache(maxsize=PAIRS)
def _engines(pair: _Pair) -> tuple[_Drawn, ...]:
    return tuple(_Drawn(engine) for engine in window(*pair).engines)


def _added(splits: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    found: Counter[str] = Counter()
    for split in splits:
        found.update(split)
    return found


def _series(
    points: Sequence[tuple[float, Sequence[EngineSnapshot] | Sequence[_Drawn]]],
    quantities: Sequence[str],
    value: Callable[..., float | None],
) -> list[Series]:
    names = {(engine.engine, engine.model_name): None for _, engines in points for engine in engines}
    lines = []
    for place in names:
        for quantity in quantities:
            found = [next((e for e in engines if (e.engine, e.model_name) == place), None) for _, engines in points]
            values = [None if engine is None else value(engine, quantity) for engine in found]
            label = quantity.replace("_", " ") + (f", engine {place[0]}" if len(names) > 1 else "")
            lines.append(_line(label, list(zip((time for time, _ in points), values, strict=True))))
    return lines


def _line(name: str, points: Sequence[tuple[float, float | None]]) -> Series:
    """The points with a None wherever a pause is much longer than usual."""
    usual = median([later - earlier for (earlier, _), (later, _) in pairwise(points)] or [0.0])
    line: list[tuple[float, float | None]] = []
    for time, value in points:
        if line and time - line[-1][0] > GAP * usual:
            line.append((time, None))
        line.append((time, value))
    return Series(name, tuple(time for time, _ in line), tuple(value for _, value in line))
