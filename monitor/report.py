"""A Snapshot and a Window as JSON and as text. The keys are the metric table's, and what is derived from them."""

from collections.abc import Iterable, Mapping
from math import isinf

from monitor import metrics
from monitor.histogram import Histogram
from monitor.metrics import HISTOGRAMS, METRICS, Metric
from monitor.reading import PRODUCT
from monitor.snapshot import EngineSnapshot, Snapshot, Value
from monitor.versions import release
from monitor.window import EngineWindow, Window
from planner import units

QUANTILES = (0.50, 0.95, 0.99)

_BLOCKS = (metrics.KV_USAGE, metrics.NUM_GPU_BLOCKS)
DERIVED: dict[str, tuple[Metric, ...]] = {
    "used_blocks": _BLOCKS,
    "free_blocks": _BLOCKS,
    "used_tokens": (*_BLOCKS, metrics.BLOCK_SIZE),
    "capacity_tokens": (metrics.NUM_GPU_BLOCKS, metrics.BLOCK_SIZE),
    "used_bytes": (*_BLOCKS, metrics.KV_MEMORY),
    "block_waste_share": (*_BLOCKS, metrics.RUNNING, metrics.BLOCK_SIZE),
    "concurrency_left": (*_BLOCKS, metrics.RUNNING),
}
"""Properties of EngineSnapshot, and what each is derived from."""
RATES: dict[str, tuple[Metric, ...]] = {
    "output_tokens_per_s": (metrics.GENERATION_TOKENS,),
    "prompt_tokens_per_s": (metrics.PROMPT_TOKENS,),
    "preemptions_per_s": (metrics.PREEMPTIONS,),
    "requests_per_s": (metrics.FINISHED,),
    "prefix_hit_rate": (metrics.PREFIX_QUERIES, metrics.PREFIX_HITS),
    "external_hit_rate": (metrics.EXTERNAL_QUERIES, metrics.EXTERNAL_HITS),
    "spec_acceptance_rate": (metrics.SPEC_DRAFT_TOKENS, metrics.SPEC_ACCEPTED),
    "tokens_per_draft": (metrics.SPEC_DRAFTS, metrics.SPEC_ACCEPTED),
    "live_tokens": (metrics.PROMPT_LENGTH, metrics.OUTPUT_LENGTH),
}
"""Properties of EngineWindow, and what each is derived from."""
COUNTED: dict[str, Metric] = {
    "rejections_per_s": metrics.REJECTED,
    "flops_per_s": metrics.FLOPS,
    "read_bytes_per_s": metrics.READ_BYTES,
    "write_bytes_per_s": metrics.WRITE_BYTES,
    "offload_store_bytes_per_s": metrics.OFFLOAD_STORED,
    "offload_load_bytes_per_s": metrics.OFFLOAD_LOADED,
    "kv_transfer_failures_per_s": metrics.TRANSFER_FAILURES,
}
"""Counters whose increase a second is shown."""
SPLIT: dict[str, Metric] = {
    "finished_by_reason": metrics.FINISHED,
    "rejections_by_reason": metrics.REJECTED,
    "prompt_tokens_by_source": metrics.PROMPT_BY_SOURCE,
    "cached_tokens_by_source": metrics.CACHED_BY_SOURCE,
    "spec_accepted_by_position": metrics.SPEC_ACCEPTED_BY_POSITION,
    "tier_read_bytes": metrics.TIER_READ,
    "tier_write_bytes": metrics.TIER_WRITTEN,
}
"""Counters whose increase is shown by label."""
ESTIMATES = ("block_waste_share", "concurrency_left", "live_tokens")
"""What is reckoned, not counted: always shown as such."""


def as_json(snapshot: Snapshot, window: Window | None = None) -> dict[str, object]:
    """Everything that was read, as JSON's types; infinity is "+Inf". `missing` has the reason for each null."""
    engines = [_engine_json(engine) for engine in snapshot.engines]
    missing = dict(snapshot.missing)
    for engine, row in zip(snapshot.engines, engines, strict=True):
        missing |= {key: "no such label on this page" for key in ("engine", "model_name") if row[key] is None}
        for key, sources in DERIVED.items():
            if row[key] is None:
                missing.setdefault(key, _why_not_derived(engine, sources))
    versions = snapshot.versions
    answer: dict[str, object] = {
        "engine": snapshot.kind,
        "version_range": snapshot.version_range,
        "version_low": versions and release(versions.low),
        "version_high": versions and release(versions.high),
        "engines": engines,
        "server": {key: _plain(value) for key, value in snapshot.server.items()},
        "missing": missing,
        "estimates": list(ESTIMATES),
        "notes": list(snapshot.notes),
        "bad_lines": snapshot.bad_line_count,
    }
    if window is not None:
        answer["window"] = [_window_json(engine) for engine in window.engines]
    return answer


def _engine_json(engine: EngineSnapshot) -> dict[str, object]:
    row: dict[str, object] = {"engine": engine.engine, "model_name": engine.model_name, "labels": dict(engine.labels)}
    row |= {m.key: _plain(engine.values.get(m.key)) for m in METRICS if m.scope == "engine"}
    return row | {key: getattr(engine, key) for key in DERIVED}


def _plain(value: Value | None) -> object:
    if isinstance(value, Histogram):
        return {"count": value.count, "sum": value.total}
    return dict(value) if isinstance(value, Mapping) else value


def _why_not_derived(engine: EngineSnapshot, sources: Iterable[Metric]) -> str:
    lacking = [source.key for source in sources if source.key in engine.missing]
    return f"derived from {' and '.join(lacking)}, which is missing" if lacking else "nothing is in use"


def _window_json(engine: EngineWindow) -> dict[str, object]:
    missing: dict[str, str] = {}
    row: dict[str, object] = {
        "engine": engine.engine,
        "model_name": engine.model_name,
        "seconds": engine.seconds,
        "restarted": engine.has_restarted,
        "stale_gauges": engine.has_stale_gauges,
        "livelocked": engine.is_livelocked,
    }
    for key, sources in RATES.items():
        row[key] = getattr(engine, key)
        if row[key] is None:
            absent = (engine.after.missing.get(source.key) for source in sources)
            missing[key] = next(filter(None, absent), _NOTHING.get(key, engine.reason(sources[0])))
    for key, metric in COUNTED.items():
        row[key] = engine.rate(metric)
        if row[key] is None:
            missing[key] = engine.reason(metric)
    for key, metric in SPLIT.items():
        row[key] = dict(engine.increases(metric)) or None
        if row[key] is None:
            missing[key] = engine.reason(metric)
    for metric in HISTOGRAMS:
        found = _histogram_json(engine, metric)
        row |= found
        missing |= {key: engine.reason(metric) for key, value in found.items() if value is None}
    return row | {"missing": missing}


_NOTHING = {
    "prefix_hit_rate": "nothing was looked up in this window",
    "external_hit_rate": "nothing was looked up through a connector in this window",
    "spec_acceptance_rate": "nothing was drafted in this window",
    "tokens_per_draft": "nothing was drafted in this window",
    "live_tokens": "told only from an idle start, without preemption or restart",
}


def _histogram_json(engine: EngineWindow, metric: Metric) -> dict[str, object]:
    """Mean, count, and each quantile with its interval: ttft_p99_s lies between ttft_p99_low_s and ttft_p99_high_s."""
    unit = "_s" if metric.unit == "s" else ""
    observed = engine.histogram(metric)
    row: dict[str, object] = {
        f"{metric.key}_count": observed and observed.count,
        f"{metric.key}_mean{unit}": observed and observed.mean,
    }
    for q in QUANTILES:
        found = observed.quantile(q) if observed else None
        name = f"{metric.key}_p{q * 100:.0f}"
        row[f"{name}{unit}"] = found and found.value
        row[f"{name}_low{unit}"] = found and found.low
        row[f"{name}_high{unit}"] = found and ("+Inf" if isinf(found.high) else found.high)
    return row


# Text


def as_text(snapshot: Snapshot, window: Window | None = None) -> str:
    """The same for a person on call: what matters, with its unit; what is missing, with the reason."""
    engine = (
        f"vLLM {snapshot.version_range or ''}".rstrip()
        if snapshot.kind == "vllm"
        else PRODUCT.get(snapshot.kind, "unknown")
    )
    lines = [f"{engine}, {len(snapshot.engines)} engine{'s' * (len(snapshot.engines) != 1)}"]
    lines += [f"  note: {note}" for note in snapshot.notes]
    for found in snapshot.engines:
        lines += ["", *_engine_lines(found)]
    for spanned in window.engines if window else ():
        lines += ["", *_window_lines(spanned)]
    reasons: dict[str, list[str]] = {}
    for key, reason in snapshot.missing.items():
        reasons.setdefault(reason, []).append(key)
    lines += ["", "missing:"] if reasons else []
    lines += [f"  {', '.join(keys)}: {reason}" for reason, keys in reasons.items()]
    return "\n".join(lines)


def _engine_lines(engine: EngineSnapshot) -> Iterable[str]:
    yield f"engine {engine.engine or '-'}  {engine.model_name or ''}".rstrip()
    yield _line("KV usage", _share(engine.kv_usage))
    yield _line("KV blocks", _of(engine.used_blocks, engine.usable_blocks))
    yield _line("KV tokens", _of(engine.used_tokens, engine.capacity_tokens))
    yield _line("requests", f"{_count(engine.running)} running, {_count(engine.waiting)} waiting")
    reasons = engine.split(metrics.WAITING_BY_REASON)
    if engine.waiting and reasons:
        yield _line("waiting for", ", ".join(f"{reason} {count:,.0f}" for reason, count in reasons.items()))
    yield _line("preemptions", _count(engine.number(metrics.PREEMPTIONS)))
    yield _line("KV cache", f"block size {_count(engine.block_size)}, dtype {engine.kv_cache_dtype or '-'}")
    if engine.block_waste_share is not None:
        yield _line("block waste", f"about {_share(engine.block_waste_share)} (estimate)")
    if engine.concurrency_left is not None:
        yield _line("room for", f"about {engine.concurrency_left:,.0f} more requests like these (estimate)")


def _window_lines(engine: EngineWindow) -> Iterable[str]:
    state = ", restarted" * engine.has_restarted + ", gauges are stale" * engine.has_stale_gauges
    yield f"engine {engine.engine or '-'}, over {units.duration(engine.seconds)}{state}"
    yield _line("output", _rate(engine.output_tokens_per_s, "tokens/s"))
    yield _line("prompts", _rate(engine.prompt_tokens_per_s, "tokens/s"))
    yield _line("preemptions", _rate(engine.preemptions_per_s, "/s"))
    yield _line("prefix hits", _share(engine.prefix_hit_rate))
    if engine.tokens_per_draft is not None:
        yield _line(
            "drafts", f"{_share(engine.spec_acceptance_rate)} accepted, {engine.tokens_per_draft:.2f} tokens each"
        )
    if (stored := engine.rate(metrics.OFFLOAD_STORED)) is not None:
        loaded = engine.rate(metrics.OFFLOAD_LOADED) or 0.0
        yield _line("offload", f"{units.bandwidth(stored)} out, {units.bandwidth(loaded)} back")
    for label, metric in (("first token", metrics.TTFT), ("per token", metrics.TPOT), ("queue", metrics.QUEUE)):
        yield _line(label, ", ".join(_quantile_text(engine, metric, q) for q in (0.5, 0.99)))


def _quantile_text(engine: EngineWindow, metric: Metric, q: float) -> str:
    """A quantile with the interval it surely lies in."""
    name, found = f"p{q * 100:.0f}", engine.quantile(metric, q)
    if found is None:
        return f"{name} -"
    if found.is_above_buckets:
        return f"{name} above {units.duration(found.low)} (the last bucket)"
    return f"{name} {units.duration(found.value)} ({units.duration(found.low)} to {units.duration(found.high)})"


def _line(label: str, text: str) -> str:
    return f"  {label:<12} {text}"


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else units.share(ratio)


def _count(number: float | None) -> str:
    return "-" if number is None else units.count(number)


def _of(part: float | None, whole: float | None) -> str:
    return "-" if part is None and whole is None else f"{_count(part)} of {_count(whole)}"


def _rate(rate: float | None, unit: str) -> str:
    return "-" if rate is None else f"{rate:,.3g} {unit}" if rate < 1000 else f"{rate:,.0f} {unit}"
