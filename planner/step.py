"""How long one step of the engine takes, and what reading one prompt adds to the steps of a batch.

    step    = smooth maximum of reading weights and doing arithmetic, + KV cache + all-reduce + fixed
    prefill = smooth maximum of reading more experts and doing arithmetic, a chunk, + attention + all-reduce

Work in bytes and FLOP comes from planner.roofline, constants from planner.latency_law.
"""

import math
from dataclasses import dataclass

from planner.deployment import Deployment
from planner.gpu import Gpu
from planner.latency_law import Constants
from planner.roofline import EIGHT, PACKED, SIXTEEN, Format, Work, floor_s, prompt_floor_s
from planner.workload import Workload

ASYNC_SCHEDULING = (0, 14, 0)  # the release from which the next step is scheduled while one runs, by default
_EARLIEST, _MATURE = 12, 19  # minor releases between which kernels of 8-bit experts were measured to mature
USUAL_ACCEPTANCE = 0.7  # of drafted tokens, where the load does not say; the plan states that it was taken
_MORE_RANKS = 0.15  # share by which an all-reduce starts later for each doubling of the ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Where the time of one decoding step goes.

    weights     reading weights  [s]
    compute     what arithmetic adds to that  [s]
    kv          attention over the KV cache  [s]
    all_reduce  ranks exchanging hidden states  [s]
    fixed       kernels, scheduling, sampling  [s]
    prefill     reading other requests' prompts, spread over the steps  [s]
    """

    weights: float
    compute: float
    kv: float
    all_reduce: float
    fixed: float
    prefill: float

    @property
    def total(self) -> float:
        """The whole step  [s]."""
        return self.weights + self.compute + self.kv + self.all_reduce + self.fixed + self.prefill


class StepLaw:
    """One load on one deployment: everything that does not depend on the batch worked out once."""

    __slots__ = ("attention", "chunk", "chunks", "computed", "constants", "context", "drafted", "expert_rate",
                 "fixed", "gpu", "head", "input", "kv_rate", "launches", "link_rate", "message", "open_loop",
                 "output", "prompt_floor", "read_rate", "replicas", "sequence", "stages", "state_rate", "sums",
                 "tokens_a_step", "work")  # fmt: skip

    def __init__(self, deployment: Deployment, workload: Workload, work: Work, constants: Constants) -> None:
        gpu, c = deployment.gpu, constants
        self.gpu, self.work, self.constants = gpu, work, c
        self.input, self.output = workload.input_tokens, workload.output_tokens
        self.context = self.input + self.output / 2
        self.computed = max(1.0, self.input * (1 - workload.prefix_hit_ratio))
        self.prompt_floor = prompt_floor_s(gpu, work, self.computed, self.input - self.computed)
        self.open_loop = workload.request_rate is not None
        self.stages = deployment.pipeline_parallel_size
        self.replicas = deployment.data_parallel_size if deployment.enable_expert_parallel else 1
        bandwidth, ranks = _bandwidth(gpu), deployment.tensor_parallel_size
        pcie = gpu.link.startswith("PCIe")
        self.read_rate = bandwidth * _constant(c, "read", work.dense.kind)
        self.expert_rate = bandwidth * c.read_experts
        if work.experts.kind == PACKED:
            self.expert_rate = min(self.expert_rate, c.unpack_rate)
        if work.dense.kind == PACKED:
            self.read_rate = min(self.read_rate, c.unpack_rate)
        self.kv_rate = bandwidth * _constant(c, "read_kv", work.kv_kind)
        self.state_rate = bandwidth * c.read_kv_sixteen
        reached = _reached(gpu)
        arithmetic = SIXTEEN if work.dense.kind == PACKED else work.dense.kind
        dense = work.dense_flops / (work.dense.flops * reached * _constant(c, "dense", arithmetic))
        self.sums = dense + work.expert_flops / (_expert_flops(work.experts, c) * reached)
        sixteen = gpu.peak_flops["bfloat16"] * reached
        self.head = work.head_flops / (sixteen * c.dense_sixteen)
        self.attention = sixteen * c.prefill_attention
        self.link_rate, self.message = math.inf, 0.0
        if ranks > 1:
            share, start = (c.link_pcie, c.message_pcie) if pcie else (c.link, c.message)
            self.link_rate = gpu.link_bandwidth * share / (2 * (ranks - 1) / ranks)
            self.message = 2 * work.layers * start * (1 + _MORE_RANKS * math.log2(ranks))
        layer = c.layer + (c.rounding if work.dense.quantizes_activations else 0.0)
        self.launches = work.layers * c.eager_layer if deployment.enforce_eager else 0.0
        self.fixed = work.layers * layer + c.step + work.latent_layers * c.latent_layer
        rounding = 1 + c.aging * _releases_before_mature(deployment.version)
        rounding *= c.expert_rounding if work.experts.kind == EIGHT else 0.0
        self.fixed += work.moe_layers * (c.moe_layer + rounding)
        self.fixed += c.waiting if deployment.version < ASYNC_SCHEDULING else 0.0
        self.sequence = c.sequence
        self.chunks = math.ceil(self.computed / deployment.step_tokens)
        self.chunk = self.computed / self.chunks
        self.drafted = deployment.num_speculative_tokens
        acceptance = USUAL_ACCEPTANCE if workload.acceptance_rate is None else workload.acceptance_rate
        self.tokens_a_step = tokens_a_step(self.drafted, acceptance)

    def weights_s(self, tokens: float) -> float:
        """Reading the weights that this many tokens need  [s]."""
        work = self.work
        return work.dense_bytes / self.read_rate + work.expert_bytes * work.visited(tokens) / self.expert_rate

    def kv_s(self) -> float:
        """Reading what one sequence has cached; recurrent state keeps its own dtype, whatever the KV cache's  [s]."""
        return self.work.cached_bytes(self.context) / self.kv_rate + self.work.state_bytes / self.state_rate

    def exchanged_s(self, tokens: float) -> float:
        """All-reduce of this many tokens, but for its start  [s]."""
        return 2 * self.work.layers * tokens * self.work.message_bytes / self.link_rate

    def step(self, streams: float) -> StepParts:
        """One decoding step, no prompts in it. Pipeline stages work on different sequences at the same time."""
        work, c = self.work, self.constants
        batch = max(1.0, streams / self.stages)
        tokens = batch * (1 + self.drafted)
        read = self.weights_s(tokens * self.replicas)
        whole = _smooth_maximum(read, tokens * (self.sums + self.head), c.sharpness)
        kv = batch * self.kv_s()
        attention = tokens * work.attention_flops(self.context) / self.attention
        fixed = self.fixed + batch * self.sequence
        if self.drafted:  # each drafted token runs one layer more and the LM head
            fixed += self.drafted * (fixed / work.layers + work.head_bytes / self.read_rate)
        exchange = self.message + self.exchanged_s(tokens) if self.message else 0.0
        kv = max(kv, attention)
        if self.launches:  # without CUDA graphs the device waits for the host, where that is slower
            device = whole + kv + exchange + fixed
            fixed += _smooth_maximum(device, self.launches, c.sharpness) - device
        return StepParts(weights=read, compute=whole - read, kv=kv, all_reduce=exchange, fixed=fixed,
                         prefill=0.0)  # fmt: skip

    def prefill(self, streams: float) -> float:
        """What reading one prompt adds to the steps of a batch of this size, in chunks  [s]."""
        work, c = self.work, self.constants
        more = self.weights_s(self.chunk + streams) - self.weights_s(streams)
        chunk = _smooth_maximum(more, self.chunk * self.sums, c.sharpness)
        before = self.input - self.computed
        flops = sum(span.prefill_flops * span.pairs(self.computed, before) for span in work.spans)
        exchange = self.exchanged_s(self.computed) if self.message else 0.0
        return self.chunks * (chunk + work.layers * c.prefill_layer) + flops / self.attention + exchange

    def floor(self, streams: float) -> float:
        """The least time per output token at this number of streams  [s]."""
        batch = max(1.0, streams / self.stages)
        return floor_s(self.gpu, self.work, batch, batch * (1 + self.drafted), self.context) / self.tokens_a_step

    def first_floor(self) -> float:
        """The least time to the first token: the weights read once, or the prompt's arithmetic at peak  [s]."""
        return max(self.work.weight_bytes(self.computed) / self.gpu.memory_bandwidth, self.prompt_floor)

    def served_floor(self, streams: float) -> float:
        """The least time that a request is in flight: the arithmetic of all their prompts, and decoding  [s].

        Stages work on different prompts at the same time.
        """
        return streams * self.prompt_floor / self.stages + self.output * self.floor(streams)

    def turning_streams(self) -> float:
        """Streams at which arithmetic takes as long as reading weights and KV cache, on one replica  [requests].

        Solves tokens × arithmetic = weights + streams × KV with all experts read.
        """
        left = (self.sums + self.head) * (1 + self.drafted) - self.kv_s()
        return self.stages * self.weights_s(math.inf) / left if left > 0 else math.inf


def tokens_a_step(drafted: int, acceptance: float) -> float:
    """Tokens gained when each drafted one is kept only after all before it: (1 − a^(n+1)) / (1 − a).

    Leviathan, Kalman and Matias, Fast Inference from Transformers via Speculative Decoding (2023), equation 1.

    >>> tokens_a_step(0, 0.8), round(tokens_a_step(3, 0.8), 3), tokens_a_step(3, 1.0)
    (1.0, 2.952, 4.0)
    """
    return 1.0 + drafted if acceptance >= 1 else (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


def _smooth_maximum(one: float, other: float, sharpness: float) -> float:
    """(aˢ + bˢ)^(1/s), scaled by the larger so that nothing overflows.

    >>> round(_smooth_maximum(3.0, 4.0, 2.0), 9)
    5.0
    """
    large, small = (one, other) if one > other else (other, one)
    return large * (1 + (small / large) ** sharpness) ** (1 / sharpness) if large > 0 else 0.0


def _bandwidth(gpu: Gpu) -> float:
    """Of a CPU what a copy reached: its peak is shared with other work and far off  [bytes/s]."""
    return gpu.measured_bandwidth or gpu.memory_bandwidth if gpu.is_cpu else gpu.memory_bandwidth


def _reached(gpu: Gpu) -> float:
    """Share of a CPU's peak that a matrix product reached; 1 on a GPU, whose share is the fitted constant  [ratio]."""
    measured = gpu.measured_flops.get("bfloat16") if gpu.is_cpu else None
    return measured / gpu.peak_flops["bfloat16"] if measured else 1.0


def _releases_before_mature(version: tuple[int, int, int]) -> int:
    """Releases by which a version's kernels of 8-bit experts are behind  [releases].

    >>> [_releases_before_mature(version) for version in ((0, 8, 5), (0, 17, 1), (0, 32, 0), (1, 0, 0))]
    [7, 2, 0, 0]
    """
    return 0 if version[0] else max(0, _MATURE - max(_EARLIEST, version[1]))


def _expert_flops(experts: Format, c: Constants) -> float:
    """What products of experts reach  [FLOP/s]."""
    if experts.kind == PACKED:
        return min(experts.flops * c.expert_sixteen, c.unpack_flops)
    return experts.flops * _constant(c, "expert", experts.kind)


def _constant(constants: Constants, what: str, kind: str) -> float:
    found: float = getattr(constants, f"{what}_{kind}")
    return found
