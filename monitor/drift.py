"""Drift: how planned against actual moves over days. Nothing is kept for it: the store keeps what servers said."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from monitor.compare import over
from monitor.deviation import Comparison
from monitor.snapshot import Snapshot
from monitor.window import longest_run
from planner.forecast import LEAST, SIGNIFICANT, Forecast, forecast
from planner.plan import Plan
from planner.units import count, share
from planner.verdict import Level, Verdict

DAY = 86_400.0
DRAWN = ("kv_usage_mean", "tpot_s", "ttft_s", "output_tokens_per_s", "running", "prefix_hit_ratio")
"""What can drift while the settings stay: usage, speed and load."""
_A_DAY = 12


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
    def trend(self) -> Forecast | None:
        """The line through the ratios; None where there are too few."""
        return forecast(self.times, self.ratios)

    @property
    def is_moving(self) -> bool:
        """Whether they grow or fall by more than chance."""
        return self.trend is not None and abs(self.trend.slope) > SIGNIFICANT * self.trend.error

    @property
    def finding(self) -> str:
        """Whether it moves, in words."""
        line = self.trend
        seen = f"{self.quantity} was {share(self.ratios[0])} of the plan and is {share(self.ratios[-1])}"
        if line is None:
            return f"{seen}; too few periods for a trend."
        if not self.is_moving:
            return f"{seen}; it does not drift."
        way = "grows" if line.slope > 0 else "falls"
        return f"{seen}; it {way} by {share(abs(line.slope) * DAY)} of the plan a day."


def verdict(found: Sequence[Drift], context: str = "") -> Verdict:
    """Whether anything drifts, and what drifts fastest."""
    moving = sorted(
        (each for each in found if each.is_moving), key=lambda each: -abs(each.trend.slope if each.trend else 0)
    )
    if moving:
        level, word, reason = Level.WARNING, "Drifts", moving[0].finding
    elif any(each.trend for each in found):
        level, word, reason = (
            Level.GOOD,
            "Steady",
            f"{count(len(found), 'quantities')} are as near to the plan as they were.",
        )
    else:
        level, word = Level.UNKNOWN, "Too few days"
        reason = f"a trend needs {LEAST} days on which requests finished."
    action = "" if level is not Level.UNKNOWN else "Choose a longer span."
    return Verdict(level=level, word=word, reason=reason, action=action, context=context)


def periods(made: Plan, history: Sequence[Snapshot], seconds: float = DAY) -> list[Period]:
    """The plan held against each period of so many seconds, over its longest part without a restart.

    Raises InputError for a plan whose engine would not start.
    """
    found = []
    for number, pages in groupby(history, key=lambda page: int((page.wall or page.at) // seconds)):
        run = longest_run(list(pages))
        if len(run) > 1:
            lasted = run[-1].at - run[0].at
            found.append(Period(at=number * seconds, seconds=lasted, found=over(made, run)))
    return found


def points(start: float, end: float) -> int:
    """Snapshots between two Unix times [s] that give each day some hours of its own  [points].

    >>> points(0, 30 * DAY)
    360
    """
    return max(240, round((end - start) / DAY * _A_DAY))


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
