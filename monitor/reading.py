"""A page -> Snapshot: which engine wrote it, whose each sample is, what is accepted and why the rest is missing."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import isfinite, isinf, isnan

from monitor import metrics
from monitor.exposition import Page, Sample, parse
from monitor.histogram import histogram
from monitor.metrics import METRICS, Metric
from monitor.snapshot import EngineSnapshot, Snapshot, Value
from monitor.versions import VersionRange, release, version_range

MAX_ENGINES = 256
"""More than any one server runs: a page with more is cut here, so that memory stays bounded."""
PRODUCT = {"sglang": "SGLang", "tgi": "TGI", "llamacpp": "llama.cpp", "trtllm": "TensorRT-LLM"}
REJECTED = "rejected: "
"""How the reason for a value that was reported, but cannot be true, begins."""
_COUNTED = {"requests", "tokens", "blocks", "preemptions", "bytes", "items", "drafts", "samples", "flag"}

Identity = tuple[tuple[str, str], ...]
Raw = float | str | dict[str, float]
Readings = dict[tuple[str, int], Raw]
"""What one identity reports: by metric key and rank of the name a number, a label's text, or a number for each part."""


def read(page: Page | str, *, version: str | None = None, at: float = 0.0, wall: float | None = None) -> Snapshot:
    """Read a page. `version` is the server's own answer, where it gave one: the range is then that release."""
    page = parse(page) if isinstance(page, str) else page
    kind = _kind({sample.name for sample in page.samples})
    server: Readings = {}
    found = _gather(page.samples, server) if kind == "vllm" else {}
    seen = {name for readings in found.values() for name in readings}
    is_v0 = (metrics.KV_USAGE.key, 0) not in seen and not any("engine" in dict(identity) for identity in found)
    is_thinned = any(sample.name.startswith("ray_") for sample in page.samples)
    is_complete = (metrics.NUM_GPU_BLOCKS.key, 0) in seen and (metrics.E2E.key, 0) in seen and not is_thinned
    versions = VersionRange.exactly(version) if version else version_range(seen, is_v0=is_v0, is_complete=is_complete)

    def absence(metric: Metric) -> str:
        if not seen:
            return _silence(kind)
        if any((metric.key, rank) in server for rank in range(len(metric.names))):
            return "said of the whole server, not of each engine"
        if versions and (other_version := _not_in(versions, metric)):
            return other_version
        if metric.needs:
            return f"only with {metric.needs}"
        if is_v0 and (metric.kind == "histogram" or metric.label or (metrics.RUNNING.key, 0) not in seen):
            return "no request served yet: this engine (V0) reports it after the first"
        return "not counted yet: Ray leaves out what is 0" if is_thinned else "not reported by this server"

    engines = tuple(_engine(identity, readings, absence) for identity, readings in _assigned(found, server))
    if kind != "unknown" and not engines:
        engines = (_engine((), {}, absence),)
    missing = _merged(engines) if engines else {metric.key: absence(metric) for metric in _OF_ENGINE}
    return Snapshot(
        kind=kind,
        versions=versions,
        engines=_with_blocks_apart(engines),
        server=_accepted(server)[0],
        missing=missing,
        notes=tuple(_notes(page, versions, len(found))),
        at=at,
        wall=wall,
        bad_line_count=page.bad_count,
        bad_lines=page.bad_lines,
    )


_OF_ENGINE = tuple(metric for metric in METRICS if metric.scope == "engine")


def _kind(names: set[str]) -> str:
    """The engine most names belong to: a stray name of another does not count.

    A vLLM server whose engine is silenced is known by its HTTP metrics, when nothing else is on the page.
    """
    engines = Counter(engine for engine in map(metrics.engine_of, names) if engine)
    if engines:
        return max(engines, key=lambda engine: (engines[engine], engine == "vllm"))
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


# Whose a sample is


def _gather(samples: Iterable[Sample], server: Readings) -> dict[Identity, Readings]:
    """The samples we read, by the labels that tell engines apart; the server's own go to `server`."""
    found: dict[Identity, Readings] = {}
    for name, labels, value in samples:
        slots = metrics.slots(name)
        is_config = not slots and metrics.is_cache_config(name)
        if not slots and not is_config:
            continue
        identity = tuple((label, labels[label]) for label in metrics.IDENTITY if labels.get(label))
        if identity not in found and len(found) >= MAX_ENGINES:
            continue
        if is_config:
            readings = found.setdefault(identity, {})
            readings.update({(m.key, 0): labels[m.names[0]] for m in metrics.CONFIG if m.names[0] in labels})
        for metric, rank, part in slots:
            if metric.scope == "server":
                _add(server, metric, (metric.key, rank), labels.get(metric.label, ""), value)
            else:
                piece = labels.get("le", "") if part == "bucket" else part or labels.get(metric.label, "")
                _keep_larger(found.setdefault(identity, {}), metric, (metric.key, rank), piece, value)
    return found


def _keep_larger(readings: Readings, metric: Metric, name: tuple[str, int], piece: str, value: float) -> None:
    """Of several series with one identity (one a process, labelled pid) the largest: the others are stale or zero."""
    if metric.kind == "histogram" or metric.label:
        parts = readings.setdefault(name, {})
        assert isinstance(parts, dict)
        parts[piece] = _larger(parts.get(piece), value)
    else:
        readings[name] = _larger(readings.get(name), value)


def _larger(known: Raw | None, value: float) -> float:
    """The larger number; NaN is none."""
    return known if isinstance(known, float) and (known >= value or isnan(value)) else value


def _add(server: Readings, metric: Metric, name: tuple[str, int], piece: str, value: float) -> None:
    """The server's own counters are split by handler and method, which do not interest here: summed."""
    if metric.label:
        parts = server.setdefault(name, {})
        assert isinstance(parts, dict)
        parts[piece] = parts.get(piece, 0.0) + value
    else:
        server[name] = value


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
    for identity in found.keys() - engines.keys():
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
    return labels.get("model_name", ""), int(engine) if engine.isdecimal() else -1, engine, str(labels)


# What is accepted


def _engine(identity: Identity, readings: Readings, absence: Callable[[Metric], str]) -> EngineSnapshot:
    labels = dict(identity)
    values, rejected = _accepted(readings)
    missing = {
        metric.key: rejected.get(metric.key) or absence(metric) for metric in _OF_ENGINE if metric.key not in values
    }
    engine, served = labels.pop("engine", None), labels.pop("model_name", None)
    return EngineSnapshot(
        engine=engine, model_name=served or labels.get("model"), labels=labels, values=values, missing=missing
    )


def _accepted(readings: Readings) -> tuple[dict[str, Value], dict[str, str]]:
    """The values that can be true, by key, from the newest name that has one; and the reasons for the others."""
    values: dict[str, Value] = {}
    rejected: dict[str, str] = {}
    for metric in METRICS:
        for rank in range(len(metric.names)):
            raw = readings.get((metric.key, rank))
            if raw is None or metric.key in values:
                continue
            value = _value(metric, raw)
            if isinstance(value, _Reason):
                rejected.setdefault(metric.key, value)
            else:
                values[metric.key] = value
    return values, rejected


class _Reason(str):
    """Why a value was not accepted."""


def _value(metric: Metric, raw: Raw) -> Value | _Reason:
    if isinstance(raw, float):
        return _number(metric, raw)
    if isinstance(raw, str):
        return _configured(metric, raw)
    if metric.kind == "histogram":
        return _histogram(raw)
    parts = {piece: _number(metric, value) for piece, value in raw.items()}
    good = {piece: value for piece, value in parts.items() if not isinstance(value, _Reason)}
    return good or next(reason for reason in parts.values() if isinstance(reason, _Reason))


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
    if value < 0 or isinf(value):
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


def _histogram(parts: Mapping[str, float]) -> Value | _Reason:
    if not all(isfinite(number) for number in parts.values()):
        return _Reason(f"{REJECTED}the server says NaN or infinity")
    try:
        buckets = {float(bound): count for bound, count in parts.items() if bound not in ("sum", "count")}
    except ValueError:
        return _Reason(f"{REJECTED}a bucket's bound is no number")
    made = histogram(buckets, parts.get("sum"), parts.get("count"))
    return _Reason(f"{REJECTED}its count is not on the page") if made is None else made


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


def _notes(page: Page, versions: VersionRange | None, identities: int) -> Iterable[str]:
    helped = (text for name, text in page.help.items() for slot in metrics.slots(name) if slot.metric in _IN_BLOCKS)
    if any("blocks" in text for text in helped) or (versions and versions.high < _TOKENS_SINCE):
        yield "prefix queries and hits are in blocks, not tokens (before 0.9.0)"
    if page.bad_count:
        yield f"unreadable lines: {page.bad_count:,}, the first: {page.bad_lines[0]}"
    if identities >= MAX_ENGINES:
        yield f"more than {MAX_ENGINES} engines on the page: the first are read"


_IN_BLOCKS = (metrics.PREFIX_QUERIES, metrics.PREFIX_HITS)
_TOKENS_SINCE = (0, 9, 0)
