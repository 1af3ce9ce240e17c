"""Plan + what a server says -> Deviations: planned, actual, ratio, and the likely cause of what is off.

Capacity is compared as it was planned, and so are the lengths and arrivals of the load. Usage and speed are compared
with what the plan expects for the traffic that is really there, so that a server is not called slow for being idle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from monitor import causes, metrics, usage
from monitor.deviation import Comparison, Deviation
from monitor.snapshot import EngineSnapshot, Snapshot
from monitor.traffic import Traffic, traffic
from monitor.versions import VersionRange
from monitor.window import EngineWindow, longest_run, window
from planner.errors import InputError
from planner.latency import Latency, Range, latency
from planner.plan import Plan
from planner.units import count, duration, memory
from planner.workload import Workload

LOAD_BAND = 0.25
"""A load within this share of the planned one is as planned  [ratio]."""
HIT_BAND = 0.1
"""The same for the share of prompt tokens found in the prefix cache  [ratio]."""


def compare(
    made: Plan,
    seen: EngineWindow | EngineSnapshot,
    *,
    history: Sequence[EngineSnapshot] = (),
    versions: VersionRange | None = None,
) -> Comparison:
    """Holds one engine against one plan; a single page compares capacity and usage, a Window speed as well.

    history   what the engine said in the window, for KV usage over time
    versions  the releases that it can be

    Raises InputError for a plan whose engine would not start: it holds nothing to compare.
    """
    if made.layout is None or made.capacity is None:
        raise InputError("plan", str(made.limit), "a plan whose engine starts")
    window = seen if isinstance(seen, EngineWindow) else None
    engine = seen.after if isinstance(seen, EngineWindow) else seen
    load = None if window is None else traffic(window)
    held = usage.Held.by(made, engine, load)
    pages = history or ((window.before, window.after) if window else (engine,))
    span = "" if window is None else f"; rates over {duration(window.seconds)}"
    return Comparison(
        engine=engine.engine,
        model_name=engine.model_name,
        deviations=(
            *_layout(made, engine),
            *_capacity(made, engine, versions),
            *_lengths(made, load),
            *_usage(made, held, pages),
            *_speed(made, window, load),
            *_arrivals(made, load),
            *_money(made, load),
        ),
        context=f"plan: {made.inputs}{span}",
    )


def over(made: Plan, pages: Sequence[Snapshot]) -> tuple[Comparison, ...]:
    """Each engine of a server held against a plan, over the longest part of these pages without a restart.

    A single page has capacity and usage only. Raises InputError for a plan whose engine would not start.
    """
    run = longest_run(pages)
    if len(run) < 2:
        return tuple(compare(made, engine, versions=page.versions) for page in run for engine in page.engines)
    spanned = window(run[0], run[-1])
    return tuple(
        compare(
            made,
            engine,
            history=[now for page in run for now in page.engines if _is_same(now, engine.after)],
            versions=spanned.after.versions,
        )
        for engine in spanned.engines
    )


def _is_same(one: EngineSnapshot, other: EngineSnapshot) -> bool:
    return (one.engine, one.labels) == (other.engine, other.labels)


def _layout(made: Plan, engine: EngineSnapshot) -> Iterator[Deviation]:
    """What the plan knows exactly: the block, and the pool's bytes for each token it says to hold."""
    assert made.layout is not None
    assert made.capacity is not None
    block, held = made.layout.block_size, made.capacity[0]
    pool, tokens = causes.pool_bytes(engine), engine.capacity_tokens
    each = made.pool_bytes / held.kv_cache_size_tokens
    found = Deviation(
        quantity="bytes_per_token",
        unit="bytes",
        planned=Range(each, each, each),
        actual=pool / tokens if pool and tokens else None,
        note="" if pool and tokens else _NO_POOL,
    )
    yield found.because(causes.of_token_bytes(made, engine))
    found = Deviation(
        quantity="block_size",
        unit="tokens",
        planned=Range(block, block, block),
        actual=engine.block_size,
        note="" if engine.block_size else _missing(engine, metrics.BLOCK_SIZE),
    )
    yield found.because(f"block size: planned {block}, the server runs {engine.block_size}.")


def _capacity(made: Plan, engine: EngineSnapshot, versions: VersionRange | None) -> Iterator[Deviation]:
    reported = {
        "kv_cache_size_tokens": ("tokens", engine.capacity_tokens, metrics.KV_CACHE_TOKENS),
        "num_gpu_blocks": ("blocks", engine.num_gpu_blocks, metrics.NUM_GPU_BLOCKS),
        "max_concurrency": ("requests", engine.number(metrics.MAX_CONCURRENCY), metrics.MAX_CONCURRENCY),
    }
    for quantity, (unit, actual, metric) in reported.items():
        planned = Range(*(getattr(held, quantity) for held in made.capacity or ()))
        note = "" if actual is not None else _missing(engine, metric)
        found = Deviation(quantity=quantity, unit=unit, planned=planned, actual=actual, note=note)
        if found.is_off:
            found = found.because(causes.of_capacity(made, engine, quantity, actual or 0, versions))
        yield found
    assert made.layout is not None
    pool = causes.pool_bytes(engine)
    yield Deviation(
        quantity="kv_pool_bytes",
        unit="bytes",
        planned=Range(*(held.num_gpu_blocks * made.layout.bytes_per_block for held in made.capacity or ())),
        actual=pool,
        note="" if pool else _NO_POOL,
    ).because(f"pool size: the server's KV cache is {memory(pool or 0)}.")


def _lengths(made: Plan, load: Traffic | None) -> Iterator[Deviation]:
    """The requests themselves: their lengths, and what of their prompts was in the cache."""
    planned, note = made.workload, "" if load else _NO_TRAFFIC
    for key, noun in (("input_tokens", "prompts"), ("output_tokens", "outputs")):
        asked, actual = getattr(planned, key), None if load is None else getattr(load, key)
        found = Deviation(quantity=key, unit="tokens", planned=_band(asked), actual=actual, note=note)
        how = "longer" if (actual or 0) > asked else "shorter"
        yield found.because(f"{noun} are {how} than planned: {count(actual or 0)} tokens, planned {count(asked)}.")
    hits = planned.prefix_hit_ratio
    found = Deviation(
        quantity="prefix_hit_ratio",
        unit="ratio",
        planned=Range(hits, max(0.0, hits - HIT_BAND), min(1.0, hits + HIT_BAND)) if hits else None,
        actual=None if load is None else load.prefix_hit_ratio,
        note=note or ("" if hits else "the plan expects no reuse of prefixes"),
    )
    lower = (found.actual or 0) < hits
    yield found.because(
        f"prefix reuse is {'lower' if lower else 'higher'} than planned: {found.actual or 0:.0%} of prompt tokens, "
        f"planned {hits:.0%}."
    )


def _usage(made: Plan, held: usage.Held | None, pages: Sequence[EngineSnapshot]) -> Iterator[Deviation]:
    """Blocks in use, against what the requests that ran hold between their first step and their last."""
    latest = pages[-1]
    unknown = "no request has finished yet: their lengths are not known"
    for quantity, unit in (("used_blocks", "blocks"), *((f"kv_usage_{name}", "ratio") for name in usage.OVER_TIME)):
        if held is None or latest.running is None or latest.used_blocks is None:
            note = _missing(latest, metrics.KV_USAGE) if latest.used_blocks is None else unknown
            used = latest.used_blocks if quantity == "used_blocks" else None
            yield Deviation(quantity=quantity, unit=unit, planned=None, actual=used, note=note)
        elif quantity == "used_blocks":
            note = f"{count(latest.running, 'running')}, {held.note}"
            planned = held.blocks(latest.running)
            found = Deviation(quantity=quantity, unit=unit, planned=planned, actual=latest.used_blocks, note=note)
            yield found.because(causes.of_usage(found.actual or 0, planned.value))
        elif len(pages) < 2:
            yield Deviation(quantity=quantity, unit=unit, planned=None, actual=None, note="needs a window")
        else:
            statistic = usage.OVER_TIME[quantity.removeprefix("kv_usage_")]
            expected, actual = held.over_time(pages, statistic)
            found = Deviation(quantity=quantity, unit=unit, planned=expected, actual=actual, note=held.note)
            yield found.because(causes.of_usage(actual or 0, expected.value if expected else 0))


def _speed(made: Plan, window: EngineWindow | None, load: Traffic | None) -> Iterator[Deviation]:
    """Latency and tokens a second, for the requests that ran and their lengths; preemptions, which no plan has."""
    expected, note = _expected(made, window, load)
    actual: dict[str, tuple[str, float | None]] = {
        "tpot_s": ("s", None if load is None else load.gap_s),
        "ttft_s": ("s", None if load is None else load.first_s),
        "output_tokens_per_s": ("tokens/s", None if window is None else window.output_tokens_per_s),
    }
    named = ""  # one cause for all three: the step is what is slow
    for quantity, (unit, value) in actual.items():
        planned = None if expected is None else getattr(expected, quantity)
        found = Deviation(quantity=quantity, unit=unit, planned=planned, actual=value, note=note)
        is_slower = found.ratio is not None and (found.ratio < 1) == (unit == "tokens/s")
        if found.is_off:
            named = named or causes.of_speed(made, is_slower, f"{quantity} {found.ratio or 0:.2g} × the plan's")
        yield found.because(named)
    preempted = None if window is None else window.increase(metrics.PREEMPTIONS)
    found = Deviation(
        quantity="preemptions",
        unit="preemptions",
        planned=Range(0.0, 0.0, 0.0) if made.fits else None,
        actual=preempted,
        note="" if made.fits else "the plan does not hold its own load",
    )
    yield found.because("more is running than the pool holds: requests are thrown back and computed again.")


def _arrivals(made: Plan, load: Traffic | None) -> Iterator[Deviation]:
    """How many requests run and arrive, against the load planned for; looked at last, for it explains what is left."""
    asked, replicas = made.workload, made.deployment.data_parallel_size
    running = None if load is None else load.streams
    note = "" if load else _NO_TRAFFIC
    if asked.request_rate is not None:
        rate = asked.request_rate / replicas
        arriving = None if load is None else load.requests_per_s
        found = Deviation(quantity="request_rate", unit="requests/s", planned=_band(rate), actual=arriving, note=note)
        yield found.because(causes.of_arrivals(arriving or 0, rate, "requests/s arrive"))
    if asked.concurrency is None and asked.request_rate is None:
        note = note or "the plan asks for as many as fit"
        yield Deviation(quantity="running", unit="requests", planned=None, actual=running, note=note)
        return
    streams = made.latency.streams if made.latency else (asked.concurrency or 0) / replicas
    found = Deviation(
        quantity="running",
        unit="requests",
        planned=_band(streams) if streams else None,
        actual=running,
        note=note,
    )
    yield found.because(causes.of_arrivals(running or 0, streams, "requests run"))


def _money(made: Plan, load: Traffic | None) -> Iterator[Deviation]:
    """Dollars a million output tokens, at the throughput that is really there."""
    planned = None if made.cost is None else made.cost.usd_per_million_output_tokens
    actual = None
    if made.cost is not None and load is not None:
        a_second = made.cost.usd_per_hour / 3600 / made.deployment.data_parallel_size
        actual = a_second / load.output_tokens_per_s * 1e6 * (1 - made.cost.prefill_share)
    found = Deviation(
        quantity="usd_per_million_output_tokens",
        unit="dollars",
        planned=planned,
        actual=actual,
        note="" if planned and load else (_NO_TRAFFIC if planned else "the plan has no price or no speed"),
    )
    yield found.because(f"the devices cost the same for {'fewer' if (found.ratio or 0) > 1 else 'more'} tokens.")


_NO_POOL = "a server says its pool's bytes only where they were set by hand"
_NO_TRAFFIC = "too few requests finished in the window"


def _expected(made: Plan, window: EngineWindow | None, load: Traffic | None) -> tuple[Latency | None, str]:
    """The plan's speed for the traffic in the window, of one replica, and what it rests on."""
    if window is None:
        return None, "a rate needs two pages"
    if made.latency is None:
        return None, "the plan has no speed for this device"
    if load is None:
        return None, _NO_TRAFFIC
    found = at(made, load.workload, load.streams)
    return found, f"{load.streams:.3g} running, {load.input_tokens:.0f} in + {load.output_tokens:.0f} out"


def at(made: Plan, load: Workload, streams: float) -> Latency | None:
    """The plan's speed where so many requests of such a load run on one replica."""
    assert made.layout is not None
    assert made.capacity is not None
    alone = replace(made.deployment, data_parallel_size=1)
    blocks = made.capacity[0].num_gpu_blocks
    return latency(made.model, alone, load, made.layout, made.weights, blocks, max(1.0, streams),
                   calibration=made.calibration)  # fmt: skip


def _band(value: float) -> Range:
    return Range(value, value * (1 - LOAD_BAND), value * (1 + LOAD_BAND))


def _missing(engine: EngineSnapshot, metric: metrics.Metric) -> str:
    return engine.missing.get(metric.key, "not reported by this version")
