"""A page -> Snapshot: which engine wrote it, what is accepted of what each says, and why the rest is missing."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from math import isfinite, isnan

from monitor import metrics
from monitor.exposition import Lines, Page, changes, parse
from monitor.histogram import shape
from monitor.layout import MAX_ENGINES, MAX_PIECES, Cell, Entry, Identity, Layout, layout
from monitor.metrics import METRICS, Metric
from monitor.snapshot import EngineSnapshot, Snapshot, Value
from monitor.versions import VersionRange, release, version_range

MAX_KNOWN_LINES = 20_000
"""A longer page is read anew each time, so that memory stays bounded  [lines]."""
SURE = 3
"""So many names of vLLM make a page vLLM's, whatever else is on it; fewer beside another's are strays  [names]."""
PRODUCT = {
    "sglang": "SGLang", "tgi": "TGI", "llamacpp": "llama.cpp", "trtllm": "TensorRT-LLM", "lmdeploy": "LMDeploy",
    "aphrodite": "Aphrodite", "lightllm": "LightLLM", "max": "Modular MAX", "tei": "Text Embeddings Inference",
    "nim": "NVIDIA NIM", "dynamo": "NVIDIA Dynamo", "lmcache": "LMCache", "aibrix": "AIBrix", "litellm": "LiteLLM",
    "gateway": "an inference gateway", "triton": "NVIDIA Triton",
}  # fmt: skip
REJECTED = "rejected: "
"""How the reason for a value that was reported, but cannot be true, begins."""
MOST = 1e18
"""No server has done more of anything; beyond it a number is a broken page  [unit of the metric]."""
_COUNTED = {
    *("requests", "tokens", "blocks", "preemptions", "bytes", "items", "drafts", "samples", "flag"),
    *("failures", "chunks", "pages", "transfers", "keys"),
}

Numbers = Sequence[float]
"""Of all samples of a page, in its order."""


def read(page: Page | str, *, version: str | None = None, at: float = 0.0, wall: float | None = None) -> Snapshot:
    """Read a page. `version` is the server's own answer, where it gave one: the range is then that release."""
    page = parse(page) if isinstance(page, str) else page
    _, _, snapshot = _read(page, version)
    return replace(snapshot, at=at, wall=wall)


class Reader:
    """Reads the pages of one server, one after the other, as `read` does, but in a fraction of the time.

    They differ in some numbers and seldom in more: what those do not touch is the same object in all Snapshots.
    """

    def __init__(self) -> None:
        self._lines: Lines | None = None
        self._version: str | None = None

    def read(self, text: str, *, version: str | None = None, at: float = 0.0, wall: float | None = None) -> Snapshot:
        """The next page. A version once said holds until another is."""
        lines = self._lines if version in (None, self._version) else None
        if lines is None or not self._has_followed(lines, text):
            self._begin(parse(text), version or self._version)
        return replace(self._latest, at=at, wall=wall)

    def _begin(self, page: Page, version: str | None) -> None:
        """Read a page as if it were the first, and keep what the next one may share."""
        laid, self._numbers, self._latest = _read(page, version)
        self._version = version
        self._lines = page.lines if page.lines and len(page.lines.texts) <= MAX_KNOWN_LINES else None
        owners = [*enumerate(entries for _, entries in laid.engines), (_SERVER, laid.server)]
        self._entries = [(owner, entry) for owner, entries in owners for entry in entries]
        self._touched: dict[int, list[int]] = {}
        for number, (_, entry) in enumerate(self._entries):
            for place in chain.from_iterable(places for cell in entry.cells for places in cell.places):
                self._touched.setdefault(place, []).append(number)

    def _has_followed(self, lines: Lines, text: str) -> bool:
        """Read a page by what differs from the last one; False when that is more than numbers."""
        latest = self._latest
        changed = changes(lines, text)
        if changed is None:
            return False
        for place, number in changed.items():
            self._numbers[place] = number
        new: dict[int, dict[str, Value]] = {}
        for number in {number for place in changed for number in self._touched.get(place, ())}:
            owner, entry = self._entries[number]
            value = _value(entry, self._numbers)
            known = latest.server if owner == _SERVER else latest.engines[owner].values
            if isinstance(value, _Reason) or entry.metric.key not in known:
                return False
            new.setdefault(owner, {})[entry.metric.key] = value
        engines = tuple(
            replace(engine, values={**engine.values, **new[owner]}) if owner in new else engine
            for owner, engine in enumerate(latest.engines)
        )
        self._latest = replace(latest, engines=engines, server={**latest.server, **new.get(_SERVER, {})})
        return True


_SERVER = -1
"""The owner of what no single engine says."""


def _read(page: Page, version: str | None) -> tuple[Layout, "array[float]", Snapshot]:
    names = {sample.name for sample in page.samples}
    kind = _kind(names)
    laid = layout(page.samples if kind == "vllm" else ())
    numbers = array("d", (sample.value for sample in page.samples))
    is_v1 = bool(_OF_V1 & laid.seen) or any("engine" in dict(labels) for labels, _ in laid.engines)
    is_routed = any("server" in dict(labels) for labels, _ in laid.engines)
    is_thinned = any(name.startswith("ray_") for name in names)
    is_complete = {(metrics.NUM_GPU_BLOCKS.key, 0), (metrics.E2E.key, 0)} <= laid.seen and not is_thinned
    found = version_range(laid.seen, is_v0=not is_v1, is_complete=is_complete)
    versions = VersionRange.exactly(version) if version else None if is_routed else found

    def absence(metric: Metric) -> str:
        if not laid.seen:
            return _silence(kind)
        if metric.key in laid.said:
            return "said of the whole server, not of each engine"
        if versions and (other_version := _not_in(versions, metric)):
            return other_version
        if metric.needs:
            return f"only with {metric.needs}"
        if not is_v1 and (metric.kind == "histogram" or metric.label or (metrics.RUNNING.key, 0) not in laid.seen):
            return "no request served yet: this engine (V0) reports it after the first"
        return "not counted yet: Ray leaves out what is 0" if is_thinned else "not reported by this server"

    engines = tuple(_engine(labels, entries, numbers, absence) for labels, entries in laid.engines)
    if kind != "unknown" and not engines:
        engines = (_engine((), (), numbers, absence),)
    snapshot = Snapshot(
        kind=kind,
        versions=versions,
        engines=_with_blocks_apart(engines),
        server=_accepted(laid.server, numbers)[0],
        missing=_merged(engines) if engines else _shared((metric.key, absence(metric)) for metric in _OF_ENGINE),
        notes=tuple(_notes(page, versions, laid)),
        bad_line_count=page.bad_count,
        bad_lines=page.bad_lines,
    )
    return laid, numbers, snapshot


_OF_V1 = {
    (metric.key, rank)
    for metric, rank in ((metrics.KV_USAGE, 0), (metrics.PREFIX_QUERIES, 0), (metrics.PREFIX_QUERIES, 1))
}
"""Names that V0 never wrote; before 0.8 V1 had no `engine` label either."""
_OF_ENGINE = tuple(metric for metric in METRICS if metric.scope == "engine")


def _kind(names: set[str]) -> str:
    """The engine that wrote these names; where there is none, what stands around engines.

    A vLLM server whose engine is silenced is known by its HTTP metrics, when nothing else is on the page.
    """
    found = Counter(filter(None, map(metrics.engine_of, names)))
    engines = {kind: count for kind, count in found.items() if kind in metrics.ENGINES} or found
    if found["vllm"] >= SURE:
        return "vllm"
    if engines:
        return max(engines, key=lambda kind: (engines[kind], kind == "vllm"))
    only_front_end = all(name.startswith(("python_", "process_", "http_")) for name in names)
    return "vllm" if metrics.FRONT_END in names and only_front_end else "unknown"


def _silence(kind: str) -> str:
    if kind == "vllm":
        return "the engine reports nothing: remove --disable-log-stats from the server's flags"
    if kind == "unknown":
        return "no metrics of an LLM engine on this page"
    return f"a page of {PRODUCT[kind]}: only vLLM's metrics are read"


@lru_cache(maxsize=4096)
def _not_in(versions: VersionRange, metric: Metric) -> str | None:
    """The reason, when these releases do not have it. Cached: thousands of Snapshots keep these sentences."""
    if versions.high < metric.first:
        return f"not in this version: vLLM reports it from {release(metric.first)}"
    if versions.low > metric.last:
        return f"not in this version: vLLM reported it until {release(metric.last)}"
    return None


# What is accepted


class _Reason(str):
    """Why a value was not accepted."""


def _engine(
    identity: Identity, entries: Sequence[Entry], numbers: Numbers, absence: Callable[[Metric], str]
) -> EngineSnapshot:
    labels = dict(identity)
    values, rejected = _accepted(entries, numbers)
    missing = _shared(
        (metric.key, rejected.get(metric.key) or absence(metric)) for metric in _OF_ENGINE if metric.key not in values
    )
    engine, served = labels.pop("engine", None), labels.pop("model_name", None)
    return EngineSnapshot(
        engine=engine, model_name=served or labels.get("model"), labels=labels, values=values, missing=missing
    )


def _shared(reasons: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    return _mapping(tuple(reasons))


@lru_cache(maxsize=256)
def _mapping(reasons: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """One for all Snapshots that lack the same: thousands are kept."""
    return dict(reasons)


def _accepted(entries: Iterable[Entry], numbers: Numbers) -> tuple[dict[str, Value], dict[str, _Reason]]:
    """The values that can be true, by key, and the reasons for the others."""
    values: dict[str, Value] = {}
    rejected: dict[str, _Reason] = {}
    for entry in entries:
        value = _value(entry, numbers)
        if isinstance(value, _Reason):
            rejected[entry.metric.key] = value
        else:
            values[entry.metric.key] = value
    return values, rejected


def _value(entry: Entry, numbers: Numbers) -> Value | _Reason:
    """From the newest name that has one that can be true; else why the newest has not."""
    metric, cells = entry
    first = _cell_value(metric, cells[0], numbers)
    if not isinstance(first, _Reason):
        return first
    others = (_cell_value(metric, cell, numbers) for cell in cells[1:])
    return next((value for value in others if not isinstance(value, _Reason)), first)


def _cell_value(metric: Metric, cell: Cell, numbers: Numbers) -> Value | _Reason:
    if cell.text is not None:
        return _configured(metric, cell.text)
    merged = _merge(metric)
    found = [numbers[places[0]] if len(places) == 1 else merged([numbers[p] for p in places]) for places in cell.places]
    if metric.kind == "histogram":
        return _histogram(cell.pieces, found)
    if not metric.label:
        return _number(metric, found[0])
    parts = {piece: _number(metric, value) for piece, value in zip(cell.pieces, found, strict=True)}
    good = {piece: value for piece, value in parts.items() if not isinstance(value, _Reason)}
    return good or next(reason for reason in parts.values() if isinstance(reason, _Reason))


def _merge(metric: Metric) -> Callable[[Sequence[float]], float]:
    """Of several series of an engine (one a process, labelled pid) the largest: the others are stale or zero.

    The server's own counters are split by handler and method, which do not interest here: summed.
    """
    if metric.scope == "engine":
        return _largest
    return sum if metric.label else max


def _largest(found: Sequence[float]) -> float:
    """NaN is none."""
    return max((number for number in found if not isnan(number)), default=found[0])


def _number(metric: Metric, value: float) -> float | int | _Reason:
    """
    >>> _number(metrics.KV_USAGE, 37.5), _number(metrics.RUNNING, 3.0)
    ('rejected: 37.5 is outside 0..1', 3)
    """
    if isnan(value):
        return _Reason(f"{REJECTED}the server says NaN")
    if value == -1 and metric in (metrics.PREFIX_HIT_RATE, metrics.CPU_PREFIX_HIT_RATE):
        return _Reason("prefix caching is off: the server says -1")
    if metric.unit == "ratio" and not 0 <= value <= 1:
        return _Reason(f"{REJECTED}{value:g} is outside 0..1")
    if not 0 <= value <= MOST:
        return _Reason(f"{REJECTED}{value:g} is no count")
    return int(value) if metric.unit in _COUNTED and value.is_integer() else value


def _configured(metric: Metric, text: str) -> Value | _Reason:
    if text in ("", "None"):
        return _Reason("not set on this server")
    if metric.unit == "text":
        return text
    if metric.unit == "flag":
        return text == "True"
    try:
        return _number(metric, float(text))
    except ValueError:
        return _Reason(f"{REJECTED}{text!r} is no number")


def _histogram(pieces: tuple[str, ...], found: Sequence[float]) -> Value | _Reason:
    if not all(map(isfinite, found)):
        return _Reason(f"{REJECTED}the server says NaN or infinity")
    try:
        made = shape(pieces)
    except ValueError:
        return _Reason(f"{REJECTED}a bucket's bound is no number")
    return _Reason(f"{REJECTED}its count is not on the page") if made is None else made.histogram(found)


# Over all engines


def _with_blocks_apart(engines: tuple[EngineSnapshot, ...]) -> tuple[EngineSnapshot, ...]:
    """Each with its own blocks: ranks of a data-parallel server all report the sum over them as `num_gpu_blocks`.

    `kv_cache_size_tokens` is each rank's own, and tells the two apart where blocks x block size equals it.
    """
    ranks = Counter((engine.model_name, tuple(engine.labels.items()), engine.num_gpu_blocks) for engine in engines)

    def apart(engine: EngineSnapshot) -> EngineSnapshot:
        blocks, tokens = engine.num_gpu_blocks, engine.number(metrics.KV_CACHE_TOKENS)
        sharing = ranks[engine.model_name, tuple(engine.labels.items()), blocks]
        is_own = blocks is None or (engine.block_size is not None and tokens == blocks * engine.block_size)
        if sharing == 1 or is_own or blocks is None:
            return engine
        return replace(engine, values={**engine.values, metrics.NUM_GPU_BLOCKS.key: blocks // sharing})

    return tuple(map(apart, engines))


def _merged(engines: tuple[EngineSnapshot, ...]) -> Mapping[str, str]:
    """Reasons over all engines; what only some lack names them."""
    if len(engines) == 1:
        return engines[0].missing
    reasons: dict[str, str] = {}
    for metric in _OF_ENGINE:
        lacking = [engine for engine in engines if metric.key in engine.missing]
        if len(lacking) == len(engines):
            reasons[metric.key] = lacking[0].missing[metric.key]
        elif lacking:
            reasons[metric.key] = "; ".join(f"engine {e.engine}: {e.missing[metric.key]}" for e in lacking)
    return reasons


def _notes(page: Page, versions: VersionRange | None, laid: Layout) -> Iterable[str]:
    helped = (text for name, text in page.help.items() for slot in metrics.slots(name) if slot.metric in _IN_BLOCKS)
    if any("blocks" in text for text in helped) or (versions and versions.high < _TOKENS_SINCE):
        yield "prefix queries and hits are in blocks, not tokens (before 0.9.0)"
    if page.bad_count:
        yield f"unreadable lines: {page.bad_count:,}, the first: {page.bad_lines[0]}"
    if laid.is_cut:
        yield f"more than {MAX_ENGINES} engines on the page: the first are read"
    if laid.is_trimmed:
        yield f"more than {MAX_PIECES} labels of one metric on the page: the first are read"


_IN_BLOCKS = (metrics.PREFIX_QUERIES, metrics.PREFIX_HITS)
_TOKENS_SINCE = (0, 9, 0)
