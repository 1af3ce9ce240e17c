"""What the store gives back, what it makes of a minute, an hour and a year, and what is usual."""

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import recorded

from monitor import packing
from monitor.finding import Change
from monitor.metrics import GENERATION_TOKENS, START_TIME
from monitor.reading import read
from monitor.snapshot import Snapshot, Spread
from monitor.store import Store
from monitor.window import window
from planner.errors import InputError
from planner.store import database
from tests.keeping import BEGAN, NOON, Clock, rows, said, tokens

ROOT = Path(__file__).resolve().parent.parent
BY_HAND = {name: getattr(recorded, name) for name in ("V0_2_7", "V0_5_5", "V0_8_5", "RAY")} | recorded.OTHERS


@pytest.fixture
def store(path: Path, clock: Clock) -> Store:
    return Store(f"sqlite:///{path}", wall=clock)


def keep(store: Store, clock: Clock, *pages: Snapshot, name: str = "chat") -> None:
    """One cycle for each page, at its time."""
    for page in pages:
        assert page.wall is not None
        clock.now = page.wall
        store.add(name, page)
        store.flush()
        assert store.problem == ""


# What is given back


@pytest.mark.parametrize("name", [*recorded.PAGES, *BY_HAND])
def test_a_page_comes_back_as_it_was(name: str, store: Store, path: Path) -> None:
    page = read(BY_HAND.get(name) or recorded.page(name), at=7.0, wall=NOON)
    store.add("chat", page)
    store.flush()
    packing._form.cache_clear()  # as another process would, which knows its form from the database only
    (back,) = store.snapshots("chat", NOON, NOON + 1)
    assert back == replace(page, at=NOON)
    assert [repr(engine.values) for engine in back.engines] == [repr(engine.values) for engine in page.engines]
    ((size,),) = rows(path, "SELECT length(content) + length(gauges) FROM pages")
    assert isinstance(size, int)
    assert size < 1500


def test_what_is_rejected_comes_back_and_makes_no_new_form(store: Store, path: Path) -> None:
    def page(usage: str, at: float) -> Snapshot:
        lines = f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}\nvllm:num_requests_running{{engine="0"}} 1\nwrong {{\n'
        return read(lines, at=at, wall=at)

    pages = [page("37.5", NOON), page("38.5", NOON + 5)]
    for each in pages:
        store.add("chat", each)
    store.flush()
    assert store.snapshots("chat", NOON, NOON + 10) == pages
    assert [page.engines[0].missing["kv_usage"] for page in pages] == [
        "rejected: 37.5 is outside 0..1",
        "rejected: 38.5 is outside 0..1",
    ]
    assert rows(path, "SELECT count(*) FROM forms") == [(1,)]


def test_about_as_many_points_as_asked_for_evenly(store: Store, clock: Clock) -> None:
    for number in range(120):
        store.add("chat", said(NOON + 5 * number, number))
    clock.now = NOON + 600
    store.flush()
    assert tokens(store.snapshots("chat", NOON, NOON + 600)) == list(range(120))
    assert tokens(store.snapshots("chat", NOON, NOON + 50)) == list(range(10))
    # Buckets of 30 s: the last of each six.
    assert tokens(store.snapshots("chat", NOON, NOON + 600, points=20)) == list(range(5, 120, 6))
    # Minutes are enough for ten points; the last minute is not over, so its last page stands for it.
    assert tokens(store.snapshots("chat", NOON, NOON + 600, points=10)) == list(range(11, 120, 12))
    assert store.snapshots("chat", NOON + 600, NOON) == store.snapshots("other", NOON, NOON + 600) == []


def test_events_come_back_in_order_of_one_server_or_all(store: Store) -> None:
    began = replace(BEGAN, at=NOON + 5, action="Add a replica.")
    ended = replace(began, at=NOON + 65, change=Change.ENDED)
    other = replace(began, at=NOON, target="batch", engine=None, reason="half a \ud800 and\0 more")
    for event in (began, ended, other):
        store.add_event(event)
    store.flush()
    assert store.problem == ""
    stored = replace(other, reason="half a ? and more")
    assert store.events(NOON, NOON + 100) == [stored, began, ended]
    assert store.events(NOON, NOON + 100, "chat") == [began, ended]
    assert store.events(NOON + 5, NOON + 65) == [began]


def test_an_empty_url_records_nothing() -> None:
    store = Store("")
    store.start()
    store.add("chat", said(NOON, 1))
    store.flush()
    assert (store.snapshots("chat", 0, 2 * NOON), store.events(0, 2 * NOON), store.baseline("chat", NOON)) == (
        [],
        [],
        None,
    )
    assert store.problem == ""
    store.close()


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("monitor.db", "monitor.db"),
        ("sqlite://monitor.db", "sqlite://monitor.db"),
        ("sqlite://", "sqlite://"),
        ("mysql://ann:secret@db/kv", "mysql://ann:***@db/kv"),
        ("postgresql://ann:secret@db:port/kv", "postgresql://ann:***@db:port/kv"),
    ],
)
def test_a_wrong_url_is_named_without_its_password(url: str, found: str) -> None:
    with pytest.raises(InputError) as error:
        database(url)
    assert (error.value.field, error.value.found) == ("store", found)


# A minute, an hour, a year


def test_a_minute_keeps_its_last_page_and_the_spread_of_its_gauges(store: Store, clock: Clock) -> None:
    pages = [
        said(NOON + 0, 10, kv_usage=0.125, running=1, waiting=None),
        said(NOON + 20, 30, kv_usage=0.25, running=8, waiting=None),
        said(NOON + 40, 40, kv_usage=0.75, running=0, waiting=None),
        said(NOON + 60, 70, kv_usage=0.5, running=2, waiting=None),
    ]
    keep(store, clock, *pages)
    minute, rest = store.snapshots("chat", NOON, NOON + 120, points=2)
    assert minute.engines[0].spread == {"kv_usage": Spread(0.125, 0.375, 0.75), "running": Spread(0, 3, 8)}
    (engine,) = minute.engines
    assert replace(minute, engines=(replace(engine, spread={}),)) == pages[2]
    assert rest == pages[3]


def test_an_hour_is_the_mean_of_its_minutes(store: Store, clock: Clock) -> None:
    """Two pages in the first minute, one in the second: (0.25 + 0.75)/2 and 0.125 make 0.3125."""
    usages = [(0, 0.25), (30, 0.75), (3540, 0.125), (3600, 0.5), (3660, 0.5)]
    keep(store, clock, *(said(NOON + after, after, kv_usage=usage) for after, usage in usages))
    hour, *later = store.snapshots("chat", NOON, NOON + 7200, points=2)
    assert hour.engines[0].spread["kv_usage"] == Spread(0.125, 0.3125, 0.75)
    assert [page.wall for page in (hour, *later)] == [NOON + 3540, NOON + 3600, NOON + 3660]


def test_rates_between_minutes_are_exact(store: Store, clock: Clock) -> None:
    """7 tokens each 5 s."""
    keep(store, clock, *(said(NOON + 5 * number, 7 * number) for number in range(60)))
    pages = store.snapshots("chat", NOON, NOON + 300, points=5)
    rates = [window(*pair).engines[0].output_tokens_per_s for pair in pairwise(pages)]
    assert rates == [pytest.approx(1.4)] * 4


@pytest.mark.parametrize("says_when_it_started", [True, False])
def test_a_restart_is_still_one_when_only_minutes_and_hours_are_left(
    store: Store, clock: Clock, says_when_it_started: bool
) -> None:
    """After it the counter grows beyond what it was, within the minute: 10 before, then 3 and 497 more."""
    new = {START_TIME.key: NOON + 10} if says_when_it_started else {}
    keep(store, clock, said(NOON - 3600, 90), said(NOON, 100), said(NOON + 5, 110))
    keep(store, clock, *(said(NOON + after, count, server=new) for after, count in ((20, 3), (55, 500), (60, 501))))
    keep(store, clock, said(NOON + 3600, 600, server=new), said(NOON + 7200, 700, server=new))
    for points in (2, 120):
        pages = store.snapshots("chat", NOON - 3600, NOON + 3600, points)
        windows = [window(*pair) for pair in pairwise(pages)]
        assert [each.has_restarted for each in windows].count(True) == 1
        increases = [each.engines[0].increase(GENERATION_TOKENS) for each in windows]
        assert sum(filter(None, increases)) == (110 - 90) + 501


def test_a_restart_while_nobody_recorded_is_seen(path: Path, clock: Clock) -> None:
    for page in (said(NOON, 100), said(NOON + 600, 3)):
        store = Store(f"sqlite:///{path}", wall=clock)
        keep(store, clock, page)
        store.close()
    assert rows(path, "SELECT at, began FROM pages WHERE resolution = 0 ORDER BY id") == [(NOON, 0), (NOON + 600, 1)]
    assert rows(path, "SELECT at FROM pages WHERE resolution = 60") == [(NOON,)]


def test_a_server_that_restarts_at_every_scrape_keeps_few_pages(store: Store, clock: Clock) -> None:
    keep(store, clock, *(said(NOON + 5 * number, 100 - number) for number in range(25)))
    assert len(store.snapshots("chat", NOON, NOON + 60, points=1)) <= 2 * 4 + 2


def test_a_year(store: Store, path: Path, clock: Clock) -> None:
    """A page each half day for 400 days, each 10 minutes on the last day, each 5 s in the last 10 minutes."""
    day, end = 86400.0, NOON + 400 * 86400.0
    times = [NOON + 43200 * number for number in range(399 * 2)]
    times += [end - day + 600 * number for number in range(143)]
    times += [end - 600 + 5 * number for number in range(120)]
    for number, at in enumerate(times):
        clock.now = at
        store.add("chat", said(at, number))
        if number % 10 == 9:
            store.flush()
    store.flush()
    clock.now += 60
    store.flush()
    assert store.problem == ""
    kept = rows(path, "SELECT resolution, count(*), min(at) FROM pages GROUP BY resolution ORDER BY resolution")
    assert kept == [
        # 6 hours before end + 55 s: the 10 minutes of 120 pages, and those each 10 minutes before
        (0, 120 + 34, end - 21_000),
        # 14 days: two a day from 13.5 to 1.5 days before the end, 143 on the last day, the whole minutes of the last 10
        (60, 25 + 143 + 9, end - 13.5 * day),
        # 366 days: two a day from 365.5 to 1.5 days before the end, then the whole hours of the last day
        (3600, 729 + 23, end - 365.5 * day),
    ]
    year = store.snapshots("chat", end - 366 * day, end)
    assert 230 <= len(year) <= 250
    assert tokens(year) == sorted(tokens(year))  # type: ignore[type-var]
    assert year[-1].wall == end - 5
    fortnight = store.snapshots("chat", end - 14 * day, end, points=14 * 1440)
    # An hour's page at the border, where the minute's is gone; the last minute is not over: its last page.
    assert len(fortnight) == 1 + 25 + 143 + 9 + 1
    assert tokens(store.snapshots("chat", end - 600, end)) == list(range(len(times) - 120, len(times)))


def test_the_file_does_not_grow_when_old_pages_go(store: Store, path: Path, clock: Clock) -> None:
    sizes = []
    for round in range(3):
        began = NOON + round * 7 * 3600
        for number in range(600):
            store.add("chat", said(began + number, 600 * round + number))
        clock.now = began + 600
        store.flush()
        clock.now = began + 6.5 * 3600
        store.flush()
        sizes.append(rows(path, "PRAGMA page_count")[0][0])
    assert rows(path, "SELECT count(*) FROM pages WHERE resolution = 0") == [(0,)]
    assert sizes[2] - sizes[0] <= 0.1 * sizes[0]  # type: ignore[operator]


def test_a_clock_set_back_loses_nothing(store: Store, path: Path, clock: Clock) -> None:
    before = [said(NOON + 5 * number, number) for number in range(24)]
    after = [said(NOON + 62 + 5 * number, 24 + number) for number in range(24)]
    keep(store, clock, *before, *after)
    assert rows(path, "SELECT count(*) FROM pages WHERE resolution = 0") == [(48,)]
    pages = store.snapshots("chat", NOON, NOON + 300)
    assert tokens(pages) == [*range(13), *range(24, 48)]
    assert all(earlier.at < later.at for earlier, later in pairwise(pages))
    assert not any(window(*pair).has_restarted for pair in pairwise(pages))


# What is usual


def hours(rate: Callable[[int], float], running: Callable[[int], float], days: int) -> list[Snapshot]:
    """A page each half hour: tokens a second and requests running, by day."""
    pages, count = [], 0.0
    for half in range(days * 48 + 1):
        pages.append(said(NOON + 1800 * half, round(count), running=running(half // 48)))
        count += 1800 * rate(half // 48)
    return pages


def test_the_baseline_is_the_median_of_this_hour_on_earlier_days(store: Store, clock: Clock) -> None:
    """10, 20, 30 and 40 tokens a second on four days; the third had nothing to do."""
    keep(store, clock, *hours(lambda day: 10.0 * (day + 1), lambda day: 0 if day == 2 else 4, days=4))
    assert store.baseline("chat", NOON + 4 * 86400 + 3 * 3600) == pytest.approx(20)
    assert store.baseline("chat", NOON + 3 * 86400 + 3 * 3600) is None
    assert store.baseline("other", NOON + 4 * 86400) is None


# A crash

CRASH = """
import os, signal, sys, time
from monitor.store import Store
from tests.keeping import NOON, said

store = Store(sys.argv[1], cycle=0.05)
store.start()
for number in range(50):
    store.add("chat", said(NOON + number, number))
deadline = time.monotonic() + 60
while len(store.snapshots("chat", NOON, NOON + 100)) < 50 and time.monotonic() < deadline:
    time.sleep(0.05)
for number in range(50, 53):
    store.add("chat", said(NOON + number, number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_loses_at_most_one_cycle(path: Path, clock: Clock) -> None:
    url = f"sqlite:///{path}"
    done = subprocess.run([sys.executable, "-c", CRASH, url], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = Store(url, wall=clock)
    found = tokens(store.snapshots("chat", NOON, NOON + 100))
    assert found[:50] == list(range(50))
    assert found == list(range(len(found)))
    clock.now = NOON + 100
    keep(store, clock, said(NOON + 100, 60))
    assert tokens(store.snapshots("chat", NOON + 60, NOON + 101)) == [60]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
