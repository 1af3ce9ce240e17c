"""What servers said, in the tables of a database: each page for hours, the last of each minute and hour for longer.

Counters and histograms only grow, so rates between the last pages of two minutes or hours are exact. Beside them stands
what gauges were in between, and both pages around a restart, so that it is seen as one.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, Table, delete, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from monitor.finding import Event
from monitor.packing import Form
from monitor.tables import DAY, EVENTS, FORMS, HOUR, KEPT, MINUTE, PAGES, SERVERS, forms
from monitor.window import window

RESTARTS = 4
"""Restarts in one minute or hour whose pages are kept; a server that answers for many has one at each scrape."""
DELETED = 500
"""Rows deleted at once: others want to write too  [rows]."""


class Row(NamedTuple):
    """A page to write.

    server   its name
    at       Unix time  [s]
    form     what it shares with others
    content  what it does not
    gauges   of each engine
    began    whether it is the first after a restart; None where nothing came before in this process
    """

    server: str
    at: float
    form: Form
    content: bytes
    gauges: bytes
    began: bool | None


class Recording:
    """One dashboard's pen. What it remembers is what it has written: after a failed transaction, take a new one.

    Several dashboards may record into one database. Each server is written by one of them, until that falls silent for
    `lease` seconds: two clocks would put its pages in the wrong order.
    """

    def __init__(self, writer: str, lease: float) -> None:
        self._writer, self._lease = writer, lease
        self._ids: dict[str, int] = {}
        self._until: dict[str, float] = {}
        self._others: set[str] = set()
        self._latest: dict[tuple[int, int], float] = {}
        self._forms: dict[int, float] = {}

    def write(self, connection: Connection, rows: Sequence[Row], now: float) -> list[Row]:
        """Writes the rows of the servers that are ours, and returns the others."""
        taken = self._claim(connection, sorted({row.server for row in rows}), now)
        pages: dict[int, list[dict[str, Any]]] = {}
        forms = {row.form.key: row.form for row in rows if row.server in self._until}
        for row in rows:
            if row.server not in self._until:
                continue
            server = self._ids[row.server]
            latest = taken.get(row.server)
            if latest is not None and row.server in self._others and row.at <= latest.at:
                continue  # the one that wrote before us has it
            began = row.began
            if began is None:
                began = latest is not None and server not in pages and _has_restarted(connection, latest, row)
            pages.setdefault(server, []).append(
                {"server": server, "resolution": 0, "at": row.at, "began": began, "form": row.form.key}
                | {"content": row.content, "gauges": row.gauges}
            )
        self._others.difference_update(self._until)
        self._keep_forms(connection, forms, now)
        self._insert(connection, 0, pages)
        return [row for row in rows if row.server not in self._until]

    def release(self, connection: Connection) -> None:
        """Leave our servers to others at once."""
        connection.execute(update(SERVERS).where(SERVERS.c.writer == self._writer).values(until=0.0))

    def write_events(self, connection: Connection, events: Sequence[Event]) -> None:
        """Writes what no other dashboard has written: each judges the same servers."""
        for event in events:
            same = select(EVENTS.c.id).where(
                EVENTS.c.at.between(event.at - self._lease, event.at + self._lease),
                EVENTS.c.writer != self._writer,
                EVENTS.c.target == event.target,
                EVENTS.c.engine.is_not_distinct_from(event.engine),
                EVENTS.c.rule == event.rule,
                EVENTS.c.change == event.change.value,
            )
            if connection.execute(same.limit(1)).first() is None:
                values = {name: getattr(event, name) for name in Event.__slots__}
                values |= {"writer": self._writer, "change": event.change.value, "level": event.level.value}
                connection.execute(insert(EVENTS), {name: _storable(value) for name, value in values.items()})

    def _claim(self, connection: Connection, names: list[str], now: float) -> Mapping[str, Any]:
        """Makes those servers ours that nobody else writes; returns the latest page of those that were not before.

        A claim that lasts longer than any can was made by a clock that has been set back since.
        """
        asked = [name for name in names if not 0.5 * self._lease <= self._until.get(name, 0.0) - now <= self._lease]
        if not asked:
            return {}
        if unknown := [name for name in asked if name not in self._ids]:
            values = [{"name": name, "writer": "", "until": 0.0} for name in unknown]
            connection.execute(_insert(connection, SERVERS).on_conflict_do_nothing(), values)
        are_asked = SERVERS.c.name.in_(asked)
        is_free = or_(SERVERS.c.writer == self._writer, ~SERVERS.c.until.between(now, now + 2 * self._lease))
        connection.execute(
            update(SERVERS).where(are_asked, is_free).values(writer=self._writer, until=now + self._lease)
        )
        taken = {}
        for found in connection.execute(select(SERVERS).where(are_asked)):
            self._ids[found.name] = found.id
            if found.writer != self._writer:
                self._until.pop(found.name, None)
                self._others.add(found.name)
                continue
            if found.name not in self._until and (latest := self._latest_page(connection, found.id)) is not None:
                taken[found.name] = latest
            self._until[found.name] = found.until
        return taken

    def _latest_page(self, connection: Connection, server: int) -> Any:
        """The latest page of a server; its minute and hour, and those of the latest minute, are open from here on."""
        pages = {}
        for resolution in (MINUTE, 0):
            here = (PAGES.c.server == server, PAGES.c.resolution == resolution)
            page = connection.execute(select(PAGES).where(*here).order_by(PAGES.c.at.desc()).limit(1)).first()
            pages[resolution] = page
            self._latest.pop((server, resolution), None)
            if page is not None:
                self._latest[server, resolution] = page.at
        return pages[0]

    def _keep_forms(self, connection: Connection, forms: Mapping[int, Form], now: float) -> None:
        """Writes those that are new, and each hour that the others are in use."""
        kept = [key for key in sorted(forms) if not 0 <= now - self._forms.get(key, -inf) < HOUR]
        if kept:
            values = [{"key": key, "content": zlib.compress(forms[key].text.encode()), "used": now} for key in kept]
            statement = _insert(connection, FORMS)
            used = {"used": statement.excluded.used}
            connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_=used), values)
            self._forms |= dict.fromkeys(kept, now)

    def _insert(self, connection: Connection, resolution: int, pages: Mapping[int, list[dict[str, Any]]]) -> None:
        """Writes pages of one resolution, and then those of the next for each minute or hour that they complete."""
        if not pages:
            return
        connection.execute(insert(PAGES), [page for of_server in pages.values() for page in of_server])
        coarser = next((one for one in KEPT if one > resolution), None)
        if coarser is None:
            return
        complete: dict[int, list[dict[str, Any]]] = {}
        for server, of_server in pages.items():
            latest = self._latest.get((server, resolution))
            times = [*([] if latest is None else [latest]), *(page["at"] for page in of_server)]
            self._latest[server, resolution] = times[-1]
            for before, after in pairwise(time // coarser for time in times):
                if after != before:
                    made = _folded(connection, server, resolution, coarser, before * coarser)
                    complete.setdefault(server, []).extend(made)
        self._insert(connection, coarser, complete)


def delete_expired(connection: Connection, now: float) -> bool:
    """Deletes some of what is older than it is kept; whether there may be more."""
    old = [
        select(PAGES.c.id).where(PAGES.c.resolution == resolution, PAGES.c.at < now - kept)
        for resolution, kept in KEPT.items()
    ]
    counts = [connection.execute(delete(PAGES).where(PAGES.c.id.in_(each.limit(DELETED)))).rowcount for each in old]
    connection.execute(delete(EVENTS).where(EVENTS.c.at < now - KEPT[HOUR]))
    # A page is written within an hour of its form's last mark.
    connection.execute(delete(FORMS).where(FORMS.c.used < now - KEPT[HOUR] - DAY))
    return max(counts) == DELETED


def _insert(connection: Connection, table: Table) -> Any:
    """An insert that may meet a row that is there."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def _storable(value: Any) -> Any:
    """PostgreSQL takes no NUL in a text, and no database takes half a character."""
    return value.encode(errors="replace").decode().replace("\0", "") if isinstance(value, str) else value


def _has_restarted(connection: Connection, latest: Any, row: Row) -> bool:
    """Whether the server did while nobody recorded."""
    form = forms(connection, [latest.form]).get(latest.form)
    if form is None:
        return False
    before, after = form.snapshot(latest.content, latest.at), row.form.snapshot(row.content, row.at)
    return window(before, after, seconds=1.0).has_restarted


def _folded(
    connection: Connection, server: int, resolution: int, coarser: int, start: float
) -> Iterator[dict[str, Any]]:
    """What is kept of a minute or an hour: its last page with the spread of its gauges, and those around restarts."""
    pages = connection.execute(
        select(PAGES)
        .where(PAGES.c.server == server, PAGES.c.resolution == resolution)
        .where(PAGES.c.at >= start, PAGES.c.at < start + coarser)
        .order_by(PAGES.c.id)
    ).all()
    if not pages:
        return
    began = [number for number, page in enumerate(pages) if page.began][-RESTARTS:]
    last = len(pages) - 1
    chosen = {last, *began, *(number - 1 for number in began if number)}
    places = {key: form.places for key, form in forms(connection, {page.form for page in pages}).items()}
    for number in sorted(chosen):
        page = pages[number]
        same = [each.gauges for each in pages if places.get(each.form) == places.get(page.form)]
        kept = {name: value for name, value in page._mapping.items() if name != "id"}
        yield kept | {"resolution": coarser, "gauges": _spread(same, is_single=not resolution)}


def _spread(gauges: Sequence[bytes], *, is_single: bool) -> bytes:
    """Low, mean and high of each gauge; of pages each is a number, of minutes already three. NaN is not reported."""
    if not gauges[0]:
        return b""
    numbers = np.frombuffer(b"".join(gauges)).reshape(len(gauges), -1)
    triples = np.repeat(numbers[:, :, None], 3, axis=2) if is_single else numbers.reshape(len(gauges), -1, 3)
    low, mean, high = np.moveaxis(triples, 2, 0)
    known = np.sum(~np.isnan(mean), axis=0)
    means = np.divide(np.nansum(mean, axis=0), known, out=np.full(known.shape, np.nan), where=known > 0)
    return np.stack([np.fmin.reduce(low), means, np.fmax.reduce(high)], axis=1).tobytes()
