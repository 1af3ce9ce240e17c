"""Where things are kept: SQLite in a file by default, PostgreSQL for a team; and the documents that people named."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    JSON,
    URL,
    Column,
    Connection,
    Double,
    Engine,
    Integer,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    insert,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from planner.errors import InputError

ACCEPTED = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
BUSY = 2.0
"""How long to wait for another process that writes the SQLite file  [s]."""
POSTGRESQL = {
    "connect_timeout": "3",  # s
    "tcp_user_timeout": "10000",  # ms; a server that vanished
    "options": "-c statement_timeout=10s -c lock_timeout=5s",
}
"""What libpq is told where the URL does not say it: nobody waits for a database for long."""


def database(url: str) -> Engine:
    """The database behind an SQLAlchemy URL. Nothing is opened before it is used. Raises InputError.

    >>> database("monitor.db")
    Traceback (most recent call last):
    planner.errors.InputError: store: found 'monitor.db', accepted: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InputError("store", _without_password(url), ACCEPTED) from None
    match parsed.get_backend_name():
        case "sqlite" if parsed.database not in (None, "", ":memory:") and not parsed.host:
            return _sqlite(parsed)
        case "postgresql" | "postgres":
            missing = {key: value for key, value in POSTGRESQL.items() if key not in parsed.query}
            return create_engine(
                parsed.set(drivername="postgresql+psycopg"), connect_args=missing, pool_pre_ping=True, pool_timeout=BUSY
            )
        case _:
            raise InputError("store", _without_password(url), ACCEPTED)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that will write: committed at the end, undone by an exception.

    SQLite locks the file at once, so that it cannot fail halfway because another process wrote in between.
    """
    with engine.execution_options(writes=True).begin() as connection:
        yield connection


def _sqlite(url: URL) -> Engine:
    """Readers never wait for the writer (WAL); a crash of the process loses nothing that was committed."""
    engine = create_engine(url.set(drivername="sqlite"), connect_args={"timeout": BUSY}, pool_timeout=BUSY)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver begins no transaction by itself: `begin` does
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", f"journal_size_limit = {2**26}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        is_write = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")

    return engine


def _without_password(url: str) -> str:
    return re.sub(r"(//[^:/@]*):.*@", r"\1:***@", url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One document that somebody gave a name: a plan, a calibration, an experiment.

    id    what the store calls it  [number]
    kind  plan, calibration or experiment
    name  what people call it; two may have the same
    note  why it was kept
    at    when, Unix time  [s]
    body  its JSON
    """

    id: int
    kind: str
    name: str
    note: str
    at: float
    body: Mapping[str, Any]


class StoreError(RuntimeError):
    """The database cannot be read or written now, in one line."""


class Shelf:
    """Documents kept by name. What is deleted can be taken back for a month.

    Methods raise StoreError where the database fails, and InputError for an empty name or an unknown id.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._engine, self._clock = database(url), clock
        self._is_made = False

    def put(self, kind: str, name: str, body: Mapping[str, Any], note: str = "") -> Saved:
        """Keep a document under a name, beside those that are there."""
        if not name.strip():
            raise InputError("name", name, "a name that is not empty")
        now = self._clock()
        row = {"kind": kind, "name": name.strip(), "note": note, "at": now, "body": dict(body), "deleted_at": None}
        with self._connection(writes=True) as connection:
            connection.execute(delete(_DOCUMENTS).where(_DOCUMENTS.c.deleted_at < now - UNDO))
            made = connection.execute(insert(_DOCUMENTS).values(row).returning(_DOCUMENTS.c.id)).scalar_one()
        return Saved(id=made, kind=kind, name=name.strip(), note=note, at=now, body=dict(body))

    def all(self, kind: str, *, deleted: bool = False) -> list[Saved]:
        """Those of a kind, the newest first; or those that can be taken back, the last deleted first."""
        gone = _DOCUMENTS.c.deleted_at.is_not(None) if deleted else _DOCUMENTS.c.deleted_at.is_(None)
        order = _DOCUMENTS.c.deleted_at if deleted else _DOCUMENTS.c.at
        asked = select(_DOCUMENTS).where(_DOCUMENTS.c.kind == kind, gone).order_by(order.desc(), _DOCUMENTS.c.id.desc())
        with self._connection() as connection:
            return [_saved(row) for row in connection.execute(asked).mappings()]

    def one(self, id: int) -> Saved:
        """The document of this id, deleted or not."""
        with self._connection() as connection:
            row = connection.execute(select(_DOCUMENTS).where(_DOCUMENTS.c.id == id)).mappings().one_or_none()
        if row is None:
            raise InputError("id", id, "the id of a saved document")
        return _saved(row)

    def duplicate(self, id: int, name: str) -> Saved:
        """The same again under another name."""
        found = self.one(id)
        return self.put(found.kind, name, found.body, found.note)

    def describe(self, id: int, name: str, note: str) -> None:
        """Another name and note for what is kept; the document itself never changes."""
        if not name.strip():
            raise InputError("name", name, "a name that is not empty")
        self._change(id, name=name.strip(), note=note)

    def delete(self, id: int) -> None:
        """Off the list; `restore` takes it back."""
        self._change(id, deleted_at=self._clock())

    def restore(self, id: int) -> None:
        """Back on the list."""
        self._change(id, deleted_at=None)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def _change(self, id: int, **values: Any) -> None:
        with self._connection(writes=True) as connection:
            changed = connection.execute(update(_DOCUMENTS).where(_DOCUMENTS.c.id == id).values(values))
            if not changed.rowcount:
                raise InputError("id", id, "the id of a saved document")

    @contextmanager
    def _connection(self, writes: bool = False) -> Iterator[Connection]:
        try:
            if not self._is_made:
                with writing(self._engine) as connection:
                    _TABLES.create_all(connection)
                self._is_made = True
            with writing(self._engine) if writes else self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the store cannot be used: {reason(error)}") from error


UNDO = 30 * 86_400.0
"""How long what was deleted can be taken back  [s]."""
_TABLES = MetaData()
_DOCUMENTS = Table(
    "documents",
    _TABLES,
    Column("id", Integer, primary_key=True),
    Column("kind", String(32), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("body", JSON, nullable=False),
    Column("deleted_at", Double, index=True),
)


def reason(error: SQLAlchemyError) -> str:
    """What the database said, in one line."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return " ".join(said.split())


def _saved(row: RowMapping) -> Saved:
    return Saved(**{key: row[key] for key in ("id", "kind", "name", "note", "at", "body")})
