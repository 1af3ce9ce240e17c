"""Speed as pictures: the roofline with the plan's own points, the parts of a step, and what more streams do."""

import math
from dataclasses import replace
from typing import NamedTuple

from planner.curves import Curve, Line
from planner.latency import Latency, unknown
from planner.plan import Plan
from planner.roofline import work_of
from planner.units import bandwidth, count, duration, flops, share
from planner.verdict import Level, Verdict


class Point(NamedTuple):
    """One phase of serving, on one rank.

    name        decode or prefill
    intensity   arithmetic for each byte read  [FLOP/byte]
    reached     arithmetic done in the predicted time  [FLOP/s]
    attainable  what the roof allows at this intensity  [FLOP/s]
    """

    name: str
    intensity: float
    reached: float
    attainable: float


class Roofline(NamedTuple):
    """What a device attains against the arithmetic that each byte read is used for.

    x        intensities  [FLOP/byte]
    y        the roof  [FLOP/s]
    ridge    where memory and arithmetic limit alike  [FLOP/byte]
    points   the plan's phases
    finding  what the picture says
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    ridge: float
    points: tuple[Point, ...]
    finding: str


def roofline(plan: Plan) -> Roofline:
    """The roof min(peak, intensity × bandwidth), and where decoding and prefill of this plan lie below it.

    Williams, Waterman and Patterson, Roofline (2009). Needs a plan with latency.
    """
    assert plan.latency is not None
    assert plan.layout is not None
    gpu, load, latency = plan.deployment.gpu, plan.workload, plan.latency
    work = work_of(plan.model, plan.deployment, plan.layout, plan.weights)
    peak, rate = work.dense.flops, gpu.memory_bandwidth
    context, streams = load.input_tokens + load.output_tokens / 2, latency.streams
    sums = work.dense_flops + work.expert_flops
    done = streams * (sums + work.head_flops + work.attention_flops(context))
    read = work.weight_bytes(streams) + streams * work.kv_bytes(context)
    chunk = min(load.input_tokens, plan.deployment.step_tokens)
    pairs = sum(span.prefill_flops * span.pairs(load.input_tokens) for span in work.spans)
    prompt = load.input_tokens * sums + pairs
    chunks = math.ceil(load.input_tokens / chunk)
    step = latency.step.total - latency.step.prefill
    points = tuple(
        Point(name, flop / size, flop / seconds, min(peak, flop / size * rate))
        for name, flop, size, seconds in (
            ("decode", done, read, step),
            ("prefill", prompt, chunks * work.weight_bytes(chunk), latency.prefill_s),
        )
    )
    x = tuple(sorted({peak / rate, *(2.0**power for power in range(-2, 15))}))
    decode = points[0]
    side = "below the ridge, so memory bandwidth limits" if decode.intensity < peak / rate else "above the ridge"
    finding = (
        f"{gpu.name}: {flops(peak)} and {bandwidth(rate)} meet at {peak / rate:,.0f} FLOP a byte. Decoding "
        f"{count(streams, 'streams')} does {decode.intensity:,.1f}, {side}; it reaches {flops(decode.reached)}, "
        f"{share(decode.reached / decode.attainable)} of the roof. Prefill does {points[1].intensity:,.0f}."
    )
    return Roofline(x, tuple(min(peak, each * rate) for each in x), peak / rate, points, finding)


class StepShare(NamedTuple):
    """One part of a step.

    name     weights, arithmetic, KV cache, all-reduce, fixed or prefill
    seconds  how long it takes  [s]
    share    of the step  [ratio]
    meaning  what it is
    """

    name: str
    seconds: float
    share: float
    meaning: str


_MEANINGS = {
    "weights": "reading weights",
    "compute": "what arithmetic adds to that",
    "kv": "attention over the KV cache",
    "all_reduce": "ranks exchanging hidden states",
    "fixed": "kernels, scheduling, sampling",
    "prefill": "other requests' prompts, spread over the steps",
}
_NAMES = {"compute": "arithmetic", "kv": "KV cache", "all_reduce": "all-reduce"}


def step_shares(latency: Latency) -> tuple[StepShare, ...]:
    """Where the time of one decoding step goes."""
    total = latency.step.total
    parts = {key: getattr(latency.step, key) for key in _MEANINGS}
    return tuple(StepShare(_NAMES.get(key, key), part, part / total, _MEANINGS[key]) for key, part in parts.items())


def verdict(plan: Plan) -> Verdict:
    """What bounds the plan's speed, in a sentence."""
    if plan.latency is None:
        reason = plan.limit.reason if plan.limit else unknown(plan.deployment.gpu)
        return Verdict(level=Level.UNKNOWN, word="No speed", reason=reason, context=plan.inputs)
    found, late = plan.latency, plan.limit is not None and plan.limit.kind in ("ttft", "tpot", "unstable")
    turn = "arithmetic never would, with this KV cache"
    if not math.isinf(found.turning_streams):
        turn = f"arithmetic would from {count(found.turning_streams, 'streams')} on"
    if found.regime == "prefill":
        turn = f"the arithmetic of prompts takes {share(found.prefill_share)} of the time"
    return Verdict(
        level=Level.BAD if late else Level.GOOD,
        word=f"{found.regime.capitalize()}-bound",
        reason=f"{count(found.streams, 'streams')} at {duration(found.tpot_s.value)} a token, most of it "
        f"{found.bottleneck}; {turn}. The floor is {duration(found.floor_tpot_s)}.",
        action=plan.limit.fix if late and plan.limit else "",
        context=plan.inputs,
    )


class LoadCurves(NamedTuple):
    """What more requests at once do, and the plans behind each point.

    throughput  output tokens a second against requests at once
    tpot        time per output token against requests at once
    ttft        time to first token against requests at once
    plans       one a point
    """

    throughput: Curve
    tpot: Curve
    ttft: Curve
    plans: tuple[Plan, ...]


_POINTS = 24
_PAST = 1.5  # how far past the limit the series go


def load_curves(plan: Plan) -> LoadCurves:
    """Throughput and latencies against requests at once, to past what the KV pool holds. Needs a plan with latency."""
    assert plan.capacity is not None
    replicas = plan.deployment.data_parallel_size
    held, wanted = plan.capacity[0].streams * replicas, plan.workload.concurrency
    last = max(2, math.ceil(_PAST * max(held, wanted or 0, 1)))
    steps = sorted({max(1, held), *(round(last ** (step / (_POINTS - 1))) for step in range(_POINTS))})
    tried = [plan.on(workload=replace(plan.workload, concurrency=each, request_rate=None)) for each in steps]
    made = tuple(each for each in tried if each.latency is not None)
    x = tuple(float(each.workload.concurrency or 0) for each in made)
    limits = [Line("x", held, f"KV pool holds {count(held)}")]
    if wanted is not None:
        limits.append(Line("x", wanted, f"{count(wanted)} asked"))
    if (most := plan.deployment.step_seqs * replicas) < held:
        limits.append(Line("x", most, f"max_num_seqs {count(most)}"))
    rates = tuple(each.latency.output_tokens_per_s.value for each in made if each.latency)
    tpots = tuple(each.latency.tpot_s.value for each in made if each.latency)
    ttfts = tuple(each.latency.ttft_s.value for each in made if each.latency)
    slo = plan.slo
    return LoadCurves(
        throughput=Curve(x, rates, tuple(limits), _best(x, rates, held)),
        tpot=Curve(x, tpots, (*limits, *_promised(slo.tpot_s)), _kept("time per output token", x, tpots, slo.tpot_s)),
        ttft=Curve(x, ttfts, (*limits, *_promised(slo.ttft_s)), _kept("time to first token", x, ttfts, slo.ttft_s)),
        plans=made,
    )


def _promised(limit: float | None) -> tuple[Line, ...]:
    return () if limit is None else (Line("y", limit, f"promised {duration(limit)}"),)


def _best(x: tuple[float, ...], rates: tuple[float, ...], held: int) -> str:
    best = max(range(len(x)), key=lambda index: rates[index])
    return (
        f"From {count(rates[0], 'tokens/s')} at {count(x[0])} to {count(rates[best], 'tokens/s')} at "
        f"{count(x[best], 'requests')}; the KV pool holds {count(held)} of full length, the rest wait."
    )


def _kept(name: str, x: tuple[float, ...], values: tuple[float, ...], limit: float | None) -> str:
    ends = f"{duration(values[0])} at {count(x[0])} to {duration(values[-1])} at {count(x[-1])}"
    said = f"{name.capitalize()} from {ends}"
    if limit is None:
        return f"{said}; nothing was promised."
    kept = [requests for requests, value in zip(x, values, strict=True) if value <= limit]
    return f"{said}; the promised {duration(limit)} " + (f"hold to {count(max(kept))}." if kept else "never hold.")
