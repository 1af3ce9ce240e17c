"""What vLLM refuses to start, said before it happens: architectures that left, and shapes that do not divide."""

from collections.abc import Mapping
from typing import Any

from planner.deployment import Deployment, version_tuple
from planner.errors import Refusal
from planner.families import LENGTHS
from planner.kv_dtype import kv_dtype
from planner.kv_specs import draft_layers, rank_kv_heads
from planner.model import Attention, ModelSpec, Recurrent
from planner.quantization import gptq_reorders, method_of

# Last release that served each architecture; vLLM 0.32.0 model_executor/models/registry.py, read 2026-11-29. Left out
# are those that still start, by Transformers' own class: Dots1, Persimmon and Ernie. BambaForCausalLM and
# MiniMaxForCausalLM also have one, but layers without attention are refused there (models/transformers/base.py).
LAST_RELEASE: Mapping[str, str] = {
    **dict.fromkeys(("Phi3SmallForCausalLM",), "0.9.2"),
    **dict.fromkeys(("MotifForCausalLM", "Phi4FlashForCausalLM", "DonutForConditionalGeneration",
                     "MllamaForConditionalGeneration"), "0.10.2"),
    "Phi4MultimodalForCausalLM": "0.12.0",
    "JAISLMHeadModel": "0.22.0",
    **dict.fromkeys(("InternLM2VEForCausalLM", "QWenLMHeadModel", "QwenVLForConditionalGeneration",
                     "InternLMForCausalLM", "XverseForCausalLM", "BambaForCausalLM",
                     "MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM",
                     "MiniMaxVL01ForConditionalGeneration", "BaiChuanForCausalLM", "BaichuanForCausalLM",
                     "Tarsier2ForConditionalGeneration"), "0.23.0"),
    **dict.fromkeys(("AquilaModel", "AquilaForCausalLM", "Grok1ModelForCausalLM", "Grok1ForCausalLM",
                     "TarsierForConditionalGeneration", "MantisForConditionalGeneration",
                     "MusicFlamingoForConditionalGeneration", "AyaVisionForConditionalGeneration"), "0.24.0"),
    **dict.fromkeys(("TeleChatForCausalLM", "FuyuForCausalLM"), "0.25.0"),
    **dict.fromkeys(("Plamo2ForCausalLM", "OuroForCausalLM"), "0.26.0"),
    **dict.fromkeys(("ArcticForCausalLM", "ChameleonForConditionalGeneration", "Cheers",
                     "CheersForConditionalGeneration", "Fairseq2LlamaForCausalLM", "FireRedLIDForConditionalGeneration",
                     "GritLM", "HCXVisionForCausalLM", "MPTForCausalLM", "MptForCausalLM", "PrithviGeoSpatialMAE",
                     "RWForCausalLM", "StableLMEpochForCausalLM"), "0.28.0"),
}  # fmt: skip

# Served by a plugin outside vLLM.
PLUGINS: Mapping[str, str] = {
    **dict.fromkeys(("BartModel", "BartForConditionalGeneration", "Florence2ForConditionalGeneration",
                     "MBartForConditionalGeneration"), "vllm-project/bart-plugin"),
    "Nemotron3_5AsrForRNNT": "Sohaib-Ahmed21/vllm-nemotron-asr-plugin",
}  # fmt: skip

# Never served: vLLM 0.32.0 has no class, and that of Transformers 5.19 cannot take another attention
# (is_backend_compatible, _can_set_attn_implementation); every causal language model asked on 2026-11-29.
NEVER = frozenset((
    "BigBirdForCausalLM", "CodeGenForCausalLM", "CpmAntForCausalLM", "GPTNeoForCausalLM", "GPTNeoXJapaneseForCausalLM",
    "MegatronBertForCausalLM", "MvpForCausalLM", "OpenAIGPTLMHeadModel", "ProphetNetForCausalLM",
    "ReformerModelWithLMHead", "RemBertForCausalLM", "RoFormerForCausalLM", "RwkvForCausalLM", "TrOCRForCausalLM",
    "XGLMForCausalLM", "XLMWithLMHeadModel", "XLNetLMHeadModel",
))  # fmt: skip

# Types that are read here and have no config class in vLLM 0.32.0 (transformers_utils/config.py) nor in Transformers
# 5.19, looked up 2026-11-29: their own code comes with the checkpoint.
OWN_CODE = frozenset((
    "PanguProMoE", "aquila", "arctic", "baichuan", "bailing_hybrid", "bailing_moe", "bailing_moe_v2", "deci",
    "deepseek", "dream", "exaone", "grok-1", "hunyuan", "internlm2", "internlm3", "mimo", "mimo_v2", "minicpm",
    "minimax_m1", "minimax_m3_text", "minimax_text_01", "nanbeige", "nemotron-nas", "nemotron_h_puzzle", "orion",
    "pangu_embedded", "pangu_ultra_moe", "param2moe", "plamo3", "sarvam_mla", "sarvam_moe", "solar", "step1",
    "telechat2", "telechat3", "teleflm", "xverse", "youtu_llm",
))  # fmt: skip

# Quantisation methods of vLLM 0.32.0, model_executor/layers/quantization/__init__.py, read 2026-11-29; auto-round
# becomes inc. Which release dropped the others is not known: they are refused from this one on.
METHODS_SINCE = (0, 32, 0)
METHODS = frozenset((
    "awq", "auto-awq", "awq-marlin", "gptq", "auto-gptq", "gptq-marlin", "fp8", "fbgemm-fp8", "fp-quant", "modelopt",
    "modelopt-fp4", "modelopt-mxfp8", "modelopt-mixed", "humming", "compressed-tensors", "experts-int8", "quark",
    "moe-wna16", "torchao", "inc", "auto-round", "mxfp4", "gpt-oss-mxfp4", "deepseek-v4-fp8", "online",
    "fp8-per-tensor", "fp8-per-block", "fp8-per-channel", "int8-per-channel-weight-only", "nvfp4-per-token", "mxfp8",
))  # fmt: skip
DEPRECATED_METHODS = ("fbgemm-fp8", "fp-quant")

WINDOWS_ALL_OR_NONE = ("Qwen2ForCausalLM",)


def check(model: ModelSpec, deployment: Deployment) -> None:
    """Raise Refusal where vLLM would refuse the model, its parallelism or a KV dtype newer than the release."""
    since = kv_dtype(deployment.kv_cache_dtype).since
    if since and deployment.version < version_tuple(since):
        raise Refusal(f"--kv-cache-dtype {deployment.kv_cache_dtype} came with vLLM {since}; take that release.")
    last = LAST_RELEASE.get(model.architecture)
    if last and deployment.version > version_tuple(last):
        raise Refusal(f"{model.architecture} was served up to vLLM {last} and is not any more; take that release.")
    if model.architecture in PLUGINS:
        raise Refusal(f"{model.architecture} needs the plugin {PLUGINS[model.architecture]}; vLLM alone has no class.")
    if model.architecture in NEVER and "auto_map" not in model.wrapper:
        raise Refusal(f"{model.architecture} is not served: vLLM has no class, and Transformers' own does not fit.")
    if deployment.version >= METHODS_SINCE:
        _check_quantization(model.quantization_config)
    tp, heads = deployment.tensor_parallel_size, model.num_attention_heads
    if heads % tp:
        raise Refusal(f"{heads} attention heads do not divide by tensor_parallel_size {tp}.")
    if deployment.pipeline_parallel_size > len(model.layers):
        raise Refusal(f"{len(model.layers)} layers cannot fill {deployment.pipeline_parallel_size} pipeline stages.")
    if model.architecture in WINDOWS_ALL_OR_NONE and _mixed_windows(model):
        raise Refusal(f"vLLM serves {model.architecture} with a sliding window in all layers or in none.")
    _check_context_parallel(model, deployment)


def check_limits(model: ModelSpec, deployment: Deployment) -> None:
    """Raise Refusal for a max_model_len beyond what the config says (one that says nothing allows any), and for a step
    with more requests than tokens.
    """
    if deployment.step_tokens < deployment.step_seqs:
        raise Refusal(f"max_num_batched_tokens {deployment.step_tokens:,} is below max_num_seqs "
                      f"{deployment.step_seqs:,}: every request takes a token of a step.")  # fmt: skip
    asked, longest = deployment.max_model_len, model.max_position_embeddings
    if asked and asked > longest and any(model.config.get(name) is not None for name in LENGTHS):
        raise Refusal(f"max_model_len {asked:,} is more than the model's {longest:,} tokens, the longest vLLM allows "
                      "unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set.")  # fmt: skip


def _check_quantization(config: Mapping[str, Any]) -> None:
    """The checkpoint's quantisation as vLLM 0.32 takes it (config/model.py, _verify_quantization; auto_gptq.py)."""
    method = method_of(config)
    if method and method not in METHODS:
        raise Refusal(f"vLLM 0.32 has no quantisation method {method!r}; an older release may serve this checkpoint.")
    if method in DEPRECATED_METHODS:
        raise Refusal(f"vLLM 0.32 refuses {method} unless --allow-deprecated-quantization is given.")
    if method in ("gptq", "auto-gptq", "gptq-marlin") and gptq_reorders(config):
        raise Refusal("vLLM 0.32 does not serve GPTQ with desc_act in groups; take a checkpoint without desc_act.")


def _mixed_windows(model: ModelSpec) -> bool:
    return len({isinstance(m, Attention) and bool(m.sliding_window) for m in model.mixers}) > 1


def _check_context_parallel(model: ModelSpec, deployment: Deployment) -> None:
    """Decode context parallelism reuses the ranks that hold replicas of the same KV heads."""
    dcp, tp = deployment.decode_context_parallel_size, deployment.tensor_parallel_size
    if dcp == 1:
        return
    if tp % dcp:
        raise Refusal(f"decode_context_parallel_size {dcp} must divide tensor_parallel_size {tp}.")
    attention = [mixer for mixer in model.mixers if isinstance(mixer, Attention)]
    if any(mixer.sliding_window or mixer.attention_chunk_size for mixer in attention):
        raise Refusal("Decode context parallelism does not serve windowed attention.")
    for mixer in attention:
        rank_kv_heads(mixer.num_key_value_heads, tp)
        if tp // mixer.num_key_value_heads < dcp:
            raise Refusal(
                f"decode_context_parallel_size {dcp} needs as many replicas of each KV head: tensor_parallel_size {tp} "
                f"over {mixer.num_key_value_heads} KV heads gives {tp // mixer.num_key_value_heads}."
            )


def assumptions(model: ModelSpec, deployment: Deployment) -> list[str]:
    """What the layout takes for granted for this model and release, in words."""
    notes = []
    own_type = model.wrapper.get("model_type")
    if own_type in OWN_CODE:
        code = "which auto_map names" if "auto_map" in model.wrapper else "but this config has no auto_map"
        notes.append(f"model_type {own_type!r} needs --trust-remote-code and the checkpoint's own code, {code}.")
    if deployment.num_speculative_tokens and not draft_layers(model, deployment):
        notes.append("The config has no draft layers: a separate draft model's KV cache is not counted.")
    if deployment.version < (0, 32, 0):
        notes.append(f"Blocks and groups are those of vLLM 0.32; {deployment.vllm_version} may differ for hybrids.")
    if any(isinstance(mixer, Recurrent) for mixer in model.mixers) and not deployment.enable_prefix_caching:
        notes.append("Without prefix caching one state block a request is held.")
    return notes
