"""ModelSpec: what a Hugging Face config.json says about a model, layer by layer, in its own key names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention whose keys and values are cached a token (MHA, GQA, MQA, windowed, chunked, cross).

    num_attention_heads   query heads  [heads]
    num_key_value_heads   cached heads  [heads]
    head_dim              size of one key head  [elements]
    v_head_dim            size of one value head  [elements]
    sliding_window        tokens a query sees, None for all  [tokens]
    attention_chunk_size  chunk a query sees, None for all (Llama 4)  [tokens]
    kv_shared             reads another layer's cache and stores nothing (Gemma 3n)
    cross                 attends to the encoder's output (encoder-decoder)
    encoder_tokens        that output's length, 0 where the config does not say  [tokens]
    indexer               a second cache by which sparse attention picks its blocks (MiniMax-M3), or None
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    v_head_dim: int
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    kv_shared: bool = False
    cross: bool = False
    encoder_tokens: int = 0
    indexer: "Indexer | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The small key cache by which sparse attention picks its tokens (DeepSeek-V3.2, GLM-5).

    index_n_heads   query heads  [heads]
    index_head_dim  size of the one cached key  [elements]
    index_topk      tokens each query then attends to  [tokens]
    """

    index_n_heads: int
    index_head_dim: int
    index_topk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MLA:
    """Multi-head latent attention: one compressed latent and one rotary key are cached a token.

    num_attention_heads  query heads  [heads]
    q_lora_rank          rank of the query projection, None when it is full  [elements]
    kv_lora_rank         size of the cached latent  [elements]
    qk_nope_head_dim     key part without rotary embedding  [elements]
    qk_rope_head_dim     cached rotary key  [elements]
    v_head_dim           size of one value head  [elements]
    indexer              the second cache of sparse attention, or None
    """

    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """One shared key-value vector a token in a window, and beyond it one for each group of tokens (DeepSeek-V4).

    num_attention_heads  query heads  [heads]
    q_lora_rank          rank of the query projection  [elements]
    o_lora_rank          rank of the output projection, of each of o_groups  [elements]
    o_groups             groups the output projection is cut into  [groups]
    head_dim             size of the shared vector  [elements]
    qk_rope_head_dim     its rotary part  [elements]
    sliding_window       recent tokens kept one by one  [tokens]
    compress_ratio       older tokens merged into one vector; 0 where the layer only has its window  [tokens]
    indexer              picks compressed vectors, where the layer has that many, or None
    """

    num_attention_heads: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    head_dim: int
    qk_rope_head_dim: int
    sliding_window: int
    compress_ratio: int
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """A layer whose state has a fixed size for each sequence (Mamba, gated linear attention, short convolution).

    kind           mamba1, mamba2, gated_delta_net, kda, lightning or short_conv
    conv_kernel    width of the causal convolution, 0 for none  [tokens]
    num_heads      value (state) heads, 0 where the kind has none  [heads]
    num_key_heads  key heads or groups  [heads]
    head_dim       value size of one head  [elements]
    state_size     key size of one head, or the state a channel keeps  [elements]
    inner_size     channels in all  [elements]
    bounded_gate   the decay gate has a lower bound, which faster kernels need (KDA)
    """

    kind: str
    conv_kernel: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    state_size: int
    inner_size: int
    bounded_gate: bool = False


Mixer = Attention | MLA | CompressedAttention | Recurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A dense feed-forward layer.

    intermediate_size  its width  [elements]
    gated              has a gate beside the up projection (SwiGLU, GeGLU)
    """

    intermediate_size: int
    gated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts.

    num_experts               routed experts  [experts]
    num_experts_per_tok       experts a token visits  [experts]
    moe_intermediate_size     width of one routed expert  [elements]
    shared_intermediate_size  width of the experts that every token visits, together; 0 for none  [elements]
    gated                     experts have a gate beside the up projection
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_intermediate_size: int = 0
    gated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer: how tokens mix, then how each is transformed (either may be absent, as in Nemotron-H)."""

    mixers: tuple[Mixer, ...] = ()
    mlp: Mlp | Moe | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as its config.json describes it.

    name                     where the config came from, or its _name_or_path
    architecture             architectures[0]
    model_type               Hugging Face's key
    dtype                    of weights that are not quantised, and of an `auto` KV cache
    hidden_size              width of the residual stream  [elements]
    vocab_size               as published, before padding  [tokens]
    max_position_embeddings  longest context the config allows  [tokens]
    tie_word_embeddings      the LM head is the embedding
    layers                   decoder layers in order
    quantization_config      the checkpoint's own, empty for none
    config                   the text part of config.json, for what only one family has
    wrapper                  the whole config.json (equal to config for a text model)
    assumptions              what the config did not say and we took, in words
    """

    name: str
    architecture: str
    model_type: str
    dtype: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    layers: tuple[Layer, ...] = field(hash=False)
    quantization_config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    wrapper: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    assumptions: tuple[str, ...] = ()

    @property
    def num_hidden_layers(self) -> int:
        """Decoder layers  [layers]."""
        return len(self.layers)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """Every layer's token mixers, in order."""
        return tuple(mixer for layer in self.layers for mixer in layer.mixers)

    @property
    def num_attention_heads(self) -> int:
        """Query heads of the widest attention layer; 0 for a model without attention  [heads]."""
        return max((m.num_attention_heads for m in self.mixers if not isinstance(m, Recurrent)), default=0)
