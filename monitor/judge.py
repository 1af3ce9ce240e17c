"""Judge: one target's conditions, scrape after scrape -> the findings that last, and an event when one begins or ends.

A finding begins when its condition was seen on two pages at least and held for as long as its rule asks (where that is
0, as for a restart, at once), and it ends when two pages in a row are without it. Time is that of the pages: a clock
that never steps back. What nobody saw does not count as holding.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from monitor.finding import Change, Condition, Event, Finding
from monitor.health import DOWN, MISSED_SCRAPES, RULES, UNREADABLE, WORST_FIRST, conditions, sight
from monitor.snapshot import Snapshot
from monitor.source import TargetState
from monitor.targets import Target
from monitor.thresholds import Thresholds
from planner.verdict import Level

SEEN_TWICE = 2
"""Pages that must show a condition, or be without it, before anything is said  [pages]."""
MISSED_PAGES = 3
"""Times the usual distance of two pages, beyond which a condition begins anew  [ratio]."""

_RULE = {rule.key: rule for rule in RULES}
_ORDER = {rule.key: place for place, rule in enumerate(RULES)}
_COVERED_BY = {rule.key: {other.key for other in RULES if rule.key in other.covers} for rule in RULES}
_OVER_WINDOW = _RULE.keys() - {DOWN.key, UNREADABLE.key}

Key = tuple[str, str | None]
"""A rule and an engine; None is the server as a whole."""


@dataclass(slots=True)
class _Kept:
    """A condition followed over pages, a finding once `has_begun`."""

    condition: Condition
    since: float
    held: float = 0.0
    seen: int = 1
    absent: int = 0
    has_begun: bool = False


class Judge:
    """Follows one target. `update` after every scrape, good or bad, from one thread at a time.

    `clock` never steps back and only matters before the first page; `wall` is for display.
    """

    def __init__(
        self,
        target: Target,
        thresholds: Thresholds,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.target, self.thresholds = target, thresholds
        self.findings: tuple[Finding, ...] = ()
        self._clock, self._wall = clock, wall
        self._kept: dict[Key, _Kept] = {}
        self._page_at: float | None = None
        self._at: float | None = None
        self._step = 0.0
        self._is_blind = False

    def update(self, state: TargetState, baseline: float | None = None) -> tuple[Event, ...]:
        """What began and what ended with this scrape; `findings` are then those of now, worst first.

        `baseline` is in output tokens/s. While pages fail to come, what was found on the last ones is neither ended nor
        believed.
        """
        page, has_failed = state.latest, state.failures > 0
        if not has_failed and (page is None or page.at == self._page_at):
            return ()
        at, wall = self._moment(state)
        passed = 0.0 if self._at is None else max(0.0, at - self._at)
        if passed > max(self.thresholds.window, MISSED_PAGES * self._step):
            self._kept = {key: kept for key, kept in self._kept.items() if kept.has_begun}
        self._at, self._step, self._is_blind = at, passed, state.failures >= MISSED_SCRAPES
        seen = sight(state, self.thresholds, baseline)
        if has_failed:  # only that it is down is known
            found = list(conditions(seen, (DOWN,)))
            asked = [key for key in self._kept if key[0] == DOWN.key]
        else:
            found, self._page_at = list(conditions(seen)), None if page is None else page.at
            # A window much too short, as after the dashboard's own start, ends nothing.
            is_young = seen.window is None or seen.window.seconds < self.thresholds.window / 2
            asked = [
                key for key, kept in self._kept.items() if not (is_young and kept.has_begun and key[0] in _OVER_WINDOW)
            ]
        events = tuple(self._changes(found, asked, passed, wall))
        self.findings = tuple(sorted(self._begun(), key=_worst_first))
        return events

    def _begun(self) -> Iterator[Finding]:
        for kept in self._kept.values():
            if kept.has_begun:
                condition = self._believed(kept.condition)
                yield Finding(target=self.target.name, condition=condition, since=kept.since)

    def _believed(self, condition: Condition) -> Condition:
        if not self._is_blind or condition.rule == DOWN.key:
            return condition
        return replace(condition, level=Level.UNKNOWN, reason=f"No data now; last seen: {condition.reason}")

    def _moment(self, state: TargetState) -> tuple[float, float]:
        """When this scrape was, on the clock of the pages, and as Unix time."""
        page = state.latest
        if page is None or state.age is None:
            return self._clock(), self._wall()
        age = state.age if state.failures else 0.0
        return page.at + age, self._wall() if page.wall is None else page.wall + age

    def _changes(self, found: Sequence[Condition], asked: Sequence[Key], passed: float, wall: float) -> Iterator[Event]:
        """Follow what was found, and let go of what was asked for and was not there."""
        for condition in found:
            key = condition.rule, condition.engine
            kept = self._kept.get(key)
            if kept is not None:
                kept.condition, kept.absent = condition, 0
                kept.held, kept.seen = kept.held + passed, kept.seen + 1
            elif condition.is_over:
                kept = self._kept[key] = _Kept(condition, wall)
            if kept is not None and not kept.has_begun and condition.is_over and self._is_due(key, kept):
                kept.has_begun = True
                yield self._event(Change.BEGAN, condition, wall)
        present = {(condition.rule, condition.engine) for condition in found}
        for key in asked:
            if key in present:
                continue
            kept = self._kept[key]
            kept.absent += 1
            if not kept.has_begun or kept.absent >= SEEN_TWICE:
                del self._kept[key]
                if kept.has_begun:
                    yield self._event(Change.ENDED, kept.condition, wall)

    def _is_due(self, key: Key, kept: _Kept) -> bool:
        rule, engine = key
        seconds = _RULE[rule].seconds(self.thresholds)
        is_covered = any(
            other.has_begun and by in _COVERED_BY[rule] and engine in (None, where)
            for (by, where), other in self._kept.items()
        )
        return kept.held >= seconds and (kept.seen >= SEEN_TWICE or not seconds) and not is_covered

    def _event(self, change: Change, condition: Condition, wall: float) -> Event:
        return Event(
            at=wall, target=self.target.name, engine=condition.engine, rule=condition.rule, change=change,
            level=condition.level, word=condition.word, reason=condition.reason, action=condition.action,
        )  # fmt: skip

    def _leave_clock(self) -> None:
        """The next page may be on another clock: stored ones are on the wall's."""
        self._at = None


def _worst_first(finding: Finding) -> tuple[int, int, str]:
    condition = finding.condition
    return WORST_FIRST.index(condition.level), _ORDER[condition.rule], condition.engine or ""


def replay(target: Target, thresholds: Thresholds, snapshots: Iterable[Snapshot]) -> Judge:
    """The Judge as it would be had it seen these pages, oldest first: what was found keeps its `since`."""
    judge = Judge(target, thresholds)
    reach = max(thresholds.window, thresholds.full_trend)
    history: deque[Snapshot] = deque()
    for page in snapshots:
        if history and page.at <= history[-1].at:
            continue
        history.append(page)
        while len(history) > 1 and history[1].at < page.at - reach:
            history.popleft()
        judge.update(TargetState(target=target, history=tuple(history), age=0.0, error=None, failures=0))
    judge._leave_clock()
    return judge
