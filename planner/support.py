"""What vLLM refuses to start, said before it happens: architectures that left, and shapes that do not divide."""

from collections.abc import Mapping

from planner.deployment import Deployment, version_tuple
from planner.errors import Refusal
from planner.kv_dtype import kv_dtype
from planner.kv_specs import draft_layers, rank_kv_heads
from planner.model import Attention, ModelSpec, Recurrent

# Last release that served each architecture; vLLM 0.32.0 model_executor/models/registry.py, read 2026-11-29.
LAST_RELEASE: Mapping[str, str] = {
    **dict.fromkeys(("Phi3SmallForCausalLM",), "0.9.2"),
    **dict.fromkeys(("MotifForCausalLM", "Phi4FlashForCausalLM", "DonutForConditionalGeneration",
                     "MllamaForConditionalGeneration"), "0.10.2"),
    "Phi4MultimodalForCausalLM": "0.12.0",
    "JAISLMHeadModel": "0.22.0",
    **dict.fromkeys(("InternLM2VEForCausalLM", "QWenLMHeadModel", "QwenVLForConditionalGeneration",
                     "InternLMForCausalLM", "XverseForCausalLM", "Dots1ForCausalLM", "BambaForCausalLM",
                     "MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM",
                     "MiniMaxVL01ForConditionalGeneration", "BaiChuanForCausalLM", "BaichuanForCausalLM",
                     "Tarsier2ForConditionalGeneration"), "0.23.0"),
    **dict.fromkeys(("AquilaModel", "AquilaForCausalLM", "Grok1ModelForCausalLM", "Grok1ForCausalLM",
                     "TarsierForConditionalGeneration", "MantisForConditionalGeneration",
                     "MusicFlamingoForConditionalGeneration", "AyaVisionForConditionalGeneration"), "0.24.0"),
    **dict.fromkeys(("TeleChatForCausalLM", "PersimmonForCausalLM", "FuyuForCausalLM"), "0.25.0"),
    **dict.fromkeys(("Plamo2ForCausalLM", "OuroForCausalLM"), "0.26.0"),
    **dict.fromkeys(("ArcticForCausalLM", "ChameleonForConditionalGeneration", "Fairseq2LlamaForCausalLM", "GritLM",
                     "HCXVisionForCausalLM", "MPTForCausalLM", "MptForCausalLM", "RWForCausalLM",
                     "StableLMEpochForCausalLM"), "0.28.0"),
}  # fmt: skip

# Served by a plugin outside vLLM.
PLUGINS: Mapping[str, str] = dict.fromkeys(
    ("BartModel", "BartForConditionalGeneration", "Florence2ForConditionalGeneration",
     "MBartForConditionalGeneration"), "vllm-project/bart-plugin",
)  # fmt: skip

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
    tp, heads = deployment.tensor_parallel_size, model.num_attention_heads
    if heads % tp:
        raise Refusal(f"{heads} attention heads do not divide by tensor_parallel_size {tp}.")
    if deployment.pipeline_parallel_size > len(model.layers):
        raise Refusal(f"{len(model.layers)} layers cannot fill {deployment.pipeline_parallel_size} pipeline stages.")
    if model.architecture in WINDOWS_ALL_OR_NONE and _mixed_windows(model):
        raise Refusal(f"vLLM serves {model.architecture} with a sliding window in all layers or in none.")
    _check_context_parallel(model, deployment)


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
    if deployment.num_speculative_tokens and not draft_layers(model, deployment):
        notes.append("The config has no draft layers: a separate draft model's KV cache is not counted.")
    if deployment.version < (0, 32, 0):
        notes.append(f"Blocks and groups are those of vLLM 0.32; {deployment.vllm_version} may differ for hybrids.")
    if any(isinstance(mixer, Recurrent) for mixer in model.mixers) and not deployment.enable_prefix_caching:
        notes.append("Without prefix caching one state block a request is held.")
    return notes
