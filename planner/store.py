"""The one place that opens a database: SQLite in a file by default, PostgreSQL for a team."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

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
