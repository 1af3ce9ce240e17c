"""Claim: one figure or statement of an article, the arithmetic that leads to it, and what this planner finds."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from planner.latency import Range

_CLOSE, _NEAR = 0.01, 0.10  # how far off a figure may be to be called right, and imprecise  [ratio]


class Judgement(Enum):
    """What becomes of a claim."""

    OK = "ok"
    IMPRECISE = "imprecise"
    WRONG = "wrong"
    NOT_PHYSICAL = "not physical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One figure of one row of the article; a row of several figures is several claims told apart by `case`.

    id           section and row, 1.1 to 6.5
    case         which figure of the row, empty where there is one
    text         what the article says, in our words
    claimed      the figure printed there, None for a statement  [see unit]
    reproduced   the same by the article's own arithmetic and rounding, None for an input  [see unit]
    right        what this planner finds, with its range, None where it has no figure
    unit         of the three, empty for a statement
    verdict      ok, imprecise, wrong or not physical
    factor       by how much it exceeds what the device can do, on the article's own inputs  [ratio]
    factor_real  the same with the model as it is published  [ratio]
    reason       why, with the deciding numbers
    where        title of the page that answers the question
    """

    id: str
    text: str
    verdict: Judgement
    reason: str
    where: str
    case: str = ""
    claimed: float | None = None
    reproduced: float | None = None
    right: Range | None = None
    unit: str = ""
    factor: float | None = None
    factor_real: float | None = None

    @property
    def section(self) -> int:
        """The section of the article."""
        return int(self.id.partition(".")[0])


def figure(
    id: str, text: str, unit: str, claimed: float, reproduced: float | None, right: Range, reason: str, where: str,
    case: str = "", factor: float | None = None, factor_real: float | None = None, verdict: Judgement | None = None,
) -> Claim:  # fmt: skip
    """A claim with a figure; unless given, the verdict follows from the figures."""
    return Claim(id=id, text=text, unit=unit, claimed=claimed, reproduced=reproduced, right=right, reason=reason,
                 where=where, case=case, factor=factor, factor_real=factor_real,
                 verdict=verdict or judgement(claimed, right, factor))  # fmt: skip


def exactly(value: float) -> Range:
    """A figure without a range."""
    return Range(value, value, value)


def judgement(claimed: float, right: Range, factor: float | None = None) -> Judgement:
    """Beyond the ceiling is not physical; else the distance from the right figure or its range decides.

    >>> judgement(16_777, exactly(17_179.9)), judgement(59, exactly(226)), judgement(39_294, exactly(2_400), 26)
    (<Judgement.IMPRECISE: 'imprecise'>, <Judgement.WRONG: 'wrong'>, <Judgement.NOT_PHYSICAL: 'not physical'>)
    """
    if factor is not None and factor > 1:
        return Judgement.NOT_PHYSICAL
    off = abs(claimed - right.value) / abs(right.value)
    if off <= _CLOSE or right.low <= claimed <= right.high:
        return Judgement.OK
    return Judgement.IMPRECISE if off <= _NEAR else Judgement.WRONG


def as_json(claim: Claim, section: str) -> dict[str, Any]:
    """One claim as a flat row."""
    right = claim.right
    return {
        "id": claim.id,
        "section": section,
        "case": claim.case,
        "claim": claim.text,
        "claimed": claim.claimed,
        "reproduced": claim.reproduced,
        "right": right and right.value,
        "right_low": right and right.low,
        "right_high": right and right.high,
        "unit": claim.unit,
        "verdict": claim.verdict.value,
        "factor": claim.factor,
        "factor_real": claim.factor_real,
        "reason": claim.reason,
        "where": claim.where,
    }
