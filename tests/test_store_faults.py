"""A store that is locked, full, damaged, deleted or gone: what is said, that nothing waits for it, and what is lost."""

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import recorded
from conftest import ROOT, PostgreSQL

from monitor.reading import read
from monitor.store import Store
from tests.keeping import BEGAN, NOON, Clock, rows, said, tokens

CYCLE = 0.01


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[Store]:
    store = Store(f"sqlite:///{path}", cycle=CYCLE, waiting=5, wall=clock)
    yield store
    store.close()


def add(store: Store, *counts: int) -> None:
    for count in counts:
        store.add("chat", said(NOON + count, count))
    store.flush()


def stored(store: Store) -> list[float | None]:
    return tokens(store.snapshots("chat", NOON, NOON + 400, points=400))


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process is in the middle of a long write."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_while_it_is_locked_pages_wait_and_reading_goes_on(store: Store, path: Path) -> None:
    add(store, 1)
    with locked(path):
        add(store, 2, 3)
        assert store.problem == "the store cannot be written: database is locked; 2 pages wait"
        assert stored(store) == [1]
    store.flush()
    assert store.problem == ""
    assert stored(store) == [1, 2, 3]


def test_adding_does_not_wait_for_the_writer(path: Path) -> None:
    """The writer is stuck for as long as this test says."""
    is_stuck, may_go_on = threading.Event(), threading.Event()

    def wall() -> float:
        is_stuck.set()
        assert may_go_on.wait(60)
        return NOON

    store = Store(f"sqlite:///{path}", wall=wall)
    writer = threading.Thread(target=store.flush)
    writer.start()
    assert is_stuck.wait(60)
    store.add("chat", said(NOON, 1))
    store.add_event(BEGAN)
    may_go_on.set()
    writer.join()
    store.flush()
    assert stored(store) == [1]
    assert store.events(NOON, NOON + 1) == [BEGAN]
    store.close()


def test_beyond_the_bound_the_oldest_are_lost_and_counted(store: Store, path: Path) -> None:
    add(store, 1)
    with locked(path):
        add(store, *range(2, 10))
        assert store.problem == "the store cannot be written: database is locked; 5 pages wait, 3 were lost"
    store.flush()
    assert store.problem == ""
    assert stored(store) == [1, 5, 6, 7, 8, 9]
    store.flush()
    (event,) = store.events(0, 2 * NOON)
    assert event.reason == "3 pages were lost while the store could not be written."


FULL = """
import resource, signal, sys
from pathlib import Path
from monitor.store import Store
from tests.keeping import NOON, said, tokens

path = Path(sys.argv[1])
store = Store(f"sqlite:///{path}")
store.add("chat", said(NOON, 0))
store.flush()
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
largest = sum(file.stat().st_size for file in path.parent.glob("monitor.db*"))
resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 50_000, hard))
count = 0
while not store.problem and count < 5000:
    count += 1
    store.add("chat", said(NOON + count, count))
    store.flush()
print(store.problem)
during = tokens(store.snapshots("chat", NOON, NOON + count + 1, points=count + 1))
print(during == list(range(count)))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
store.flush()
print(repr(store.problem))
print(tokens(store.snapshots("chat", NOON, NOON + count + 1, points=count + 1)) == list(range(count + 1)))
"""


def test_a_full_disk_loses_nothing_that_can_wait(path: Path) -> None:
    """The operating system refuses to let any file grow further, then allows it again."""
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], cwd=ROOT, capture_output=True, text=True)
    problem, reads_on, afterwards, is_whole = done.stdout.splitlines() or [done.stderr] * 4
    assert problem.startswith("the store cannot be written: d")
    assert problem.endswith("; 1 pages wait")
    assert (reads_on, afterwards, is_whole) == ("True", "''", "True")


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(store: Store, path: Path) -> None:
    path.write_bytes(rubbish := b"This was a database once. " * 1000)
    add(store, 1)
    assert store.problem == "the store cannot be written: file is not a database; 1 pages wait"
    store.flush()
    assert store.problem == ""
    assert stored(store) == [1]
    store.flush()
    (aside,) = path.parent.glob("monitor.db.damaged-*")
    assert aside.read_bytes() == rubbish
    (event,) = store.events(0, 2 * NOON)
    assert event.reason == f"{path} was damaged: a new one was begun."
    assert event.action == f"The old one is kept as {aside}."


def test_damage_that_a_reader_meets_is_said_and_mended(path: Path, clock: Clock) -> None:
    """Half of the file is overwritten, so that it opens, but its tables cannot be read."""
    first = Store(f"sqlite:///{path}", wall=clock)
    add(first, *range(200))
    first.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    store = Store(f"sqlite:///{path}", cycle=CYCLE, wall=clock)
    assert stored(store) == []
    assert store.problem == "the store cannot be read: database disk image is malformed"
    add(store, 300)
    wait_for(lambda: store.flush() or stored(store) == [300])
    assert store.problem == ""
    assert any(aside.read_bytes() == content for aside in path.parent.glob("monitor.db.damaged-*"))


def test_a_deleted_file_is_begun_anew(store: Store, path: Path) -> None:
    add(store, 1, 2)
    path.unlink()
    add(store, 3)
    assert store.problem == ""
    assert stored(store) == [3]
    assert rows(path, "SELECT count(*) FROM pages") == [(1,)]
    store.flush()
    assert [event.reason for event in store.events(0, 2 * NOON)] == [
        f"{path} was deleted: what was recorded before is gone, and a new one was begun."
    ]


def test_a_folder_that_is_not_there_is_said_and_waited_for(tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "not yet"
    store = Store(f"sqlite:///{folder / 'monitor.db'}", cycle=CYCLE, wall=clock)
    add(store, 1)
    assert store.problem == "the store cannot be written: unable to open database file; 1 pages wait"
    folder.mkdir()
    store.flush()
    assert stored(store) == [1]


def test_the_thread_writes_by_itself_and_close_writes_the_rest(path: Path, clock: Clock) -> None:
    store = Store(f"sqlite:///{path}", cycle=CYCLE, wall=clock)
    store.start()
    store.add("chat", said(NOON, 1))
    wait_for(lambda: stored(store) == [1])
    store.add("chat", said(NOON + 1, 2))
    store.close()
    assert rows(path, "SELECT count(*) FROM pages") == [(2,)]
    assert "store" not in [thread.name for thread in threading.enumerate()]


# PostgreSQL


@pytest.mark.parametrize("name", recorded.PAGES)
def test_postgresql_gives_a_page_back(name: str, postgresql_store: Store) -> None:
    page = read(recorded.page(name), at=NOON, wall=NOON)
    postgresql_store.add(name, page)
    postgresql_store.flush()
    assert postgresql_store.snapshots(name, NOON, NOON + 1) == [page]


@pytest.fixture(scope="module")
def postgresql_store(postgresql: PostgreSQL) -> Iterator[Store]:
    store = Store(postgresql.url(), wall=Clock())
    yield store
    store.close()


def test_two_dashboards_share_a_postgresql(postgresql: PostgreSQL, clock: Clock) -> None:
    """Both watch `chat`, each one server more. One of them records `chat`, until it falls silent."""
    url = postgresql.url()
    ours, theirs = (Store(url, cycle=5.0, wall=clock) for _ in range(2))
    for second in range(0, 300, 5):
        clock.now = NOON + second
        for store, other, lag in ((ours, "ours", 0.0), (theirs, "theirs", 1.5)):
            if store is theirs or second < 150:
                store.add("chat", said(clock.now + lag, 2 * second))
                store.add(other, said(clock.now + lag, second))
                store.flush()
                assert store.problem == ""
        if second == 100:
            for store in (ours, theirs):
                store.add_event(BEGAN)
                store.flush()
    for store in (ours, theirs):
        assert tokens(store.snapshots("ours", NOON, NOON + 400)) == list(range(0, 150, 5))
        assert tokens(store.snapshots("theirs", NOON, NOON + 400)) == list(range(0, 300, 5))
        chat = store.snapshots("chat", NOON, NOON + 400)
        # The other had the page of the last cycle in hand too, scraped 1.5 s later.
        assert tokens(chat) == [*range(0, 300, 10), *range(290, 600, 10)]
        assert [page.at % 5 for page in chat] == [0.0] * 30 + [1.5] * 31
        assert store.events(NOON, NOON + 1) == [BEGAN]
    # Whoever closes leaves its servers to the others at once.
    theirs.close()
    ours.add("chat", said(NOON + 301, 700))
    ours.flush()
    assert tokens(ours.snapshots("chat", NOON + 300, NOON + 400)) == [700]
    ours.close()


def test_postgresql_that_goes_and_comes_back(postgresql: PostgreSQL, clock: Clock) -> None:
    store = Store(postgresql.url(), cycle=CYCLE, wall=clock)
    add(store, 1)
    postgresql.stop()
    try:
        add(store, 2, 3)
        assert store.problem.startswith("the store cannot be written: ")
        assert store.problem.endswith("; 2 pages wait")
        assert stored(store) == []
        assert "the store cannot be read: " in store.problem
    finally:
        postgresql.start()
    store.flush()
    wait_for(lambda: stored(store) == [1, 2, 3])
    assert store.problem == ""
    store.close()
