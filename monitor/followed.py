"""One target as Prometheus tells of it, step after step, with a judge of its own."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import floor
from statistics import median

from monitor.finding import Change, Event
from monitor.health import RULES, conditions
from monitor.judge import Judge
from monitor.places import Place, Said
from monitor.reading import Reader
from monitor.rule import Sight
from monitor.scrape import Scrape
from monitor.snapshot import Snapshot
from monitor.source import TargetState
from monitor.targets import Target
from monitor.window import window

_LEAST_USUAL = 5.0
"""The usual distance of two pages, at least: they are seen at steps  [s]."""
_UNKNOWN_USUAL = 100.0
"""The same while there is one page; Prometheus itself repeats it for three times as long  [s]."""
_COUNTED = 20
"""Pages whose usual distance counts  [pages]."""
_MISSED = 3
"""Times the usual distance without a page, beyond which a server is silent  [ratio]."""
_RESTART = [rule for rule in RULES if rule.key == "restart"]


@dataclass(slots=True, kw_only=True)
class Followed:
    """One target, step after step.

    place   whose series are its own
    target  the same, as pages call it
    judge   what makes findings of its pages; None where only the pages are asked for
    reader  of its pages, one after the other
    ring    its pages, oldest first
    is_up   whether Prometheus could scrape it at last; None where that is not said
    heard   the last step at which anything was said of it, Unix time  [s]
    """

    place: Place
    target: Target
    judge: Judge | None
    reader: Reader = field(default_factory=Reader)
    ring: deque[Snapshot] = field(default_factory=deque)
    is_up: bool | None = None
    heard: float = 0.0

    def follow(self, told: Said, steps: Iterable[int]) -> Iterator[Event]:
        """Take in what was said at these steps. What was scraped once is one page, however often it is told."""
        for step in steps:
            if step in told.up:
                self.is_up, self.heard = bool(told.up[step]), step
            if lines := told.lines.get(step):
                self.heard = step
            at = told.times.get(step, float(step))
            if lines and not (self.ring and at <= self.ring[-1].at):
                self.ring.append(self.reader.read("\n".join(lines), at=at, wall=at))
            elif not self._failure(step, step)[1]:
                continue
            if self.judge:
                yield from self.judge.update(self.state(step, step))

    def state(self, asked: float, now: float, trouble: str = "") -> TargetState:
        """As known at the step `asked`, seen from `now`."""
        age = max(0.0, now - self.ring[-1].at) if self.ring else None
        message, failures = self._failure(asked, now, trouble)
        return TargetState(
            target=self.target,
            history=tuple(self.ring),
            age=age,
            error=Scrape(state="unreachable", url=self.target.url, message=message) if message else None,
            failures=failures,
            findings=self.judge.findings if self.judge else (),
        )

    def _failure(self, asked: float, now: float, trouble: str = "") -> tuple[str, int]:
        """What is wrong with its pages, and how many are missing."""
        down = "Prometheus cannot scrape it" if self.is_up is False else ""
        if not self.ring:
            return down, int(bool(down))
        recent = list(self.ring)[-_COUNTED:]
        distances = [later.at - earlier.at for earlier, later in pairwise(recent)] or [_UNKNOWN_USUAL]
        usual = max(_LEAST_USUAL, median(distances))
        silence, silence_till_now = asked - recent[-1].at, now - recent[-1].at
        if down or silence > _MISSED * usual:
            return down or "Prometheus has no newer sample of it", max(1, floor(silence / usual))
        if trouble and silence_till_now > _MISSED * usual:
            return trouble, floor(silence_till_now / usual)
        return "", 0

    def restarts(self) -> Iterator[Event]:
        """Between its pages, one event each: where they are far apart, a judge never sees a restart twice."""
        for before, after in pairwise(self.ring):
            between = window(before, after)
            if self.judge and between.has_restarted:
                sight = Sight(state=self.state(after.at, after.at), thresholds=self.judge.thresholds, window=between)
                for seen in conditions(sight, _RESTART):
                    yield Event(
                        at=after.at, target=self.target.name, engine=None, rule=seen.rule, change=Change.BEGAN,
                        level=seen.level, word=seen.word, reason=seen.reason, action=seen.action,
                    )  # fmt: skip


def timeline(followed: Mapping[Place, Followed], told: Iterable[tuple[range, Mapping[Place, Said]]]) -> list[Event]:
    """What the judges of these make of what was said, oldest first."""
    events: list[Event] = []
    step, seen_within = 0, 0.0
    for steps, places in told:
        step = steps.step
        for place, each in followed.items():
            events += each.follow(places.get(place, Said()), steps)
            seen_within = each.judge.thresholds.window if each.judge else 0.0
    if step * 2 > seen_within:
        events = [event for event in events if event.rule != _RESTART[0].key]
        events += (event for each in followed.values() for event in each.restarts())
    return sorted(events, key=lambda event: event.at)
