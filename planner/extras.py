"""What only one family's layers hold: Gemma 3n and 4, Zamba 2, DeepSeek-V4, MiniMax-M3, Kimi and LongCat."""

from collections.abc import Iterator

from planner.keys import Keys
from planner.matrices import ATTENTION, EMBEDDING, MLP, NORMS, OTHER, Cut, Weight, linear, vector
from planner.model import Attention, Mlp, ModelSpec, Moe


def falcon_norms(keys: Keys) -> int:
    """One norm for attention and feed-forward side by side, two where they follow each other or have their own."""
    if keys.get("new_decoder_architecture"):
        return keys.maybe("num_ln_in_parallel_attn") or 2
    return 1 if keys.get("parallel_attn", default=True) else 2


def gemma3n_layer(model: ModelSpec, index: int, cut: Cut) -> Iterator[Weight]:
    """AltUp predictors, the LAuReL branch and the gate of the per-layer embedding."""
    keys, hidden = Keys(model.config), model.hidden_size
    inputs, rank = keys.count("altup_num_inputs", default=4), keys.count("laurel_rank", default=64)
    width = keys.count("hidden_size_per_layer_input", default=256)
    yield vector(OTHER, hidden, "float32")
    yield vector(OTHER, inputs**2 + inputs**3)
    yield Weight(OTHER, inputs, hidden)
    yield linear(OTHER, cut.share(rank), hidden, "laurel.linear_left")
    yield linear(OTHER, hidden, cut.share(rank), "laurel.linear_right")
    yield linear(OTHER, width, hidden, "per_layer_input_gate")
    yield linear(OTHER, hidden, width, "per_layer_projection")
    yield vector(NORMS, 3 * hidden)


def gemma3n_model(model: ModelSpec, cut: Cut) -> Iterator[Weight]:
    """The per-layer embedding table, larger than the embedding itself, and AltUp's projections."""
    yield from _per_layer_embedding(model, cut)
    streams = Keys(model.config).count("altup_num_inputs", default=4) - 1
    for _ in range(2 * streams):
        yield linear(OTHER, cut.share(model.hidden_size), model.hidden_size, "altup_projections")


def _per_layer_embedding(model: ModelSpec, cut: Cut) -> Iterator[Weight]:
    keys = Keys(model.config)
    width = keys.maybe("hidden_size_per_layer_input")
    if width:
        rows = keys.count("vocab_size_per_layer_input", default=model.vocab_size)
        total = width * model.num_hidden_layers
        yield Weight(EMBEDDING, cut.vocabulary(rows), total)
        yield linear(OTHER, cut.share(total), model.hidden_size, "per_layer_model_projection")
        yield vector(NORMS, width)


def gemma4_layer(model: ModelSpec, index: int, cut: Cut) -> Iterator[Weight]:
    """The gate of the per-layer embedding, and beside experts three more norms and the scales of experts and router."""
    hidden, layer = model.hidden_size, model.layers[index]
    width = Keys(model.config).maybe("hidden_size_per_layer_input")
    if width:
        yield linear(OTHER, width, hidden, "per_layer_input_gate")
        yield linear(OTHER, hidden, width, "per_layer_projection")
        yield vector(NORMS, hidden)
    if isinstance(layer.mlp, Moe):
        yield vector(NORMS, 3 * hidden)
        yield vector(MLP, hidden + layer.mlp.num_experts)


def gemma4_model(model: ModelSpec, cut: Cut) -> Iterator[Weight]:
    """The per-layer embedding table of the small models."""
    return _per_layer_embedding(model, cut)


def _hybrid(model: ModelSpec) -> list[int]:
    return [i for i, layer in enumerate(model.layers) if any(isinstance(mixer, Attention) for mixer in layer.mixers)]


def zamba2_owns(model: ModelSpec, index: int) -> bool:
    """Only the first num_mem_blocks hybrid layers hold the shared block."""
    hybrid = _hybrid(model)
    return index in hybrid[: Keys(model.config).count("num_mem_blocks", default=1)]


def zamba2_layer(model: ModelSpec, index: int, cut: Cut) -> Iterator[Weight]:
    """Each hybrid layer's own low-rank adapters and projection back; the wider norm of the shared block."""
    keys, layer, hidden = Keys(model.config), model.layers[index], model.hidden_size
    if not any(isinstance(mixer, Attention) for mixer in layer.mixers) or not isinstance(layer.mlp, Mlp):
        return
    rank = keys.count("adapter_rank", default=128)
    yield Weight(OTHER, hidden, hidden)
    yield linear(MLP, cut.share(rank), hidden, "shared_transformer.feed_forward.gate_up_proj_adapter_list")
    yield linear(MLP, cut.share(2 * layer.mlp.intermediate_size), rank,
                 "shared_transformer.feed_forward.gate_up_proj_adapter_list")  # fmt: skip
    if keys.get("use_shared_attention_adapter"):
        attention = next(mixer for mixer in layer.mixers if isinstance(mixer, Attention))
        for _ in range(3):
            yield linear(ATTENTION, cut.share(rank), 2 * hidden, "shared_transformer.self_attn.adapter")
            yield linear(ATTENTION, cut.share(attention.num_attention_heads * attention.head_dim), rank,
                         "shared_transformer.self_attn.adapter")  # fmt: skip
    if zamba2_owns(model, index):
        yield vector(NORMS, 2 * hidden)


def minimax_m3_layer(model: ModelSpec, index: int, cut: Cut) -> Iterator[Weight]:
    """The index heads that pick blocks of tokens: as many queries as KV heads, one key."""
    sparse = Keys(model.config).part("sparse_attention_config")
    flags = sparse.numbers("sparse_attention_freq", model.num_hidden_layers)
    if not sparse.get("use_sparse_attention") or (flags and not flags[index]):
        return
    size = sparse.count("sparse_index_dim", default=128)
    heads = cut.kv(sparse.count("sparse_num_index_heads", default=4))
    yield linear(ATTENTION, (heads + 1) * size, model.hidden_size, "self_attn.index_q_proj")
    yield vector(NORMS, 2 * size)


def deepseek_v4_layer(model: ModelSpec, index: int, cut: Cut) -> Iterator[Weight]:
    """Hyper-connections around attention and feed-forward, and how the layer routes: by hash table or by score."""
    keys, layer = Keys(model.config), model.layers[index]
    streams = keys.count("hc_mult", default=4)
    mixes = streams * (2 + streams)
    yield vector(OTHER, 2 * (mixes * streams * model.hidden_size + mixes + 3), "float32")
    if isinstance(layer.mlp, Moe):
        if index < (keys.maybe("num_hash_layers") or 0):
            yield vector(MLP, model.vocab_size * layer.mlp.num_experts_per_tok, "int32")
        else:
            yield vector(MLP, layer.mlp.num_experts, "float32")


def deepseek_v4_model(model: ModelSpec, cut: Cut) -> Iterator[Weight]:
    """The hyper-connection before the head."""
    streams = Keys(model.config).count("hc_mult", default=4)
    yield vector(OTHER, streams * streams * model.hidden_size + streams + 1, "float32")


def kimi_layer(model: ModelSpec, index: int, cut: Cut) -> Iterator[Weight]:
    """Attention residuals (Kimi-K3): a norm and a query over the blocks before, for both parts of the layer."""
    if Keys(model.config).get("attn_res_block_size"):
        yield vector(NORMS, 2 * 2 * model.hidden_size)


def kimi_model(model: ModelSpec, cut: Cut) -> Iterator[Weight]:
    """Attention residuals once more before the head."""
    if Keys(model.config).get("attn_res_block_size"):
        yield vector(NORMS, 2 * model.hidden_size)


def longcat_layer(model: ModelSpec, index: int, cut: Cut) -> Iterator[Weight]:
    """Router scores corrected in float32, identity experts among them."""
    keys = Keys(model.config)
    routed, zero = keys.count("n_routed_experts", "num_experts"), keys.maybe("zero_expert_num") or 0
    yield Weight(MLP, zero, model.hidden_size, dtype="float32")
    yield vector(MLP, routed + zero, "float32")
