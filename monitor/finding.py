"""What judging a server comes to: Conditions at one moment, Findings that last, Events when one begins or ends."""

from dataclasses import dataclass
from enum import Enum

from planner.verdict import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What one rule sees at one moment; a rule that sees nothing returns none.

    rule     its key, as in `health.RULES` and in the generated alerts
    engine   of which engine; None for the server as a whole
    level    how bad it would be
    word     one or two words: Saturated, Preempting, Down
    reason   a sentence with the number that decides
    action   what to do
    is_over  beyond the threshold; False in the band where a finding stays but none begins (hysteresis)
    value    what was judged, in the unit of the rule  [unit of the rule]
    """

    rule: str
    engine: str | None
    level: Level
    word: str
    reason: str
    action: str
    is_over: bool = True
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A condition that has lasted for as long as its rule asks, and has not ended.

    target     the server's name
    condition  as it is now
    since      when the condition began, Unix time  [s]
    """

    target: str
    condition: Condition
    since: float


class Change(Enum):
    """What an event says of its finding."""

    BEGAN = "began"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the timeline: a finding began or ended, or the server restarted.

    at      Unix time  [s]
    target  the server's name
    engine  of which engine; None for the server as a whole
    rule    key of the rule
    change  began or ended
    level   how bad it was
    word    one or two words
    reason  the sentence as it was then
    action  what to do
    """

    at: float
    target: str
    engine: str | None
    rule: str
    change: Change
    level: Level
    word: str
    reason: str
    action: str = ""
