"""Headroom: how much more traffic a deployment takes before its KV pool, its arithmetic or a promise stops it.

Each ceiling is the arrival rate at which one thing alone would stop the load; the lowest is met first. At a ceiling of
the pool, as many requests run as it holds, and they leave as fast as they come (Little's law, as in planner.latency).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.deployment import Deployment
from planner.errors import InputError
from planner.latency import Latency, Range, latency
from planner.plan import Plan
from planner.units import count, duration, share
from planner.workload import Workload

PLENTY = 10_000
"""Requests at once that stand for no limit: more than any step holds  [requests]."""
_ROUNDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """One thing that stops a growing load.

    kind          kv_cache, max_num_seqs, compute, ttft or tpot
    request_rate  arrivals at which it does  [requests/s]
    streams       requests running then, all replicas together  [requests]
    reason        in words
    """

    kind: str
    request_rate: Range
    streams: float
    reason: str


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
        return self.first.request_rate.value / self.request_rate if self.request_rate > 0 else None

    @property
    def gain(self) -> float:
        """How much more it would take without the first ceiling: small where the next is near  [ratio]."""
        first, second = (each.request_rate.value for each in self.ceilings[:2])
        return second / first - 1 if first else 0.0

    @property
    def finding(self) -> str:
        """The sentence for a page."""
        most = f"{self.first.request_rate.value:.3g} requests/s"
        if self.factor is not None:
            more = f"{self.factor:.2g} times what arrives" if self.factor >= 1 else "less than arrive"
            most = f"{most}, {more}"
        return f"It takes {most}; then {self.first.reason} Without that: {share(self.gain)} more."


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
    rate = found.output_tokens_per_s.times(1 / made.workload.output_tokens)
    streams = found.streams * made.deployment.data_parallel_size
    return Ceiling(kind=kind, request_rate=rate, streams=streams, reason=reason)
