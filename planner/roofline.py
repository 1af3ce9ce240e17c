"""What one step of the engine asks of a rank: bytes to read, arithmetic to do, bytes to exchange. No time in here.

A decoding step reads every dense weight once whatever the batch, the experts its tokens were routed to, and the KV
cache of each sequence; it does two FLOP for each active parameter and token. Which resource runs out first is the
roofline (Williams, Waterman and Patterson, 2009); planner.latency turns the work into seconds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.deployment import Deployment
from planner.gpu import Gpu
from planner.kv_layout import KvLayout
from planner.model import MLA, Attention, Mlp, ModelSpec, Moe, Recurrent
from planner.quantization import Scheme
from planner.weights import Weights, parameters, recipe_of

SIXTEEN, EIGHT, FOUR, PACKED = "sixteen", "eight", "four", "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a matrix is stored and in which arithmetic the device multiplies it.

    kind   sixteen, eight, four (the device computes in it) or packed (unpacked to 16 bits while computing)
    flops  peak of that arithmetic  [FLOP/s]
    """

    kind: str
    flops: float

    @property
    def quantizes_activations(self) -> bool:
        """Each matrix product first scales and rounds its input."""
        return self.kind in (EIGHT, FOUR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Attention layers that see equally far back, on one rank, all pipeline stages together.

    window          tokens a query sees, None for all  [tokens]
    bytes_a_token   KV cache of one token  [bytes]
    flops_a_token   scores and values of one query over one token while decoding  [FLOP]
    prefill_flops   the same while reading a prompt (MLA: not absorbed)  [FLOP]
    """

    window: int | None
    bytes_a_token: float
    flops_a_token: float
    prefill_flops: float

    def seen(self, context: float) -> float:
        """Tokens one query attends to at this context  [tokens]."""
        return context if self.window is None else min(context, self.window)

    def pairs(self, new: float, before: float = 0.0) -> float:
        """Query-key pairs of `new` prompt tokens after `before` cached ones  [tokens × tokens].

        >>> full = Span(window=None, bytes_a_token=0, flops_a_token=0, prefill_flops=0)
        >>> full.pairs(1000), full.pairs(500, before=500)
        (500000.0, 375000.0)
        """
        middle = before + new / 2
        return new * (middle if self.window is None else min(middle, self.window))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one rank does for a step, summed over the pipeline stages a token passes through.

    layers           decoder layers  [layers]
    moe_layers       of them with experts  [layers]
    latent_layers    of them with multi-head latent attention  [layers]
    dense_bytes      weights every step reads  [bytes]
    expert_bytes     routed experts on the rank  [bytes]
    routed           share of the experts that one token visits  [ratio]
    dense            format of the dense matrices
    experts          format of the experts
    dense_flops      dense matrices but the LM head, a token  [FLOP]
    expert_flops     experts a token visits  [FLOP]
    head_flops       the LM head, a token  [FLOP]
    head_bytes       the LM head  [bytes]
    spans            attention layers by how far they see
    encoder_bytes    KV cache of the encoder's output, a sequence  [bytes]
    state_bytes      recurrent state, read and written, a sequence  [bytes]
    message_bytes    hidden state of one token that ranks exchange  [bytes]
    kv_kind          sixteen, eight (attention computes in it) or packed
    """

    layers: int
    moe_layers: int
    latent_layers: int
    dense_bytes: int
    expert_bytes: int
    routed: float
    dense: Format
    experts: Format
    dense_flops: float
    expert_flops: float
    head_flops: float
    head_bytes: int
    spans: tuple[Span, ...]
    encoder_bytes: float
    state_bytes: float
    message_bytes: int
    kv_kind: str

    @property
    def flops_s(self) -> float:
        """The matrices of a token at the device's peak  [s]."""
        return self.dense_flops / self.dense.flops + self.expert_flops / self.experts.flops

    def visited(self, tokens: float) -> float:
        """Share of the experts that a step of this many tokens reads, routed at random: 1 − (1 − k/E)^tokens.

        Mixtral visits 2 of 8: one token reads a quarter, 16 tokens all but 1 %.
        """
        return 1.0 if self.routed >= 1 else 1 - (1 - self.routed) ** tokens

    def weight_bytes(self, tokens: float) -> float:
        """Weights that a step of this many tokens reads  [bytes]."""
        return self.dense_bytes + self.expert_bytes * self.visited(tokens)

    def cached_bytes(self, context: float) -> float:
        """Keys and values that one sequence reads a step at this context  [bytes]."""
        return self.encoder_bytes + sum(span.bytes_a_token * span.seen(context) for span in self.spans)

    def kv_bytes(self, context: float) -> float:
        """The same and its recurrent state  [bytes]."""
        return self.state_bytes + self.cached_bytes(context)

    def attention_flops(self, context: float) -> float:
        """Attention of one decoded token at this context  [FLOP]."""
        return sum(span.flops_a_token * span.seen(context) for span in self.spans)


def floor_s(gpu: Gpu, work: Work, streams: float, tokens: float, context: float) -> float:
    """The least a decoding step can take: everything read once at peak bandwidth, or all arithmetic at peak  [s].

    streams  sequences in the step  [requests]
    tokens   tokens in the step: as many, or more with speculation  [tokens]
    """
    read = work.weight_bytes(tokens) + streams * work.kv_bytes(context)
    return max(read / gpu.memory_bandwidth, tokens * work.flops_s)


def prompt_floor_s(gpu: Gpu, work: Work, new: float, before: float = 0.0) -> float:
    """The least that the arithmetic of a prompt can take on the ranks of all stages, one after another  [s].

    new     prompt tokens to compute  [tokens]
    before  prompt tokens found in the prefix cache  [tokens]
    """
    peaks = gpu.peak_flops
    attention = peaks["bfloat16"] if work.kv_kind == SIXTEEN else peaks.get("fp8", peaks["bfloat16"])
    scores = sum(span.prefill_flops * span.pairs(new, before) for span in work.spans)
    return new * work.flops_s + scores / attention


def times_over_ceiling(tokens_per_s: float, streams: float, read_bytes: float, gpu: Gpu) -> float:
    """By what factor a claimed rate exceeds what the memory bandwidth allows: above 1 it is not physical  [ratio].

    read_bytes  weights and KV cache that each step reads  [bytes]

    Llama-3-8B on A100-80GB, 59 streams of 2,048 tokens beside 16 GB of weights, claimed at 39,294 tokens/s: with the
    32 KV heads assumed there, and with the 8 it has.
    >>> from planner.gpu import gpu_named
    >>> a100, token = gpu_named("A100-SXM-80GB"), 32 * 2 * 128 * 2
    >>> [round(times_over_ceiling(39_294, 59, 16e9 + 59 * 2048 * token * heads, a100)) for heads in (32, 8)]
    [26, 10]
    """
    return tokens_per_s / streams * read_bytes / gpu.memory_bandwidth


_WORKS: dict[tuple[Any, ...], tuple[Any, Work]] = {}
_WORKS_KEPT = 512


def work_of(model: ModelSpec, deployment: Deployment, layout: KvLayout, stages: Sequence[Weights]) -> Work:
    """The work of this model in this deployment; remembered, because a plan asks again whenever the load changes."""
    key = (id(model), id(layout), id(stages), deployment.gpu.name, deployment.tensor_parallel_size,
           deployment.pipeline_parallel_size)  # fmt: skip
    asked = (model, layout, stages)
    kept = _WORKS.get(key)
    if kept is not None and all(mine is yours for mine, yours in zip(kept[0], asked, strict=True)):
        return kept[1]
    work = _work(model, deployment, layout, stages)
    while len(_WORKS) >= _WORKS_KEPT:
        _WORKS.pop(next(iter(_WORKS)), None)
    _WORKS[key] = (asked, work)
    return work


def _work(model: ModelSpec, deployment: Deployment, layout: KvLayout, stages: Sequence[Weights]) -> Work:
    gpu, ranks = deployment.gpu, deployment.tensor_parallel_size
    counted = parameters(model)
    moes = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Moe)]
    routed = moes[0].num_experts_per_tok / moes[0].num_experts if moes else 1.0
    head = counted.head or model.vocab_size * model.hidden_size
    active_experts = counted.experts * routed
    dense, experts = _formats(model, gpu)
    return Work(
        layers=len(model.layers),
        moe_layers=len(moes),
        latent_layers=sum(any(isinstance(mixer, MLA) for mixer in layer.mixers) for layer in model.layers),
        dense_bytes=sum(stage.dense for stage in stages),
        expert_bytes=sum(stage.experts for stage in stages),
        routed=routed,
        dense=dense,
        experts=experts,
        dense_flops=2 * max(0.0, counted.active - active_experts - head) / ranks,
        expert_flops=2 * active_experts / ranks,
        head_flops=2 * head / ranks,
        head_bytes=stages[-1].head or 2 * head // ranks,
        spans=_spans(model, deployment, layout),
        encoder_bytes=_encoder_bytes(model, deployment, layout),
        state_bytes=2 * layout.state_bytes_per_seq * deployment.pipeline_parallel_size,
        message_bytes=2 * model.hidden_size,
        kv_kind=_kv_kind(layout, gpu),
    )


def _formats(model: ModelSpec, gpu: Gpu) -> tuple[Format, Format]:
    """How the dense matrices and the experts are stored: a layer in the middle speaks for all."""
    plan, index = recipe_of(model), len(model.layers) // 2
    prefix = f"model.layers.{index}."
    own = "mlp.down_proj" if isinstance(model.layers[index].mlp, Mlp) else "self_attn.o_proj"
    dense = _format(plan.scheme([prefix + own], "linear"), gpu)
    return dense, _format(plan.scheme([prefix + "mlp.experts"], "experts"), gpu)


def _format(scheme: Scheme | None, gpu: Gpu) -> Format:
    """The arithmetic a stored matrix meets on this device; a device without it unpacks to 16 bits."""
    peaks = gpu.peak_flops
    if scheme is None:
        return Format(kind=SIXTEEN, flops=peaks["bfloat16"])
    if scheme.dtype.startswith("float8") and "fp8" in peaks:
        return Format(kind=EIGHT, flops=peaks["fp8"])
    if scheme.dtype == "int8" and scheme.name.startswith("INT8") and "int8" in peaks:
        return Format(kind=EIGHT, flops=peaks["int8"])
    if scheme.name in ("NVFP4", "MXFP4") and "fp4" in peaks:
        return Format(kind=FOUR, flops=peaks["fp4"])
    return Format(kind=PACKED, flops=peaks["bfloat16"])


def _kv_kind(layout: KvLayout, gpu: Gpu) -> str:
    """Whether attention reads the cache as it is stored: Blackwell's kernels take FP8, others convert first."""
    if layout.resolved_kv_cache_dtype in ("auto", "bfloat16", "float16", "half", "float32"):
        return SIXTEEN
    return EIGHT if "fp4" in gpu.peak_flops else PACKED


def _encoder_bytes(model: ModelSpec, deployment: Deployment, layout: KvLayout) -> float:
    """What a sequence reads of the encoder's output: its length, not what the pool reserves for it  [bytes]."""
    length = max((m.encoder_tokens for m in model.mixers if isinstance(m, Attention)), default=0)
    slot = sum(group.content_bytes / group.block_size for group in layout.groups if group.kind == "cross")
    return slot * length * deployment.pipeline_parallel_size / deployment.decode_context_parallel_size


def _spans(model: ModelSpec, deployment: Deployment, layout: KvLayout) -> tuple[Span, ...]:
    """Attention layers grouped by window. Bytes come from the KV layout, arithmetic from the heads on a rank."""
    context, stages = deployment.decode_context_parallel_size, deployment.pipeline_parallel_size
    sizes: Counter[int | None] = Counter()
    decode: Counter[int | None] = Counter()
    prompt: Counter[int | None] = Counter()
    sparse = next((m.indexer.index_topk for m in model.mixers if isinstance(m, MLA) and m.indexer), None)
    for group in layout.groups:
        if group.kind not in ("state", "cross") and group.block_size:
            window = sparse if group.kind == "latent" else group.sliding_window
            sizes[window] += group.content_bytes / group.block_size * stages  # type: ignore[assignment]
    for mixer in model.mixers:
        if isinstance(mixer, Attention) and mixer.cross:
            continue  # one query over the encoder's output: reading that takes far longer than the arithmetic
        if isinstance(mixer, Attention):
            window = mixer.sliding_window or mixer.attention_chunk_size
            flops = 2 * mixer.num_attention_heads * (mixer.head_dim + mixer.v_head_dim)
            decode[window] += flops
            prompt[window] += flops
        elif isinstance(mixer, MLA):
            heads, latent = mixer.num_attention_heads, 2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim
            decode[sparse] += 2 * heads * latent
            prompt[sparse] += 2 * heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
        elif not isinstance(mixer, Recurrent):
            continue
    ranks = deployment.tensor_parallel_size
    return tuple(
        Span(window=window, bytes_a_token=sizes[window] / context, flops_a_token=decode[window] / ranks / context,
             prefill_flops=prompt[window] / ranks)
        for window in {**sizes, **decode}
    )  # fmt: skip
