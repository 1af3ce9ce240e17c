"""What recording costs: CPU of a page with its share of the commits and minutes, bytes of a row, time to read a chart.

PYTHONPATH=. python benchmarks/store.py [URL]
"""

import gzip
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sqlalchemy import func, select

from monitor.histogram import Histogram
from monitor.metrics import CONFIG
from monitor.reading import read
from monitor.snapshot import Snapshot, Value
from monitor.store import Store
from monitor.tables import PAGES
from planner.store import database

PAGE = Path(__file__).resolve().parent.parent / "tests" / "metrics" / "0.32.0-idle-whole.prom.gz"
SERVERS, CYCLES, INTERVAL = 200, 36, 5.0
CONFIGURED = {metric.key for metric in CONFIG}
BEGAN = 1_800_000_000.0


def moved(value: Value, step: int) -> Value:
    """As on a busy server: each bucket and counter has grown by something else."""
    if isinstance(value, Histogram):
        counts = value.counts[:]
        for number in range(len(counts)):
            counts[number] += step * (number * 7919 % 97 + 97 * number)
        return replace(value, counts=counts, total=value.total + step * 0.7310585786300049)
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        return value if value <= 1 else value + step * 1013
    return value


def cycles() -> Iterator[Snapshot]:
    """One server's pages."""
    page = read(gzip.decompress(PAGE.read_bytes()).decode())
    for step in range(CYCLES):
        at = BEGAN + step * INTERVAL
        engines = tuple(
            replace(
                engine,
                values={
                    key: value if key in CONFIGURED else moved(value, step) for key, value in engine.values.items()
                },
            )
            for engine in page.engines
        )
        yield replace(page, engines=engines, at=at, wall=at)


def record(url: str) -> None:
    now = BEGAN
    store = Store(url, wall=lambda: now)
    spent, adding = 0.0, 0.0
    for page in cycles():
        now = page.at
        began = time.process_time()
        for server in range(SERVERS):
            store.add(f"server {server}", page)
        adding += time.process_time() - began
        store.flush()
        spent += time.process_time() - began
    began = time.process_time()
    pages = store.snapshots("server 7", BEGAN, now + 1)
    reading = time.process_time() - began
    print(f"{SERVERS} servers, {CYCLES} cycles {store.problem}")
    print(f"a page added, packed and committed  {spent / SERVERS / CYCLES * 1e3:6.3f} ms CPU   (aim under 0.5 ms)")
    print(f"of which in the caller's thread     {adding / SERVERS / CYCLES * 1e3:6.3f} ms CPU")
    print(f"{len(pages)} pages read back              {reading * 1e3:6.1f} ms CPU")
    store.close()
    with database(url).connect() as connection:
        size = func.avg(func.length(PAGES.c.content) + func.length(PAGES.c.gauges))
        mean, count = connection.execute(select(size, func.count())).one()
    print(f"a row                               {mean:6.0f} bytes    (aim under 1,500)")
    if url.startswith("sqlite"):
        print(f"in the file                         {Path(url[10:]).stat().st_size / count:6.0f} bytes")


def main() -> None:
    if len(sys.argv) > 1:
        record(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            record(f"sqlite:///{folder}/monitor.db")


if __name__ == "__main__":
    main()
