"""Plan + what a server says -> Deviations: planned, actual, ratio, and the likely cause of what is off.

Capacity is compared as it was planned. Usage and speed are compared with what the plan expects for the traffic that is
really there: the requests running and the lengths seen, not those of the planned workload. A cause is not guessed: the
plan is made again with what the server reports of its settings, and the setting that explains the difference is named.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from monitor import metrics
from monitor.snapshot import EngineSnapshot
from monitor.window import EngineWindow
from planner.deployment import Deployment
from planner.errors import InputError
from planner.kv_layout import KvLayout
from planner.plan import Plan, plan
from planner.units import GIB, count, memory, share
from planner.verdict import Level, Verdict
from planner.workload import Workload

TOLERANCE = 0.05
"""A ratio this far from 1, and outside the plan's own range, is off  [ratio]."""
NO_OUTPUT = "nothing was generated between the two pages"
NO_SPEED = "the plan has no speed for this device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One quantity, planned and actual, in its own unit.

    quantity      key, as in the plan's figures
    unit          tokens, blocks, bytes, requests, tokens/s or s
    planned       what the plan says, None where it says nothing  [unit]
    planned_low   least the plan expects  [unit]
    planned_high  most the plan expects  [unit]
    actual        what the server says, None where it does not  [unit]
    cause         the likely cause when it is off, empty when it is not
    note          why a side is missing, or what the planned side rests on
    """

    quantity: str
    unit: str
    planned: float | None
    planned_low: float | None
    planned_high: float | None
    actual: float | None
    cause: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """actual / planned  [ratio]."""
        return self.actual / self.planned if self.actual is not None and self.planned else None

    @property
    def is_off(self) -> bool:
        """More than the tolerance away, and outside what the plan expects."""
        if self.ratio is None or self.actual is None or abs(self.ratio - 1) <= TOLERANCE:
            return False
        assert self.planned_low is not None and self.planned_high is not None
        return not self.planned_low <= self.actual <= self.planned_high


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One engine held against a plan.

    engine      its data-parallel index, None where the server has no such label
    model_name  as served
    deviations  capacity first, then usage, then speed
    context     what the comparison rests on
    """

    engine: str | None
    model_name: str | None
    deviations: tuple[Deviation, ...]
    context: str

    @property
    def verdict(self) -> Verdict:
        """As planned, or the first quantity that is off with its cause."""
        off = next((each for each in self.deviations if each.is_off), None)
        if off is not None:
            assert off.ratio is not None
            return Verdict(
                level=Level.WARNING,
                word="Not as planned",
                reason=f"{off.quantity} is {share(off.ratio)} of the plan: {off.cause}",
                context=self.context,
            )
        if all(each.ratio is None for each in self.deviations):
            return Verdict(
                level=Level.UNKNOWN, word="Nothing to compare", reason="the page has none of it.", context=self.context
            )
        compared = sum(each.ratio is not None for each in self.deviations)
        return Verdict(
            level=Level.GOOD,
            word="As planned",
            reason=f"{count(compared, 'quantities')} within {share(TOLERANCE)} or the plan's range.",
            context=self.context,
        )


def compare(made: Plan, seen: EngineWindow | EngineSnapshot) -> Comparison:
    """Holds one engine against one plan; a single page compares capacity and usage, a Window speed as well.

    Raises InputError when the plan itself holds no KV cache to compare with.
    """
    if made.layout is None or made.capacity is None:
        raise InputError("plan", made.limit and made.limit.reason, "a plan whose engine starts")
    window = seen if isinstance(seen, EngineWindow) else None
    engine = seen.after if isinstance(seen, EngineWindow) else seen
    deviations = (*_capacity(made, engine), *_usage(made, engine), *_speed(made, window))
    return Comparison(
        engine=engine.engine,
        model_name=engine.model_name,
        deviations=deviations,
        context=f"plan: {made.inputs}" + ("" if window is None else f"; rates over {window.seconds:.3g} s"),
    )


def _capacity(made: Plan, engine: EngineSnapshot) -> Iterator[Deviation]:
    assert made.layout is not None and made.capacity is not None
    middle, low, high = made.capacity
    rows: tuple[tuple[str, str, float | None], ...] = (
        ("kv_cache_size_tokens", "tokens", engine.capacity_tokens),
        ("num_gpu_blocks", "blocks", engine.num_gpu_blocks),
        ("max_concurrency", "requests", engine.number(metrics.MAX_CONCURRENCY)),
    )
    for quantity, unit, actual in rows:
        deviation = Deviation(
            quantity=quantity,
            unit=unit,
            planned=getattr(middle, quantity),
            planned_low=getattr(low, quantity),
            planned_high=getattr(high, quantity),
            actual=actual,
            note="" if actual is not None else _missing(engine, quantity),
        )
        yield replace(deviation, cause=_cause(made, engine, quantity, actual) if deviation.is_off else "")
    yield _exactly("block_size", "tokens", made.layout.block_size, engine.block_size, _named("--block-size"))
    pool, tokens = engine.number(metrics.KV_MEMORY), engine.capacity_tokens
    actual = pool / tokens if pool and tokens else None
    note = "" if actual is not None else "the pool's bytes are reported only where they were set by hand"
    yield replace(
        _exactly("bytes_per_token", "bytes", _planned_bytes_per_token(made), actual, _dtype(made, engine)), note=note
    )


def _planned_bytes_per_token(made: Plan) -> float:
    """Pool bytes a token of "KV cache size", padding included: what a server's own numbers can be divided to."""
    assert made.layout is not None and made.capacity is not None
    middle = made.capacity[0]
    return middle.num_gpu_blocks * made.layout.bytes_per_block / middle.kv_cache_size_tokens


def _exactly(quantity: str, unit: str, planned: float, actual: float | None, cause: str) -> Deviation:
    found = Deviation(
        quantity=quantity, unit=unit, planned=planned, planned_low=planned, planned_high=planned, actual=actual
    )
    return replace(found, cause=cause if found.is_off else "", note="" if actual is not None else "not reported")


def _missing(engine: EngineSnapshot, quantity: str) -> str:
    keys = {"max_concurrency": metrics.MAX_CONCURRENCY.key}
    return engine.missing.get(keys.get(quantity, quantity), "not reported by this version")


def _named(flag: str) -> str:
    return f"the server runs with another {flag}."


def _dtype(made: Plan, engine: EngineSnapshot) -> str:
    return f"KV dtype: planned {made.deployment.kv_cache_dtype}, the server runs {engine.kv_cache_dtype or 'another'}."


def _cause(made: Plan, engine: EngineSnapshot, quantity: str, actual: float | None) -> str:
    """The reported setting under which the plan comes nearest to what is there; else what no setting explains."""
    assert actual is not None

    def distance(other: Plan) -> float:
        planned = getattr(other.capacity[0], quantity) if other.capacity else 0
        return abs(actual / planned - 1) if planned else float("inf")

    found = [(distance(made.on(deployment)), text) for text, deployment in _settings(made.deployment, engine)]
    nearest = min(found, default=(float("inf"), ""))
    if nearest[0] < distance(made) / 2:
        rest = "" if nearest[0] <= TOLERANCE else f" It leaves {share(nearest[0])} unexplained."
        return nearest[1] + rest
    planned = getattr(made.capacity[0], quantity) if made.capacity else 0
    if actual < planned:
        return "less memory was left than planned: another process on the device, or larger activations or CUDA graphs."
    return "more memory was left than planned: a larger device, smaller activations, or another checkpoint."


def _settings(planned: Deployment, engine: EngineSnapshot) -> Iterator[tuple[str, Deployment]]:
    """Each setting the server reports that differs from the plan's, and the deployment with it."""
    dtype = engine.kv_cache_dtype
    if dtype and dtype != planned.kv_cache_dtype:
        text = f"KV dtype: planned {planned.kv_cache_dtype}, the server runs {dtype}."
        yield text, replace(planned, kv_cache_dtype=dtype)
    override = engine.number(metrics.BLOCKS_OVERRIDE)
    if override and override != planned.num_gpu_blocks_override:
        text = f"the server's block count is set by hand: --num-gpu-blocks-override {override:.0f}."
        yield text, replace(planned, num_gpu_blocks_override=int(override))
    pool = engine.number(metrics.KV_MEMORY)
    if pool and pool != _pool(planned):
        text = f"pool size: the server's KV cache is {memory(pool)}."
        yield text, replace(planned, kv_cache_memory_bytes=int(pool), cpu_kvcache_space=None)
    utilization = engine.number(metrics.UTILIZATION)
    if utilization and utilization != planned.utilization and not pool:
        text = f"--gpu-memory-utilization: planned {planned.utilization:g}, the server runs {utilization:g}."
        yield text, replace(planned, gpu_memory_utilization=utilization)
    block = engine.block_size
    if block and block != planned.block_size:
        yield f"block size: the server runs {block}.", replace(planned, block_size=block)


def _pool(planned: Deployment) -> float | None:
    if planned.kv_cache_memory_bytes is not None:
        return planned.kv_cache_memory_bytes
    return None if planned.cpu_kvcache_space is None else planned.cpu_kvcache_space * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """Lengths of the requests there are, and where they are known from."""

    input_tokens: int
    output_tokens: int
    source: str


def _traffic(made: Plan, engine: EngineSnapshot, window: EngineWindow | None) -> _Traffic:
    """Lengths of the requests that finished in the window, else since the start, else as planned."""
    for source, of in (("finished in this window", window), ("finished since the start", engine)):
        prompts = of and of.histogram(metrics.PROMPT_LENGTH)
        outputs = of and of.histogram(metrics.OUTPUT_LENGTH)
        if prompts and outputs and prompts.mean and outputs.mean:
            return _Traffic(
                input_tokens=max(1, round(prompts.mean)), output_tokens=max(1, round(outputs.mean)), source=source
            )
    load = made.workload
    return _Traffic(input_tokens=load.input_tokens, output_tokens=load.output_tokens, source="as planned, none finished")


def _usage(made: Plan, engine: EngineSnapshot) -> Iterator[Deviation]:
    """Blocks in use against those that the running requests need: from just admitted to about to finish."""
    assert made.layout is not None
    running, used = engine.running, engine.used_blocks
    if running is None or used is None:
        note = engine.missing.get(metrics.KV_USAGE.key, "not reported")
        nothing = Deviation(quantity="used_blocks", unit="blocks", planned=None, planned_low=None, planned_high=None, actual=None)
        yield replace(nothing, note=note)
        return
    traffic = _traffic(made, engine, None)
    low, middle, high = (running * _blocks(made.layout, length) for length in (
        traffic.input_tokens, traffic.input_tokens + traffic.output_tokens // 2, traffic.input_tokens + traffic.output_tokens,
    ))  # fmt: skip
    note = f"{count(running, 'running')}, {traffic.input_tokens} in + {traffic.output_tokens} out ({traffic.source})"
    found = Deviation(
        quantity="used_blocks", unit="blocks", planned=middle, planned_low=low, planned_high=high, actual=used, note=note
    )
    cause = ""
    if found.is_off:
        cause = (
            "requests share a prefix, or are shorter than those that finished."
            if used < middle
            else "requests are longer than those that finished."
        )
    yield replace(found, cause=cause)


def _blocks(layout: KvLayout, length: int) -> int:
    return layout.blocks_per_request(length)


def _speed(made: Plan, window: EngineWindow | None) -> Iterator[Deviation]:
    """Tokens a second and time per token, planned for the requests that ran and their lengths."""
    expected, note = _expected(made, window)
    rate = window and window.output_tokens_per_s
    gap = window and (window.mean(metrics.TPOT) or window.mean(metrics.ITL))
    for quantity, unit, actual in (("output_tokens_per_s", "tokens/s", rate), ("tpot_s", "s", gap)):
        planned = expected and expected.latency and getattr(expected.latency, quantity)
        found = Deviation(
            quantity=quantity,
            unit=unit,
            planned=planned and planned.value,
            planned_low=planned and planned.low,
            planned_high=planned and planned.high,
            actual=actual or None,
            note=note if actual else NO_OUTPUT if window else "two pages are needed for a rate",
        )
        yield replace(found, cause=_slow(found) if found.is_off else "")


def _expected(made: Plan, window: EngineWindow | None) -> tuple[Plan | None, str]:
    """The plan for the traffic in the window, and what it rests on."""
    if window is None or not window.after.running:
        return None, "no request was running"
    if made.latency is None:
        return None, NO_SPEED
    traffic = _traffic(made, window.after, window)
    running = max(1, round(((window.before.running or 0) + window.after.running) / 2))
    load = Workload(input_tokens=traffic.input_tokens, output_tokens=traffic.output_tokens, concurrency=running)
    note = f"planned for {count(running, 'running')}, {load.input_tokens} in + {load.output_tokens} out ({traffic.source})"
    return plan(made.model, made.deployment, load, made.slo, made.usd_per_gpu_hour), note


def _slow(found: Deviation) -> str:
    assert found.ratio is not None
    is_slower = (found.ratio < 1) == (found.quantity == "output_tokens_per_s")
    if is_slower:
        return "the server is slower than planned at this batch: eager mode, a throttled or shared device, or host time."
    return "the server is faster than planned at this batch: the plan's constants are too cautious here."
