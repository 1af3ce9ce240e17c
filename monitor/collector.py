"""All targets scraped again and again in the background: one thread keeps the time, a few workers wait for servers.

Each target has a ring of Snapshots. A target that fails keeps its ring, shows its last error and the age of its last
good page, and recovers by itself: every cycle asks again, one GET at a time.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from monitor.reading import read
from monitor.scrape import TIMEOUT, Scrape, metrics_url, scrape
from monitor.snapshot import Snapshot
from monitor.source import TargetState
from monitor.targets import Target

INTERVAL = 5.0
"""Between two pages of a target  [s]."""
KEPT = 180
"""Snapshots a target: a quarter of an hour at one every 5 s, about 12 kB each  [snapshots]."""
WORKERS = 8
"""Scrapes that may wait for a server at the same time  [threads]."""


@dataclass(slots=True)
class _Watched:
    target: Target
    url: str
    ring: "deque[Snapshot]"
    error: Scrape | None = None
    failures: int = 0
    due: float = 0.0
    is_busy: bool = field(default=False)


class Collector:
    """Scrapes its targets from start() to stop(). Every method may be called from any thread at any time.

    `clock` must never step back; `wall` is for display only. Tests hand in their own, and their own `scrape`.
    """

    def __init__(
        self,
        *,
        interval: float = INTERVAL,
        timeout: float = TIMEOUT,
        kept: int = KEPT,
        scrape: Callable[..., Scrape] = scrape,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval, self.timeout, self._kept = interval, timeout, kept
        self._scrape, self._clock, self._wall = scrape, clock, wall
        self._targets: dict[str, _Watched] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def add(self, target: Target) -> None:
        """Watch a server, from now on. A name already watched keeps its history unless the address is another.

        Raises InputError for a malformed URL.
        """
        where = metrics_url(target.url)
        with self._changed:
            known = self._targets.get(target.name)
            if known is None or known.url != where:
                ring: deque[Snapshot] = deque(maxlen=self._kept)
                self._targets[target.name] = _Watched(target, where, ring, due=self._clock())
                self._changed.notify_all()

    def remove(self, name: str) -> None:
        """Forget a target; one that is not there is no error."""
        with self._changed:
            self._targets.pop(name, None)

    @property
    def names(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(self._targets)

    def state(self, name: str) -> TargetState | None:
        """What is known of a target, or None when it is not watched."""
        with self._changed:
            target = self._targets.get(name)
            if target is None:
                return None
            age = self._clock() - target.ring[-1].at if target.ring else None
            return TargetState(
                target=target.target,
                history=tuple(target.ring),
                age=age,
                error=target.error,
                failures=target.failures,
            )

    def wait_for_page(self, name: str, seconds: float) -> None:
        """Return with the target's first answer, good or bad, and after so many seconds at the latest."""
        with self._changed:
            target = self._targets.get(name)
            self._changed.wait_for(lambda: target is None or bool(target.ring) or target.failures > 0, seconds)

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
        """End. A scrape that still waits for its server ends by its own time limit and is not waited for."""
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
                for name, target in self._targets.items():
                    if target.due <= now and not target.is_busy:
                        target.is_busy = True
                        # In step with the clock, but what was missed while it waited is not made up for.
                        target.due = max(target.due + self.interval, now)
                        workers.submit(self.collect, name)
                due = min((t.due for t in self._targets.values() if not t.is_busy), default=now + self.interval)
                self._changed.wait(max(0.0, due - now))
        workers.shutdown(wait=False, cancel_futures=True)

    def collect(self, name: str) -> None:
        """Scrape one target once and keep what came: the step that the thread repeats."""
        with self._changed:
            target = self._targets.get(name)
        if target is None:
            return
        try:
            answer = self._scrape(target.url, self.timeout, headers=target.target.headers)
            page = read(answer.text, at=self._clock(), wall=self._wall()) if answer.ok else None
            with self._changed:
                if page is None:
                    target.error, target.failures = answer, target.failures + 1
                else:
                    target.error, target.failures = None, 0
                    target.ring.append(page)
        finally:
            with self._changed:
                target.is_busy = False
                self._changed.notify_all()
