"""Snapshots of one target -> lines over time. A gap stays a gap, and a rate is over the time between two points."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from monitor.metrics import HISTOGRAMS
from monitor.snapshot import EngineSnapshot, Snapshot
from monitor.window import EngineWindow, window

POINTS = 120
"""Points a line at most: as many as a chart of this width can show  [points]."""
GAP = 2.5
"""A pause this many times longer than usual is a gap  [ratio]."""


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
    def finding(self) -> str:
        """What the line says in words, for those who do not see it."""
        known = [value for value in self.values if value is not None]
        if not known:
            return "nothing reported"
        return f"{known[-1]:.3g} now, {min(known):.3g} to {max(known):.3g}"


def gauges(history: Sequence[Snapshot], *quantities: str) -> list[Series]:
    """Properties of EngineSnapshot over time, a line for each engine and quantity."""
    pages = _thinned(history)
    points = [(page.wall or page.at, page.engines) for page in pages]
    return _series(points, quantities, lambda engine, quantity: getattr(engine, quantity))


def rates(history: Sequence[Snapshot], *quantities: str) -> list[Series]:
    """Properties of EngineWindow, or quantiles such as ttft_p99, between one point and the next."""
    pages = _thinned(history)
    windows = [window(before, after) for before, after in pairwise(pages)]
    points = [(each.after.wall or each.after.at, each.engines) for each in windows]
    return _series(points, quantities, _rate)


def restarts(history: Sequence[Snapshot]) -> list[float]:
    """When counters began anew: Unix times  [s]."""
    return [after.wall or after.at for before, after in pairwise(history) if window(before, after).has_restarted]


def _thinned(history: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Every n-th page, counted from the newest, so that the last point is always there."""
    return history[:: -max(1, -(-len(history) // POINTS))][::-1]


def _rate(engine: EngineWindow, quantity: str) -> float | None:
    if hasattr(EngineWindow, quantity):
        value: float | None = getattr(engine, quantity)
        return value
    key, _, percent = quantity.rpartition("_p")
    found = engine.quantile(_BY_KEY[key], int(percent) / 100)
    return found and found.value


_BY_KEY = {metric.key: metric for metric in HISTOGRAMS}


def _series(
    points: Sequence[tuple[float, Sequence[EngineSnapshot | EngineWindow]]],
    quantities: Sequence[str],
    value: Callable[..., float | None],
) -> list[Series]:
    times = [time for time, _ in points]
    usual = median([later - earlier for earlier, later in pairwise(times)] or [0.0])
    names = {(engine.engine, engine.model_name): None for _, engines in points for engine in engines}
    lines = []
    for place in names:
        for quantity in quantities:
            line: list[tuple[float, float | None]] = []
            for time, engines in points:
                if line and time - line[-1][0] > GAP * usual:
                    line.append((time, None))
                found = next((e for e in engines if (e.engine, e.model_name) == place), None)
                line.append((time, None if found is None else value(found, quantity)))
            label = quantity.replace("_", " ") + (f", engine {place[0]}" if len(names) > 1 else "")
            lines.append(Series(label, tuple(t for t, _ in line), tuple(v for _, v in line)))
    return lines
