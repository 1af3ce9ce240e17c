"""The tables of the store: servers, their pages at three resolutions, the forms that pages share, and events."""

import zlib
from collections.abc import Iterable
from functools import lru_cache

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    select,
)

from monitor.packing import Form, form_from

MINUTE, HOUR, DAY = 60, 3600, 86400
KEPT = {0: 6 * HOUR, MINUTE: 14 * DAY, HOUR: 366 * DAY}
"""For how long pages are kept, by what each stands for: itself, its minute, its hour  [s]."""

TABLES = MetaData()
_KEY = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up by itself in this type only
SERVERS = Table(
    "servers",
    TABLES,
    Column("id", _KEY, primary_key=True),
    Column("name", Text, unique=True, nullable=False),
    Column("writer", Text, nullable=False, default=""),  # of several dashboards, the one that records it
    Column("until", Double, nullable=False, default=0.0),  # and how long the others leave it to that one
)
FORMS = Table(
    "forms",
    TABLES,
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
    Column("used", Double, nullable=False),
)
PAGES = Table(
    "pages",
    TABLES,
    Column("id", _KEY, primary_key=True),
    Column("server", BigInteger, nullable=False),
    Column("resolution", Integer, nullable=False),  # 0 is each page
    Column("at", Double, nullable=False),
    Column("began", Boolean, nullable=False),  # the first page after a restart
    Column("form", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("gauges", LargeBinary, nullable=False),  # of a page as they were, of a minute low, mean and high of each
    Index("pages_of_server", "server", "resolution", "at", "began"),
    Index("pages_by_age", "resolution", "at"),
)
EVENTS = Table(
    "events",
    TABLES,
    Column("id", _KEY, primary_key=True),
    Column("writer", Text, nullable=False),
    Column("at", Double, nullable=False, index=True),
    *(Column(name, Text, nullable=name == "engine") for name in ("target", "engine", "rule", "change", "level")),
    *(Column(name, Text, nullable=False) for name in ("word", "reason", "action")),
)


def forms(connection: Connection, keys: Iterable[int]) -> dict[int, Form]:
    """The forms with these keys; one that is lost is left out, and so are the pages that have it."""
    rows = connection.execute(select(FORMS.c.key, FORMS.c.content).where(FORMS.c.key.in_(set(keys))))
    return {key: _form(content) for key, content in rows}


@lru_cache(maxsize=1024)
def _form(content: bytes) -> Form:
    return form_from(zlib.decompress(content).decode())
