"""An hour of watching: does its memory stay, does it miss a page, does a thread stay behind, is everything recorded?

PYTHONPATH=. python -m benchmarks.soak [--speed 20] [--minutes 60] [--targets 50]

The servers are another process; they answer with recorded pages of vLLM whose counters move from page to page. At a
speed of 20 the collector asks every 0.25 s instead of every 5 s and rules look back a twentieth as far, while the wall
clock runs 20 times as fast: the store makes the same minutes and hours of the same number of pages. It begins when
every server has been seen; memory is measured when the rings are full, after a quarter of an hour. Somebody looks at
one server after the other. Prints JSON.
"""

import argparse
import json
import os
import socketserver
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import select

from benchmarks.collector import COUNTED, PAGES, Servers, serving, used
from monitor import scrape
from monitor.collector import KEPT
from monitor.config import MonitorConfig
from monitor.health import verdict
from monitor.heap import settled
from monitor.scrape import Scrape
from monitor.tables import HOUR, MINUTE, SERVERS
from monitor.tables import PAGES as STORED
from monitor.targets import Target
from monitor.thresholds import Thresholds
from monitor.watch import Watch
from planner.store import database
from tests.recorded import page

INTERVAL = 5.0
"""Between two pages of a server, on the wall clock  [s]."""
BEGAN = 1_800_000_000 // 3600 * 3600 + 1800.0
"""Half past an hour, Unix time: an hour is completed on the way  [s]."""
LOOKS = 5.0
"""Between two looks of a visitor  [s]."""
BEGUN = 4
"""Of each server, before it begins: the first page of a server takes ten times as long as the next  [pages]."""
SAMPLES = 13
"""Memory is the median over so many, at either end of the time in which the rings are full  [samples]."""
IN_FLIGHT = 1
"""Of each server, an answer that came while the watch was stopped is followed by nobody  [pages]."""


class Turning(Servers):
    """Servers whose pages are others after each cycle."""

    def __init__(self, cycle: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        began = time.monotonic()
        lines = [[COUNTED.match(line) or line for line in page(name).splitlines()] for name in PAGES]

        @lru_cache(maxsize=16)
        def body(number: int, turn: int) -> bytes:
            said = (
                line if isinstance(line, str) else f"{line[1]}{float(line[2]) * (100 + turn) // 100}"
                for line in lines[number]
            )
            content = "\n".join(said).encode() + b"\n"
            return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(content) + content

        self.body: Callable[[int], bytes] = lambda number: body(
            number % len(lines), int((time.monotonic() - began) / cycle)
        )


class Handler(socketserver.StreamRequestHandler):
    server: Turning

    def handle(self) -> None:
        number = int(self.rfile.readline().split(b"/")[1])
        while self.rfile.readline().strip():
            pass
        self.wfile.write(self.server.body(number))


def sooner(thresholds: Thresholds, speed: float) -> Thresholds:
    """The same rules on a clock that is so many times as fast."""
    names = [field.name for field in fields(thresholds) if field.name.endswith(("_for", "_within", "_trend"))]
    return replace(thresholds, **{name: getattr(thresholds, name) / speed for name in [*names, "window"]})


def resident() -> float:
    """Memory of this process  [MiB]."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def starved() -> float:
    """For how long threads of this process were ready and had no core, where the system counts it  [s]."""
    waits = (int(file.read_text().split()[1]) for file in Path("/proc/self/task").glob("*/schedstat"))
    return sum(waits) / 1e9


def soaked(speed: float, minutes: float, count: int, folder: Path) -> dict[str, Any]:
    """What so many minutes come to."""
    cycle, seconds, began = INTERVAL / speed, minutes * 60 / speed, time.monotonic()
    threads = threads_before = threading.active_count()
    answered: Counter[str] = Counter()
    troubles: set[str] = set()
    memory: list[float] = []

    def counted(url: str, *arguments: Any, **options: Any) -> Scrape:
        found = scrape.scrape(url, *arguments, **options)
        answered[url] += found.ok
        troubles.add(found.message)
        return found

    def wall() -> float:
        return BEGAN + speed * (time.monotonic() - began)

    with serving(Turning, cycle) as port:
        targets = [Target(name=f"gpu-{n}", url=f"http://127.0.0.1:{port}/{n}/metrics") for n in range(count)]
        store = f"sqlite:///{folder}/monitor.db"
        thresholds = sooner(Thresholds(), speed)
        config = MonitorConfig(targets=tuple(targets), interval=cycle, store=store, thresholds=thresholds)
        watch = Watch(config, scrape=counted, wall=wall)
        with settled(), watch.running():
            while any(answered[target.url] < BEGUN for target in targets):
                time.sleep(0.01)
            begun = answered.total()
            started, cpu, waited = time.monotonic(), used(), starved()
            looks = 0
            while (passed := time.monotonic() - started) < seconds:
                time.sleep(min(1.0, seconds - passed))
                threads = max(threads, threading.active_count())
                troubles.add(watch.problem)
                if passed > looks * LOOKS:
                    look(watch, targets[looks % count].name, wall())
                    looks += 1
                if memory or all((state := watch.state(t.name)) and len(state.history) == KEPT for t in targets):
                    memory.append(resident())
            met = answered.total() - begun
            cpu, waited = used() - cpu, starved() - waited
        deadline = time.monotonic() + 60
        while threading.active_count() > threads_before and time.monotonic() < deadline:
            time.sleep(0.05)
    if not memory:
        raise SystemExit("too short: the rings were never full")
    pages = recorded(store)
    own = Counter(page.name for page in pages if not page.resolution)
    at_first, at_last = (median(part) for part in (memory[:SAMPLES], memory[-SAMPLES:]))
    return {
        "seconds": round(passed, 1),
        "wanted": round(count * passed / cycle),
        "answered": met,
        "missed": round(max(0.0, 1 - met / (count * passed / cycle)), 4),
        "unrecorded": sum(max(0, answered[each.url] - own[each.name] - IN_FLIGHT) for each in targets),
        "minutes": sum(page.resolution == MINUTE for page in pages),
        "minutes_unmade": unmade(pages, 0, MINUTE),
        "hours_unmade": unmade(pages, MINUTE, HOUR),
        "troubles": sorted(filter(None, troubles)),
        "memory_mib": [round(at_first, 1), round(at_last, 1)],
        "memory_growth": round(at_last / at_first - 1, 4),
        "most_threads": threads,
        "threads_left": threading.active_count() - threads_before,
        "cpu_ms_a_page": round(1000 * cpu / met, 2),
        "starved": round(waited / passed, 3),
    }


def look(watch: Watch, name: str, now: float) -> None:
    """What the live page and the history ask for."""
    state = watch.state(name)
    assert state is not None
    verdict(state)
    watch.snapshots(name, now - 900, now)
    watch.events(now - 3600, now, name)


def recorded(store: str) -> list[Any]:
    """All pages: of which server, of which resolution, and when."""
    asked = select(SERVERS.c.name, STORED.c.resolution, STORED.c.at).join(STORED, STORED.c.server == SERVERS.c.id)
    with database(store).connect() as connection:
        return list(connection.execute(asked))


def unmade(pages: list[Any], finer: int, coarser: int) -> int:
    """Minutes or hours of all servers that have ended, and for which no page stands."""
    ended = {(page.name, page.at // coarser) for page in pages if page.resolution == finer}
    latest = dict(sorted(ended))  # of each server: it goes on
    return len(
        ended - latest.items() - {(page.name, page.at // coarser) for page in pages if page.resolution == coarser}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=20.0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--targets", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(soaked(options.speed, options.minutes, options.targets, Path(folder))))


if __name__ == "__main__":
    main()
