"""Plan + what a server says -> Deviations: planned, actual, ratio, and the likely cause of what is off.

Capacity is compared as it was planned. Usage and speed are compared with what the plan expects for the traffic that is
really there: the requests running and the lengths seen, not those of the planned load.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from monitor import metrics
from monitor.causes import cause_of_capacity, cause_of_token_bytes
from monitor.snapshot import EngineSnapshot
from monitor.window import EngineWindow
from planner.errors import InputError
from planner.latency import Range
from planner.plan import Plan, plan
from planner.units import count, share
from planner.verdict import Level, Verdict
from planner.workload import Workload

TOLERANCE = 0.05
"""A ratio this far from 1, and outside the plan's own range, is off  [ratio]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One quantity, planned and actual.

    quantity  its key, as in the plan's figures
    unit      tokens, blocks, bytes, requests, tokens/s or s
    planned   what the plan expects, None where it expects nothing  [unit]
    actual    what the server says, None where it does not  [unit]
    cause     the likely cause when it is off, empty when it is not
    note      why a side is missing, or what the planned side rests on
    """

    quantity: str
    unit: str
    planned: Range | None
    actual: float | None
    cause: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """actual / planned  [ratio]."""
        if self.actual is None or self.planned is None or not self.planned.value:
            return None
        return self.actual / self.planned.value

    @property
    def is_off(self) -> bool:
        """More than the tolerance away, and outside what the plan expects."""
        if self.ratio is None or self.actual is None or self.planned is None:
            return False
        return abs(self.ratio - 1) > TOLERANCE and not self.planned.low <= self.actual <= self.planned.high

    def because(self, cause: str) -> "Deviation":
        """The same with its cause, when it is off."""
        return replace(self, cause=cause) if self.is_off else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One engine held against a plan.

    engine      its data-parallel index, None where the server has no such label
    model_name  as served
    deviations  layout first, then capacity, usage and speed
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
        compared = sum(each.ratio is not None for each in self.deviations)
        if off is not None:
            reason = f"{off.quantity} is {share(off.ratio or 0)} of the plan. Likely cause: {off.cause}"
            return Verdict(level=Level.WARNING, word="Not as planned", reason=reason, context=self.context)
        if not compared:
            reason = "the page has nothing that the plan expects."
            return Verdict(level=Level.UNKNOWN, word="Nothing to compare", reason=reason, context=self.context)
        reason = f"{count(compared, 'quantities')} within {share(TOLERANCE)}, or within the plan's range."
        return Verdict(level=Level.GOOD, word="As planned", reason=reason, context=self.context)


def compare(made: Plan, seen: EngineWindow | EngineSnapshot) -> Comparison:
    """Holds one engine against one plan; a single page compares capacity and usage, a Window speed as well.

    Raises InputError for a plan whose engine would not start: it holds nothing to compare.
    """
    if made.layout is None or made.capacity is None:
        raise InputError("plan", str(made.limit), "a plan whose engine starts")
    window = seen if isinstance(seen, EngineWindow) else None
    engine = seen.after if isinstance(seen, EngineWindow) else seen
    span = "" if window is None else f"; rates over {window.seconds:.3g} s"
    return Comparison(
        engine=engine.engine,
        model_name=engine.model_name,
        deviations=(*_layout(made, engine), *_capacity(made, engine), _usage(made, engine), *_speed(made, window)),
        context=f"plan: {made.inputs}{span}",
    )


def as_json(found: Comparison) -> dict[str, Any]:
    """One engine's comparison as JSON's types."""
    return {
        "engine": found.engine,
        "model_name": found.model_name,
        "verdict": found.verdict.word,
        "reason": found.verdict.reason,
        "deviations": [
            {
                "quantity": each.quantity,
                "unit": each.unit,
                "planned": None if each.planned is None else each.planned.value,
                "planned_low": None if each.planned is None else each.planned.low,
                "planned_high": None if each.planned is None else each.planned.high,
                "actual": each.actual,
                "ratio": each.ratio,
                "off": each.is_off,
                "cause": each.cause,
                "note": each.note,
            }
            for each in found.deviations
        ],
    }


def as_text(found: Comparison) -> str:
    """One engine's comparison for a terminal."""
    lines = [f"engine {found.engine or '-'}  {found.verdict}"]
    for each in found.deviations:
        planned = "-" if each.planned is None else _number(each.planned.value)
        actual = "-" if each.actual is None else _number(each.actual)
        ratio = "" if each.ratio is None else share(each.ratio)
        lines.append(
            f"  {each.quantity:<22} {planned:>12} {actual:>12} {each.unit:<9} {ratio:>8}  {each.cause or each.note}"
        )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.4g}"


def _capacity(made: Plan, engine: EngineSnapshot) -> Iterator[Deviation]:
    reported = {
        "kv_cache_size_tokens": ("tokens", engine.capacity_tokens, metrics.KV_CACHE_TOKENS),
        "num_gpu_blocks": ("blocks", engine.num_gpu_blocks, metrics.NUM_GPU_BLOCKS),
        "max_concurrency": ("requests", engine.number(metrics.MAX_CONCURRENCY), metrics.MAX_CONCURRENCY),
    }
    for quantity, (unit, actual, metric) in reported.items():
        planned = Range(*(getattr(held, quantity) for held in made.capacity or ()))
        note = "" if actual is not None else engine.missing.get(metric.key, "not reported by this version")
        found = Deviation(quantity=quantity, unit=unit, planned=planned, actual=actual, note=note)
        yield found.because(cause_of_capacity(made, engine, quantity, actual or 0)) if found.is_off else found


def _layout(made: Plan, engine: EngineSnapshot) -> Iterator[Deviation]:
    """What the plan knows exactly: the block, and the pool's bytes for each token it says to hold."""
    assert made.layout is not None
    assert made.capacity is not None
    block, held = made.layout.block_size, made.capacity[0]
    note = "" if engine.block_size else engine.missing.get(metrics.BLOCK_SIZE.key, "not reported by this version")
    found = Deviation(
        quantity="block_size", unit="tokens", planned=Range(block, block, block), actual=engine.block_size, note=note
    )
    yield found.because(f"block size: planned {block}, the server runs {engine.block_size}.")
    pool, tokens = engine.number(metrics.KV_MEMORY), engine.capacity_tokens
    note = "" if pool and tokens else "a server says its pool's bytes only where they were set by hand"
    each = made.pool_bytes / held.kv_cache_size_tokens
    found = Deviation(
        quantity="bytes_per_token",
        unit="bytes",
        planned=Range(each, each, each),
        actual=pool / tokens if pool and tokens else None,
        note=note,
    )
    yield found.because(cause_of_token_bytes(made, engine))


def _usage(made: Plan, engine: EngineSnapshot) -> Deviation:
    """Blocks in use, against what the running requests hold between their first step and their last."""
    assert made.layout is not None
    running, used = engine.running, engine.used_blocks
    found = Deviation(quantity="used_blocks", unit="blocks", planned=None, actual=used)
    if running is None or used is None:
        return replace(found, note=engine.missing.get(metrics.KV_USAGE.key, "not reported by this version"))
    load, source = _lengths(made, engine, None)
    lengths = (load.input_tokens + load.output_tokens // 2, load.input_tokens, load.tokens)
    found = replace(
        found,
        planned=Range(*(running * made.layout.blocks_per_request(length) for length in lengths)),
        note=f"{count(running, 'running')}, {load.input_tokens} in + {load.output_tokens} out, {source}",
    )
    if found.ratio is not None and found.ratio < 1:
        return found.because("running requests share a prefix, or are shorter than those that finished.")
    return found.because("running requests are longer than those that finished.")


def _speed(made: Plan, window: EngineWindow | None) -> Iterator[Deviation]:
    """Tokens a second and time per output token, planned for the requests that ran and their lengths."""
    expected, note = _expected(made, window)
    rate = None if window is None else window.output_tokens_per_s
    gap = None if window is None else window.mean(metrics.TPOT) or window.mean(metrics.ITL)
    for quantity, unit, actual in (("output_tokens_per_s", "tokens/s", rate), ("tpot_s", "s", gap)):
        planned = None if expected is None else getattr(expected.latency, quantity, None)
        found = Deviation(quantity=quantity, unit=unit, planned=planned, actual=actual, note=note)
        is_slower = found.ratio is not None and (found.ratio < 1) == (unit == "tokens/s")
        yield found.because(_SLOWER if is_slower else _FASTER)


_SLOWER = "slower than planned at this batch: eager mode, a throttled or shared device, or host time between steps."
_FASTER = (
    "faster than planned at this batch: a faster device, speculative decoding, or constants that are too cautious."
)


def _expected(made: Plan, window: EngineWindow | None) -> tuple[Plan | None, str]:
    """The plan for the traffic in the window, and what it rests on."""
    if window is None:
        return None, "a rate needs two pages"
    if made.latency is None:
        return None, "the plan has no speed for this device"
    running = [moment.running for moment in (window.before, window.after) if moment.running]
    if not running or not window.output_tokens_per_s:
        return None, f"nothing was generated in these {window.seconds:.3g} s"
    load, source = _lengths(made, window.after, window)
    streams = round(sum(running) / len(running))
    note = f"{count(streams, 'running')}, {load.input_tokens} in + {load.output_tokens} out, {source}"
    load = replace(load, concurrency=streams)
    return plan(made.model, made.deployment, load, made.slo, made.usd_per_gpu_hour), note


def _lengths(made: Plan, engine: EngineSnapshot, window: EngineWindow | None) -> tuple[Workload, str]:
    """Lengths of the requests that finished in the window, else since the start, else as planned."""
    for source, seen in (("finished in the window", window), ("finished since the start", engine)):
        prompts = seen and seen.histogram(metrics.PROMPT_LENGTH)
        outputs = seen and seen.histogram(metrics.OUTPUT_LENGTH)
        if prompts and outputs and prompts.mean and outputs.mean:
            found = Workload(input_tokens=max(1, round(prompts.mean)), output_tokens=max(1, round(outputs.mean)))
            return found, source
    load = made.workload
    return Workload(input_tokens=load.input_tokens, output_tokens=load.output_tokens), "as planned, none finished yet"
