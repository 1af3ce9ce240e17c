"""config.json -> ModelSpec: which layers each family of architectures is made of."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner import mixers, mlps, recurrent
from planner.errors import InputError
from planner.keys import Keys
from planner.mixers import Layers
from planner.mlps import Parts
from planner.model import Layer, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the models of one model_type are read.

    mixers  the token mixers of each layer
    mlps    the feed-forward part of each layer
    tied    the LM head is the embedding unless the config says otherwise
    """

    mixers: Callable[[Keys], Layers] = mixers.uniform
    mlps: Callable[[Keys], Parts] = mlps.usual
    tied: bool = False


PLAIN = Family()
_GPT = Family(mixers=mixers.full, mlps=mlps.ungated)
_MLA = Family(mixers=mixers.mla)
_QWEN = Family(mixers=mixers.qwen)
_EXPERTS = Family(mlps=mlps.every_layer)
_GEMMA3 = Family(mixers=mixers.alternating(6, 4096), tied=True)
_GEMMA4 = Family(mixers=mixers.gemma4, mlps=mlps.gemma4, tied=True)
_QWEN_HYBRID = Family(mixers=recurrent.interleaved(recurrent.gated_delta_net, 4))

FAMILIES: Mapping[str, Family] = {
    # Plain decoders; a window, where there is one, holds for every layer.
    **dict.fromkeys((
        "llama", "phi3", "phi3_v", "granite", "internlm2", "internlm3", "exaone", "orion", "solar", "stablelm",
        "baichuan", "aquila", "xverse", "minicpm", "ministral3", "seed_oss", "glm", "glm4", "glm4v_text", "glm4v",
        "ernie4_5", "hunyuan_v1_dense", "olmo", "olmo2", "olmo_1124", "mimo", "telechat2", "telechat3",
        "hyperclovax", "plamo3", "nanbeige", "step1", "step3_text", "deepseek", "glm4_moe", "bailing_moe",
        "bailing_moe_v2", "ernie4_5_moe", "ernie4_5_moe_vl", "hy_v3", "olmoe",
        "flex_olmo", "minimax_m2", "dots1", "solar_open", "PanguProMoE", "param2moe", "sarvam_moe", "grok-1",
        "arctic", "pangu_embedded", "teleflm", "cohere_moe", "glm_ocr_text", "ministral",
    ), PLAIN),
    "mistral": Family(mixers=lambda keys: mixers.uniform(keys, default_window=4096)),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text",
                     "qwen2_audio_encoder", "qwen2_5_omni_text", "dream"), _QWEN),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_text", "qwen3_omni_moe_text", "qwen3_vl_moe_text"),
                    Family(mixers=mixers.full)),
    **dict.fromkeys(("smollm3", "ernie4_5_tied"), Family(mixers=mixers.qwen, tied=True)),
    **dict.fromkeys(("cohere", "gemma"), Family(mixers=mixers.full, tied=True)),
    **dict.fromkeys(("mixtral", "phimoe", "granitemoe", "dbrx_plain"), _EXPERTS),
    "granitemoeshared": Family(mlps=mlps.granite),
    **dict.fromkeys(("hunyuan_v1_moe", "hunyuan"), Family(mlps=mlps.hunyuan)),
    "dbrx": Family(mixers=mixers.dbrx, mlps=mlps.every_layer),
    # Up and down projections without a gate.
    **dict.fromkeys(("gpt_neox", "gptj", "gpt_j", "phi", "nemotron", "arcee", "apertus", "jais2", "persimmon",
                     "codegen"), _GPT),
    **dict.fromkeys(("gpt2", "opt", "bloom"), Family(mixers=mixers.full, mlps=mlps.ungated, tied=True)),
    "starcoder2": Family(mlps=mlps.ungated, tied=True),
    "gpt_bigcode": Family(mixers=mixers.bigcode, mlps=mlps.ungated, tied=True),
    "mpt": Family(mixers=mixers.dbrx, mlps=mlps.ungated, tied=True),
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"),
                    Family(mixers=mixers.falcon, mlps=mlps.ungated, tied=True)),
    **dict.fromkeys(("chatglm", "glm4_remote"), Family(mixers=mixers.chatglm)),
    # Windowed and full layers in turn.
    **dict.fromkeys(("gemma2", "vaultgemma"), Family(mixers=mixers.alternating(2, 4096), tied=True)),
    **dict.fromkeys(("gemma3", "gemma3_text"), _GEMMA3),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), Family(mixers=mixers.gemma3n, tied=True)),
    **dict.fromkeys(("gemma4", "gemma4_text", "gemma4_unified_text"), _GEMMA4),
    **dict.fromkeys(("cohere2", "cohere2_moe"), Family(mixers=mixers.alternating(4, 4096, extra=1), tied=True)),
    "olmo3": Family(mixers=mixers.alternating(4, 4096)),
    **dict.fromkeys(("exaone4", "exaone_moe"), Family(mixers=mixers.alternating(4, 4096))),
    "laguna": Family(mixers=mixers.by_type(512)),
    "gpt_oss": Family(mixers=mixers.alternating(2, 128), mlps=mlps.every_layer),
    "cwm": Family(mixers=mixers.alternating(4, 8192, full_at=0)),
    "afmoe": Family(mixers=mixers.alternating(4, 1024)),
    **dict.fromkeys(("llama4", "llama4_text"), Family(mixers=mixers.llama4, mlps=mlps.llama4)),
    **dict.fromkeys(("mimo_v2", "mimo_v2_flash"), Family(mixers=mixers.mimo_v2)),
    "step3p5": Family(mixers=mixers.step3p5),
    **dict.fromkeys(("muse_glimmer", "muse_glimmer_text"), Family(mixers=mixers.muse_glimmer)),
    **dict.fromkeys(("nemotron-nas", "deci"), Family(mixers=mixers.nas, mlps=mlps.nas)),
    # Latent and sparse attention.
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_vl_v2", "kimi_k2", "glm4_moe_lite",
                     "glm_moe_dsa", "axk1", "pangu_ultra_moe", "sarvam_mla", "youtu", "youtu_llm"), _MLA),
    "longcat_flash": Family(mixers=mixers.longcat, mlps=mlps.longcat),
    "minicpm3": Family(mixers=mixers.minicpm3, tied=True),
    "deepseek_v4": Family(mixers=mixers.deepseek_v4),
    **dict.fromkeys(("minimax_m3_text", "minimax_m3"), Family(mixers=mixers.minimax_m3)),
    # Recurrent layers, alone or between attention layers.
    **dict.fromkeys(("mamba", "falcon_mamba"),
                    Family(mixers=recurrent.only(recurrent.mamba1), mlps=mlps.none, tied=True)),
    "mamba2": Family(mixers=recurrent.only(recurrent.mamba2), mlps=mlps.none),
    "jamba": Family(mixers=recurrent.jamba),
    "bamba": Family(mixers=recurrent.listed(recurrent.mamba2)),
    "granitemoehybrid": Family(mixers=recurrent.listed(recurrent.mamba2), mlps=mlps.granite),
    "falcon_h1": Family(mixers=recurrent.falcon_h1),
    "zamba2": Family(mixers=recurrent.zamba2, mlps=mlps.zamba2, tied=True),
    **dict.fromkeys(("nemotron_h", "nemotron_h_puzzle"), Family(mixers=recurrent.nemotron_h, mlps=mlps.nemotron_h)),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "olmo_hybrid"),
                    _QWEN_HYBRID),
    **dict.fromkeys(("lfm2", "lfm2_moe"),
                    Family(mixers=recurrent.interleaved(recurrent.short_conv, 3), mlps=mlps.lfm2, tied=True)),
    "kimi_linear": Family(mixers=recurrent.kimi_linear),
    "bailing_hybrid": Family(mixers=recurrent.bailing_linear),
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), Family(mixers=recurrent.minimax_text)),
    # Encoder and decoder.
    **dict.fromkeys(("whisper", "bart", "mbart", "t5"), Family(mixers=mixers.whisper, mlps=mlps.decoder, tied=True)),
    "mllama_text_model": Family(mixers=mixers.mllama),
}  # fmt: skip

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
           "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len")  # fmt: skip
_DTYPES = {"float16": "float16", "half": "float16", "bfloat16": "bfloat16", "float32": "bfloat16", "float": "bfloat16"}


def read_config(path: str | Path) -> dict[str, Any]:
    """A config.json, or the one in this folder, as a dict.

    A hf_quant_config.json beside it (ModelOpt) becomes quantization_config where the config has none, as in vLLM.
    Raises InputError naming the path where there is no such file, or no JSON object in it.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    config = _json_object(file)
    beside = file.parent / "hf_quant_config.json"
    if beside.is_file() and not config.get("quantization_config"):
        config["quantization_config"] = _json_object(beside)
    return config


def _json_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(file), type(error).__name__, "a readable config.json, or a folder with one") from error
    except (ValueError, RecursionError) as error:
        raise InputError(str(file), f"no JSON ({error})", "a JSON object as published with the model") from error
    if not isinstance(value, dict):
        raise InputError(str(file), type(value).__name__, "a JSON object as published with the model")
    return value


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a multimodal wrapper, or the config itself.

    Raises InputError where such a part is there but no object.

    >>> text_config({"thinker_config": {"text_config": {"model_type": "qwen2"}}})
    {'model_type': 'qwen2'}
    """
    for name in _TEXT_PARTS:
        inner = Keys(config).part(name).config
        if inner:
            return text_config(inner)
    return config


def max_model_len(wrapper: Mapping[str, Any], text: Keys) -> int:
    """The context vLLM 0.32 serves by default: the least of the length keys, times a linear or dynamic RoPE factor.

    Source: vllm/config/model.py, _get_and_verify_max_len: YaRN, LongRoPE and Llama 3 scaling leave the published
    length as it is, and so does Gemma 3; 2,048 where no key is there.
    """
    lengths = [length for name in LENGTHS if (length := text.maybe(name, least=1))]
    longest = text.maybe("model_max_length", least=1) or min(lengths, default=2048)
    rope = (text.part("rope_scaling") if "rope_scaling" in text else text.part("rope_parameters")).config
    kind = rope.get("rope_type") or rope.get("type")
    if kind in ("linear", "dynamic") and "gemma3" not in str(wrapper.get("model_type")):
        factor = rope.get("factor")
        if isinstance(factor, int | float) and not isinstance(factor, bool) and 0 < factor < 1e6:
            longest = int(longest * factor)
    return longest


def weight_dtype(wrapper: Mapping[str, Any], text: Keys) -> str | None:
    """dtype of unquantised weights and of an `auto` cache, float32 served as bfloat16; None where nothing says."""
    vision = wrapper.get("vision_config")
    for part in (wrapper, text.config, vision if isinstance(vision, Mapping) else {}):
        for name in ("dtype", "torch_dtype"):
            value = str(part.get(name) or "").removeprefix("torch.")
            if value in _DTYPES:
                return _DTYPES[value]
    return None


def model_spec(config: Mapping[str, Any], name: str = "") -> ModelSpec:
    """The model that a config.json describes, layer by layer.

    Raises InputError naming the key that is missing or malformed. A model_type without a reader of its own is read
    as a plain decoder, and says so in `assumptions`.

    >>> spec = model_spec({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2,
    ...                    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256})
    >>> spec.num_hidden_layers, spec.mixers[0].num_key_value_heads
    (2, 2)
    """
    if not isinstance(config, Mapping):
        raise InputError("config", type(config).__name__, "a JSON object as published with the model")
    text = Keys(text_config(config))
    architectures = Keys(config).names("architectures") or text.names("architectures") or ["unknown"]
    wrapper = Keys(config)
    own_type = wrapper.word("model_type")
    model_type = text.word("model_type") or own_type or "unknown"
    family = FAMILIES.get(model_type)
    assumptions = [] if family else [
        f"No reader for model_type {model_type!r}: taken as a plain decoder with attention in every layer; "
        f"vLLM may not serve {architectures[0]}."
    ]  # fmt: skip
    family = family or (_MLA if "kv_lora_rank" in text else PLAIN)
    dtype = weight_dtype(config, text)
    if dtype is None:
        assumptions.append("No dtype in config.json: weights taken as bfloat16.")
    mixers_of, mlps_of = family.mixers(text), family.mlps(text)
    tied = config.get("tie_word_embeddings", text.config.get("tie_word_embeddings"))
    quantization = wrapper.part("quantization_config").config or wrapper.part("compression_config").config
    return ModelSpec(
        name=name or str(config.get("_name_or_path") or ""),
        architecture=architectures[0],
        model_type=model_type,
        dtype=dtype or "bfloat16",
        hidden_size=mixers.hidden_size(text),
        vocab_size=text.count("vocab_size", "padded_vocab_size"),
        max_position_embeddings=max_model_len(config, text),
        tie_word_embeddings=family.tied if tied is None else bool(tied),
        layers=tuple(Layer(mixers=own, mlp=mlp) for own, mlp in zip(mixers_of, mlps_of, strict=True)),
        quantization_config=quantization or text.part("quantization_config").config,
        config=text.config,
        wrapper=config,
        assumptions=tuple(assumptions),
    )
