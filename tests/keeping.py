"""What tests keep in a store, on a clock that is set by hand, and what they find in it."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from monitor.finding import Change, Event
from monitor.metrics import GENERATION_TOKENS
from monitor.reading import read
from monitor.snapshot import Snapshot, Value
from planner.verdict import Level
from tests.recorded import page

NOON = 1_800_000_000.0 // 86400 * 86400 + 43200
"""A whole day, hour and minute, Unix time."""
PAGE = read(page("0.32.0-load"))
BEGAN = Event(
    at=NOON,
    target="chat",
    engine="0",
    rule="usage",
    change=Change.BEGAN,
    level=Level.BAD,
    word="Saturated",
    reason="usage is 0.97.",
)


@dataclass
class Clock:
    now: float = NOON

    def __call__(self) -> float:
        return self.now


def said(at: float, tokens: int, *, server: Mapping[str, Value] | None = None, **gauges: float | None) -> Snapshot:
    """A real page with other numbers; a gauge that is None is not on it."""
    (engine,) = PAGE.engines
    values = {**engine.values, GENERATION_TOKENS.key: tokens, **gauges}
    engine = replace(engine, values={key: value for key, value in values.items() if value is not None})
    return replace(PAGE, engines=(engine,), wall=at, at=at, server={**PAGE.server, **(server or {})})


def tokens(pages: Sequence[Snapshot]) -> list[float | None]:
    return [page.engines[0].number(GENERATION_TOKENS) for page in pages]


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found
