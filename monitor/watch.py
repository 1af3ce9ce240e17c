"""Watch: a dashboard's own eyes. It scrapes, judges, records and tells, and is the Source of what it saw.

A restart goes on where it was: the last quarter of an hour comes back from the store, findings keep their `since`, and
what began or ended meanwhile is said once.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from zlib import crc32

from monitor import scrape
from monitor.collector import Collector, address
from monitor.config import MonitorConfig
from monitor.finding import Change, Condition, Event, Finding
from monitor.health import RULES
from monitor.judge import Judge, Key, replay
from monitor.notify import Notifier, Post
from monitor.scrape import Scrape, metrics_url
from monitor.snapshot import Snapshot
from monitor.source import TargetState
from monitor.store import Store
from monitor.targets import SHOWN, Target, shortened
from monitor.thresholds import Thresholds
from planner.errors import InputError

PAST = 900.0
"""What comes back after a restart: as much as the collector keeps  [s]."""
PAST_POINTS = 180
"""Of one server at most so many pages  [snapshots]."""
PAST_PAGES = 9_000
"""Of all servers at most so many, as half a millisecond is spent on each  [snapshots]."""
TIMELINE = 86_400.0
"""How far back the store is asked what was found before a restart  [s]."""
RECENT = 1_000
"""Events kept here, where the store cannot be read or there is none  [events]."""
VISITED = 50
"""Servers that visitors typed and that are watched at the same time; the one typed first is forgotten  [servers]."""
_RULE = {rule.key: rule for rule in RULES}


@dataclass(slots=True)
class _Judged:
    """A target's Judge; what was said to have begun before this Judge did, and since when where it has seen it too."""

    judge: Judge
    began: float
    said: dict[Key, Event]
    since: dict[Key, float] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(
            replace(finding, since=min(finding.since, self.since.get(_key(finding.condition), finding.since)))
            for finding in self.judge.findings
        )


class Watch:
    """Watches what the config names from start() to stop(), which end it for good. See `monitor.source.Source`.

    Tests hand in their own `scrape`, `post` and clocks, of which `clock` never steps back and `wall` is Unix time.
    """

    def __init__(
        self,
        config: MonitorConfig,
        *,
        scrape: Callable[..., Scrape] = scrape.scrape,
        post: Post = scrape.post,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self._post, self._clock, self._wall = post, clock, wall
        self._changing = threading.Lock()
        self._judged: dict[str, _Judged] = {}
        self._said: dict[str, dict[Key, Event]] = {}
        self._visited: dict[str, Target] = {}
        self._recent: deque[Event] = deque(maxlen=RECENT)
        self._is_started = False
        self._store_is_wrong = ""
        self._store = self._opened(config)
        self._notifier = Notifier(config.webhooks, post)
        self._collector = Collector(
            interval=config.interval, timeout=config.timeout, follow=self._follow, past=self._past,
            scrape=scrape, clock=clock, wall=wall,
        )  # fmt: skip
        self._collector.keep(config.targets)

    def start(self) -> None:
        with self._changing:
            self._is_started = True
            self._store.start()
            self._collector.start()

    def stop(self) -> None:
        with self._changing:
            self._is_started = False
            self._collector.stop()
            self._notifier.close()
            self._store.close()

    @contextmanager
    def running(self) -> Iterator["Watch"]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def reload(self, config: MonitorConfig) -> None:
        """Go by another config from now on. What it has in common with the one before is not disturbed."""
        with self._changing:
            before, self.config = self.config, config
            self._collector.interval, self._collector.timeout = config.interval, config.timeout
            if (config.store, config.interval) != (before.store, before.interval):
                old, self._store = self._store, self._opened(config)
                old.close()
                if self._is_started:
                    self._store.start()
            if config.webhooks != before.webhooks:
                self._notifier.close()
                self._notifier = Notifier(config.webhooks, self._post)
            if config.thresholds != before.thresholds:
                for name in list(self._judged):
                    self._judge_anew(name)
            self._keep()

    def watch(self, url: str) -> None:
        """Watch a server that a visitor typed, unless it is watched already. Raises InputError for a malformed URL."""
        if not re.search(r"[.:/]", url) and url != "localhost":
            raise InputError("server", shortened(url), "a name of monitor.toml, or an address like http://host:8000")
        metrics_url(url)
        with self._changing:
            if self._collector.state(self._name(url)) is None:
                name = _called(url)
                self._visited[name] = Target(name=name, url=url)
                while len(self._visited) > VISITED:
                    del self._visited[next(iter(self._visited))]
                self._collector.add(self._visited[name])
                self._keep()

    def _keep(self) -> None:
        """Scrape what the config names and visitors typed, and forget what is neither."""
        for target in self.config.targets:
            self._visited.pop(target.name, None)
        self._collector.keep((*self.config.targets, *self._visited.values()))
        kept = {target.name for target in self._collector.targets}
        for name in [name for name in list(self._judged) if name not in kept]:
            if (judged := self._judged.pop(name, None)) is not None:
                for finding in judged.findings:  # else nobody would ever say that they ended
                    self._say(replace(_event(Change.ENDED, finding), at=self._wall()), judged.judge.target)

    def _opened(self, config: MonitorConfig) -> Store:
        try:
            self._store_is_wrong, opened = "", Store(config.store, cycle=config.interval, wall=self._wall)
        except InputError as problem:
            self._store_is_wrong, opened = f"nothing is recorded: {problem}", Store("")
        return opened

    # The Source

    @property
    def problem(self) -> str:
        return "; ".join(filter(None, (self._store_is_wrong, self._store.problem, self._notifier.problem)))

    def targets(self) -> tuple[Target, ...]:
        return self._collector.targets

    def state(self, name: str) -> TargetState | None:
        """One server now, by its name or its address."""
        found = self._collector.state(self._name(name))
        judged = None if found is None else self._judged.get(found.name)
        return found if found is None or judged is None else replace(found, findings=judged.findings)

    def snapshots(self, name: str, start: float, end: float, points: int = 240) -> Sequence[Snapshot]:
        """Those of the store, and of the ring those that the store has not got yet. All have `at` in Unix time."""
        name = self._name(name)
        stored = self._store.snapshots(name, start, end, points)
        state = self._collector.state(name)
        newer = stored[-1].at if stored else float("-inf")
        live = (replace(page, at=page.wall) for page in (state.history if state else ()) if page.wall is not None)
        return [*stored, *(page for page in live if page.at > newer and start <= page.at <= end)]

    def events(self, start: float, end: float, name: str | None = None) -> Sequence[Event]:
        name = name and self._name(name)
        recent = (event for event in list(self._recent) if start <= event.at <= end and name in (None, event.target))
        found = dict.fromkeys((*self._store.events(start, end, name), *recent))
        return sorted(found, key=lambda event: event.at)

    def baseline(self, name: str, at: float) -> float | None:
        """Output tokens/s as usual at this hour of Unix time `at`; None while that is not known."""
        return self._store.baseline(self._name(name), at)

    def wait_for_page(self, name: str, seconds: float) -> None:
        """Return with the server's first answer, good or bad, and after so many seconds at the latest."""
        self._collector.wait_for_page(self._name(name), seconds)

    def _name(self, name: str) -> str:
        """What a server is called here, from its name or its address; what is neither stays as it is."""
        if name in self._judged:
            return name
        targets = self._collector.targets
        try:
            where = metrics_url(name)
        except InputError:
            return name
        by_address = (target.name for target in targets if address(target) == where)
        return name if any(target.name == name for target in targets) else next(by_address, name)

    # What follows a scrape, in a worker's thread: one at a time for each target

    def _past(self, target: Target) -> Sequence[Snapshot]:
        """What the store knows of a target that is new here, its times on our clock."""
        if target.name in self._judged:
            self._judge_anew(target.name)
            return ()  # known under another address: those were the pages of another server
        now = self._wall()
        offset = self._clock() - now
        reach = min(PAST, PAST_PAGES * self.config.interval / max(1, len(self._collector.targets)))
        pages = self._store.snapshots(target.name, now - reach, now, PAST_POINTS)
        self._said[target.name] = _begun(self._store.events(now - TIMELINE, now, target.name))
        return [replace(page, at=page.wall + offset) for page in pages if page.wall is not None and page.wall < now]

    def _follow(self, state: TargetState) -> None:
        if state.latest is not None and not state.failures:
            self._store.add(state.name, state.latest)
        for event in self._changes(state):
            self._say(event, state.target)

    def _say(self, event: Event, target: Target) -> None:
        self._recent.append(event)
        self._store.add_event(event)
        if target.name not in self._visited:
            self._notifier.tell(event, target)

    def _judge_anew(self, name: str) -> None:
        """Forget the Judge but not what it said."""
        if (judged := self._judged.pop(name, None)) is not None:
            begun = {_key(one.condition): _event(Change.BEGAN, one) for one in judged.findings}
            self._said[name] = {**judged.said, **begun}

    def _changes(self, state: TargetState) -> Iterator[Event]:
        """What began and ended with this scrape, said once, whether this Judge saw it begin or one before it."""
        thresholds = self.config.thresholds
        judged = self._judged.get(state.name)
        is_new = judged is None
        if judged is None:
            before = state.history if state.failures else state.history[:-1]
            judge = replay(state.target, thresholds, before)
            judged = _Judged(judge, self._clock(), self._said.pop(state.name, {}))
            self._judged[state.name] = judged
        said, wall = judged.said, self._wall()
        events = judged.judge.update(state, self._usual(state.name, thresholds, wall))
        found = {_key(finding.condition): finding for finding in judged.judge.findings}
        told = {_key(event) for event in events}
        for event in events:
            before_us = said.pop(_key(event), None)
            if event.change is Change.ENDED:
                judged.since.pop(_key(event), None)
                yield event
            elif before_us is None:
                yield event
            else:
                judged.since[_key(event)] = before_us.at
        for key, finding in found.items():
            if (before_us := said.pop(key, None)) is not None:
                judged.since[key] = before_us.at
            elif is_new and key not in told:
                yield replace(_event(Change.BEGAN, finding), at=wall)
        for key, event in list(said.items()):
            if self._clock() - judged.began > _patience(event, thresholds):
                del said[key]
                yield replace(event, at=wall, change=Change.ENDED)

    def _usual(self, name: str, thresholds: Thresholds, wall: float) -> float | None:
        is_set = thresholds.baseline_output_tokens_per_s is not None
        return None if is_set else self._store.baseline(name, wall)


def _called(url: str) -> str:
    """The name of a server that a visitor typed: its address, a long one cut where none is taken for another."""
    return url if len(url) <= SHOWN else f"{url[: SHOWN - 9]}…{crc32(url.encode(errors='replace')):08x}"


def _key(one: Condition | Event) -> Key:
    return one.rule, one.engine


def _begun(events: Sequence[Event]) -> dict[Key, Event]:
    """What of a timeline has begun and not ended."""
    begun: dict[Key, Event] = {}
    for event in events:
        if event.change is Change.BEGAN:
            begun[_key(event)] = event
        else:
            begun.pop(_key(event), None)
    return begun


def _event(change: Change, finding: Finding) -> Event:
    condition = finding.condition
    return Event(
        at=finding.since, target=finding.target, engine=condition.engine, rule=condition.rule, change=change,
        level=condition.level, word=condition.word, reason=condition.reason, action=condition.action,
    )  # fmt: skip


def _patience(event: Event, thresholds: Thresholds) -> float:
    """How long what was found before may go unseen, until it has ended: as long as it would take to be found  [s]."""
    rule = _RULE.get(event.rule)
    return thresholds.window + (rule.seconds(thresholds) if rule else 0.0)
