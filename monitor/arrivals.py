"""How much arrives at a server: now, hour by hour, how long the requests are, and where it leads.

What is counted is requests that ended: over minutes and hours, as many as arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from monitor.calibrate import WINDOW, windows
from monitor.metrics import Metric
from monitor.series import Series, heat
from monitor.snapshot import Snapshot
from monitor.tables import DAY, HOUR, MINUTE
from monitor.traffic import traffic, workload
from monitor.window import Window, window
from planner.forecast import LEAST, Forecast, forecast
from planner.units import count, duration, rate
from planner.workload import Workload

_TOO_FEW = f"No trend: too few hours with a count of requests are recorded, {{}} of {LEAST}."
_EARLY = 0.95  # pages of an hour are not to the second an hour apart


class Load(NamedTuple):
    """What arrived at a server in some time, all its engines together.

    requests_per_s  that ended  [requests/s]
    workload        their lengths and prefix hits; None where no window says them
    seconds         how long was looked at  [s]
    engines         of the server  [engines]
    """

    requests_per_s: float
    workload: Workload | None
    seconds: float
    engines: int


def load(found: Window) -> Load | None:
    """What arrived between two pages; None where they do not say it."""
    rates = [engine.requests_per_s for engine in found.engines]
    known = [each for each in rates if each is not None]
    if not known or len(known) < len(rates):
        return None
    seen = [each for engine in found.engines if (each := traffic(engine)) is not None]
    return Load(sum(known), workload(seen) if seen else None, found.seconds, len(rates))


def arrivals(history: Sequence[Snapshot], seconds: float = HOUR) -> Series:
    """Requests a second in each stretch of at least so long, at its end; none where the server restarted in it."""
    pages: list[Snapshot] = []
    for page in history:
        if not pages or page.at - pages[-1].at >= _EARLY * seconds:
            pages.append(page)
    spans = [(after, window(before, after)) for before, after in pairwise(pages)]
    values = [None if span.has_restarted else (found := load(span)) and found.requests_per_s for _, span in spans]
    return Series("requests/s", tuple(after.wall or after.at for after, _ in spans), tuple(values))


class Peak(NamedTuple):
    """The busiest stretch.

    at              when it ended, Unix time  [s]
    requests_per_s  in it  [requests/s]
    seconds         how long it was  [s]
    """

    at: float
    requests_per_s: float
    seconds: float


def peak(history: Sequence[Snapshot]) -> Peak | None:
    """The busiest hour, or minute of a history of less than two; None where no request is counted."""
    is_long = bool(history) and history[-1].at - history[0].at >= 2 * HOUR
    seconds = float(HOUR if is_long else MINUTE)
    found = (Peak(*point, seconds) for point in _points(arrivals(history, seconds)))
    return max(found, key=lambda each: each.requests_per_s, default=None)


def past(history: Sequence[Snapshot], seconds: float = WINDOW) -> Load | None:
    """What arrived in all of a history, times without a request among it; None where no request ended."""
    seen = [found for each in windows(history, seconds) if (found := traffic(each)) is not None]
    mean = arrivals(history, seconds).mean
    if not seen or not mean:
        return None
    lengths = replace(workload(seen), request_rate=mean)
    return Load(mean, lengths, history[-1].at - history[0].at, len(history[-1].engines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Where arrivals lead, as far as what is recorded tells.

    line     of requests a second; None where there is too little to tell
    points   what it rests on, in words
    why_not  why there is none, empty where there is
    """

    line: Forecast | None
    points: str
    why_not: str = ""

    def finding(self, ceiling: float) -> str:
        """When the line reaches so many requests a second, in a sentence."""
        if self.line is None:
            return self.why_not
        a_day = rate(self.line.slope * DAY, "requests/s a day")
        if (times := self.line.seconds_to(ceiling)) is None:
            error = rate(self.line.error * DAY, "")
            return f"No trend: {a_day} with a standard error of {error.strip()}, over {self.points}."
        middle, soonest, latest = (duration(each) for each in times)
        if times[0] == 0:
            return f"The trend is there already: {a_day} more, over {self.points}."
        return f"The trend gets there in {middle} ({soonest} to {latest}): {a_day} more, over {self.points}."


def trend(hours: Series, history: Sequence[Snapshot] = ()) -> Trend:
    """The line through the busiest hour of each day; through all hours where fewer days are recorded.

    A day's own rise and fall is no growth, so a line through hours is told as what it is.

    history  what the hours were read from, which may be less than one of them
    """
    points = _points(hours)
    if not points:
        if not history:
            return Trend(line=None, points="", why_not="No trend: nothing is recorded of this server.")
        recorded = duration(history[-1].at - history[0].at)
        return Trend(line=None, points="", why_not=f"{_TOO_FEW.format(0)} What is recorded spans {recorded}.")
    last = points[-1][0]
    days: dict[int, tuple[float, float]] = {}
    for at, value in points:
        number = int((last - at) // DAY)
        days[number] = max(days.get(number, (at, value)), (at, value), key=lambda each: each[1])
    if len(days) > LEAST:
        del days[max(days)]  # the first is seldom whole
        highest = sorted(days.values())
        return Trend(line=forecast(*zip(*highest, strict=True)), points=f"the busiest hours of {len(highest)} days")
    line = forecast([at for at, _ in points], [value for _, value in points])
    said = f"{count(len(points), 'hours' if len(points) > 1 else 'hour')}"
    if line is None:
        return Trend(line=None, points=said, why_not=_TOO_FEW.format(len(points)))
    few = f"too few days, {len(days)} of {LEAST + 1}, are recorded to leave it out"
    return Trend(line=line, points=f"{said}, in which a day's own rise and fall looks like a trend: {few}")


def _points(line: Series) -> list[tuple[float, float]]:
    return [(at, value) for at, value in zip(line.times, line.values, strict=True) if value is not None]


class Spread(NamedTuple):
    """How long requests were.

    bounds  upper bounds of the buckets  [tokens]
    shares  of all, in each  [ratio]
    """

    bounds: tuple[float, ...]
    shares: tuple[float, ...]


def spread(history: Sequence[Snapshot], metric: Metric) -> Spread:
    """All that a histogram counted in these pages, restarts left out; empty where it counted nothing."""
    found = heat(history, metric)
    sums = [sum(column) for column in zip(*found.counts, strict=True)]
    whole = sum(sums)
    return Spread(found.bounds, tuple(each / whole for each in sums)) if whole else Spread((), ())
