"""How each family transforms a token: config.json -> the feed-forward part of every layer, in order."""

from planner.errors import InputError
from planner.keys import Keys
from planner.mixers import DECODER_LAYERS, hidden_size, num_layers
from planner.model import Mlp, Moe
from planner.recurrent import nemotron_blocks

Parts = list[Mlp | Moe | None]

_DENSE = ("dense_intermediate_size", "intermediate_size", "ffn_hidden_size", "ffn_dim", "decoder_ffn_dim", "d_ff",
          "n_inner", "ffn_intermediate_size")  # fmt: skip
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k_experts",
          "experts_per_token", "moe_num_active_experts")  # fmt: skip
_SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size",
           "share_expert_dim", "moe_intermediate_size_shared")  # fmt: skip


def dense(keys: Keys, gated: bool) -> Mlp:
    """The dense feed-forward; four times the hidden size where no width is given (GPT-2, BLOOM, Falcon)."""
    width = keys.maybe(*_DENSE, least=1)
    if width is None:
        width = int(keys.number("expansion_ratio", 4) * hidden_size(keys))
    return Mlp(intermediate_size=width, gated=gated)


def experts(keys: Keys, gated: bool) -> Moe | None:
    """The routed and shared experts of one layer; None for a dense model."""
    nested = keys.part("ffn_config")
    count = keys.maybe(*_EXPERTS) or nested.maybe(*_EXPERTS)
    if not count or count < 2:
        return None
    width = keys.maybe("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", least=1)
    width = width or nested.maybe("ffn_hidden_size", least=1) or keys.count("intermediate_size", "ffn_hidden_size")
    shared = keys.maybe(*_SHARED) or (
        (keys.maybe("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts") or 0)
        * width
    )
    return Moe(
        num_experts=count,
        num_experts_per_tok=keys.maybe(*_TOP_K, least=1) or nested.count(*_TOP_K, default=1),
        moe_intermediate_size=width,
        shared_intermediate_size=shared,
        gated=gated,
    )


def sparse_layers(keys: Keys, count: int) -> list[bool]:
    """Which layers have experts, by whichever of the usual keys the config has."""
    types = keys.names("mlp_layer_types", count)
    if types is not None:
        return [name not in ("dense", "mlp") for name in types]
    frequency = keys.get("moe_layer_freq")
    if isinstance(frequency, list):
        return [bool(flag) for flag in keys.numbers("moe_layer_freq", count) or []]
    if isinstance(keys.get("moe_layers_enum"), str):
        chosen = {int(index) for index in keys.get("moe_layers_enum").split(",") if index.strip().isdigit()}
        return [i in chosen for i in range(count)]
    first = keys.maybe("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index",
                       "moe_layer_num_skipped") or 0  # fmt: skip
    last = keys.maybe("moe_layer_end_index")
    every = keys.maybe("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", least=0)
    period, offset = keys.maybe("expert_layer_period", least=1), keys.maybe("expert_layer_offset") or 0
    step = keys.maybe("moe_layer_freq", least=1) or 1
    excluded = keys.indices("mlp_only_layers")

    def sparse(i: int) -> bool:
        if i < first or (last and i > last) or i in excluded:
            return False
        if period is not None:
            return i % period == offset
        if every is not None:
            return every > 0 and (i + 1) % every == 0
        return i % step == 0

    return [sparse(i) for i in range(count)]


def usual(keys: Keys, gated: bool = True) -> Parts:
    """Dense layers, and experts where the config has them."""
    count = num_layers(keys)
    moe = experts(keys, gated)
    widths = keys.get("intermediate_size")
    if isinstance(widths, list):
        each = keys.numbers("intermediate_size", count)
        if each is None or min(each) < 1:
            raise InputError("intermediate_size", widths, f"{count} positive integers, one for each layer")
        return [Mlp(intermediate_size=width, gated=gated) for width in each]
    if moe is None:
        return [dense(keys, gated)] * count
    flags = sparse_layers(keys, count)
    return [moe if flag else dense(keys, gated) for flag in flags]


def ungated(keys: Keys) -> Parts:
    """Up and down projections only (GPT-2, OPT, BLOOM, Falcon, Phi, StarCoder 2, Nemotron, …)."""
    return usual(keys, gated=False)


def decoder(keys: Keys) -> Parts:
    """One ungated layer for each decoder layer, which may be fewer than the encoder's (Whisper turbo)."""
    layers = num_layers(keys, *DECODER_LAYERS)
    return [dense(keys, gated=False)] * layers


def none(keys: Keys) -> Parts:
    """No feed-forward at all (Mamba)."""
    return [None] * num_layers(keys)


def every_layer(keys: Keys) -> Parts:
    """Experts in every layer, their width under intermediate_size (Mixtral, gpt-oss, PhiMoE, DBRX)."""
    return [experts(keys, True) or dense(keys, True)] * num_layers(keys)


def llama4(keys: Keys) -> Parts:
    """Routed experts plus one shared of the same width; the layers between them dense and wider."""
    routed, width = experts(keys, True), keys.count("intermediate_size")
    wide = Mlp(intermediate_size=keys.count("intermediate_size_mlp", default=width))
    if routed is None:
        return [wide] * num_layers(keys)
    moe = Moe(num_experts=routed.num_experts, num_experts_per_tok=routed.num_experts_per_tok,
              moe_intermediate_size=width, shared_intermediate_size=width)  # fmt: skip
    chosen = keys.get("moe_layers")
    flags = sparse_layers(keys, num_layers(keys))
    return [moe if (i in chosen if chosen else flag) else wide for i, flag in enumerate(flags)]


def granite(keys: Keys) -> Parts:
    """Experts with a shared one beside; without experts only the shared one is left."""
    moe = experts(keys, True)
    if moe is not None:
        return [moe] * num_layers(keys)
    width = keys.count("shared_intermediate_size", "intermediate_size")
    return [Mlp(intermediate_size=width)] * num_layers(keys)


def hunyuan(keys: Keys) -> Parts:
    """Experts and one shared of the same width, intermediate_size, in every layer (Hunyuan MoE)."""
    routed, width = experts(keys, True), keys.count("intermediate_size")
    if routed is None:
        return [dense(keys, True)] * num_layers(keys)
    return [Moe(num_experts=routed.num_experts, num_experts_per_tok=routed.num_experts_per_tok,
                moe_intermediate_size=width, shared_intermediate_size=width)] * num_layers(keys)  # fmt: skip


def nas(keys: Keys) -> Parts:
    """Each block states its width as a multiple of 2/3 of the hidden size, or that it has none (Nemotron-NAS)."""
    parts: Parts = []
    for block in keys.parts("block_configs", num_layers(keys)) or []:
        ffn = block.part("ffn")
        if ffn.get("no_op") or ffn.get("replace_with_linear"):
            parts.append(None)
        else:
            width = int(2 * ffn.number("ffn_mult", 0) * hidden_size(keys) / 3)
            exact = ffn.maybe("intermediate_size", least=1)
            parts.append(Mlp(intermediate_size=exact or -(-width // 256) * 256))
    return parts or usual(keys)


def gemma4(keys: Keys) -> Parts:
    """Twice as wide in layers that share their KV cache, where use_double_wide_mlp says so."""
    count, width = num_layers(keys), keys.count("intermediate_size")
    own = count - (keys.maybe("num_kv_shared_layers") or 0)
    double = bool(keys.get("use_double_wide_mlp"))
    dense_parts: Parts = [Mlp(intermediate_size=2 * width if double and i >= own else width) for i in range(count)]
    routed = experts(keys, True) if keys.get("enable_moe_block") else None
    if routed is None:
        return dense_parts
    moe = Moe(num_experts=routed.num_experts, num_experts_per_tok=routed.num_experts_per_tok,
              moe_intermediate_size=routed.moe_intermediate_size, shared_intermediate_size=width)  # fmt: skip
    return [moe] * count


def lfm2(keys: Keys) -> Parts:
    """Dense width shrunk to two thirds and rounded up, unless block_auto_adjust_ff_dim is false (LFM2)."""
    if keys.maybe(*_EXPERTS):
        return usual(keys)
    width = keys.count("block_ff_dim", "intermediate_size")
    if keys.get("block_auto_adjust_ff_dim", default=True):
        width = int(keys.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        multiple = keys.count("block_multiple_of", default=256)
        width = -(-width // multiple) * multiple
    return [Mlp(intermediate_size=width)] * num_layers(keys)


def nemotron_h(keys: Keys) -> Parts:
    """A feed-forward block of its own, dense or with experts, up and down only."""
    moe = experts(keys, False)
    found: dict[str, Mlp | Moe | None] = {"mlp": dense(keys, False), "moe": moe}
    return [found.get(name) for name in nemotron_blocks(keys)]


def zamba2(keys: Keys) -> Parts:
    """Only the hybrid layers have a feed-forward, and they share it."""
    types = keys.get("layers_block_type", "layer_types", default=[])
    hybrid = keys.indices("hybrid_layer_ids") or {i for i, name in enumerate(types) if name == "hybrid"}
    return [dense(keys, True) if i in hybrid else None for i in range(num_layers(keys))]


def longcat(keys: Keys) -> Parts:
    """Two dense parts and one of experts a layer; the experts are what is named here, the dense ones as shared."""
    width = keys.count("expert_ffn_hidden_size", "moe_intermediate_size")
    moe = Moe(
        num_experts=keys.count("n_routed_experts", "num_experts"),
        num_experts_per_tok=keys.count("moe_topk", "num_experts_per_tok", default=12),
        moe_intermediate_size=width,
        shared_intermediate_size=2 * keys.count("ffn_hidden_size", "intermediate_size"),
    )
    return [moe] * num_layers(keys, "num_layers", "num_hidden_layers")
