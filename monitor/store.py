"""Store: what servers said, over a year. Others only put pages in; one thread writes them, about once a cycle.

What cannot be written waits, within bounds, and is written when it can be. Reading never raises: it returns what there
is, and `problem` says what is wrong.
"""

import logging
import sqlite3
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError

from monitor import recall
from monitor.finding import Change, Event
from monitor.packing import Packed, pack
from monitor.recording import Recording, Row, delete_expired
from monitor.snapshot import Snapshot
from monitor.tables import HOUR, TABLES
from monitor.window import window
from planner.store import database, writing
from planner.verdict import Level

CYCLE = 5.0
"""Between two commits: what a crash can lose. As long as the collector's interval  [s]."""
WAITING = 50_000
"""Pages that wait while nothing can be written: 20 minutes of 200 servers, about 1 kB each  [pages]."""
LEASE = 3
"""A dashboard silent for so many cycles leaves its servers to the others  [cycles]."""
BATCH = 1_000
"""Pages written in one transaction  [pages]."""
PAUSE = 2
"""After a failed read nobody waits for the next one for so long  [cycles]."""
EXPIRY = 60.0
"""Between two looks for what has expired  [s]."""
DELETIONS = 20
"""Of 500 rows each, in one cycle: after a long pause there is much to delete  [deletions]."""
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_FAILURES = (SQLAlchemyError, OSError, zlib.error, ValueError, LookupError)
_SIDE_FILES = ("", "-wal", "-shm")
_log = logging.getLogger(__name__)

Found = TypeVar("Found")


class Store:
    """Records from start() to close(). Every method may be called from any thread; add() and add_event() never wait.

    An empty URL records nothing. `wall` is Unix time. Raises InputError for a URL that is none.
    """

    def __init__(
        self, url: str, *, cycle: float = CYCLE, waiting: int = WAITING, wall: Callable[[], float] = time.time
    ) -> None:
        self._engine = database(url) if url else None
        self._cycle, self._bound, self._wall = cycle, waiting, wall
        self._writer = uuid.uuid4().hex
        self._recording = Recording(self._writer, LEASE * cycle)
        self._added: deque[tuple[str, Snapshot]] = deque()
        self._rows: deque[Row] = deque()
        self._events: deque[Event] = deque(maxlen=waiting)
        self._added_events: deque[Event] = deque(maxlen=waiting)
        self._latest: dict[str, tuple[Packed, float]] = {}
        self._baselines: dict[str, tuple[float, float | None]] = {}
        self._dropped = 0
        self._cannot_write = self._cannot_read = ""
        self._is_damaged, self._is_ready, self._file_id = False, False, 0
        self._paused_until, self._expired_at = 0.0, float("-inf")
        self._queue, self._opening, self._stepping = threading.Lock(), threading.Lock(), threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, name: str, snapshot: Snapshot) -> None:
        """Keep what a server said."""
        if self._engine is not None:
            with self._queue:
                self._added.append((name, snapshot))
                if len(self._added) > self._bound:
                    self._added.popleft()
                    self._dropped += 1

    def add_event(self, event: Event) -> None:
        """Keep an entry of the timeline."""
        if self._engine is not None:
            with self._queue:
                self._added_events.append(event)

    @property
    def problem(self) -> str:
        """One line on what is wrong, empty when nothing is."""
        return "; ".join(filter(None, (self._cannot_write, self._cannot_read)))

    # Reading

    def snapshots(self, name: str, start: float, end: float, points: int = 240) -> Sequence[Snapshot]:
        """About so many pages between two Unix times [s], oldest first; empty where nothing is kept."""
        return self._read(lambda connection: recall.snapshots(connection, name, start, end, points), [])

    def events(self, start: float, end: float, name: str | None = None) -> Sequence[Event]:
        """The timeline between two Unix times [s], oldest first, of one server or of all."""
        return self._read(lambda connection: recall.events(connection, start, end, name), [])

    def baseline(self, name: str, at: float) -> float | None:
        """Output tokens a second as usual at this hour, None while it is not known. Read once an hour."""
        hour = at // HOUR
        known = self._baselines.get(name)
        if known is None or known[0] != hour:
            known = self._read(lambda connection: (hour, recall.baseline(connection, name, at)), None)
            if known is None:
                return None
            self._baselines[name] = known
        return known[1]

    def _read(self, found: Callable[[Connection], Found], nothing: Found) -> Found:
        if self._engine is None or time.monotonic() < self._paused_until:
            return nothing
        try:
            self._open()
            with self._engine.connect() as connection:
                answer = found(connection)
        except _FAILURES as failure:
            self._cannot_read = f"the store cannot be read: {_reason(failure)}"
            self._is_damaged |= _is_damage(failure)
            self._paused_until = time.monotonic() + PAUSE * self._cycle
            return nothing
        self._cannot_read = ""
        return answer

    # Writing

    def start(self) -> None:
        """Begin to write, unless it has begun."""
        if self._engine is not None and self._thread is None:
            self._closing.clear()
            self._thread = threading.Thread(target=self._run, name="store", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what waits, if it can be written, and end."""
        if self._engine is None:
            return
        self._closing.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self.flush()
        if self._cannot_write:
            _log.warning("%s, and are lost", self._cannot_write)
        if self._is_ready:
            with suppress(*_FAILURES), writing(self._engine) as connection:
                self._recording.release(connection)
        self._engine.dispose()

    def flush(self) -> None:
        """Write now what was added, if it can be written."""
        if self._engine is None:
            return
        with self._stepping:
            self._pack()
            try:
                self._write()
            except _FAILURES as failure:
                self._recording = Recording(self._writer, LEASE * self._cycle)
                self._is_damaged |= _is_damage(failure)
                dropped = f", {self._dropped:,} were lost" if self._dropped else ""
                self._cannot_write = (
                    f"the store cannot be written: {_reason(failure)}; {len(self._rows):,} pages wait{dropped}"
                )
            else:
                self._cannot_write = ""

    def _run(self) -> None:
        while not self._closing.wait(self._cycle):
            try:
                self.flush()
            except Exception as failure:  # the thread must outlive what nobody thought of
                _log.exception("the store stumbled")
                self._cannot_write = f"the store cannot be written: {failure!r}"

    def _pack(self) -> None:
        """What was added, as rows that wait; the oldest are given up beyond the bound."""
        with self._queue:
            added, self._added = self._added, deque()
            self._events.extend(self._added_events)
            self._added_events.clear()
        for name, snapshot in added:
            at = self._wall() if snapshot.wall is None else snapshot.wall
            packed = pack(snapshot)
            before = self._latest.get(name)
            began = before and not packed.surely_continues(before[0]) and _has_restarted(before, (packed, at))
            self._latest[name] = packed, at
            self._rows.append(Row(name, at, packed.form, packed.content, packed.gauges, began))
        excess = max(0, len(self._rows) - self._bound)
        for _ in range(excess):
            self._rows.popleft()
        self._dropped += excess

    def _write(self) -> None:
        assert self._engine is not None
        self._open()
        now = self._wall()
        held: list[Row] = []
        try:
            while self._rows or self._events:
                rows, events = list(islice(self._rows, BATCH)), list(islice(self._events, BATCH))
                with writing(self._engine) as connection:
                    others = self._recording.write(connection, rows, now)
                    self._recording.write_events(connection, events)
                for waiting, written in ((self._rows, rows), (self._events, events)):
                    for _ in written:
                        waiting.popleft()
                held += others
        finally:
            # Of servers that another dashboard writes, as much is kept as is needed to go on when it falls silent.
            self._rows.extendleft(reversed([row for row in held if now - row.at <= LEASE * self._cycle]))
        if self._dropped:
            self._note(f"{self._dropped:,} pages were lost while the store could not be written.")
            self._dropped = 0
        if abs(now - self._expired_at) >= EXPIRY:
            for _ in range(DELETIONS):
                if not self._delete_expired(now):
                    self._expired_at = now
                    break

    def _delete_expired(self, now: float) -> bool:
        assert self._engine is not None
        with writing(self._engine) as connection:
            return delete_expired(connection, now)

    def _note(self, reason: str, action: str = "") -> None:
        """An entry of the timeline about the store itself."""
        _log.warning("%s", reason)
        self.add_event(
            Event(
                at=self._wall(),
                target="",
                engine=None,
                rule="store",
                change=Change.BEGAN,
                level=Level.WARNING,
                word="Store",
                reason=reason,
                action=action,
            )
        )

    # The database

    def _open(self) -> None:
        """Make sure that the database is there, is the one that was opened, and can be read."""
        assert self._engine is not None
        with self._opening:
            path = Path(str(self._engine.url.database)) if self._engine.dialect.name == "sqlite" else None
            if path is not None:
                self._begin_anew_if_lost(path)
            if not self._is_ready:
                self._make_tables()
                self._file_id = _file_id(path) if path is not None else 0
                self._is_ready = True

    def _make_tables(self) -> None:
        assert self._engine is not None
        try:
            with writing(self._engine) as connection:
                TABLES.create_all(connection)
        except (IntegrityError, ProgrammingError):  # another dashboard makes them at the same moment
            with writing(self._engine) as connection:
                TABLES.create_all(connection)

    def _begin_anew_if_lost(self, path: Path) -> None:
        """A file that was deleted is made again; one that is damaged is put aside first, for it may be mended."""
        assert self._engine is not None
        found = _file_id(path)
        if self._is_damaged and found and self._file_id in (0, found):
            aside = f"{path}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(self._wall()))}"
            self._engine.dispose()
            for suffix in _SIDE_FILES:
                with suppress(FileNotFoundError):
                    Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
            self._note(f"{path} was damaged: a new one was begun.", f"The old one is kept as {aside}.")
        elif self._is_ready and found != self._file_id:
            self._engine.dispose()
            if not found:
                for suffix in _SIDE_FILES:  # what is left of the deleted one must not get into the new one
                    Path(f"{path}{suffix}").unlink(missing_ok=True)
            self._note(f"{path} was deleted: what was recorded before is gone, and a new one was begun.")
        else:
            return
        self._recording = Recording(self._writer, LEASE * self._cycle)
        self._is_damaged = self._is_ready = False
        self._baselines.clear()


def _has_restarted(before: tuple[Packed, float], after: tuple[Packed, float]) -> bool:
    earlier, later = (packed.form.snapshot(packed.content, at) for packed, at in (before, after))
    return window(earlier, later, seconds=1.0).has_restarted


def _file_id(path: Path) -> int:
    """Which file has this name; 0 where none has."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _is_damage(failure: BaseException) -> bool:
    """Whether SQLite says that its file is none, or none any more."""
    cause = failure.orig if isinstance(failure, DBAPIError) else None
    return isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _reason(failure: BaseException) -> str:
    """What the database says, on one line."""
    said = str(failure.orig if isinstance(failure, DBAPIError) else failure)
    return " ".join(said.split()) or type(failure).__name__
