"""The series of a page -> Layout: what each counts, and for which engine.

No number matters here: pages of one server differ in numbers, and seldom in this.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from monitor import metrics
from monitor.exposition import Sample
from monitor.metrics import METRICS, Metric

MAX_ENGINES = 256
"""More than any one server runs: a page with more is cut here, so that memory stays bounded  [engines]."""
MAX_PIECES = 256
"""The same of the values of a label, or the buckets of a histogram: no server of its own has so many  [pieces]."""

Identity = tuple[tuple[str, str], ...]


class Cell(NamedTuple):
    """One metric under one of its names: the samples that make its value.

    pieces  what each is: a label's value, a bucket's bound, sum or count
    places  of the samples of each piece on the page; several where there is one a process  [position]
    text    of what is configured
    """

    pieces: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]
    text: str | None = None


class Entry(NamedTuple):
    """A metric, under each of its names that are on the page, newest first."""

    metric: Metric
    cells: tuple[Cell, ...]


class Layout(NamedTuple):
    """Whose the samples of a page are.

    engines      the labels that tell each apart, and what it reports
    server       what is said of all of them
    seen         each metric's key with the rank of its name, over all engines
    said         the same of the server alone
    is_cut       whether engines were left out
    is_trimmed   whether pieces of a metric were left out
    """

    engines: tuple[tuple[Identity, tuple[Entry, ...]], ...]
    server: tuple[Entry, ...]
    seen: frozenset[tuple[str, int]]
    said: frozenset[str]
    is_cut: bool
    is_trimmed: bool


Name = tuple[str, int]
Pieces = dict[str, list[int]]
Readings = dict[Name, Pieces | str]
"""What one identity reports: by metric key and rank of the name where its pieces stand, or a label's text."""


def layout(samples: Iterable[Sample]) -> Layout:
    """By the labels that tell engines apart."""
    found: dict[Identity, Readings] = {}
    server: Readings = {}
    is_trimmed = False
    for place, (name, labels, _) in enumerate(samples):
        slots = metrics.slots(name)
        is_config = not slots and metrics.is_cache_config(name)
        if not slots and not is_config:
            continue
        identity = tuple([(label, labels[label]) for label in metrics.IDENTITY if labels.get(label)])
        if identity not in found and len(found) >= MAX_ENGINES:
            continue
        if is_config:
            readings = found.setdefault(identity, {})
            readings.update({(m.key, 0): labels[m.names[0]] for m in metrics.CONFIG if m.names[0] in labels})
        for metric, rank, part in slots:
            piece = labels.get("le", "") if part == "bucket" else part or labels.get(metric.label, "")
            readings = server if metric.scope == "server" else found.setdefault(identity, {})
            pieces = readings.setdefault((metric.key, rank), {})
            assert isinstance(pieces, dict)
            if len(pieces) < MAX_PIECES or piece in pieces:
                pieces.setdefault(piece, []).append(place)
            else:
                is_trimmed = True
    engines = tuple((identity, _entries(readings)) for identity, readings in _assigned(found, server))
    return Layout(
        engines=engines,
        server=_entries({name: raw for name, raw in server.items() if not _is_of_several(name[0], raw)}),
        seen=frozenset(name for readings in found.values() for name in readings),
        said=frozenset(key for key, _ in server),
        is_cut=len(found) >= MAX_ENGINES,
        is_trimmed=is_trimmed,
    )


def _is_of_several(key: str, raw: Pieces | str) -> bool:
    """Whether several servers, federated on one page, each say this of themselves: it is then of none."""
    return key in _OF_PROCESS and not isinstance(raw, str) and any(len(places) > 1 for places in raw.values())


_OF_PROCESS = {metrics.START_TIME.key, metrics.RESIDENT_MEMORY.key}


def _entries(readings: Readings) -> tuple[Entry, ...]:
    names: dict[str, list[int]] = {}
    for key, rank in sorted(readings):
        names.setdefault(key, []).append(rank)
    return tuple(
        Entry(metric, tuple(_cell(readings[metric.key, rank]) for rank in names[metric.key]))
        for metric in METRICS
        if metric.key in names
    )


def _cell(raw: Pieces | str) -> Cell:
    if isinstance(raw, str):
        return Cell((), (), raw)
    return Cell(tuple(raw), tuple(map(tuple, raw.values())))


def _assigned(found: Mapping[Identity, Readings], server: Readings) -> list[tuple[Identity, Readings]]:
    """Each engine with its readings. Series with fewer labels belong to the one engine they fit.

    The configuration has no `model_name` and is every engine's that it fits. Anything else that fits several engines is
    the server's: giving it to each would count it twice.
    """
    sets = {identity: frozenset(identity) for identity in found}
    engines = {
        identity: dict(found[identity])
        for identity, labels in sets.items()
        if not any(labels < others for others in sets.values())
    }
    for identity in (few for few in found if few not in engines):
        owners = [engine for engine in engines if sets[identity] <= sets[engine]]
        for name, raw in found[identity].items():
            if len(owners) == 1 or name[0] in _CONFIG_KEYS:
                for owner in owners:
                    engines[owner].setdefault(name, raw)
            else:
                server.setdefault(name, raw)
    return sorted(engines.items(), key=lambda item: _order(dict(item[0])))


_CONFIG_KEYS = {metric.key for metric in metrics.CONFIG}


def _order(labels: Mapping[str, str]) -> tuple[str, int, str, str]:
    engine = labels.get("engine", "")
    return (
        labels.get("model_name", ""),
        int(engine) if engine.isdecimal() and len(engine) < 10 else -1,
        engine,
        str(labels),
    )
