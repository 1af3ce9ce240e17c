"""The memory that vLLM's profiling pass needs beyond the weights: one step of max_num_batched_tokens, and its sampler.

Laws with few constants; scripts/fit_memory.py fits them on published start-up logs into memory_constants.json.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from planner.deployment import Deployment, version_tuple
from planner.model import Mlp, ModelSpec, Moe
from planner.units import GIB

CONSTANTS: dict[str, Any] = json.loads((Path(__file__).parent / "memory_constants.json").read_text(encoding="utf-8"))

_TRITON_SAMPLER = (0, 17, 0)
_MOE_WORKSPACE_KEPT = (0, 17, 0)  # from here on the experts' workspace outlives the forward pass
_LARGEST_MOE_CHUNK = 32_768  # tokens the experts take at once (VLLM_FUSED_MOE_CHUNK_SIZE)
_LARGEST_IMAGE = 16_384  # tokens of the image with which the Qwen-VL encoders are profiled


def activation_bytes(model: ModelSpec, deployment: Deployment, last: bool = True) -> float:
    """The peak of the profiling pass beyond the weights: the encoder's, the forward pass's or the sampler's  [bytes].

    With S = min(max_num_seqs, T), T = max_num_batched_tokens, V = vocabulary, H = hidden size, I = intermediate size:
        sampler = a · S·V·4 + b · T·H·2 + c              a, b, c by release; only on the last pipeline stage
        forward = T · 2 · (3·I/TP + h·H)                 gate, up and their product (of 8 bits: 2.5 instead of 3)
        experts = T · top_k · 2 · (max(I/TP, H) + max(2·I/TP, H))

    last  the rank holds the last pipeline stage, hence the sampler
    """
    tokens, version = deployment.step_tokens, deployment.version
    dense, experts = _widths(model, deployment)
    stream = tokens * model.hidden_size * 2
    experts *= min(tokens, _LARGEST_MOE_CHUNK) * 2
    peak = tokens * 2 * dense + CONSTANTS["forward_hidden"] * stream + experts
    if last:
        law = _sampler_law(version, deployment.gpu.vendor)
        logits = min(deployment.step_seqs, tokens) * model.vocab_size * 4
        sampler = law["logits"] * logits + law["hidden"] * stream + law["gib"] * GIB
        sampler += experts if version >= _MOE_WORKSPACE_KEPT else 0
        sampler += CONSTANTS["speculative_logits"] * logits if deployment.num_speculative_tokens else 0
        peak = max(peak, sampler)
    if vision := model.wrapper.get("vision_config"):
        return max(peak + CONSTANTS["vision_gib"] * GIB, _encoder(vision, deployment.tensor_parallel_size))
    return peak


@cache
def _sampler_law(version: tuple[int, int, int], vendor: str) -> dict[str, float]:
    """FlashInfer's sampler (0.8 to 0.10.1, NVIDIA) and the Triton one (from 0.17 on) do not sort the vocabulary."""
    if vendor != "nvidia" and version < _TRITON_SAMPLER:
        version = (0, 0, 0)
    return [law for law in CONSTANTS["sampler"] if version_tuple(law["from"]) <= version][-1]


def _widths(model: ModelSpec, deployment: Deployment) -> tuple[float, float]:
    """The widest dense layer's intermediate elements a token and rank, and the experts' workspace elements a token."""
    ranks = deployment.tensor_parallel_size
    kept = 2.5 if _eight_bit_activations(model) else 3.0
    dense, experts, previous = 0.0, 0.0, None
    for layer in model.layers:
        if layer.mlp is previous or layer.mlp is None:
            continue
        previous = layer.mlp
        if isinstance(previous, Mlp):
            dense = max(dense, kept * previous.intermediate_size / ranks)
        else:
            dense = max(dense, kept * previous.shared_intermediate_size / ranks)
            experts = max(experts, _workspace(previous, model, deployment))
    return dense, experts


def _workspace(moe: Moe, model: ModelSpec, deployment: Deployment) -> float:
    """Elements a token that the Triton experts ask for (vllm fused_moe workspace_shapes): gate-up and down products."""
    if model.quantization_config.get("quant_method") == "mxfp4" or model.config.get("expert_dtype") == "fp4":
        return 0.0  # their kernels bring their own
    width = float(moe.moe_intermediate_size)
    if not deployment.enable_expert_parallel:
        width /= deployment.tensor_parallel_size
    return moe.num_experts_per_tok * (max(width, model.hidden_size) + max(2 * width, model.hidden_size))


def _eight_bit_activations(model: ModelSpec) -> bool:
    method = model.quantization_config.get("quant_method")
    if method == "compressed-tensors":
        groups = model.quantization_config.get("config_groups") or {}
        return any((group.get("input_activations") or {}).get("num_bits") == 8 for group in groups.values())
    return method in ("fp8", "fbgemm_fp8", "modelopt")


def _encoder(vision: dict[str, Any], ranks: int) -> float:
    """Peak of an encoder that takes images of any size: Qwen-VL's, profiled with the largest one  [bytes].

    patches · (2 · (2·I/TP + 4·H) for a layer + 4 · pixels), patches = tokens · merge²; 0 for encoders of a fixed size.
    """
    merge, frames = vision.get("spatial_merge_size"), vision.get("temporal_patch_size")
    if not (merge and frames and "hidden_size" in vision and "intermediate_size" in vision):
        return 0.0
    pixels = vision.get("patch_size", 14) ** 2 * frames * 3
    layer = 2 * vision["intermediate_size"] / ranks + 4 * vision["hidden_size"]
    return _LARGEST_IMAGE * merge**2 * (2 * layer + 4 * pixels)
