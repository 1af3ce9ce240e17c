"""Plan: what one deployment of one model holds, how fast it is, what it costs, and which limit comes first."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from planner.calibration import Calibration
from planner.cost import Billing, Cost, cost
from planner.deployment import Deployment
from planner.errors import Refusal
from planner.gpu import Gpu
from planner.kv_layout import KvLayout, kv_layout
from planner.latency import Latency, latency
from planner.latency import unknown as unknown_speed
from planner.limits import Limit, first_limit, nearest_fix
from planner.memory import MemoryBudget, memory_budget
from planner.model import ModelSpec
from planner.price import prices
from planner.units import count, memory
from planner.verdict import Level, Verdict
from planner.weights import Weights, stage_weights, weight_assumptions
from planner.workload import Slo, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the KV pool of one replica holds.

    num_gpu_blocks        blocks, the null block included  [blocks]
    kv_cache_size_tokens  what the engine logs as "GPU KV cache size"  [tokens]
    max_concurrency       requests of max_model_len at once, as the engine logs it  [requests]
    streams               requests of the workload's full length that fit at once  [requests]
    """

    num_gpu_blocks: int
    kv_cache_size_tokens: int
    max_concurrency: float
    streams: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One deployment, planned. A part that could not be worked out is None, and `limit` says why.

    model             the model
    deployment        device and vLLM flags
    workload          the load it is planned for
    slo               latencies promised
    usd_per_gpu_hour  price of one device, the user's own or the median of the quotes  [dollars/hour]
    billing           what is paid beside the devices, and how
    calibration       constants measured on this model and device, used in place of those fitted elsewhere
    refusal           why the engine would not start with these flags, empty when it would
    layout            how vLLM lays out the KV cache
    weights           bytes of weights on a rank of each pipeline stage
    budget            what each rank's memory is spent on
    capacity          what the KV pool holds: middle, least and most
    latency           step time, time to first token and throughput, each with its range
    cost              dollars
    """

    model: ModelSpec
    deployment: Deployment
    workload: Workload
    slo: Slo
    usd_per_gpu_hour: float | None
    billing: Billing = Billing()
    calibration: Calibration | None = None
    refusal: str = ""
    layout: KvLayout | None = None
    weights: tuple[Weights, ...] = ()
    budget: MemoryBudget | None = None
    capacity: tuple[Capacity, Capacity, Capacity] | None = None
    latency: Latency | None = None
    cost: Cost | None = None

    @cached_property
    def limit(self) -> Limit | None:
        """What stops this plan first, with the nearest change that lets it fit."""
        limit = first_limit(self)
        return limit and replace(limit, fix=nearest_fix(self, self.on))

    @property
    def fits(self) -> bool:
        """The engine starts, takes the workload's requests, holds as many as asked, and keeps its promises."""
        return first_limit(self) is None

    def on(
        self, deployment: Deployment | None = None, workload: Workload | None = None, model: ModelSpec | None = None
    ) -> "Plan":
        """The same, planned again on another deployment, under another load or for another model."""
        asked = (model or self.model, deployment or self.deployment, workload or self.workload)
        return plan(*asked, self.slo, self.usd_per_gpu_hour, self.billing, self.calibration)

    def with_layout(self, layout: KvLayout) -> "Plan":
        """The same plan, had the engine this KV layout; without capacity and speed where nothing fits."""
        bare = replace(self, layout=layout, capacity=None, latency=None, cost=None)
        if self.budget is None or self.budget.failure:
            return bare
        pool = self.budget.available_kv
        held = [_capacity(layout, self.deployment, self.workload, size) for size in (pool.value, pool.low, pool.high)]
        blocks, usd = held[0].num_gpu_blocks, self.usd_per_gpu_hour
        speed = latency(
            self.model, self.deployment, self.workload, layout, self.weights, blocks, calibration=self.calibration
        )
        gpus, billed = self.deployment.gpus, self.billing
        price = None if speed is None or usd is None else cost(speed, self.workload, gpus, usd, billed)
        return replace(bare, capacity=(held[0], held[1], held[2]), latency=speed, cost=price)

    @property
    def max_model_len(self) -> int:
        """The longest request accepted  [tokens]."""
        return self.deployment.max_model_len or self.model.max_position_embeddings

    @property
    def longest_max_model_len(self) -> int:
        """The longest request that one replica's pool can hold, up to what the model allows  [tokens]."""
        return 0 if self.layout is None else self.layout.longest_max_model_len(self.pool_bytes)

    @property
    def streams(self) -> int:
        """Requests of the workload's full length that run at once on one replica  [requests]."""
        return 0 if self.capacity is None else min(self.capacity[0].streams, self.deployment.step_seqs)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken because the input did not say."""
        parts = (self.model, self.layout, self.latency)
        lines = [line for part in parts if part is not None for line in part.assumptions]
        lines += weight_assumptions(self.model)
        speedless = [unknown_speed(self.deployment.gpu)] if self.capacity is not None and self.latency is None else []
        return tuple(dict.fromkeys(filter(None, lines + speedless)))

    @property
    def pool_bytes(self) -> int:
        """The KV pool of one rank  [bytes]."""
        return (
            0
            if self.capacity is None or self.layout is None
            else self.capacity[0].num_gpu_blocks * self.layout.bytes_per_block
        )

    @property
    def verdict(self) -> Verdict:
        """The sentence that everything else explains."""
        if self.limit is not None:
            fix = self.limit.fix or "No single change of flags or GPU count makes it fit."
            return Verdict(
                level=Level.BAD, word="Does not fit", reason=self.limit.reason, action=fix, context=self.inputs
            )
        assert self.capacity is not None
        held = f"{count(self.capacity[0].kv_cache_size_tokens, 'KV tokens')}, {count(self.streams, 'requests')} of "
        reason = held + f"{count(self.workload.tokens, 'tokens')} at once."
        return Verdict(level=Level.GOOD, word="Fits", reason=reason, context=self.inputs)

    @property
    def _pool_setting(self) -> str:
        """The setting that decides the pool's size, in words."""
        server = self.deployment
        if server.kv_cache_memory_bytes is not None:
            return f"KV pool {memory(server.kv_cache_memory_bytes)}"
        if server.gpu.is_cpu and server.cpu_kvcache_space is not None:
            return f"KV pool {server.cpu_kvcache_space:g} GiB"
        return f"utilization {server.utilization:g}"

    @property
    def inputs(self) -> str:
        """The inputs in one line, so that a screenshot can stand alone."""
        server, load = self.deployment, self.workload
        ranks = f"{server.gpus} × {server.gpu.name}" if server.gpus > 1 else server.gpu.name
        streams = f", {count(load.concurrency, 'at once')}" if load.concurrency else ""
        speed = f", {self.calibration.kind}" if self.calibration else ""
        return (
            f"{self.model.name} on {ranks}, vLLM {server.vllm_version}, KV dtype {server.kv_cache_dtype}, "
            f"max_model_len {count(self.max_model_len)}, {self._pool_setting}, "
            f"{count(load.input_tokens)} in + {count(load.output_tokens)} out{streams}{speed}"
        )


def plan(
    model: ModelSpec,
    deployment: Deployment,
    workload: Workload = Workload(),
    slo: Slo = Slo(),
    usd_per_gpu_hour: float | None = None,
    billing: Billing = Billing(),
    calibration: Calibration | None = None,
) -> Plan:
    """Plans one deployment. What the engine would refuse is a Plan with that limit, not an exception.

    usd_per_gpu_hour  the user's own price; None takes the median of the catalog's quotes, where there are any
    calibration       constants measured on this model and device

    Raises InputError for malformed input, a calibration of another model or device among it.
    """
    if calibration is not None:
        calibration.check(model, deployment)
    usd = _median_price(deployment.gpu, billing.price_kind) if usd_per_gpu_hour is None else usd_per_gpu_hour
    asked: dict[str, Any] = {
        "model": model, "deployment": deployment, "workload": workload, "slo": slo, "usd_per_gpu_hour": usd,
        "billing": billing, "calibration": calibration,
    }  # fmt: skip
    try:
        layout, stages, budget = _engine(model, deployment)
    except Refusal as refusal:
        return Plan(**asked, refusal=str(refusal))
    if calibration is not None:
        budget = calibration.budget(budget)
    return Plan(**asked, weights=stages, budget=budget).with_layout(layout)


@lru_cache(maxsize=512)
def _engine(model: ModelSpec, deployment: Deployment) -> tuple[KvLayout, tuple[Weights, ...], MemoryBudget]:
    """What the load and the price do not change, kept for the next plan of the same engine. May raise Refusal."""
    layout, stages = kv_layout(model, deployment), stage_weights(model, deployment)
    return layout, stages, memory_budget(model, deployment, [stage.resident for stage in stages])


@lru_cache(maxsize=512)
def _median_price(gpu: Gpu, kind: str) -> float | None:
    known = prices(gpu, kind=kind)
    return None if known is None else known.median


def _capacity(layout: KvLayout, deployment: Deployment, workload: Workload, available: int) -> Capacity:
    blocks = deployment.num_gpu_blocks_override or layout.num_blocks(available)
    length = deployment.max_model_len or layout.max_model_len
    return Capacity(
        num_gpu_blocks=blocks,
        kv_cache_size_tokens=layout.kv_cache_size_tokens(blocks, length),
        max_concurrency=layout.max_concurrency(blocks, length),
        streams=blocks // max(1, layout.blocks_per_request(workload.tokens)),
    )
