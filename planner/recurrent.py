"""Families with layers of fixed state (Mamba, gated linear attention, short convolutions): config.json -> mixers."""

from collections.abc import Callable

from planner.errors import InputError
from planner.keys import Keys
from planner.mixers import RECURRENT, Layers, hidden_size, latent, num_heads, num_layers, plain, typed, window
from planner.model import Attention, Recurrent

StateReader = Callable[[Keys], Recurrent]


def mamba1(keys: Keys) -> Recurrent:
    """Mamba 1: every channel keeps state_size numbers."""
    inner = keys.maybe("intermediate_size", least=1) if "state_size" in keys else None
    return Recurrent(
        kind="mamba1",
        conv_kernel=keys.count("mamba_d_conv", "conv_kernel", default=4),
        num_heads=0,
        num_key_heads=0,
        head_dim=0,
        state_size=keys.count("mamba_d_state", "state_size", default=16),
        inner_size=inner or keys.count("mamba_expand", "expand", default=2) * hidden_size(keys),
    )


def mamba2(keys: Keys) -> Recurrent:
    """Mamba 2: heads of head_dim × state_size; groups share the input and output projections."""
    inner = keys.maybe("mamba_d_ssm", least=1)
    inner = inner or keys.count("mamba_expand", "expand", default=2) * hidden_size(keys)
    heads = keys.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads", default=128)
    size = keys.get("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
    if size is None or size == "auto":
        size = inner // heads
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError("mamba_d_head", size, "a positive integer or auto")
    return Recurrent(
        kind="mamba2",
        conv_kernel=keys.count("mamba_d_conv", "conv_kernel", default=4),
        num_heads=heads,
        num_key_heads=keys.count("mamba_n_groups", "n_groups", "mamba_ngroups", default=1),
        head_dim=size,
        state_size=keys.count("ssm_state_size", "mamba_d_state", "state_size", default=128),
        inner_size=heads * size,
    )


def gated_delta_net(keys: Keys) -> Recurrent:
    """Gated DeltaNet: value heads of head_dim × state_size (Qwen3-Next, Qwen3.5, OLMo hybrid)."""
    heads, size = keys.count("linear_num_value_heads", default=32), keys.count("linear_value_head_dim", default=128)
    return Recurrent(
        kind="gated_delta_net",
        conv_kernel=keys.count("linear_conv_kernel_dim", default=4),
        num_heads=heads,
        num_key_heads=keys.count("linear_num_key_heads", default=16),
        head_dim=size,
        state_size=keys.count("linear_key_head_dim", default=128),
        inner_size=heads * size,
    )


def kda(keys: Keys) -> Recurrent:
    """Kimi Delta Attention: as many key as value heads, of one size."""
    linear = keys.part("linear_attn_config")
    heads = linear.count("num_heads", default=keys.maybe("linear_num_heads", "num_attention_heads"))
    size = linear.count("head_dim", default=keys.maybe("linear_head_dim") or 128)
    kernel = linear.count("short_conv_kernel_size", default=keys.maybe("linear_conv_kernel_dim") or 4)
    return Recurrent(kind="kda", conv_kernel=kernel, num_heads=heads, num_key_heads=heads, head_dim=size,
                     state_size=size, inner_size=heads * size,
                     bounded_gate=linear.get("gate_lower_bound") is not None)  # fmt: skip


def lightning(keys: Keys) -> Recurrent:
    """Lightning attention: a head_dim × head_dim state a head, no convolution (MiniMax-Text-01, Ring-linear)."""
    attention = plain(keys, num_key_value_heads=1)
    heads, size = attention.num_attention_heads, attention.head_dim
    return Recurrent(kind="lightning", conv_kernel=0, num_heads=heads, num_key_heads=heads, head_dim=size,
                     state_size=size, inner_size=heads * size)  # fmt: skip


def short_conv(keys: Keys) -> Recurrent:
    """A gated short convolution and nothing else (LFM2)."""
    return Recurrent(kind="short_conv", conv_kernel=keys.count("conv_L_cache", default=3), num_heads=0,
                     num_key_heads=0, head_dim=0, state_size=0,
                     inner_size=keys.count("conv_dim", default=hidden_size(keys)))  # fmt: skip


def only(state: StateReader) -> Callable[[Keys], Layers]:
    """Every layer recurrent, no attention (Mamba, Falcon-Mamba, Mamba 2)."""
    return lambda keys: [(state(keys),)] * num_layers(keys)


def interleaved(state: StateReader, full_every: int) -> Callable[[Keys], Layers]:
    """Recurrent layers with an attention layer last in each run (Qwen3-Next, Qwen3.5, OLMo hybrid, LFM2)."""

    def read(keys: Keys) -> Layers:
        count = num_layers(keys)
        every = keys.count("full_attention_interval", "layer_group_size", default=full_every)
        types = keys.names("layer_types", count) or keys.names("layers_block_type", count)
        if types is None and "full_attn_idxs" in keys:
            chosen = keys.indices("full_attn_idxs")
            types = ["full_attention" if i in chosen else "linear_attention" for i in range(count)]
        if types is None:
            types = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(count)]
        return typed(keys, types, plain(keys), plain(keys, sliding_window=window(keys)), state(keys))

    return read


def jamba(keys: Keys) -> Layers:
    """Attention in one layer of attn_layer_period, Mamba 1 in the others."""
    period, offset = keys.count("attn_layer_period", default=8), keys.maybe("attn_layer_offset")
    at = 4 if offset is None else offset
    attention, state = plain(keys), mamba1(keys)
    return [(attention if i % period == at % period else state,) for i in range(num_layers(keys))]


def listed(state: StateReader) -> Callable[[Keys], Layers]:
    """Attention at attn_layer_indices or where layer_types says attention, Mamba elsewhere (Bamba, Granite 4)."""

    def read(keys: Keys) -> Layers:
        count = num_layers(keys)
        types = keys.names("layer_types", count) or keys.names("layers_block_type", count)
        indices = keys.indices("attn_layer_indices")
        types = types or ["attention" if i in indices else "mamba" for i in range(count)]
        if not any(name in RECURRENT for name in types):
            return [(plain(keys),)] * count
        return typed(keys, types, plain(keys), plain(keys, sliding_window=window(keys)), state(keys))

    return read


def falcon_h1(keys: Keys) -> Layers:
    """Attention and Mamba 2 side by side in every layer."""
    return [(mamba2(keys), plain(keys))] * num_layers(keys)


def zamba2(keys: Keys) -> Layers:
    """Mamba 2 everywhere; hybrid layers run a shared attention, twice as wide, before it."""
    count = num_layers(keys)
    types = keys.names("layers_block_type", count) or keys.names("layer_types", count)
    if types is None:
        hybrid = keys.indices("hybrid_layer_ids")
        types = ["hybrid" if i in hybrid else "mamba" for i in range(count)]
    heads = num_heads(keys)
    size = keys.count("attention_head_dim", default=max(1, 2 * hidden_size(keys) // heads))
    attention = plain(keys, head_dim=size, v_head_dim=size)
    state = mamba2(keys)
    return [(state, attention) if name == "hybrid" else (state,) for name in types]


NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_blocks(keys: Keys) -> list[str]:
    """What each Nemotron-H layer is: mamba, attention, mlp or moe.

    >>> nemotron_blocks(Keys({"hybrid_override_pattern": "M-*E"}))
    ['mamba', 'mlp', 'attention', 'moe']
    """
    listed = keys.names("layers_block_type") or keys.names("layer_types")
    if listed:
        return [{"linear_attention": "mamba", "full_attention": "attention"}.get(name, name) for name in listed]
    pattern = keys.get("hybrid_override_pattern", default="")
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(NEMOTRON):
        raise InputError("hybrid_override_pattern", pattern, "one of M * - E for each layer")
    return [NEMOTRON[letter] for letter in pattern]


def nemotron_h(keys: Keys) -> Layers:
    """One thing a layer: Mamba 2, attention, or a feed-forward block alone."""
    state, attention = mamba2(keys), plain(keys, sliding_window=window(keys))
    found: dict[str, tuple[Recurrent | Attention, ...]] = {"mamba": (state,), "attention": (attention,)}
    return [found.get(name, ()) for name in nemotron_blocks(keys)]


def kimi_linear(keys: Keys) -> Layers:
    """Kimi Delta Attention with latent attention in some layers; the config counts layers from 1."""
    count, linear = num_layers(keys), keys.part("linear_attn_config")
    recurrent = linear.indices("kda_layers")
    types = keys.names("layer_types", count)
    state = kda(keys)
    whole = latent(keys, None) if "kv_lora_rank" in keys else plain(keys)
    if types is not None:
        return [(state if name in RECURRENT else whole,) for name in types]
    return [(state if i + 1 in recurrent else whole,) for i in range(count)]


def bailing_linear(keys: Keys) -> Layers:
    """Lightning attention with one latent (or plain) attention last in each group (Ling and Ring 2.5)."""
    count, group = num_layers(keys), keys.count("layer_group_size", default=1)
    whole = latent(keys, None) if "kv_lora_rank" in keys else plain(keys)
    state = lightning(keys)
    return [(state if (i + 1) % group else whole,) for i in range(count)]


def minimax_text(keys: Keys) -> Layers:
    """Lightning attention where attn_type_list is 0, softmax attention where it is 1."""
    count = num_layers(keys)
    kinds = keys.numbers("attn_type_list", count) or [int((i + 1) % 8 == 0) for i in range(count)]
    state, attention = lightning(keys), plain(keys)
    return [(attention if kind else state,) for kind in kinds]
