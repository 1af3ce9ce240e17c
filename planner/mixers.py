"""How each family mixes tokens: config.json -> the mixers of every layer, in order."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.errors import InputError
from planner.keys import Keys
from planner.model import MLA, Attention, CompressedAttention, Indexer, Mixer, Recurrent

Layers = list[tuple[Mixer, ...]]
Reader = Callable[[Keys], Layers]

SLIDING = {"sliding_attention", "local", "sliding", "swa"}
RECURRENT = {"linear_attention", "mamba", "conv", "recurrent", "gdn", "kda"}


MOST_LAYERS = 10_000  # beyond any model, and small enough to list
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers")
DECODER_LAYERS = ("decoder_layers", "num_decoder_layers", "num_hidden_layers", "num_layers")


def num_layers(keys: Keys, *names: str) -> int:
    """Decoder layers, under these names or the usual ones  [layers]."""
    names = names or LAYERS
    count = keys.count(*names)
    if count > MOST_LAYERS:
        raise InputError(names[0], count, f"at most {MOST_LAYERS:,} layers")
    return count


def hidden_size(keys: Keys) -> int:
    """Width of the residual stream  [elements]."""
    return keys.count("hidden_size", "n_embd", "d_model", "n_embed", "model_dim")


def num_heads(keys: Keys) -> int:
    """Query heads  [heads]."""
    return keys.count("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")


def plain(keys: Keys, **changes: int | bool | None) -> Attention:
    """The attention that the global keys describe, all tokens visible, with these changes.

    KV heads are looked for in vLLM's order (0.32 model_arch_config_convertor.get_total_num_kv_heads).
    """
    heads = int(changes.get("num_attention_heads") or num_heads(keys))
    kv_heads = keys.count("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num",
                          "num_attention_groups", default=heads)  # fmt: skip
    size = changes.get("head_dim") or keys.maybe("head_dim", "attention_head_dim", "hidden_size_per_head", least=1)
    size = int(size or hidden_size(keys) // heads)
    if size < 1:
        raise InputError("hidden_size", hidden_size(keys), f"at least one element for each of {heads} heads")
    values = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": size, "v_head_dim": size}
    values |= {name: value for name, value in changes.items() if value is not None}
    if values["num_attention_heads"] % values["num_key_value_heads"]:
        raise InputError("num_key_value_heads", values["num_key_value_heads"], f"a divisor of the {heads} query heads")
    return Attention(**values)  # type: ignore[arg-type]


def window(keys: Keys, default: int | None = None) -> int | None:
    """sliding_window, None where it is null, zero or switched off  [tokens]."""
    if keys.get("use_sliding_window") is False:
        return None
    if "sliding_window" in keys.config:
        return keys.maybe("sliding_window") or None
    return default


def uniform(keys: Keys, default_window: int | None = None) -> Layers:
    """Every layer alike; windowed where layer_types says so, or everywhere where only a window is given.

    vLLM 0.32 (arg_utils.create_engine_config): the model-wide window holds only without layer_types.
    """
    count, limit = num_layers(keys), window(keys, default_window)
    types = keys.names("layer_types", count)
    full = plain(keys)
    if types is None:
        return [(plain(keys, sliding_window=limit),)] * count
    return typed(keys, types, full, plain(keys, sliding_window=limit))


def typed(keys: Keys, types: Sequence[str], full: Attention, sliding: Attention, recurrent: Recurrent | None = None,
          chunk: int | None = None) -> Layers:  # fmt: skip
    """One mixer a layer, chosen by its entry of layer_types."""
    layers: Layers = []
    for name in types:
        if name in SLIDING:
            layers.append((sliding,))
        elif name == "chunked_attention":
            layers.append((plain(keys, attention_chunk_size=chunk or keys.maybe("attention_chunk_size")),))
        elif name in RECURRENT:
            if recurrent is None:
                raise InputError("layer_types", name, "full_attention, sliding_attention or chunked_attention")
            layers.append((recurrent,))
        else:
            layers.append((full,))
    return layers


def alternating(pattern: int, default_window: int, full_at: int = -1, extra: int = 0) -> Reader:
    """Windowed layers with one full layer in every `pattern` (Gemma 2 and 3, Cohere 2, OLMo 3, gpt-oss, CWM, …).

    full_at is the place of the full layer in its run; sliding_window_pattern and layer_types override; extra tokens
    are added to the window (Cohere 2 counts the token itself apart).
    """

    def read(keys: Keys) -> Layers:
        count, limit = num_layers(keys), window(keys, default_window)
        every = pattern_length(keys, pattern)
        types = keys.names("layer_types", count) or [
            "full_attention" if i % every == full_at % every else "sliding_attention" for i in range(count)
        ]
        return typed(keys, types, plain(keys), plain(keys, sliding_window=limit and limit + extra))

    return read


def pattern_length(keys: Keys, default: int) -> int:
    """Layers in one run of the pattern; EXAONE writes it in letters ("LLLG")."""
    value = keys.get("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers", default=default)
    if isinstance(value, str) and value:
        return len(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError("sliding_window_pattern", value, "a positive integer or a string such as LLLG")
    return value


def by_type(default_window: int) -> Reader:
    """Windowed only where layer_types says so, full without it."""

    def read(keys: Keys) -> Layers:
        count = num_layers(keys)
        types = keys.names("layer_types", count) or ["full_attention"] * count
        return typed(keys, types, plain(keys), plain(keys, sliding_window=window(keys, default_window)))

    return read


def qwen(keys: Keys) -> Layers:
    """Windows only with use_sliding_window, from layer max_window_layers on (Qwen 1.5 to 3)."""
    count = num_layers(keys)
    limit = window(keys) if keys.get("use_sliding_window") else None
    types = keys.names("layer_types", count)
    start = keys.maybe("max_window_layers")
    if limit is None:
        return [(plain(keys),)] * count
    if types is None:
        types = ["sliding_attention" if i >= (28 if start is None else start) else "full_attention"
                 for i in range(count)]  # fmt: skip
    return typed(keys, types, plain(keys), plain(keys, sliding_window=limit))


def full(keys: Keys) -> Layers:
    """Every layer sees all tokens, whatever window the config carries."""
    return [(plain(keys),)] * num_layers(keys)


def falcon(keys: Keys) -> Layers:
    """One shared KV head with multi_query, unless the new decoder architecture says how many."""
    multi_query = keys.get("multi_query", default=True) and not keys.get("new_decoder_architecture")
    return [(plain(keys, num_key_value_heads=1 if multi_query else None),)] * num_layers(keys)


def bigcode(keys: Keys) -> Layers:
    """One shared KV head unless multi_query is false (GPT-BigCode, StarCoder)."""
    kv_heads = 1 if keys.get("multi_query", default=True) else None
    return [(plain(keys, num_key_value_heads=kv_heads),)] * num_layers(keys)


def chatglm(keys: Keys) -> Layers:
    """kv_channels is the head size; groups of KV heads only with multi_query_attention."""
    kv_heads = keys.count("multi_query_group_num", default=1) if keys.get("multi_query_attention") else num_heads(keys)
    attention = plain(keys, num_key_value_heads=kv_heads, head_dim=keys.maybe("kv_channels", least=1))
    return [(attention,)] * num_layers(keys)


def dbrx(keys: Keys) -> Layers:
    """KV heads stand in attn_config (DBRX, MPT)."""
    kv_heads = keys.part("attn_config").maybe("kv_n_heads", least=1)
    return [(plain(keys, num_key_value_heads=kv_heads),)] * num_layers(keys)


def nas(keys: Keys) -> Layers:
    """Each block says how many query heads share a KV head, or that it has no attention (Nemotron-NAS, DeciLM)."""
    heads = num_heads(keys)
    layers: Layers = []
    for block in keys.parts("block_configs", num_layers(keys)) or []:
        attention = block.part("attention")
        grouped = attention.maybe("n_heads_in_group", least=1)
        if attention.get("no_op") or attention.get("replace_with_linear") or grouped is None:
            layers.append(())
        else:
            layers.append((plain(keys, num_key_value_heads=heads // grouped),))
    return layers or full(keys)


def llama4(keys: Keys) -> Layers:
    """Chunked attention in the layers with rotary embedding, full in every fourth (no_rope_layers 0)."""
    count = num_layers(keys)
    chunk = keys.maybe("attention_chunk_size") if "attention_chunk_size" in keys.config else 8192
    every = keys.count("no_rope_layer_interval", default=4)
    rope = keys.numbers("no_rope_layers", count) or [int((i + 1) % every != 0) for i in range(count)]
    return [(plain(keys, attention_chunk_size=chunk or None) if rotary else plain(keys),) for rotary in rope]


def muse_glimmer(keys: Keys) -> Layers:
    """Windows in the layers with rotary embedding; each fourth, counted from the last, is full (Muse Glimmer)."""
    count, limit = num_layers(keys), window(keys, 2048)
    rope = keys.numbers("no_rope_layers", count) or [int((count - 1 - i) % 4 != 0) for i in range(count)]
    return [(plain(keys, sliding_window=limit) if rotary else plain(keys),) for rotary in rope]


def gemma3n(keys: Keys) -> Layers:
    """Four windowed layers, one full; the last num_kv_shared_layers read the cache of earlier ones."""
    layers = alternating(5, 512)(keys)
    return share_last(layers, keys.maybe("num_kv_shared_layers") if "num_kv_shared_layers" in keys else 15)


def share_last(layers: Layers, shared: int | None) -> Layers:
    """The last `shared` attention layers keep no cache of their own."""
    own = len(layers) - (shared or 0)
    return [tuple(_shared(mixer) if i >= own else mixer for mixer in mixers) for i, mixers in enumerate(layers)]


def _shared(mixer: Mixer) -> Mixer:
    if not isinstance(mixer, Attention):
        return mixer
    return Attention(num_attention_heads=mixer.num_attention_heads, num_key_value_heads=mixer.num_key_value_heads,
                     head_dim=mixer.head_dim, v_head_dim=mixer.v_head_dim, sliding_window=mixer.sliding_window,
                     kv_shared=True)  # fmt: skip


def gemma4(keys: Keys) -> Layers:
    """Windowed and full layers differ in head size, and where keys are values (attention_k_eq_v) in KV heads."""
    count, limit = num_layers(keys), window(keys, 512)
    types = list(keys.names("layer_types", count) or
                 ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(count)])  # fmt: skip
    types[-1] = "full_attention"
    size = keys.count("head_dim", default=256)
    kv_heads = keys.maybe("num_global_key_value_heads", least=1) if keys.get("attention_k_eq_v") else None
    wide = keys.count("global_head_dim", default=512)
    whole = plain(keys, head_dim=wide, v_head_dim=wide, num_key_value_heads=kv_heads)
    layers = typed(keys, types, whole, plain(keys, head_dim=size, v_head_dim=size, sliding_window=limit))
    return share_last(layers, keys.maybe("num_kv_shared_layers"))


def mimo_v2(keys: Keys) -> Layers:
    """Windowed layers have heads of their own; values are narrower than keys (MiMo-V2)."""
    count = num_layers(keys)
    whole = plain(keys, v_head_dim=keys.maybe("v_head_dim", least=1))
    size = keys.count("swa_head_dim", default=whole.head_dim)
    sliding = plain(
        keys,
        num_attention_heads=keys.count("swa_num_attention_heads", default=whole.num_attention_heads),
        num_key_value_heads=keys.count("swa_num_key_value_heads", default=whole.num_key_value_heads),
        head_dim=size,
        v_head_dim=keys.count("swa_v_head_dim", "v_head_dim", default=size),
        sliding_window=keys.maybe("sliding_window_size", "sliding_window", least=1) or 128,
    )
    types = keys.names("layer_types", count)
    pattern = keys.numbers("hybrid_layer_pattern", count) or [
        int(name in SLIDING) for name in types or ["full_attention"] * count
    ]
    return [(sliding if windowed == 1 else whole,) for windowed in pattern]


def step3p5(keys: Keys) -> Layers:
    """Layers named by attention_other_setting have heads of their own (Step-3.5)."""
    count, limit = num_layers(keys), window(keys)
    types = keys.names("layer_types", count)
    if types is None:
        return [(plain(keys, sliding_window=limit),)] * count
    other = keys.part("attention_other_setting")
    layers: Layers = []
    for name in types:
        special = other if name == other.get("attention_type") else Keys({})
        layers.append((plain(
            keys,
            num_attention_heads=special.maybe("num_attention_heads", least=1),
            num_key_value_heads=special.maybe("num_attention_groups", least=1),
            head_dim=special.maybe("head_dim", least=1),
            v_head_dim=special.maybe("head_dim", least=1),
            sliding_window=limit if name in SLIDING else None,
        ),))  # fmt: skip
    return layers


def mla(keys: Keys) -> Layers:
    """Latent attention, with an indexer where the config has one (DeepSeek-V2 to V3.2, Kimi-K2, GLM-4.7 and 5).

    A layer may reuse the choice of an earlier one and then has no indexer: S in index_topk_pattern, or all but every
    index_topk_freq-th from index_skip_topk_offset on (GLM-5.2; vLLM 0.32 models/deepseek_v32/attention.py).
    """
    if "kv_lora_rank" not in keys:
        return full(keys)
    count = num_layers(keys)
    dense, sparse = latent(keys, None), latent(keys, indexer(keys))
    pattern, every = keys.get("index_topk_pattern"), keys.count("index_topk_freq", default=1)
    offset = keys.maybe("index_skip_topk_offset")
    start = 2 if offset is None else offset
    if pattern is None:
        reuses = [max(i - start + 1, 0) % every != 0 for i in range(count)]
    else:
        reuses = [i < len(pattern) and pattern[i] == "S" for i in range(count)]
    return [(dense if reused else sparse,) for reused in reuses]


def latent(keys: Keys, indexer: Indexer | None) -> MLA:
    """The latent attention that the global keys describe."""
    return MLA(
        num_attention_heads=num_heads(keys),
        q_lora_rank=keys.maybe("q_lora_rank", least=1),
        kv_lora_rank=keys.count("kv_lora_rank"),
        qk_nope_head_dim=keys.count("qk_nope_head_dim", default=128),
        qk_rope_head_dim=keys.count("qk_rope_head_dim", default=64),
        v_head_dim=keys.count("v_head_dim", default=128),
        indexer=indexer,
    )


def indexer(keys: Keys) -> Indexer | None:
    """The sparse indexer, where the config has index_topk."""
    topk = keys.maybe("index_topk", least=1)
    if topk is None:
        return None
    return Indexer(index_n_heads=keys.count("index_n_heads"), index_head_dim=keys.count("index_head_dim"),
                   index_topk=topk)  # fmt: skip


def longcat(keys: Keys) -> Layers:
    """Each layer has two latent attentions."""
    layer = latent(keys, indexer(keys))
    return [(layer, layer)] * num_layers(keys, "num_layers", "num_hidden_layers")


def minicpm3(keys: Keys) -> Layers:
    """Latent projections, but plain keys and values are cached, one each a query head."""
    size = keys.count("qk_nope_head_dim") + keys.count("qk_rope_head_dim")
    return [(plain(keys, num_key_value_heads=num_heads(keys), head_dim=size, v_head_dim=size),)] * num_layers(keys)


def deepseek_v4(keys: Keys) -> Layers:
    """A window in each layer; compress_ratios says how many older tokens become one vector, 4 with an indexer."""
    layers: Layers = []
    for ratio in keys.numbers("compress_ratios", num_layers(keys)) or [0] * num_layers(keys):
        layers.append((CompressedAttention(
            num_attention_heads=num_heads(keys),
            q_lora_rank=keys.count("q_lora_rank"),
            o_lora_rank=keys.count("o_lora_rank"),
            o_groups=keys.count("o_groups"),
            head_dim=keys.count("head_dim"),
            qk_rope_head_dim=keys.count("qk_rope_head_dim"),
            sliding_window=keys.count("sliding_window", default=128),
            compress_ratio=ratio,
            indexer=indexer(keys) if ratio == 4 else None,
        ),))  # fmt: skip
    return layers


def minimax_m3(keys: Keys) -> Layers:
    """Grouped-query attention; the layers of sparse_attention_freq have an index key besides (MiniMax-M3)."""
    count, sparse = num_layers(keys), keys.part("sparse_attention_config")
    chosen = sparse.numbers("sparse_attention_freq", count) or [0] * count
    if not sparse.get("use_sparse_attention", default=True):
        chosen = [0] * count
    layer = plain(keys)
    picks = None
    if any(chosen):
        picks = Indexer(
            index_n_heads=sparse.count("sparse_num_index_heads"),
            index_head_dim=sparse.count("sparse_index_dim"),
            index_topk=sparse.count("sparse_topk_blocks") * sparse.count("sparse_block_size"),
        )
    indexed = Attention(num_attention_heads=layer.num_attention_heads, num_key_value_heads=layer.num_key_value_heads,
                        head_dim=layer.head_dim, v_head_dim=layer.v_head_dim, indexer=picks)  # fmt: skip
    return [(indexed if flag else layer,) for flag in chosen]


def whisper(keys: Keys) -> Layers:
    """Each decoder layer attends to itself and to the encoder's output."""
    heads = keys.count("decoder_attention_heads", "num_attention_heads", "num_heads", "encoder_attention_heads")
    size = keys.count("d_kv", default=max(1, hidden_size(keys) // heads))
    own = Attention(num_attention_heads=heads, num_key_value_heads=heads, head_dim=size, v_head_dim=size)
    cross = replace(own, cross=True, encoder_tokens=keys.maybe("max_source_positions", least=1) or 0)
    count = num_layers(keys, *DECODER_LAYERS)
    return [(own, cross)] * count


def mllama(keys: Keys) -> Layers:
    """Some layers attend to the image instead of the text (Llama 3.2 Vision)."""
    across = keys.indices("cross_attention_layers", default=(3, 8, 13, 18, 23, 28, 33, 38))
    return [(plain(keys, cross=i in across),) for i in range(num_layers(keys))]
