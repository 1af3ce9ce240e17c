"""Styles: what the layers of each family hold beside the matrices that all layers of their kind have."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from planner import extras
from planner.keys import Keys
from planner.matrices import Cut, Weight
from planner.mixers import latent
from planner.model import Mixer, ModelSpec

QKV = ("q_proj", "k_proj", "v_proj")
LayerExtra = Callable[[ModelSpec, int, Cut], Iterator[Weight]]
ModelExtra = Callable[[ModelSpec, Cut], Iterator[Weight]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Biases, norms, gates and names of one family's layers, as vLLM builds them.

    norms             norms as wide as the residual stream in a layer with attention and feed-forward  [norms]
    norm_vectors      vectors a norm holds: scale, or scale and bias, or none  [vectors]
    final_norm        there is one before the head
    qkv_bias          query, key and value projections have a bias
    out_bias          the output projection has one
    mlp_bias          both projections of a dense feed-forward have one
    state_bias        input and output projections of a recurrent layer have one
    conv_bias         its convolution has one
    state_norm        it normalises its state (gated norm of Mamba 2, three small norms of Jamba)
    time_step_rank    width of Mamba 1's time step, None for a sixteenth of the residual stream  [elements]
    qk_norm           none, head (one scale for all heads), heads (one each), full (all heads' width on every rank), cut
    output_gate       none, doubled (beside the queries), full, heads or latent
    sinks             none, all or sliding: which attention layers have a sink for each head
    attention_input   residual streams side by side that attention reads  [streams]
    router_bias       the router has a bias
    router_float32    the router is kept in float32
    correction_bias   a float32 correction for each expert's score
    expert_bias       both projections of an expert have one
    expert_hidden     width experts work in where it is not the residual stream's, else 0  [elements]
    expert_width      least width of a cut expert  [elements]
    latent_norm       a norm between experts and the way back from that width
    shared_gate       a gate for the shared experts
    mlp_whole         the feed-forward is not cut among the ranks
    embedding_width   where it is not the residual stream's, else 0  [elements]
    embedding_whole   the embedding is not cut among the ranks
    embedding_norm    a norm follows the embedding
    positions         rows of a learned position table, 0 for none  [tokens]
    head_bias         the head has a bias
    attention         name of the attention module in checkpoints
    qkv, out          names of its projections
    mlp, moe, shared  names of the dense feed-forward, of the mixture of experts, and of the shared experts in it
    state             name of the recurrent module
    projected         the mixer whose projections fill the cache, where the cache itself is plain (MiniCPM 3)
    owns              whether a layer holds its attention and feed-forward itself (Zamba 2 shares them)
    layer_extra       what else a layer holds
    model_extra       what else stands beside the embedding
    """

    norms: int = 2
    norm_vectors: int = 1
    final_norm: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    state_bias: bool = False
    conv_bias: bool = True
    state_norm: bool = True
    time_step_rank: int | None = None
    qk_norm: str = "none"
    output_gate: str = "none"
    sinks: str = "none"
    attention_input: int = 1
    router_bias: bool = False
    router_float32: bool = False
    correction_bias: bool = False
    expert_bias: bool = False
    expert_hidden: int = 0
    expert_width: int = 0
    latent_norm: bool = False
    shared_gate: bool = False
    mlp_whole: bool = False
    embedding_width: int = 0
    embedding_whole: bool = False
    embedding_norm: bool = False
    positions: int = 0
    head_bias: bool = False
    attention: str = "self_attn"
    qkv: tuple[str, ...] = QKV
    out: str = "o_proj"
    mlp: str = "mlp"
    moe: str = "mlp"
    state: str = "mamba"
    shared: str = "shared_experts"
    projected: Callable[[ModelSpec], Mixer] | None = None
    owns: Callable[[ModelSpec, int], bool] | None = None
    layer_extra: LayerExtra | None = None
    model_extra: ModelExtra | None = None


def _key(name: str, default: Any = False) -> Callable[[Keys], Any]:
    """A field read from the config."""
    return lambda keys: keys.get(name, default=default)


def _when(name: str, then: Any, otherwise: Any, default: bool = False) -> Callable[[Keys], Any]:
    """One value where the key is true, another where it is not."""
    return lambda keys: then if keys.get(name, default=default) else otherwise


def _positions(offset: int = 0) -> Callable[[Keys], int]:
    names = ("n_positions", "max_position_embeddings", "max_target_positions")
    return lambda keys: keys.count(*names, default=1024) + offset


_ATTENTION_BIAS: Mapping[str, Any] = {"qkv_bias": _key("attention_bias"), "out_bias": _key("attention_bias")}
_LLAMA: Mapping[str, Any] = {
    "qkv_bias": lambda keys: bool(keys.get("attention_bias", "bias", default=False)),
    "out_bias": lambda keys: bool(keys.get("attention_bias", "bias", default=False)),
    "mlp_bias": _key("mlp_bias"),
}
_ALL_BIAS: Mapping[str, Any] = {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "norm_vectors": 2}
_QKV_ONLY: Mapping[str, Any] = {"qkv_bias": _key("attention_bias")}
_PHI3: Mapping[str, Any] = {"qkv": ("qkv_proj",)}
_QWEN3: Mapping[str, Any] = {**_ATTENTION_BIAS, "qkv_bias": _key("attention_bias"), "qk_norm": "head"}
_QWEN_GATED: Mapping[str, Any] = {
    "qkv_bias": _key("attention_bias"), "out_bias": False, "qk_norm": "head", "shared_gate": True,
    "output_gate": _when("attn_output_gate", "doubled", "none", default=True), "shared": "shared_expert",
}  # fmt: skip
_DEEPSEEK: Mapping[str, Any] = {"correction_bias": lambda keys: keys.get("topk_method") == "noaux_tc"}
_ROUTED_F32: Mapping[str, Any] = {"router_float32": True, "correction_bias": True}
_MAMBA2: Mapping[str, Any] = {
    "conv_bias": _key("mamba_conv_bias", True), "state_bias": _key("mamba_proj_bias"), **_ATTENTION_BIAS}  # fmt: skip
_ERNIE: Mapping[str, Any] = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), _key("use_bias"))
_GEMMA3: Mapping[str, Any] = {**_ATTENTION_BIAS, "norms": 4, "qk_norm": "head"}

STYLES: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"qkv_bias": True},
    "qwen2_vl": {"qkv_bias": True},
    "qwen2_moe": {"qkv_bias": _key("qkv_bias", True), "shared_gate": True, "shared": "shared_expert"},
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "olmo_hybrid": {**_ATTENTION_BIAS, "qk_norm": "full"},
    "qwen3_next": _QWEN_GATED,
    "qwen3_5": _QWEN_GATED,
    "mimo": {"qkv_bias": True},
    "mimo_v2": {
        "qkv_bias": _key("attention_bias"), **_ROUTED_F32,
        "sinks": _when("add_swa_attention_sink_bias", "sliding", "none"),
    },
    "phi3": _PHI3,
    "phimoe": {
        "qkv_bias": True, "out_bias": True, "head_bias": True, "norm_vectors": 2, "moe": "block_sparse_moe",
    },
    "phi": {**_ALL_BIAS, "norms": 1, "out": "dense"},
    "gemma": _ATTENTION_BIAS,
    "gemma2": {**_ATTENTION_BIAS, "norms": 4},
    "vaultgemma": _ATTENTION_BIAS,
    "gemma3": _GEMMA3,
    "gemma3n": {**_GEMMA3, "layer_extra": extras.gemma3n_layer, "model_extra": extras.gemma3n_model},
    "gemma4": {**_GEMMA3, "layer_extra": extras.gemma4_layer, "model_extra": extras.gemma4_model},
    "cohere": {**_ATTENTION_BIAS, "norms": 1, "qk_norm": _when("use_qk_norm", "heads", "none")},
    "cohere2_moe": {**_ATTENTION_BIAS, "norms": 1},
    "granitemoe": {**_ATTENTION_BIAS, "moe": "block_sparse_moe", "shared": "shared_mlp"},
    "granitemoehybrid": {**_MAMBA2, "mlp": "shared_mlp", "moe": "block_sparse_moe"},
    "bamba": {**_MAMBA2, "mlp_bias": _key("mlp_bias")},
    "falcon_h1": {
        **_MAMBA2, "mlp_bias": _key("mlp_bias"), "out_bias": _key("projectors_bias"),
        "state_bias": _key("projectors_bias"), "state_norm": _key("mamba_rms_norm"),
    },
    "nemotron_h": {
        **_ATTENTION_BIAS, "mlp_bias": _key("mlp_bias"), "state_bias": _key("use_bias"), "mlp": "mixer", "moe": "mixer",
        "conv_bias": _key("use_conv_bias", True), "attention": "mixer", "state": "mixer", "correction_bias": True,
        "expert_hidden": _key("moe_latent_size", 0),
    },
    "zamba2": {
        "attention_input": 2, "conv_bias": _key("use_conv_bias", True), "mlp_bias": _key("add_bias_linear"),
        "owns": extras.zamba2_owns, "layer_extra": extras.zamba2_layer,
    },
    "mamba": {
        "state_bias": _key("use_bias"), "conv_bias": _key("use_conv_bias", True), "state_norm": False, "state": "mixer",
        "time_step_rank": _key("time_step_rank", None),
    },
    "mamba2": {"state_bias": _key("use_bias"), "conv_bias": _key("use_conv_bias", True), "state": "mixer"},
    "jamba": {
        "state_bias": _key("mamba_proj_bias"), "conv_bias": _key("mamba_conv_bias", True),
        "time_step_rank": _key("mamba_dt_rank", None), "mlp": "feed_forward", "moe": "feed_forward",
    },
    "lfm2": {
        "qk_norm": "head", "state_bias": _key("conv_bias"), "out": "out_proj", "state": "conv",
        "correction_bias": _key("use_expert_bias"), "mlp": "feed_forward", "moe": "feed_forward",
    },
    "exaone4": {"qk_norm": "head"},
    "exaone_moe": {"qk_norm": "head", "correction_bias": True},
    "glm4": {**_QKV_ONLY, "norms": 4},
    "glm": _QKV_ONLY,
    "glm4_moe": {**_QKV_ONLY, **_ROUTED_F32, "qk_norm": _when("use_qk_norm", "head", "none")},
    "glm4_moe_lite": _ROUTED_F32,
    "chatglm": {
        "qkv_bias": lambda keys: bool(keys.get("add_bias_linear") or keys.get("add_qkv_bias")),
        "out_bias": _key("add_bias_linear"), "mlp_bias": _key("add_bias_linear"),
        "attention": "self_attention", "qkv": ("query_key_value",), "out": "dense",
    },
    "gpt_oss": {
        "qkv_bias": _key("attention_bias", True), "out_bias": True, "sinks": "all", "router_bias": True,
        "expert_bias": True,
    },
    "minicpm3": {"projected": lambda model: latent(Keys(model.config), None)},
    "mixtral": {"moe": "block_sparse_moe"},
    "minimax_m2": {**_QKV_ONLY, **_ROUTED_F32, "qk_norm": "cut", "moe": "block_sparse_moe"},
    "minimax_m3_text": {
        "router_float32": True, "correction_bias": _key("use_routing_bias"), "qk_norm": "head",
        "layer_extra": extras.minimax_m3_layer,
    },
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v4": {
        "layer_extra": extras.deepseek_v4_layer, "model_extra": extras.deepseek_v4_model, "attention": "attn",
        "moe": "ffn",
    },
    "kimi_linear": {
        "correction_bias": True, "output_gate": _when("mla_use_output_gate", "latent", "none"),
        "expert_hidden": _key("routed_expert_hidden_size", 0), "latent_norm": _key("latent_moe_use_norm"),
        "expert_width": _key("min_moe_intermediate_per_partition", 256), "moe": "block_sparse_moe",
        "layer_extra": extras.kimi_layer, "model_extra": extras.kimi_model,
    },
    "longcat_flash": {"norms": 4, "router_float32": True, "layer_extra": extras.longcat_layer},
    "olmo": {"norm_vectors": 0},
    "olmo2": {**_ATTENTION_BIAS, "qk_norm": "full"},
    "gpt2": {**_ALL_BIAS, "positions": _positions()},
    "gpt_bigcode": {**_ALL_BIAS, "positions": _positions(), "mlp_whole": True},
    "gpt_neox": {**_ALL_BIAS, "qkv_bias": _key("attention_bias", True), "out_bias": _key("attention_bias", True)},
    "gptj": {"norms": 1, "norm_vectors": 2, "mlp_bias": True, "head_bias": True},
    "bloom": {**_ALL_BIAS, "embedding_norm": True},
    "opt": {
        "qkv_bias": _key("enable_bias", True), "out_bias": _key("enable_bias", True),
        "mlp_bias": _key("enable_bias", True), "norm_vectors": 2, "positions": _positions(2),
        "final_norm": _key("do_layer_norm_before", True), "embedding_width": _key("word_embed_proj_dim", 0),
    },
    "whisper": {**_ALL_BIAS, "norms": 3, "positions": _positions(), "embedding_whole": True},
    "falcon": {
        "norms": extras.falcon_norms, "norm_vectors": 2, "qkv_bias": _key("bias"), "out_bias": _key("bias"),
        "mlp_bias": _key("bias"), "attention": "self_attention", "qkv": ("query_key_value",), "out": "dense",
    },
    "stablelm": {"norm_vectors": 2, "qkv_bias": _key("use_qkv_bias")},
    "starcoder2": {
        "norm_vectors": 2, "qkv_bias": _key("use_bias", True), "out_bias": _key("use_bias", True),
        "mlp_bias": _key("use_bias", True),
    },
    "nemotron": {**_ATTENTION_BIAS, "mlp_bias": _key("mlp_bias"), "norm_vectors": 2},
    "orion": {**_LLAMA, "norm_vectors": 2},
    "jais2": {**_ALL_BIAS},
    "dbrx": {"moe": "ffn"},
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": {**_ERNIE, **_ROUTED_F32},
    "hunyuan_v1_dense": {**_ATTENTION_BIAS, "qk_norm": "head", "shared": "shared_mlp"},
    "hy_v3": {**_ROUTED_F32, "qk_norm": _when("qk_norm", "head", "none", default=True)},
    "apertus": {**_ATTENTION_BIAS, "qk_norm": "head"},
    "seed_oss": {"qkv_bias": _key("attention_bias", True), "out_bias": _key("attention_out_bias")},
    "afmoe": {**_ROUTED_F32, "norms": 4, "qk_norm": "head", "output_gate": "full"},
    "step3p5": {
        **_QKV_ONLY, **_ROUTED_F32, "qk_norm": "head", "shared": "share_expert",
        "output_gate": _when("use_head_wise_attn_gate", "heads", "none"),
    },
    "dots1": {**_ATTENTION_BIAS, "qk_norm": "head", "correction_bias": True},
    "bailing_moe": {
        "qkv_bias": lambda keys: bool(keys.get("use_bias") or keys.get("use_qkv_bias")), "out_bias": _key("use_bias"),
        "mlp_bias": _key("use_bias"), "qk_norm": _when("use_qk_norm", "head", "none"), "attention": "attention",
        "correction_bias": _key("moe_router_enable_expert_bias"),
        "router_float32": lambda keys: keys.get("router_dtype") == "fp32",
    },
}  # fmt: skip
ALIKE = {
    "qwen2_vl_text": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen2_5_omni_text": "qwen2",
    "qwen2_audio_encoder": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3",
    "qwen3_omni_moe_text": "qwen3",
    "qwen3_5_text": "qwen3_5", "qwen3_5_moe": "qwen3_5", "qwen3_5_moe_text": "qwen3_5", "mimo_v2_flash": "mimo_v2",
    "phi3_v": "phi3", "gemma3_text": "gemma3", "gemma3n_text": "gemma3n", "gemma4_text": "gemma4",
    "gemma4_unified_text": "gemma4", "cohere2": "cohere", "granitemoeshared": "granitemoe",
    "nemotron_h_puzzle": "nemotron_h", "falcon_mamba": "mamba", "lfm2_moe": "lfm2", "glm4v_text": "glm4",
    "glm4v": "glm4", "glm4v_moe_text": "glm4_moe", "glm_ocr_text": "glm4", "minimax_m3": "minimax_m3_text",
    "deepseek_v2": "deepseek_v3", "deepseek_v32": "deepseek_v3", "kimi_k2": "deepseek_v3", "glm_moe_dsa": "deepseek_v3",
    "deepseek_vl_v2": "deepseek_v3", "axk1": "deepseek_v3", "pangu_ultra_moe": "deepseek_v3", "olmo3": "olmo2",
    "olmo_1124": "olmo2", "olmoe": "olmo2", "flex_olmo": "olmo2", "gpt_j": "gptj", "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon", "ernie4_5_moe_vl": "ernie4_5_moe", "hunyuan_v1_moe": "hunyuan_v1_dense",
    "hunyuan": "hunyuan_v1_dense", "bailing_moe_v2": "bailing_moe",
}  # fmt: skip


@lru_cache(maxsize=256)
def style_of(model: ModelSpec) -> Style:
    """The style of a model's family, its flags read from the config; a plain decoder's where the family has none."""
    table = STYLES.get(ALIKE.get(model.model_type, model.model_type), _LLAMA)
    keys = Keys(model.config)
    values = {name: value(keys) if callable(value) and name not in _HOOKS else value for name, value in table.items()}
    if isinstance(values.get("time_step_rank"), str):
        values["time_step_rank"] = None
    return replace(Style(), **values)


_HOOKS = frozenset({"owns", "projected", "layer_extra", "model_extra"})
