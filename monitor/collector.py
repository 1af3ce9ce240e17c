"""All targets scraped again and again in the background: one thread keeps the time, some workers wait for servers.

Each target has a ring of Snapshots. A target that fails keeps its ring, shows its last error and the age of its last
good page, and recovers by itself: it is asked again and again, one GET at a time, more and more seldom.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from zlib import crc32

from monitor.reading import Reader
from monitor.scrape import TIMEOUT, Scrape, State, metrics_url, scrape, trust
from monitor.snapshot import Snapshot
from monitor.source import TargetState
from monitor.targets import Target, expanded
from planner.errors import InputError

INTERVAL = 5.0
"""Between two pages of a target  [s]."""
KEPT = 180
"""Snapshots a target: a quarter of an hour at one every 5 s  [snapshots]."""
KEPT_BYTES = 64 * 2**20
"""Of a target, as its pages came: only the last few of a page of 100,000 series  [bytes]."""
WORKERS = 32
"""Scrapes that may wait for a server at the same time; half of them at most for servers that fail  [threads]."""
PATIENCE = 3
"""Failures in a row after which a target is asked more seldom  [scrapes]."""
SLOWEST = 60.0
"""Between two tries of a target that fails on and on  [s]."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Watched:
    target: Target
    due: float
    ring: "deque[Snapshot]" = field(default_factory=deque)
    reader: Reader = field(default_factory=Reader)
    error: Scrape | None = None
    failures: int = 0
    is_busy: bool = False
    is_new: bool = True

    @property
    def phase(self) -> float:
        """When in a period its turn is, 0 to 1: always the same, and another for each name."""
        return crc32(self.target.name.encode()) / 2**32


def _nothing_past(target: Target) -> Sequence[Snapshot]:
    return ()


def _nobody_follows(state: TargetState) -> None:
    pass


class Collector:
    """Scrapes its targets from start() to stop(). Every method may be called from any thread at any time.

    `follow` is called in a worker's thread with what is known of a target after each scrape, good or bad.
    `past` says before the first scrape of a target what was known of it earlier, with times of this `clock`.
    `clock` must never step back; `wall` is for display only. Tests hand in their own, and their own `scrape`.
    """

    def __init__(
        self,
        *,
        interval: float = INTERVAL,
        timeout: float = TIMEOUT,
        kept: int = KEPT,
        follow: Callable[[TargetState], None] = _nobody_follows,
        past: Callable[[Target], Sequence[Snapshot]] = _nothing_past,
        scrape: Callable[..., Scrape] = scrape,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval, self.timeout, self._kept = interval, timeout, kept
        self._follow, self._past = follow, past
        self._scrape, self._clock, self._wall = scrape, clock, wall
        self._targets: dict[str, _Watched] = {}
        self._changed = threading.Condition()
        self._reading = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def add(self, target: Target) -> None:
        """Watch a server, from now on. A name already watched keeps its history unless the address is another.

        Raises InputError for a malformed URL.
        """
        address(target)
        with self._changed:
            self._put(target, self._clock())

    def keep(self, targets: Iterable[Target]) -> None:
        """Watch these and no others. New ones wait for their turn; those that stay keep their history."""
        wanted = {target.name: target for target in targets}
        with self._changed:
            for target in wanted.values():
                self._put(target)
            self._targets = {name: self._targets[name] for name in wanted}

    def _put(self, target: Target, due: float | None = None) -> None:
        known = self._targets.get(target.name)
        if known is not None and address(known.target) == address(target):
            known.target = target
            return
        watched = _Watched(target, 0.0)
        watched.due = self._turn(watched, self.interval, self._clock()) if due is None else due
        self._targets[target.name] = watched
        self._changed.notify_all()

    def remove(self, name: str) -> None:
        """Forget a target; one that is not there is no error."""
        with self._changed:
            self._targets.pop(name, None)

    @property
    def targets(self) -> tuple[Target, ...]:
        with self._changed:
            return tuple(watched.target for watched in self._targets.values())

    def state(self, name: str) -> TargetState | None:
        """What is known of a target, or None when it is not watched."""
        with self._changed:
            watched = self._targets.get(name)
            return None if watched is None else self._state(watched)

    def _state(self, watched: _Watched) -> TargetState:
        return TargetState(
            target=watched.target,
            history=tuple(watched.ring),
            age=self._clock() - watched.ring[-1].at if watched.ring else None,
            error=watched.error,
            failures=watched.failures,
        )

    def wait_for_page(self, name: str, seconds: float) -> None:
        """Return with the target's first answer, good or bad, and after so many seconds at the latest."""
        with self._changed:
            watched = self._targets.get(name)
            self._changed.wait_for(lambda: watched is None or not watched.is_new, seconds)

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin, unless it has begun."""
        with self._changed:
            if not self.is_running:
                self._is_stopping = False
                self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End. A scrape that still waits for its server ends by its own time limit, and nobody hears of it."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @contextmanager
    def running(self) -> Iterator["Collector"]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def _run(self) -> None:
        workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="scrape")
        with self._changed:
            while not self._is_stopping:
                now = self._clock()
                for watched in self._startable(now):
                    watched.is_busy = True
                    workers.submit(self._collect, watched)
                # Those that are due already wait for a worker, and a worker that is done wakes this thread.
                due = min((watched.due for watched in self._targets.values() if watched.due > now), default=None)
                self._changed.wait(self.interval if due is None else due - now)
        workers.shutdown(wait=False)

    def _startable(self, now: float) -> Iterator[_Watched]:
        """Whose turn it is and for whom there is a worker, the longest due first."""
        busy = [watched for watched in self._targets.values() if watched.is_busy]
        free, free_for_failing = WORKERS - len(busy), WORKERS // 2 - sum(watched.failures > 0 for watched in busy)
        waiting = (watched for watched in self._targets.values() if watched.due <= now and not watched.is_busy)
        for watched in sorted(waiting, key=lambda watched: watched.due):
            if free > 0 and (free_for_failing > 0 or not watched.failures):
                free, free_for_failing = free - 1, free_for_failing - (watched.failures > 0)
                yield watched

    def _turn(self, watched: _Watched, period: float, after: float) -> float:
        """Its next turn after that moment. Targets have turns of their own, so that they never ask all at once."""
        return after + period - (after - watched.phase * period) % period

    def _next_turn(self, watched: _Watched, began: float) -> float:
        """When to ask again after a scrape: what was missed meanwhile is not made up for."""
        slower = 2.0 ** min(10, max(0, watched.failures - PATIENCE))
        period = max(self.interval, min(SLOWEST, self.interval * slower))
        return self._turn(watched, period, max(self._clock(), began + period / 2))

    def collect(self, name: str) -> None:
        """Scrape one target once and keep what came: the step that the thread repeats."""
        with self._changed:
            watched = self._targets.get(name)
        if watched is not None:
            self._collect(watched)

    def _collect(self, watched: _Watched) -> None:
        began = self._clock()
        try:
            past = self._past(watched.target) if watched.is_new else ()
            page, error, size = self._answer(watched)
            with self._changed:
                watched.ring.extend(past)
                watched.is_new, watched.error = False, error
                watched.failures = 0 if page else watched.failures + 1
                if page is not None:
                    watched.ring.append(page)
                    while len(watched.ring) > max(2, min(self._kept, KEPT_BYTES // size)):
                        watched.ring.popleft()
                state = self._state(watched)
                is_heard = self._targets.get(state.name) is watched and not self._is_stopping
            if is_heard:
                self._follow(state)
        except Exception:
            _log.exception("what follows a scrape of %s failed", watched.target.name)
        finally:
            with self._changed:
                watched.is_busy, watched.due = False, self._next_turn(watched, began)
                self._changed.notify_all()

    def _answer(self, watched: _Watched) -> tuple[Snapshot, None, int] | tuple[None, Scrape, int]:
        """The page with its size [characters], or why there is none."""
        target = watched.target
        try:
            url = metrics_url(expanded("url", target.url))
            headers = {name: expanded(f"headers.{name}", value) for name, value in target.headers.items()}
            context = trust(target.ca_file, target.verify) if target.ca_file or not target.verify else None
            answer = self._scrape(url, self.timeout, headers=headers, context=context)
            if not answer.ok:
                return None, answer, 0
            with self._reading:  # one after the other: it is work for one core anyway, and large pages take memory
                page = watched.reader.read(answer.text, at=self._clock(), wall=self._wall())
            return page, None, len(answer.text)
        except InputError as problem:
            return None, _failed("misconfigured", target, str(problem)), 0
        except Exception as problem:
            _log.exception("a scrape of %s failed", target.name)
            return None, _failed("unreadable", target, f"the answer could not be read ({type(problem).__name__})"), 0


def _failed(state: State, target: Target, message: str) -> Scrape:
    return Scrape(state=state, url=target.url.rpartition("@")[2], message=message)


def address(target: Target) -> str:
    """Where its page is. One with a variable is known only when it is used. Raises InputError for a malformed URL."""
    return target.url if "${" in target.url else metrics_url(target.url)
