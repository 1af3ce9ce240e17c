"""What a rule is: its words, its thresholds, and a check of what is there to look at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from monitor.snapshot import EngineSnapshot, Snapshot
from monitor.source import TargetState
from monitor.thresholds import Thresholds
from monitor.window import EngineWindow, Window
from planner.units import count
from planner.verdict import Level


class Seen(NamedTuple):
    """What a check saw.

    reason   a sentence with the number that decides
    is_over  beyond the threshold; False in the band where a finding stays but none begins
    value    what was judged  [unit of the rule]
    action   instead of the rule's own, where what was seen says more
    """

    reason: str
    is_over: bool = True
    value: float | None = None
    action: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is there to look at.

    state       the target and its pages
    thresholds  when a rule speaks
    window      the last `thresholds.window`; None while there is one page
    baseline    output tokens/s that are usual, where that is known  [tokens/s]
    """

    state: TargetState
    thresholds: Thresholds
    window: Window | None = None
    baseline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that can be wrong.

    key     what the timeline and the generated alerts call it
    level   how bad it is
    word    one or two words
    action  what to do
    uses    the thresholds it rests on
    lasts   the threshold that says for how long it must hold; `<key>_for` unless named
    covers  rules that say no more while this one is a finding: they do not begin then
    server  its check, for a rule on the server as a whole
    engine  its check, for a rule on each engine
    """

    key: str
    level: Level
    word: str
    action: str
    uses: tuple[str, ...] = ()
    lasts: str = ""
    covers: tuple[str, ...] = ()
    server: Callable[[Sight], Seen | None] | None = None
    engine: Callable[[EngineWindow, Sight], Seen | None] | None = None

    @property
    def scope(self) -> Literal["server", "engine"]:
        return "engine" if self.server is None else "server"

    def seconds(self, thresholds: Thresholds) -> float:
        """How long it must hold before it is a finding."""
        found: float = getattr(thresholds, self.lasts or f"{self.key}_for")
        return found


def over(value: float, limit: float, band: float) -> bool | None:
    """Whether it is above the limit: True, False in the band below it, None under both.

    >>> over(0.96, 0.95, 0.03), over(0.93, 0.95, 0.03), over(0.92, 0.95, 0.03)
    (True, False, None)
    """
    return True if value > limit else False if value > limit * (1 - band) else None


def under(value: float, limit: float, band: float) -> bool | None:
    """The same for a value that should not fall below its limit."""
    return over(limit, value, band)


def same_engine(engine: EngineSnapshot, page: Snapshot) -> EngineSnapshot | None:
    """This engine on another page."""
    place = engine.engine, engine.model_name, engine.labels
    return next((each for each in page.engines if (each.engine, each.model_name, each.labels) == place), None)


def requests(number: float) -> str:
    """Their number with its noun."""
    return count(number, "request" if number == 1 else "requests")
