"""A Snapshot in few bytes: its numbers, compressed, and its form, which it shares with the others of its server."""

import json
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from itertools import compress
from math import nan
from operator import lt
from typing import Any, NamedTuple

from monitor import metrics
from monitor.histogram import Histogram
from monitor.metrics import CONFIG, METRICS
from monitor.reading import REJECTED
from monitor.snapshot import EngineSnapshot, Snapshot, Spread, Value
from monitor.versions import VersionRange

GAUGES = (metrics.KV_USAGE, metrics.RUNNING, metrics.WAITING)
"""What is kept of more than the last moment of a minute or an hour."""
WHOLE = -1
"""Stands for the server where an engine's number is asked."""

Shape = tuple[Any, ...]
"""Of a value: ("int",) and ("float",) take one number, ("parts", …) one a label, ("bounds", …) a sum and one a bound;
("is", type, value) takes none: it is configured, and seldom changes."""

_KIND = {metric.key: metric.kind for metric in METRICS}
_CONFIGURED = {metric.key for metric in CONFIG}
_TYPES = {"int": int, "float": float}


class Packed(NamedTuple):
    """A Snapshot without its time.

    form     what it shares
    numbers  what it does not  [unit of each metric]
    texts    what was rejected, and other words that change from page to page; JSON, mostly empty
    """

    form: "Form"
    numbers: "array[float]"
    texts: str

    @property
    def content(self) -> bytes:
        """Numbers and texts, compressed."""
        return zlib.compress(self.numbers.tobytes() + self.texts.encode())

    @property
    def gauges(self) -> bytes:
        """KV usage, running and waiting of each engine; NaN where not reported."""
        return array("d", [nan if slot is None else self.numbers[slot] for slot in self.form.gauges]).tobytes()

    def surely_continues(self, earlier: "Packed") -> bool:
        """Whether no counter fell and no process began since: quick, and False when in doubt."""
        if self.form is not earlier.form or self.texts != earlier.texts:
            return False
        start = self.form.start
        if start is not None and self.numbers[start] != earlier.numbers[start]:
            return False
        return not any(compress(map(lt, self.numbers, earlier.numbers), self.form.counts))


class Form:
    """What the Snapshots of a server have in common: everything but their numbers.

    key, text  its name by content, and the content as JSON
    places     what tells its engines apart
    size       how many numbers a Snapshot has
    counts     which of them never fall but at a restart
    start      where the process's start time is
    gauges     where KV usage, running and waiting of each engine are
    """

    def __init__(self, structure: tuple[Any, ...]) -> None:
        self.kind, self._versions, self._server, self._engines, self._missing = structure
        self.text = json.dumps(structure, separators=(",", ":"))
        self.key = int.from_bytes(sha256(self.text.encode()).digest()[:8], "big", signed=True)
        self.places = tuple(engine[:3] for engine in self._engines)
        self.counts, self.start, gauges = bytearray(1), None, []
        for key, shape in self._server:
            if key == metrics.START_TIME.key:
                self.start = len(self.counts)
            self._add(key, shape)
        for *_, shapes, _ in self._engines:
            places: dict[str, int] = {}
            for key, shape in shapes:
                places[key] = len(self.counts)
                self._add(key, shape)
            gauges += [places.get(gauge.key) for gauge in GAUGES]
        self.size, self.gauges = len(self.counts), tuple(gauges)
        self._labels = [dict(labels) for _, _, labels, *_ in self._engines]
        self._reasons = [dict(missing) for *_, missing in self._engines]

    def _add(self, key: str, shape: Shape) -> None:
        kind = shape[0]
        slots = 0 if kind == "is" else len(shape) if kind == "bounds" else len(shape) - 1 if kind == "parts" else 1
        self.counts += bytes([_KIND[key] in ("counter", "histogram")] * slots)

    def snapshot(self, content: bytes, at: float, spreads: bytes = b"") -> Snapshot:
        """The Snapshot that was packed, as read at this Unix time."""
        unpacked = zlib.decompress(content)
        numbers = array("d", unpacked[: 8 * self.size])
        texts = json.loads(unpacked[8 * self.size :] or "{}")
        rejected: dict[int, dict[str, str]] = {}
        for number, key, reason in texts.get("rejected", ()):
            rejected.setdefault(number, {})[key] = reason
        values = iter(numbers)
        bad_line_count = int(next(values))
        server = _values(self._server, values)
        engines = tuple(
            EngineSnapshot(
                engine=engine,
                model_name=model_name,
                labels=self._labels[number],
                values=_values(shapes, values),
                missing={**self._reasons[number], **rejected.get(number, {})},
                spread=spread,
            )
            for number, ((engine, model_name, _, shapes, _), spread) in enumerate(
                zip(self._engines, _spreads(spreads, len(self._engines)), strict=True)
            )
        )
        whole = engines[0].missing if self._missing is None else dict(self._missing)
        return Snapshot(
            kind=self.kind,
            versions=self._versions and VersionRange(*map(tuple, self._versions)),
            engines=engines,
            server=server,
            missing={**whole, **rejected.get(WHOLE, {})},
            notes=tuple(texts.get("notes", ())),
            at=at,
            wall=at,
            bad_line_count=bad_line_count,
            bad_lines=tuple(texts.get("bad_lines", ())),
        )


def pack(snapshot: Snapshot) -> Packed:
    """The Snapshot without its time, which is kept beside it."""
    numbers = array("d", [snapshot.bad_line_count])
    texts: dict[str, Any] = {}
    rejected: list[tuple[int, str, str]] = []

    def lasting(number: int, missing: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """The reasons that stay; one that names a number is new on each page."""
        for key, reason in missing.items():
            if REJECTED in reason:
                rejected.append((number, key, reason))
            else:
                yield key, reason

    server = _taken(snapshot.server, numbers)
    engines = tuple(
        (
            engine.engine,
            engine.model_name,
            tuple(engine.labels.items()),
            _taken(engine.values, numbers),
            tuple(lasting(number, engine.missing)),
        )
        for number, engine in enumerate(snapshot.engines)
    )
    is_of_one = len(snapshot.engines) == 1 and snapshot.missing == snapshot.engines[0].missing
    missing = None if is_of_one else tuple(lasting(WHOLE, snapshot.missing))
    for name, found in (("rejected", rejected), ("notes", snapshot.notes), ("bad_lines", snapshot.bad_lines)):
        if found:
            texts[name] = found
    form = _form((snapshot.kind, snapshot.versions, server, engines, missing))
    return Packed(form, numbers, json.dumps(texts) if texts else "")


def form_from(text: str) -> Form:
    """The form that was written as JSON."""
    return _form(_tuples(json.loads(text)))


@lru_cache(maxsize=1024)
def _form(structure: tuple[Any, ...]) -> Form:
    """One object for all Snapshots of a server."""
    return Form(structure)


def _tuples(found: Any) -> Any:
    return tuple(map(_tuples, found)) if isinstance(found, list) else found


def _taken(values: Mapping[str, Value], numbers: "array[float]") -> tuple[tuple[str, Shape], ...]:
    """The shape of each value; its numbers are put behind the others."""
    return tuple([(key, _shape(key, value, numbers)) for key, value in values.items()])


def _shape(key: str, value: Value, numbers: "array[float]") -> Shape:
    if isinstance(value, Histogram):
        numbers.append(value.total)
        numbers.extend(value.counts)
        return ("bounds", *value.bounds)
    if isinstance(value, Mapping):
        numbers.extend(value.values())
        return ("parts", *((label, type(number).__name__) for label, number in value.items()))
    if isinstance(value, str | bool) or key in _CONFIGURED:
        return "is", type(value).__name__, value
    numbers.append(value)
    return (type(value).__name__,)


def _values(shapes: Iterable[tuple[str, Shape]], numbers: Iterator[float]) -> dict[str, Value]:
    return {key: _value(shape, numbers) for key, shape in shapes}


def _value(shape: Shape, numbers: Iterator[float]) -> Value:
    kind, *rest = shape
    if kind == "is":
        value: Value = rest[1]
        return value
    if kind == "bounds":
        total = next(numbers)
        bounds = _shared(shape)
        return Histogram(bounds=bounds, counts=array("d", [next(numbers) for _ in bounds]), total=total)
    if kind == "parts":
        return {label: _TYPES[name](next(numbers)) for label, name in rest}
    number: float | int = _TYPES[kind](next(numbers))
    return number


@lru_cache(maxsize=1024)
def _shared(shape: Shape) -> tuple[float, ...]:
    """One tuple for all histograms with these bounds: thousands are shown."""
    return shape[1:]


def _spreads(content: bytes, engines: int) -> Iterable[dict[str, Spread]]:
    """Of each engine, by the gauge's key; nothing for a single moment."""
    if not content:
        return [{} for _ in range(engines)]
    triples = [Spread(*triple) for triple in zip(*[iter(array("d", content))] * 3, strict=True)]
    width = len(GAUGES)
    return [
        {
            gauge.key: spread
            for gauge, spread in zip(GAUGES, triples[width * number : width * (number + 1)], strict=True)
            if spread.mean == spread.mean
        }
        for number in range(engines)
    ]
