"""Deviation and Comparison: planned and actual side by side, each difference with its likely cause."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.latency import Range
from planner.units import count, share
from planner.verdict import Level, Verdict

TOLERANCE = 0.05
"""A ratio this far from 1, and outside the plan's own range, is off  [ratio]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One quantity, planned and actual.

    quantity  its key, as in the plan's figures
    unit      tokens, blocks, bytes, requests, requests/s, tokens/s, ratio, preemptions, dollars or s
    planned   what the plan expects for the traffic that was there, None where it expects nothing
    actual    what the server says, None where it does not  [unit]
    cause     the likely cause with its evidence when it is off, empty when it is not
    note      why a side is missing, or what the planned side rests on
    """

    quantity: str
    unit: str
    planned: Range | None
    actual: float | None
    cause: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """actual / planned  [ratio]."""
        if self.actual is None or self.planned is None or not self.planned.value:
            return None
        return self.actual / self.planned.value

    @property
    def is_off(self) -> bool:
        """More than the tolerance away, and outside what the plan expects."""
        if self.actual is None or self.planned is None:
            return False
        is_far = self.ratio is None or abs(self.ratio - 1) > TOLERANCE
        return is_far and not self.planned.low <= self.actual <= self.planned.high

    def because(self, cause: str) -> "Deviation":
        """The same with its cause, when it is off."""
        return replace(self, cause=cause) if self.is_off else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One engine held against a plan.

    engine      its data-parallel index, None where the server has no such label
    model_name  as served
    deviations  in the order in which causes are looked for: settings, capacity, lengths, usage, speed, arrivals
    context     what the comparison rests on
    """

    engine: str | None
    model_name: str | None
    deviations: tuple[Deviation, ...]
    context: str

    @property
    def causes(self) -> tuple[str, ...]:
        """What explains the differences, the first first, each once."""
        sentences = (re.split(r"(?<=\.) ", each.cause) for each in self.deviations if each.is_off and each.cause)
        return tuple(dict.fromkeys(sentence for several in sentences for sentence in several))

    @property
    def verdict(self) -> Verdict:
        """As planned, or the first quantity that is off with its cause."""
        off = next((each for each in self.deviations if each.is_off), None)
        compared = sum(each.planned is not None and each.actual is not None for each in self.deviations)
        if off is not None:
            much = f"{share(off.ratio)} of the plan" if off.ratio is not None else "not as planned"
            reason = f"{off.quantity} is {much}. Likely cause: {off.cause}"
            return Verdict(level=Level.WARNING, word="Not as planned", reason=reason, context=self.context)
        if not compared:
            reason = "the page has nothing that the plan expects."
            return Verdict(level=Level.UNKNOWN, word="Nothing to compare", reason=reason, context=self.context)
        reason = f"{count(compared, 'quantities')} within {share(TOLERANCE)}, or within the plan's range."
        return Verdict(level=Level.GOOD, word="As planned", reason=reason, context=self.context)


def as_json(found: Comparison) -> dict[str, Any]:
    """One engine's comparison as JSON's types."""
    return {
        "engine": found.engine,
        "model_name": found.model_name,
        "verdict": found.verdict.word,
        "reason": found.verdict.reason,
        "causes": list(found.causes),
        "deviations": [
            {
                "quantity": each.quantity,
                "unit": each.unit,
                "planned": None if each.planned is None else each.planned.value,
                "planned_low": None if each.planned is None else each.planned.low,
                "planned_high": None if each.planned is None else each.planned.high,
                "actual": each.actual,
                "ratio": each.ratio,
                "off": each.is_off,
                "cause": each.cause,
                "note": each.note,
            }
            for each in found.deviations
        ],
    }


def as_text(found: Comparison) -> str:
    """One engine's comparison for a terminal."""
    return "\n".join([f"engine {found.engine or '-'}  {found.verdict}", *rows(found)])


def rows(found: Comparison) -> Iterator[str]:
    """A line a quantity: planned with its range, actual, the second over the first, and why."""
    for each in found.deviations:
        planned = "-" if each.planned is None else _range(each.planned)
        actual = "-" if each.actual is None else _number(each.actual)
        ratio = "" if each.ratio is None else share(each.ratio)
        numbers = f"{planned:>32} {actual:>12} {each.unit:<11} {ratio:>8}"
        yield f"  {each.quantity:<29} {numbers}  {each.cause or each.note}".rstrip()


def _range(planned: Range) -> str:
    spread = f" ({_number(planned.low)} to {_number(planned.high)})" if planned.low != planned.high else ""
    return f"{_number(planned.value)}{spread}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.4g}"
