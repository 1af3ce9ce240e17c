"""What each layer caches on one rank: heads, slots, pages and recurrent state, before layers are grouped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.attention_backend import Backend
from planner.deployment import Deployment
from planner.errors import Refusal
from planner.kv_dtype import ITEM_SIZE, KvDtype, kv_dtype
from planner.model import MLA, Attention, CompressedAttention, Mixer, ModelSpec, Recurrent

FP32 = 4
GROWING = ("full", "latent", "indexer")
# DeepSeek-V4: 448 FP8, 64 bfloat16 and 8 scale bytes a vector, pages aligned for FlashMLA (vLLM 0.32 deepseek_v4).
DS_V4_SLOT, DS_V4_ALIGNMENT = 584, 576


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSpec:
    """The cache of one layer on one rank.

    kind             full, latent, indexer, sliding, sliding_latent, chunked, state or cross
    block_size       tokens a page holds; 0 for a state  [tokens]
    content          what a page stores  [bytes]
    page_size_bytes  what it takes with its padding  [bytes]
    num_kv_heads     cached heads  [heads]
    head_size        size of one key  [elements]
    head_size_v      size of one value  [elements]
    window           tokens kept, for windowed and chunked layers  [tokens]
    checkpoints      extra state blocks a request holds while its prefix is cached  [blocks]
    """

    kind: str
    block_size: int
    content: int
    page_size_bytes: int
    num_kv_heads: int = 0
    head_size: int = 0
    head_size_v: int = 0
    window: int | None = None
    checkpoints: int = 0

    @property
    def bytes_per_token(self) -> float:
        """Content of a page, spread over its tokens; 0 for a state  [bytes/token]."""
        return self.content / self.block_size if self.block_size else 0

    @property
    def family(self) -> tuple[str, int | None, int]:
        """Layers with this in common need blocks at the same pace and can share one table."""
        kind = "full" if self.kind in GROWING else self.kind
        return kind, self.window, self.block_size


def rank_kv_heads(heads: int, tensor_parallel_size: int) -> int:
    """KV heads one rank keeps: its share, or one replica when there are more ranks than heads.

    >>> [rank_kv_heads(8, size) for size in (1, 4, 16)]
    [8, 2, 1]
    """
    whole = heads % tensor_parallel_size == 0 or tensor_parallel_size % heads == 0
    if not whole:
        raise Refusal(
            f"{heads} KV heads cannot be spread over tensor_parallel_size {tensor_parallel_size}: one must divide the "
            "other."
        )
    return max(1, heads // tensor_parallel_size)


def layer_specs(model: ModelSpec, deployment: Deployment, backend: Backend) -> list[list[KvSpec]]:
    """The caches of every layer in order (none, one or several a layer), draft layers last."""
    sizing = _Sizing(model, deployment, backend)
    known: dict[tuple[int, bool], list[KvSpec]] = {}
    layers = []
    skipped, named = sizing.boundary_layers, deployment.kv_cache_dtype_skip_layers
    for index, layer in enumerate(model.layers):
        unquantized = index < skipped or index >= len(model.layers) - skipped or str(index) in named
        specs: list[KvSpec] = []
        for mixer in layer.mixers:
            windowed = isinstance(mixer, Attention) and bool(mixer.sliding_window)
            skip = unquantized or (windowed and "sliding_window" in named)
            key = (id(mixer), skip)
            if key not in known:
                known[key] = sizing.specs(mixer, skip)
            specs += known[key]
        layers.append(specs)
    return layers + [[*sizing.draft()] for _ in range(draft_layers(model, deployment))]


def draft_layers(model: ModelSpec, deployment: Deployment) -> int:
    """Multi-token-prediction layers that speculation loads beside the model  [layers]."""
    if not deployment.num_speculative_tokens:
        return 0
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"):
        count = model.config.get(key)
        if isinstance(count, int) and count > 0:
            return count
    return 0


def state_bytes(mixer: Recurrent, deployment: Deployment, conv_item: int, state_item: int) -> int:
    """Recurrent state of one layer and sequence on one rank  [bytes].

    Convolution window plus state matrix; vLLM 0.32 mamba_utils.MambaStateShapeCalculator. Raises Refusal where heads or
    channels do not divide by the ranks.
    """
    tp, kept = deployment.tensor_parallel_size, mixer.conv_kernel - 1
    drafted = deployment.num_speculative_tokens if mixer.kind not in ("mamba1", "short_conv", "lightning") else 0
    shared = mixer.num_key_heads * mixer.state_size
    match mixer.kind:
        case "mamba1":
            channels, state = mixer.inner_size, mixer.inner_size * mixer.state_size
        case "mamba2":
            groups = mixer.num_key_heads if mixer.num_key_heads % tp == 0 else tp
            channels = mixer.inner_size + 2 * groups * mixer.state_size
            state = mixer.num_heads * mixer.head_dim * mixer.state_size
        case "short_conv":
            channels, state = mixer.inner_size, 0
        case "lightning":
            channels, kept, state = 0, 0, mixer.num_heads * mixer.head_dim * mixer.state_size
        case _:
            channels = 2 * shared + mixer.num_heads * mixer.head_dim
            state = mixer.num_heads * mixer.head_dim * mixer.state_size
    parts = [mixer.num_heads or mixer.inner_size, channels]
    if any(part % tp for part in parts):
        raise Refusal(f"The {mixer.kind} layers' {parts[0]} heads or channels do not divide by {tp} ranks.")
    return channels // tp * (kept + drafted) * conv_item + state // tp * state_item


class _Sizing:
    """The sizes that all layers of one deployment share: block, slot and state page."""

    def __init__(self, model: ModelSpec, deployment: Deployment, backend: Backend) -> None:
        self.model, self.deployment, self.backend = model, deployment, backend
        self.tp = deployment.tensor_parallel_size
        self.item = ITEM_SIZE.get(model.dtype if deployment.dtype == "auto" else deployment.dtype, 2)
        self.dtype = kv_dtype(backend.kv_cache_dtype)
        self.block_size = self._wanted_block()
        recurrent = [m for m in model.mixers if isinstance(m, Recurrent)]
        attention = [m for m in model.mixers if not isinstance(m, Recurrent)]
        self.boundary_layers = 0
        if self.dtype.boundary_layers and not recurrent:
            self.boundary_layers = min(self.dtype.boundary_layers, len(model.layers) // 2)
            self._widen_for_boundary(attention)
        self.state_page = max((self._state(m) for m in set(recurrent)), default=0)
        if recurrent and attention:
            self._align_to_state(attention[0])

    def _wanted_block(self) -> int:
        """The flag, or what the kernels prefer  [tokens]."""
        wanted, multiple = self.deployment.block_size, self.backend.block_multiple
        if wanted is None:
            return self.backend.block_size
        if wanted % multiple:
            raise Refusal(f"{self.backend.name} takes KV blocks of a multiple of {multiple} tokens, not {wanted}.")
        return wanted

    def _widen_for_boundary(self, attention: Sequence[Mixer]) -> None:
        """Blocks grow until a packed page covers an unquantised one of the smallest kernel block."""
        first = next((m for m in attention if isinstance(m, Attention)), None)
        if first is not None:
            packed, full = self._slot(first, self.dtype), self._slot(first, kv_dtype("auto"))
            self.block_size = self.block_size * math.ceil(full * 16 / (self.block_size * packed))

    def _align_to_state(self, attention: Mixer) -> None:
        """The attention block is the smallest whose page holds the state page (vLLM 0.32 platforms/interface.py)."""
        token = self._token_bytes(attention)
        step = max(self.block_size, 128 if isinstance(attention, MLA) else 16)
        needed = step * math.ceil(self.state_page / (step * token))
        needed = math.ceil(needed / self.backend.block_multiple) * self.backend.block_multiple
        self.block_size = max(self.block_size, needed)
        self.state_page = self.block_size * token

    def _token_bytes(self, mixer: Mixer) -> int:
        if isinstance(mixer, MLA):
            return self._latent_slot(mixer)
        assert isinstance(mixer, Attention)
        return self._slot(mixer, self.dtype)

    def _slot(self, mixer: Attention, dtype: KvDtype) -> int:
        """One token of one layer on this rank  [bytes]."""
        heads = rank_kv_heads(mixer.num_key_value_heads, self.tp)
        if dtype.name == "auto":
            return heads * (mixer.head_dim + mixer.v_head_dim) * self.item
        if self.deployment.gpu.is_cpu:  # its kernels keep no scales and pack nothing: a byte an element
            return heads * (mixer.head_dim + mixer.v_head_dim) * (1 if dtype.quantized else 2)
        return heads * dtype.head_slot(mixer.head_dim, mixer.v_head_dim)

    def _latent_slot(self, mixer: MLA) -> int:
        if self.dtype.latent_slot is not None:
            return self.dtype.latent_slot
        width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
        item = self.item if self.dtype.name == "auto" else self.dtype.head_slot(1, 0)
        return width * item

    def _state(self, mixer: Recurrent) -> int:
        return state_bytes(mixer, self.deployment, self.item, self._state_item(mixer))

    def _state_item(self, mixer: Recurrent) -> int:
        """Bytes of one element of the state matrix: float32 where the family or its config asks for it, and on CPUs."""
        config = self.model.config
        if mixer.kind == "kda" or (self.deployment.gpu.is_cpu and mixer.kind != "lightning"):
            return FP32
        if self.model.model_type.startswith("nemotron_h"):
            return ITEM_SIZE.get(str(config.get("mamba_ssm_cache_dtype", "float32")), FP32)
        if self.model.model_type.startswith("qwen3_5"):
            return ITEM_SIZE.get(str(config.get("mamba_ssm_dtype")), self.item)
        return self.item

    def specs(self, mixer: Mixer, skip: bool) -> list[KvSpec]:
        """The caches one mixer keeps; skip leaves it unquantised."""
        if isinstance(mixer, Recurrent):
            content = self._state(mixer)
            checkpoints = int(mixer.kind == "mamba2" or self._flash_kda(mixer))
            page = self.state_page or content
            return [KvSpec(kind="state", block_size=0, content=content, page_size_bytes=page, checkpoints=checkpoints)]
        if isinstance(mixer, CompressedAttention):
            return self._compressed(mixer)
        if isinstance(mixer, MLA):
            width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
            found = [self._paged("latent", self._latent_slot(mixer), head_size=width)]
            if mixer.indexer is not None:
                size = mixer.indexer.index_head_dim
                found.insert(0, self._paged("indexer", size + size // 128 * FP32, head_size=size))
            return found
        if mixer.kv_shared:
            return []
        return self._attention(mixer, skip)

    def _flash_kda(self, mixer: Recurrent) -> bool:
        """Whether FlashKDA runs, which keeps a checkpoint block (vLLM 0.32 models/kimi_k3/nvidia/kda.py)."""
        major = (self.deployment.gpu.compute_capability or (0, 0))[0]
        return mixer.bounded_gate and mixer.head_dim == 128 and major in (9, 10, 12)

    def _attention(self, mixer: Attention, skip: bool) -> list[KvSpec]:
        slot = self._slot(mixer, kv_dtype("auto") if skip else self.dtype)
        kind = "sliding" if mixer.sliding_window else "chunked" if mixer.attention_chunk_size else "full"
        found = [self._paged(
            "cross" if mixer.cross else kind, slot,
            num_kv_heads=rank_kv_heads(mixer.num_key_value_heads, self.tp), head_size=mixer.head_dim,
            head_size_v=mixer.v_head_dim, window=mixer.sliding_window or mixer.attention_chunk_size,
        )]  # fmt: skip
        if mixer.indexer is not None:
            size = mixer.indexer.index_head_dim
            found.insert(0, self._paged("indexer", size * self.item, head_size=size))
        return found

    def _paged(self, kind: str, slot: int, head_size: int, num_kv_heads: int = 1, head_size_v: int = 0,
               window: int | None = None) -> KvSpec:  # fmt: skip
        page = slot * self.block_size
        return KvSpec(kind=kind, block_size=self.block_size, content=page, page_size_bytes=page, window=window,
                      num_kv_heads=num_kv_heads, head_size=head_size, head_size_v=head_size_v)  # fmt: skip

    def _compressed(self, mixer: CompressedAttention) -> list[KvSpec]:
        """DeepSeek-V4: a window of packed vectors, compressed ones, their index keys and what is not yet compressed."""
        ratio = mixer.compress_ratio
        found = [_aligned("sliding_latent", 64, 64 * DS_V4_SLOT, mixer.head_dim, mixer.sliding_window)]
        if ratio <= 1:
            return found
        found.append(_aligned("latent", 256, 256 // ratio * DS_V4_SLOT, mixer.head_dim))
        overlap, held = (2, 4) if ratio == 4 else (1, 8)
        state = 2 * overlap * FP32
        found.append(_aligned("sliding_latent", held, held * state * mixer.head_dim, mixer.head_dim, overlap * ratio))
        if mixer.indexer is not None:
            size = mixer.indexer.index_head_dim
            found.append(_aligned("indexer", 256, 256 // ratio * (size + size // 128 * FP32), size))
            found.append(_aligned("sliding_latent", held, held * state * size, size, overlap * ratio))
        return found

    def draft(self) -> list[KvSpec]:
        """The cache of one multi-token-prediction layer: that of the last attention layer that grows."""
        attention = [m for m in self.model.mixers if not isinstance(m, Recurrent)]
        if not attention:
            return []
        whole = [m for m in attention if not isinstance(m, Attention) or not m.sliding_window]
        last = (whole or attention)[-1]
        return self.specs(replace(last, kv_shared=False) if isinstance(last, Attention) else last, False)


def _aligned(kind: str, block_size: int, content: int, head_size: int, window: int | None = None) -> KvSpec:
    page = -(-content // DS_V4_ALIGNMENT) * DS_V4_ALIGNMENT
    return KvSpec(kind=kind, block_size=block_size, content=content, page_size_bytes=page, num_kv_heads=1,
                  head_size=head_size, window=window)  # fmt: skip
