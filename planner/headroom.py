"""Headroom: how much more traffic a deployment takes before its KV pool, its arithmetic or a promise stops it.

Each ceiling is the arrival rate at which one thing alone would stop the load; the lowest is met first. At a ceiling of
the pool, as many requests run as it holds, and they leave as fast as they come (Little's law, as in planner.latency).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from planner.cost import Cost, cost
from planner.curves import Curve, Line
from planner.deployment import Deployment
from planner.errors import InputError
from planner.latency import Latency, Range, latency
from planner.plan import Plan
from planner.units import count, duration, rate, share
from planner.verdict import Level, Verdict
from planner.workload import Workload

PLENTY = 10_000
"""Requests at once that stand for no limit: more than any step holds  [requests]."""
LITTLE = 1.25
"""Times the present traffic below which little is left  [ratio]."""
LITTLE_GAIN = 0.1
"""More traffic by lifting one limit that is not worth it  [ratio]."""
_ROUNDS = 40
_POINTS = 24
_BEYOND = 1.25  # how far past the last ceiling of the engine the curves go
_ACTIONS: Mapping[str, str] = {
    "kv_cache": "An FP8 KV cache, a shorter load or one more replica raises it.",
    "max_num_seqs": "Raise --max-num-seqs, or add a replica.",
    "compute": "Only more or faster devices raise it: add a replica.",
    "ttft": "Add a replica, or promise a longer time to first token.",
    "tpot": "Add a replica, or promise a longer time per output token.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """One thing that stops a growing load.

    kind          kv_cache, max_num_seqs, compute, ttft or tpot
    request_rate  arrivals at which it does  [requests/s]
    streams       requests running then, all replicas together  [requests]
    reason        in words
    latency       of the load then; None where even one request is too slow
    """

    kind: str
    request_rate: Range
    streams: float
    reason: str
    latency: Latency | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What is left of a deployment.

    request_rate  arrivals now  [requests/s]
    ceilings      what stops it, the first first
    """

    request_rate: float
    ceilings: tuple[Ceiling, ...]

    @property
    def first(self) -> Ceiling:
        """What stops it first."""
        return self.ceilings[0]

    @property
    def factor(self) -> float | None:
        """How many times the present traffic it takes; None without traffic  [ratio]."""
        return self.times(self.first)

    def times(self, ceiling: Ceiling) -> float | None:
        """How many times the present traffic that ceiling is; None without traffic  [ratio]."""
        return ceiling.request_rate.value / self.request_rate if self.request_rate > 0 else None

    @property
    def gain(self) -> float:
        """How much more it would take without the first ceiling: small where the next is near  [ratio]."""
        first, second = (each.request_rate.value for each in self.ceilings[:2])
        return second / first - 1 if first else 0.0

    @property
    def finding(self) -> str:
        """The sentence for a page."""
        most = rate(self.first.request_rate.value, "requests/s")
        if self.factor is not None:
            more = f"{rate(self.factor, 'times')} what arrives" if self.factor >= 1 else "less than arrive"
            most = f"{most}, {more}"
        return f"It takes {most}; then {self.first.reason} Without that: {share(self.gain)} more."

    def verdict(self, context: str = "") -> Verdict:
        """The same with its level, and what raises the ceiling."""
        if self.factor is None:
            level, word = Level.UNKNOWN, "Traffic not known"
        elif self.factor < 1:
            level, word = Level.BAD, "Too much traffic"
        else:
            level, word = (Level.WARNING, "Little room") if self.factor < LITTLE else (Level.GOOD, "Room left")
        # Where the device has hardly more time, lifting another limit first would bring nothing.
        is_spent = any(each.kind == "compute" for each in self.ceilings) and self.gain < LITTLE_GAIN
        action = _ACTIONS[
            "compute" if is_spent and self.first.kind in ("kv_cache", "max_num_seqs") else self.first.kind
        ]
        return Verdict(level=level, word=word, reason=self.finding, action=action, context=context)


def headroom(made: Plan, request_rate: float) -> Headroom:
    """How much more of the plan's requests its deployment takes than arrive now.

    request_rate  arrivals now, of requests like those of the plan's workload  [requests/s]

    Raises InputError where the engine would not start or no speed can be predicted.
    """
    if made.layout is None or made.capacity is None:
        raise InputError("plan", str(made.limit), "a plan whose engine starts")
    if made.latency is None:
        raise InputError("plan", made.deployment.gpu.name, "a device whose speed is known, or a calibration")
    return Headroom(
        request_rate=request_rate, ceilings=tuple(sorted(_ceilings(made), key=lambda each: each.request_rate.value))
    )


def alternatives(made: Plan) -> dict[str, Plan]:
    """The same load on deployments that a team would consider next, by what they change."""
    server, load = made.deployment, made.workload
    longer = replace(load, input_tokens=load.input_tokens * 2)
    room = max(made.max_model_len, longer.tokens)
    changes: dict[str, tuple[Deployment, Workload]] = {
        "FP8 KV cache": (replace(server, kv_cache_dtype="fp8"), load),
        "One more replica": (replace(server, data_parallel_size=server.data_parallel_size + 1), load),
        "Prompts twice as long": (replace(server, max_model_len=room), longer),
    }
    if server.kv_cache_dtype.startswith("fp8"):
        del changes["FP8 KV cache"]
    return {name: made.on(deployment, workload) for name, (deployment, workload) in changes.items()}


def planned_rate(made: Plan) -> float:
    """Arrivals as the plan has them, its own or those of its concurrency; 0 where it asks for as many as fit."""
    load = made.workload
    if load.request_rate is not None:
        return load.request_rate
    if load.concurrency is None or made.latency is None:
        return 0.0
    return made.latency.output_tokens_per_s.value / load.output_tokens


def arriving(made: Plan, request_rate: float) -> Plan:
    """The same plan at so many requests a second; as it is where there are none  [requests/s]."""
    if request_rate <= 0:
        return made
    return made.on(workload=replace(made.workload, concurrency=None, request_rate=request_rate))


def cost_at(made: Plan, ceiling: Ceiling) -> Cost | None:
    """Dollars when it is as busy as that; None without a price."""
    if ceiling.latency is None or made.usd_per_gpu_hour is None:
        return None
    return cost(ceiling.latency, made.workload, made.deployment.gpus, made.usd_per_gpu_hour, made.billing)


class Growth(NamedTuple):
    """What more arrivals do, to past what the engine takes.

    throughput  output tokens a second against requests a second
    tpot        time per output token against requests a second
    """

    throughput: Curve
    tpot: Curve


def growth(made: Plan, found: Headroom) -> Growth:
    """The load from one request at a time to more than runs at once, with each ceiling near it."""
    assert made.capacity is not None
    blocks, seqs = made.capacity[0].num_gpu_blocks, made.deployment.step_seqs
    full = _full(made, seqs, blocks)
    assert full is not None
    tried = [_at(made, made.deployment, blocks, full.streams ** (step / (_POINTS - 1))) for step in range(_POINTS)]
    loads = [each for each in tried if each is not None]
    rates = [each.output_tokens_per_s.value for each in loads]
    x = [each / made.workload.output_tokens for each in rates]
    end = _BEYOND * max(x[-1], found.request_rate)
    lines = [Line("x", found.request_rate, "now")] if found.request_rate > 0 else []
    lines += [Line("x", each.request_rate.value, each.kind) for each in found.ceilings if each.request_rate.value < end]
    tpots = [each.tpot_s.value for each in loads]
    kept = [Line("y", made.slo.tpot_s, f"promised {duration(made.slo.tpot_s)}")] if made.slo.tpot_s else []
    most = f"{rate(x[-1], 'requests/s')}; what arrives beyond waits."
    return Growth(
        Curve((0.0, *x, end), (0.0, *rates, rates[-1]), tuple(lines), f"{count(rates[-1], 'tokens/s')} at {most}"),
        Curve((*x, end), (*tpots, tpots[-1]), (*lines, *kept),
              f"Time per output token from {duration(tpots[0])} for one request to {duration(tpots[-1])} at {most}"),
    )  # fmt: skip


def as_json(found: Headroom) -> dict[str, Any]:
    """Every ceiling with its range, the lowest first."""
    ceilings = [
        {
            "kind": each.kind,
            "request_rate": each.request_rate.value,
            "request_rate_low": each.request_rate.low,
            "request_rate_high": each.request_rate.high,
            "streams": None if each.kind == "compute" else each.streams,
            "reason": each.reason,
        }
        for each in found.ceilings
    ]
    return {
        "request_rate": found.request_rate,
        "factor": found.factor,
        "gain": found.gain,
        "finding": found.finding,
        "ceilings": ceilings,
    }


def as_text(found: Headroom) -> str:
    """For a terminal: the sentence, then a line a ceiling."""
    lines = [
        f"  {each.kind:<13} {rate(each.request_rate.value, 'requests/s'):>18} "
        f"({rate(each.request_rate.low, '').strip()} to {rate(each.request_rate.high, '').strip()})"
        + ("" if each.kind == "compute" else f", {count(each.streams)} running")
        for each in found.ceilings
    ]
    return "\n".join((found.finding, *lines))


def _ceilings(made: Plan) -> Iterator[Ceiling]:
    assert made.capacity is not None
    blocks, seqs = made.capacity[0].num_gpu_blocks, made.deployment.step_seqs
    endless = blocks * PLENTY
    pool, step, device = (
        _full(made, max_num_seqs, held) for max_num_seqs, held in ((PLENTY, blocks), (seqs, endless), (PLENTY, endless))
    )
    if pool is None or step is None or device is None:
        return  # the pool holds no request: the plan's own limit says so
    if pool.streams < PLENTY:
        held = count(pool.streams, "requests")
        yield _ceiling("kv_cache", made, pool, f"the KV cache is full: it holds {held} a replica.")
    yield _ceiling("max_num_seqs", made, step, f"--max-num-seqs {count(seqs)} requests run at once.")
    yield _ceiling("compute", made, device, "the device has no time left, whatever the KV cache holds.")
    real = _full(made, seqs, blocks)
    if real is None:
        return
    for kind, promised in (("ttft", made.slo.ttft_s), ("tpot", made.slo.tpot_s)):
        if promised is not None and getattr(real, f"{kind}_s").value > promised:
            reason = f"the {kind.upper()} of {duration(promised)} is no longer kept."
            yield _ceiling(kind, made, _kept(made, blocks, real.streams, kind, promised), reason)


def _full(made: Plan, max_num_seqs: int, blocks: int) -> Latency | None:
    """The load with as many requests running as these two limits allow."""
    return _at(made, replace(made.deployment, max_num_seqs=max_num_seqs), blocks, streams=PLENTY)


def _at(made: Plan, deployment: Deployment, blocks: int, streams: float) -> Latency | None:
    assert made.layout is not None
    load = replace(made.workload, concurrency=None, request_rate=1.0)  # arrivals at random; `streams` says how many
    asked = streams * deployment.data_parallel_size
    return latency(made.model, deployment, load, made.layout, made.weights, blocks, asked, calibration=made.calibration)


def _kept(made: Plan, blocks: int, most: float, kind: str, promised: float) -> Latency | None:
    """The load at which a promise is just kept, by halving; None where it is not kept even by one request alone."""

    def late(streams: float) -> bool:
        found = _at(made, made.deployment, blocks, streams)
        return found is None or getattr(found, f"{kind}_s").value > promised

    if late(1.0):
        return None
    return _at(made, made.deployment, blocks, _largest(most, late))


def _largest(most: float, is_over: Callable[[float], bool]) -> float:
    """The largest number that is not over, between 1, which is not, and `most`, which is."""
    least = 1.0
    for _ in range(_ROUNDS):
        middle = (least + most) / 2
        least, most = (least, middle) if is_over(middle) else (middle, most)
    return least


def _ceiling(kind: str, made: Plan, found: Latency | None, reason: str) -> Ceiling:
    """At most so many requests a second; none at all where even one is too slow."""
    if found is None:
        return Ceiling(kind=kind, request_rate=Range(0.0, 0.0, 0.0), streams=0.0, reason=reason)
    most = found.output_tokens_per_s.times(1 / made.workload.output_tokens)
    streams = found.streams * made.deployment.data_parallel_size
    return Ceiling(kind=kind, request_rate=most, streams=streams, reason=reason, latency=found)
