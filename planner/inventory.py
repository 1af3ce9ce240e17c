"""The inventory: every weight that one rank of a model holds, layer by layer, as vLLM cuts and fuses them."""

from collections.abc import Iterator

from planner.matrices import (
    ATTENTION,
    EMBEDDING,
    EXPERTS,
    HEAD,
    MLP,
    NORMS,
    WHOLE,
    Cut,
    Weight,
    feed_forward,
    linear,
    vector,  # fmt: skip
)
from planner.model import MLA, Attention, CompressedAttention, Mixer, Mlp, ModelSpec, Moe, Recurrent
from planner.styles import Style, style_of


def layer_weights(model: ModelSpec, index: int, cut: Cut = WHOLE) -> Iterator[Weight]:
    """Every weight of decoder layer `index` on one rank."""
    layer, style, hidden = model.layers[index], style_of(model), model.hidden_size
    own = style.owns is None or style.owns(model, index)
    mixers = (style.projected(model),) if style.projected else layer.mixers
    for mixer in mixers:
        if own or isinstance(mixer, Recurrent):
            yield from _mixer(mixer, style, hidden, cut)
    if not own:
        pass
    elif isinstance(layer.mlp, Mlp):
        yield from _mlp(layer.mlp, style, hidden, cut)
    elif isinstance(layer.mlp, Moe):
        yield from _moe(layer.mlp, style, hidden, cut)
    count = style.norms if own and layer.mixers and layer.mlp else bool(layer.mixers) + bool(own and layer.mlp)
    if count and style.norm_vectors:
        yield vector(NORMS, count * style.norm_vectors * hidden)
    if style.layer_extra:
        yield from style.layer_extra(model, index, cut)


def _mixer(mixer: Mixer, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    if isinstance(mixer, Attention):
        return _attention(mixer, style, hidden, cut)
    if isinstance(mixer, MLA):
        return _latent(mixer, style, hidden, cut)
    if isinstance(mixer, CompressedAttention):
        return _compressed(mixer, hidden, cut)
    return _STATES[mixer.kind](mixer, style, hidden, cut)


def _attention(mixer: Attention, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    heads, kv, name = cut.share(mixer.num_attention_heads), cut.kv(mixer.num_key_value_heads), style.attention
    queries = heads * mixer.head_dim * (2 if style.output_gate == "doubled" else 1)
    keys, values = kv * mixer.head_dim, kv * mixer.v_head_dim
    own = 0 if mixer.kv_shared else keys + values
    projections = tuple(f"{name}.{leaf}" for leaf in style.qkv[: 1 if mixer.kv_shared else None])
    inputs = style.attention_input * hidden
    yield linear(ATTENTION, queries + own, inputs, *projections, bias=style.qkv_bias)
    out = linear(ATTENTION, hidden, heads * mixer.v_head_dim, f"{name}.{style.out}", bias=style.out_bias)
    yield out
    if style.output_gate == "full":
        yield linear(ATTENTION, heads * mixer.head_dim, hidden, f"{name}.gate_proj")
    if style.output_gate == "heads":
        yield linear(ATTENTION, heads, hidden, f"{name}.g_proj")
    if style.sinks == "all" or (style.sinks == "sliding" and mixer.sliding_window):
        yield vector(ATTENTION, heads)
    shared = 0 if mixer.kv_shared else 1
    if style.qk_norm == "head":
        yield vector(NORMS, (1 + shared) * mixer.head_dim * style.norm_vectors)
    elif style.qk_norm == "heads":
        yield vector(NORMS, (heads + kv) * mixer.head_dim)
    elif style.qk_norm == "full":
        yield vector(NORMS, (mixer.num_attention_heads + mixer.num_key_value_heads) * mixer.head_dim)
    elif style.qk_norm == "cut":
        yield vector(NORMS, (heads + kv) * mixer.head_dim)


def _latent(mixer: MLA, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    heads, name = cut.share(mixer.num_attention_heads), style.attention
    query, latent = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim, mixer.kv_lora_rank + mixer.qk_rope_head_dim
    gate = heads * mixer.v_head_dim if style.output_gate == "latent" else 0
    if mixer.q_lora_rank:
        yield linear(ATTENTION, mixer.q_lora_rank + latent + gate, hidden,
                     f"{name}.q_a_proj", f"{name}.kv_a_proj_with_mqa")  # fmt: skip
        yield linear(ATTENTION, heads * query, mixer.q_lora_rank, f"{name}.q_b_proj")
        yield vector(NORMS, mixer.q_lora_rank)
    else:
        yield linear(ATTENTION, heads * query + gate, hidden, f"{name}.q_proj")
        yield linear(ATTENTION, latent, hidden, f"{name}.kv_a_proj_with_mqa")
    yield vector(NORMS, mixer.kv_lora_rank)
    yield linear(ATTENTION, heads * (mixer.qk_nope_head_dim + mixer.v_head_dim), mixer.kv_lora_rank,
                 f"{name}.kv_b_proj")  # fmt: skip
    yield linear(ATTENTION, hidden, heads * mixer.v_head_dim, f"{name}.o_proj")
    if mixer.indexer:
        count, size = mixer.indexer.index_n_heads, mixer.indexer.index_head_dim
        yield linear(ATTENTION, count * size, mixer.q_lora_rank or hidden, f"{name}.indexer.wq_b")
        yield Weight(ATTENTION, size + count, hidden)
        yield vector(NORMS, 2 * size, "float32")


def _compressed(mixer: CompressedAttention, hidden: int, cut: Cut) -> Iterator[Weight]:
    """DeepSeek-V4: low-rank queries and outputs, one shared key-value vector, compressors kept in 16 bits."""
    heads, size = cut.share(mixer.num_attention_heads), mixer.head_dim
    yield vector(ATTENTION, mixer.num_attention_heads, "float32")  # sinks, whole on every rank
    yield linear(ATTENTION, mixer.q_lora_rank + size, hidden, "attn.wq_a", "attn.wkv")
    yield linear(ATTENTION, heads * size, mixer.q_lora_rank, "attn.wq_b")
    group = mixer.num_attention_heads * size // mixer.o_groups
    yield linear(ATTENTION, cut.share(mixer.o_groups * mixer.o_lora_rank), group, "attn.wo_a")
    yield linear(ATTENTION, hidden, cut.share(mixer.o_groups * mixer.o_lora_rank), "attn.wo_b")
    yield vector(NORMS, mixer.q_lora_rank + size)
    if mixer.compress_ratio:
        overlap = 2 if mixer.indexer else 1
        yield from _compressor(overlap * size, size, mixer.compress_ratio, hidden)
    if mixer.indexer:
        count, key = mixer.indexer.index_n_heads, mixer.indexer.index_head_dim
        yield linear(ATTENTION, count * key, mixer.q_lora_rank, "attn.indexer.wq_b")
        yield Weight(ATTENTION, count, hidden)
        yield from _compressor(2 * key, key, mixer.compress_ratio, hidden)


def _compressor(width: int, size: int, ratio: int, hidden: int) -> Iterator[Weight]:
    yield vector(ATTENTION, ratio * width, "float32")
    yield Weight(ATTENTION, 2 * width, hidden)
    yield vector(NORMS, size)


def _mamba1(mixer: Recurrent, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    inner, state, rank = cut.share(mixer.inner_size), mixer.state_size, style.time_step_rank or -(-hidden // 16)
    yield linear(ATTENTION, 2 * inner, hidden, f"{style.state}.in_proj", bias=style.state_bias)
    yield linear(ATTENTION, rank + 2 * state, inner, f"{style.state}.x_proj")
    yield linear(ATTENTION, inner, rank, f"{style.state}.dt_proj", bias=True)
    yield linear(ATTENTION, hidden, inner, f"{style.state}.out_proj", bias=style.state_bias)
    yield vector(ATTENTION, inner * (mixer.conv_kernel + style.conv_bias + 1))  # convolution and D
    yield vector(ATTENTION, inner * state, "float32")  # A
    if style.state_norm:
        yield vector(NORMS, rank + 2 * state)


def _mamba2(mixer: Recurrent, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    inner, heads = cut.share(mixer.inner_size), cut.share(mixer.num_heads)
    # Groups that do not divide among the ranks are replicated: one for each rank.
    groups = max(1, mixer.num_key_heads // cut.ranks) if mixer.num_key_heads % cut.ranks == 0 else 1
    convolved = inner + 2 * groups * mixer.state_size
    yield linear(ATTENTION, inner + convolved + heads, hidden, f"{style.state}.in_proj", bias=style.state_bias)
    yield linear(ATTENTION, hidden, inner, f"{style.state}.out_proj", bias=style.state_bias)
    yield vector(ATTENTION, convolved * (mixer.conv_kernel + style.conv_bias) + 2 * heads)  # with D and dt_bias
    yield vector(ATTENTION, heads, "float32")  # A
    if style.state_norm:
        yield vector(NORMS, inner)


def _gated_delta_net(mixer: Recurrent, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    keys = cut.share(mixer.num_key_heads) * mixer.state_size
    heads, values = cut.share(mixer.num_heads), cut.share(mixer.inner_size)
    yield linear(ATTENTION, 2 * keys + 2 * values, hidden, "linear_attn.in_proj_qkv", "linear_attn.in_proj_z")
    yield linear(ATTENTION, 2 * heads, hidden, "linear_attn.in_proj_b", "linear_attn.in_proj_a")
    yield linear(ATTENTION, hidden, values, "linear_attn.out_proj")
    yield vector(ATTENTION, (2 * keys + values) * mixer.conv_kernel + heads)  # with dt_bias
    yield vector(ATTENTION, heads, "float32")  # A_log
    yield vector(NORMS, mixer.head_dim)


def _kda(mixer: Recurrent, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    inner, heads, size = cut.share(mixer.inner_size), cut.share(mixer.num_heads), mixer.head_dim
    if style.output_gate == "latent":  # full-rank gate, all inputs in one matrix padded to 16 rows (Kimi-K3)
        rows = 4 * inner + size + heads
        yield linear(ATTENTION, -(-rows // 16) * 16, hidden, "self_attn.q_proj")
    else:
        yield linear(ATTENTION, 3 * inner + 2 * size + heads, hidden, "self_attn.q_proj")
        yield linear(ATTENTION, inner, size, "self_attn.g_b_proj")
    yield linear(ATTENTION, inner, size, "self_attn.f_b_proj")
    yield linear(ATTENTION, hidden, inner, "self_attn.o_proj")
    yield vector(ATTENTION, inner * (1 + 3 * mixer.conv_kernel) + heads, "float32")  # dt_bias, convolutions, A_log
    yield vector(NORMS, size)


def _lightning(mixer: Recurrent, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    inner = cut.share(mixer.inner_size)
    yield linear(ATTENTION, 3 * inner, hidden, "self_attn.qkv_proj", bias=style.qkv_bias)
    yield linear(ATTENTION, inner, hidden, "self_attn.output_gate")
    yield linear(ATTENTION, hidden, inner, "self_attn.out_proj", bias=style.out_bias)
    yield vector(NORMS, inner)


def _short_conv(mixer: Recurrent, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    inner = cut.share(mixer.inner_size)
    yield linear(ATTENTION, 3 * inner, hidden, f"{style.state}.in_proj", bias=style.state_bias)
    yield linear(ATTENTION, hidden, inner, f"{style.state}.out_proj", bias=style.state_bias)
    yield vector(ATTENTION, inner * (mixer.conv_kernel + style.state_bias))


_STATES = {"mamba1": _mamba1, "mamba2": _mamba2, "gated_delta_net": _gated_delta_net, "kda": _kda,
           "lightning": _lightning, "short_conv": _short_conv}  # fmt: skip


def _mlp(mlp: Mlp, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    width = mlp.intermediate_size if style.mlp_whole else cut.share(mlp.intermediate_size)
    yield from feed_forward(MLP, width, hidden, mlp.gated, style.mlp, style.mlp_bias)


def _moe(moe: Moe, style: Style, hidden: int, cut: Cut) -> Iterator[Weight]:
    whole, inner = moe.moe_intermediate_size, style.expert_hidden or hidden
    if cut.expert_ranks > 1:
        count, width = -(-moe.num_experts // cut.expert_ranks), whole
    else:
        count, width = moe.num_experts, -(-whole // (cut.expert_pieces or cut.ranks))
        width = max(width, min(whole, style.expert_width))
    width, padded = _multiple(width, cut.expert_width), _multiple(inner, cut.expert_hidden)
    name = f"{style.moe}.experts"
    rows = (2 if moe.gated else 1) * width
    bias = (rows, padded) if style.expert_bias else (0, 0)
    yield Weight(EXPERTS, rows, padded, count, bias[0], "", "experts", (name,) * (2 if moe.gated else 1))
    yield Weight(EXPERTS, padded, width, count, bias[1], "", "experts", (name,))
    router = "float32" if style.router_float32 else ""
    yield Weight(MLP, moe.num_experts, hidden, bias=moe.num_experts if style.router_bias else 0, dtype=router)
    if style.correction_bias:
        yield vector(MLP, moe.num_experts, "float32")
    if moe.shared_intermediate_size:
        shared = f"{style.moe}.{style.shared}"
        yield from feed_forward(MLP, cut.share(moe.shared_intermediate_size), hidden, moe.gated, shared)
        if style.shared_gate:
            yield Weight(MLP, 1, hidden)
    if style.expert_hidden:
        yield linear(MLP, inner, hidden, f"{style.moe}.fc1_latent_proj", f"{style.moe}.routed_expert_down_proj")
        yield linear(MLP, hidden, inner, f"{style.moe}.fc2_latent_proj", f"{style.moe}.routed_expert_up_proj")
        if style.latent_norm:
            yield vector(NORMS, inner)


def _multiple(width: int, step: int) -> int:
    return -(-width // step) * step


def embedding_weights(model: ModelSpec, cut: Cut = WHOLE) -> Iterator[Weight]:
    """The token embedding and what stands beside it on the first pipeline stage."""
    style = style_of(model)
    width = style.embedding_width or model.hidden_size
    rows = model.vocab_size if style.embedding_whole else cut.vocabulary(model.vocab_size)
    yield Weight(EMBEDDING, rows, width)
    if style.positions:
        yield Weight(EMBEDDING, style.positions, model.hidden_size)
    if style.embedding_norm:
        yield vector(NORMS, model.hidden_size * style.norm_vectors)
    if width != model.hidden_size:  # OPT-350M
        yield Weight(EMBEDDING, 2 * width, model.hidden_size)
    if style.model_extra:
        yield from style.model_extra(model, cut)


def head_weights(model: ModelSpec, cut: Cut = WHOLE) -> Iterator[Weight]:
    """The final norm and, unless it is the embedding, the LM head, on the last pipeline stage."""
    style = style_of(model)
    if style.final_norm and style.norm_vectors:
        yield vector(NORMS, model.hidden_size * style.norm_vectors)
    if not model.tie_word_embeddings:
        rows = cut.vocabulary(model.vocab_size)
        yield Weight(HEAD, rows, style.embedding_width or model.hidden_size, bias=rows if style.head_bias else 0,
                     kind="head", names=("lm_head",))  # fmt: skip
