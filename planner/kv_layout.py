"""The KV cache as vLLM allocates it: blocks, groups, tokens and concurrency of one model on one rank."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner import support
from planner.attention_backend import attention_backend
from planner.deployment import Deployment
from planner.errors import Refusal
from planner.kv_dtype import declared_kv_dtype, kv_dtype
from planner.kv_groups import grouped, grows, stage_of_layer
from planner.kv_specs import KvSpec, draft_layers, layer_specs
from planner.model import CompressedAttention, ModelSpec
from planner.units import memory

TOKENS_ARE_CONCURRENCY = (0, 21, 0)  # from here on "KV cache size" is int(concurrency × max_model_len)
ATTENTION_FREE = ("mamba", "mamba2", "falcon_mamba")  # families without prefix caching
SETTLED_FREES = (0, 26, 0)  # from here on blocks are freed when a step settles, so each step in flight holds its own
STATE_CHECKPOINTS = (0, 32, 0)  # from here on Mamba 2 (and KDA where FlashKDA runs) keep one more state block


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers that share one block table.

    kind             full, latent, indexer, sliding, sliding_latent, chunked, state or cross
    layers           caches in it, of the whole model  [layers]
    padding_layers   charged but empty, in the widest stage  [layers]
    block_size       tokens a block holds; 0 for a state  [tokens]
    page_size_bytes  one block of all its layers on one rank  [bytes]
    content_bytes    the part of it that stores something  [bytes]
    num_kv_heads     cached heads of a layer  [heads]
    head_size        size of one key  [elements]
    head_size_v      size of one value  [elements]
    sliding_window   tokens a request keeps, None for all  [tokens]
    checkpoints      extra state blocks a request holds while its prefix is cached  [blocks]
    """

    kind: str
    layers: int
    padding_layers: int
    block_size: int
    page_size_bytes: int
    content_bytes: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    sliding_window: int | None
    checkpoints: int

    def stored_bytes(self, length: int, layout: "KvLayout") -> float:
        """What its layers store of a request: a state, or bytes a token × the tokens kept  [bytes]."""
        if self.kind == "state":
            return self.content_bytes
        kept = layout.encoder_tokens if self.kind == "cross" else min(self.sliding_window or length, length)
        return self.content_bytes / self.block_size * kept / layout.context_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """What one rank keeps for its requests.

    groups                    block tables, every one served from the same pool
    bytes_per_block           one block of the pool: the widest group  [bytes]
    block_size                tokens an attention block holds  [tokens]
    bytes_per_token           all paged layers, as if none forgot  [bytes/token]
    bytes_per_token_growing   the layers that never forget  [bytes/token]
    state_bytes_per_seq       recurrent state, whatever the length  [bytes]
    resolved_kv_cache_dtype   what the engine stores
    backend                   attention kernels
    in_flight_tokens          scheduled but not settled, kept beyond a window  [tokens]
    encoder_tokens            longest encoder output, for cross attention  [tokens]
    speculative_tokens        drafted a step  [tokens]
    prefix_caching            state blocks are kept for reuse
    context_ranks             ranks that share a request's tokens  [GPUs]
    tokens_are_concurrency    meaning of "KV cache size": concurrency × length, else blocks per group × block size
    max_model_len             the longest request the model allows  [tokens]
    assumptions               what was taken where the inputs did not say
    """

    groups: tuple[KvGroup, ...]
    bytes_per_block: int
    block_size: int
    bytes_per_token: float
    bytes_per_token_growing: float
    state_bytes_per_seq: int
    resolved_kv_cache_dtype: str
    backend: str
    in_flight_tokens: int
    encoder_tokens: int
    speculative_tokens: int
    prefix_caching: bool
    context_ranks: int
    tokens_are_concurrency: bool
    max_model_len: int
    assumptions: tuple[str, ...] = ()

    def group_blocks(self, group: KvGroup, length: int) -> int:
        """Blocks a request of this length takes in one group  [blocks].

        full, latent  ⌈L / b⌉                       windowed  ⌈min(w − 1 + in flight, L) / b⌉ + 1
        state         2 (+ 1) + drafted, or 1 + drafted without prefix caching
        chunked       ⌈min(c + in flight, L) / b⌉   cross     ⌈encoder tokens / b⌉
        Source: max_memory_usage_bytes of each spec, vllm/v1/kv_cache_interface.py (0.32).
        """
        match group.kind:
            case "state":
                kept = 2 + group.checkpoints if self.prefix_caching else 1
                return kept + self.speculative_tokens
            case "sliding" | "sliding_latent":
                assert group.sliding_window is not None
                kept = min(group.sliding_window - 1 + self.in_flight_tokens, length)
                return math.ceil(kept / group.block_size) + 1
            case "chunked":
                assert group.sliding_window is not None
                return math.ceil(min(group.sliding_window + self.in_flight_tokens, length) / group.block_size)
            case "cross":
                return math.ceil(self.encoder_tokens / group.block_size)
            case _:
                return math.ceil(math.ceil(length / self.context_ranks) / group.block_size)

    def blocks_per_request(self, length: int) -> int:
        """Blocks a request of this length holds at most, over all groups  [blocks]."""
        return sum(self.group_blocks(group, length) for group in self.groups)

    def request_bytes(self, length: int) -> int:
        """Pool that a request of this length holds at most on one rank  [bytes]."""
        return self.blocks_per_request(length) * self.bytes_per_block

    def stored_bytes(self, length: int) -> int:
        """What a request of this length stores on one rank, without block ends, padding and tokens in flight  [bytes].

        The lower figure that papers and calculators give: Σ layers bytes a token × tokens kept + states.
        """
        return round(sum(group.stored_bytes(length, self) for group in self.groups))

    def num_blocks(self, available: int) -> int:
        """Blocks that fit, the null block included  [blocks]."""
        return max(0, available) // self.bytes_per_block if self.bytes_per_block else 0

    def max_concurrency(self, num_blocks: int, length: int) -> float:
        """Requests of this length that fit at once  [requests]."""
        needed = self.blocks_per_request(length)
        return num_blocks / needed if needed else math.inf

    def kv_cache_size_tokens(self, num_blocks: int, length: int) -> int:
        """The number vLLM logs as "KV cache size"  [tokens].

        From 0.21 on int(concurrency × max_model_len); before, num_blocks // groups × block size (× context ranks).
        """
        if not self.groups:
            return 0
        if self.tokens_are_concurrency:
            return int(self.max_concurrency(num_blocks, length) * length)
        return num_blocks // len(self.groups) * self.block_size * self.context_ranks

    def fits(self, available: int, length: int) -> bool:
        """Whether one request of this length can start: one block is never handed out."""
        return self.request_bytes(length) <= available - self.bytes_per_block

    def longest_max_model_len(self, available: int) -> int:
        """The longest request that fits, up to what the model allows; 0 where none does  [tokens]."""
        low, high = 0, self.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.fits(available, middle) else (low, middle - 1)
        return low

    @property
    def padding_waste(self) -> float:
        """Share of the pool that stores nothing, with every group equally used  [ratio]."""
        charged = len(self.groups) * self.bytes_per_block
        return 1 - sum(group.content_bytes for group in self.groups) / charged if charged else 0.0


_LAYOUTS: dict[tuple[Any, ...], tuple[ModelSpec, KvLayout]] = {}
_LAYOUTS_KEPT = 512


def kv_layout(model: ModelSpec, deployment: Deployment) -> KvLayout:
    """The layout vLLM gives this model in this deployment.

    Raises Refusal, with the reason, where vLLM would not start. Layouts are remembered: a plan asks for the same one
    again whenever only load or prices change.
    """
    support.check_limits(model, deployment)
    gpu = deployment.gpu
    key = (id(model), gpu.name, gpu.vendor, gpu.architecture, gpu.compute_capability, deployment.vllm_version,
           deployment.dtype, deployment.kv_cache_dtype, deployment.kv_cache_dtype_skip_layers, deployment.block_size,
           deployment.tensor_parallel_size, deployment.pipeline_parallel_size,
           deployment.decode_context_parallel_size, deployment.step_tokens, deployment.enable_prefix_caching,
           deployment.num_speculative_tokens)  # fmt: skip
    kept = _LAYOUTS.get(key)
    if kept is not None and kept[0] is model:
        return kept[1]
    layout = _layout(model, deployment)
    while len(_LAYOUTS) >= _LAYOUTS_KEPT:
        _LAYOUTS.pop(next(iter(_LAYOUTS)), None)
    _LAYOUTS[key] = (model, layout)
    return layout


def _layout(model: ModelSpec, deployment: Deployment) -> KvLayout:
    support.check(model, deployment)
    assumptions = [*model.assumptions, *support.assumptions(model, deployment)]
    requested = deployment.kv_cache_dtype
    kv_dtype(requested)
    if requested == "auto":
        requested = declared_kv_dtype(model) or "auto"
        if requested != "auto":
            assumptions.append(f"The checkpoint declares a {requested} KV cache, which auto follows.")
    backend = attention_backend(model, deployment, requested)
    layers = layer_specs(model, deployment, backend)
    caches = [(index, spec) for index, specs in enumerate(layers) for spec in specs]
    groups = grouped(caches, any(isinstance(m, CompressedAttention) for m in model.mixers))
    stages = stage_of_layer(len(model.layers), deployment.pipeline_parallel_size)
    stages += [stages[-1]] * draft_layers(model, deployment)
    widths = [[0] * deployment.pipeline_parallel_size for _ in groups]
    for number, group in enumerate(groups):
        for index, spec in group:
            widths[number][stages[index]] += spec.page_size_bytes
    widest = max(range(deployment.pipeline_parallel_size), key=lambda stage: max((w[stage] for w in widths), default=0))
    bytes_per_block = max((width[widest] for width in widths), default=0)
    specs = [spec for index, spec in caches if stages[index] == widest]
    attention = [spec for _, spec in caches if spec.kind != "state"]
    checkpoints = deployment.version >= STATE_CHECKPOINTS
    own = [[spec for index, spec in group if stages[index] == widest] or [group[0][1]] for group in groups]
    return KvLayout(
        groups=tuple(
            _group(mine, len(group), width[widest], bytes_per_block, checkpoints)
            for mine, group, width in zip(own, groups, widths, strict=True)
        ),
        bytes_per_block=bytes_per_block,
        block_size=_block_size(attention, backend.block_size),
        bytes_per_token=_whole(sum(spec.bytes_per_token for spec in specs)),
        bytes_per_token_growing=_whole(sum(spec.bytes_per_token for spec in specs if grows(spec))),
        state_bytes_per_seq=sum(spec.content for spec in specs if spec.kind == "state"),
        resolved_kv_cache_dtype=backend.kv_cache_dtype,
        backend=backend.name,
        in_flight_tokens=_steps_in_flight(deployment) * deployment.step_tokens,
        encoder_tokens=deployment.step_tokens,
        speculative_tokens=deployment.num_speculative_tokens,
        prefix_caching=deployment.enable_prefix_caching and model.model_type not in ATTENTION_FREE,
        context_ranks=deployment.decode_context_parallel_size,
        tokens_are_concurrency=deployment.version >= TOKENS_ARE_CONCURRENCY,
        max_model_len=model.max_position_embeddings,
        assumptions=tuple(assumptions),
    )


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value


def _block_size(attention: list[KvSpec], preferred: int) -> int:
    """The block of the layers that grow, which vLLM reports as block_size  [tokens]."""
    growing = [spec.block_size for spec in attention if grows(spec)]
    return growing[0] if growing else attention[0].block_size if attention else preferred


def _steps_in_flight(deployment: Deployment) -> int:
    """Steps whose tokens a windowed layer still holds: one a stage, and one scheduled ahead but on CPUs  [steps].

    Source: max_concurrent_batches, vllm/config/vllm.py (0.32), with async scheduling and model runner V2.
    """
    if deployment.version < SETTLED_FREES:
        return 1
    return deployment.pipeline_parallel_size + (0 if deployment.gpu.is_cpu else 1)


def _group(specs: list[KvSpec], layers: int, width: int, bytes_per_block: int, checkpoints: bool) -> KvGroup:
    main = max(specs, key=lambda spec: (spec.kind != "indexer", spec.page_size_bytes))
    page = main.page_size_bytes
    return KvGroup(
        kind=main.kind,
        layers=layers,
        padding_layers=(bytes_per_block - width) // page if page else 0,
        block_size=main.block_size,
        page_size_bytes=width,
        content_bytes=min(width, sum(spec.content for spec in specs)),
        num_kv_heads=main.num_kv_heads,
        head_size=main.head_size,
        head_size_v=main.head_size_v,
        sliding_window=main.window,
        checkpoints=main.checkpoints if checkpoints else 0,
    )


def kv_report(model: ModelSpec, deployment: Deployment, available: int | None) -> Mapping[str, Any]:
    """The layout as plain values for JSON; with available bytes also blocks, tokens and concurrency.

    Raises Refusal where vLLM would, also when not even one request of max_model_len fits.
    """
    layout = kv_layout(model, deployment)
    length = deployment.max_model_len or layout.max_model_len
    report: dict[str, Any] = {
        "bytes_per_token": layout.bytes_per_token,
        "bytes_per_token_growing": layout.bytes_per_token_growing,
        "state_bytes_per_seq": layout.state_bytes_per_seq,
        "block_size": layout.block_size,
        "bytes_per_block": layout.bytes_per_block,
        "max_model_len": length,
        "blocks_per_request": layout.blocks_per_request(length),
        "request_bytes": layout.request_bytes(length),
        "request_stored_bytes": layout.stored_bytes(length),
        "resolved_kv_cache_dtype": layout.resolved_kv_cache_dtype,
        "attention_backend": layout.backend,
        "padding_waste": round(layout.padding_waste, 6),
        "groups": [_as_dict(group) for group in layout.groups],
        "assumptions": list(layout.assumptions),
    }
    if available is not None:
        blocks = deployment.num_gpu_blocks_override or layout.num_blocks(available)
        pool = blocks * layout.bytes_per_block if deployment.num_gpu_blocks_override else available
        if not layout.fits(pool, length):
            raise Refusal(
                f"One request of {length:,} tokens needs {memory(layout.request_bytes(length))} of KV cache and "
                f"{memory(pool)} is there; the longest that fits is {layout.longest_max_model_len(pool):,} tokens."
            )
        report |= {
            "num_gpu_blocks": blocks,
            "kv_cache_size_tokens": layout.kv_cache_size_tokens(blocks, length),
            "max_concurrency": round(layout.max_concurrency(blocks, length), 6),
        }
    return report


def _as_dict(group: KvGroup) -> dict[str, Any]:
    return {name: getattr(group, name) for name in KvGroup.__dataclass_fields__}
