"""Verdict: the one sentence at the top of a page, that everything below it explains."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How a verdict is meant; the page adds icon and colour."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A judgement that can stand alone on a screenshot.

    level    good, warning, bad or unknown
    word     one or two words: Fits, Does not fit, Saturated, No data
    reason   a sentence with the number that decides
    action   what to do next, empty when nothing is to be done
    context  the inputs it rests on
    """

    level: Level
    word: str
    reason: str
    action: str = ""
    context: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (f"{self.word}: {self.reason}", self.action) if part)
