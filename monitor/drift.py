"""Drift: how planned against actual moves over days. Nothing is kept for it: the store keeps what servers said."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from monitor.compare import compare
from monitor.deviation import Comparison
from monitor.snapshot import Snapshot
from monitor.window import window
from planner.forecast import forecast
from planner.plan import Plan
from planner.units import share

DAY = 86_400.0
DRAWN = ("kv_usage_mean", "tpot_s", "ttft_s", "output_tokens_per_s", "running", "prefix_hit_ratio")
"""What can drift while the settings stay: usage, speed and load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One stretch of time held against the plan.

    at       when it began, Unix time  [s]
    seconds  how long it was  [s]
    found    the comparison, one for each engine
    """

    at: float
    seconds: float
    found: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One quantity of one engine over the periods.

    quantity  its key
    engine    of which engine
    times     when each period began, Unix time  [s]
    ratios    actual over planned  [ratio]
    """

    quantity: str
    engine: str | None
    times: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def finding(self) -> str:
        """Whether it moves, in words."""
        line = forecast(self.times, self.ratios)
        first, last = self.ratios[0], self.ratios[-1]
        seen = f"{self.quantity} was {share(first)} of the plan and is {share(last)}"
        if line is None:
            return f"{seen}; too few periods for a trend."
        if abs(line.slope) <= 2 * line.error:
            return f"{seen}; it does not drift."
        way = "grows" if line.slope > 0 else "falls"
        return f"{seen}; it {way} by {share(abs(line.slope) * DAY)} of the plan a day."


def periods(made: Plan, history: Sequence[Snapshot], seconds: float = DAY) -> list[Period]:
    """The plan held against each period of so many seconds, over its longest part without a restart.

    Raises InputError for a plan whose engine would not start.
    """
    found = []
    for number, pages in groupby(history, key=lambda page: int((page.wall or page.at) // seconds)):
        each = _longest_run(list(pages))
        if len(each) < 2:
            continue
        spanned = window(each[0], each[-1])
        compared = tuple(
            compare(
                made,
                engine,
                history=[now for page in each for now in page.engines if now.engine == engine.engine],
                versions=spanned.after.versions,
            )
            for engine in spanned.engines
        )
        found.append(Period(at=number * seconds, seconds=spanned.seconds, found=compared))
    return found


def _longest_run(pages: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """The longest part without a restart, which begins all counters anew."""
    cuts = [number for number in range(1, len(pages)) if window(pages[number - 1], pages[number]).has_restarted]
    parts = [pages[start:end] for start, end in pairwise((0, *cuts, len(pages)))]
    return max(parts, key=lambda part: part[-1].at - part[0].at if part else 0.0)


def drifts(found: Sequence[Period]) -> list[Drift]:
    """Each quantity that both sides know in two periods at least, engine by engine."""
    lines: dict[tuple[str, str | None], list[tuple[float, float]]] = {}
    for period in found:
        for comparison in period.found:
            for each in comparison.deviations:
                if each.quantity in DRAWN and each.ratio is not None:
                    lines.setdefault((each.quantity, comparison.engine), []).append((period.at, each.ratio))
    return [
        Drift(quantity=quantity, engine=engine, times=tuple(t for t, _ in line), ratios=tuple(r for _, r in line))
        for (quantity, engine), line in sorted(
            lines.items(), key=lambda item: (DRAWN.index(item[0][0]), str(item[0][1]))
        )
        if len(line) > 1
    ]
