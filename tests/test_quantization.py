"""Quantisation schemes: which modules they reach, and bytes by hand."""

import pytest

from planner.errors import InputError
from planner.module_names import Names
from planner.quantization import FP8_BLOCK, INT8_CHANNEL, MXFP4, NVFP4, packed, recipe

QUERY, EXPERTS = "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.experts"


def group(bits: int, kind: str, strategy: str, size: int | None = None, **more: object) -> dict:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": size, "symmetric": True} | more
    return {"targets": ["Linear"], "weights": weights, "input_activations": None}


def compressed(*groups: dict, ignore: tuple[str, ...] = ("lm_head",), form: str = "pack-quantized") -> dict:
    named = {f"group_{i}": one for i, one in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": list(ignore), "config_groups": named}


@pytest.mark.parametrize(("scheme", "by_hand"), [
    (FP8_BLOCK, 4096 * 4096 + 32 * 32 * 4),  # a float32 scale for each 128 × 128
    (INT8_CHANNEL, 4096 * 4096 + 4096 * 4),  # and for each output
    (NVFP4, 4096 * 4096 // 2 + 4096 * 256 + 8),  # an FP8 scale for each 16 inputs, two global scales
    (MXFP4, 4096 * 4096 // 2 + 4096 * 128),  # an E8M0 scale for each 32 inputs
    (packed(4, 128, zeros=True), 4096 * 4096 // 2 + 32 * 4096 * 2 + 32 * 4096 // 2),
    (packed(8, 0, zeros=False), 4096 * 4096 + 4096 * 2),
    (packed(4, 128, zeros=False, indices=True), 4096 * 4096 // 2 + 32 * 4096 * 2 + 4096 * 4),
])  # fmt: skip
def test_bytes_by_hand(scheme: object, by_hand: int) -> None:
    assert sum(scheme.stored(4096, 4096, "bfloat16").values()) == by_hand  # type: ignore[attr-defined]


def test_a_block_that_reaches_over_the_edge_has_its_scale() -> None:
    """DeepSeek's fused input projection: 2,112 rows are 17 blocks of 128 (vLLM 0.32: weight_scale_inv 17 × 56)."""
    assert FP8_BLOCK.stored(2112, 7168, "bfloat16")["float32"] == 17 * 56 * 4


def test_expert_blocks_shrink_to_fit() -> None:
    """Experts of 192 rows a rank: blocks of 64 (vLLM 0.32, Qwen3-235B-FP8 on eight ranks)."""
    assert FP8_BLOCK.refined(192).rows == 64
    assert FP8_BLOCK.refined(256) is FP8_BLOCK


@pytest.mark.parametrize(("config", "name", "kind", "bits"), [
    ({"quant_method": "fp8"}, QUERY, "linear", 8),
    ({"quant_method": "fp8"}, "lm_head", "head", None),
    ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.self_attn"]}, QUERY, "linear", None),
    ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["self_attn"]}, QUERY, "linear", None),
    ({"quant_method": "gptq", "bits": 8, "lm_head": True}, "lm_head", "head", 8),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {r"-:.*self_attn": {}}}, QUERY, "linear", None),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {r"+:.*self_attn": {"bits": 8}}}, QUERY, "linear", 8),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, QUERY, "linear", 4),
    ({"quant_method": "mxfp8", "ignored_layers": ["model.layers.3.self_attn"]}, QUERY, "linear", None),
    ({"quant_method": "mxfp8"}, QUERY, "linear", 8),
    ({"quant_method": "mxfp4"}, QUERY, "linear", None),
    ({"quant_method": "mxfp4"}, EXPERTS, "experts", 4),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}, QUERY, "linear", None),
    ({"producer": {}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, QUERY, "linear", 8),
    ({"quant_method": "auto-round", "bits": 4, "extra_config": {QUERY: {"bits": 16}}}, QUERY, "linear", None),
    ({"quant_method": "auto-round", "bits": 4, "block_name_to_quantize": "model.layers"}, QUERY, "linear", 4),
    ({"quant_method": "inc", "bits": 4, "block_name_to_quantize": "model.layers"}, "visual.blocks.0", "linear", None),
    (compressed(group(4, "int", "group", 128)), QUERY, "linear", 4),
    (compressed(group(8, "float", "channel"), form="float-quantized"), QUERY, "linear", 8),
    (compressed(group(8, "int", "channel"), form="int-quantized"), EXPERTS, "experts", 8),
    (compressed(group(4, "int", "group", 128), ignore=("re:.*self_attn.*",)), QUERY, "linear", None),
    (compressed(group(4, "int", "group", 128) | {"targets": ["re:.*experts.*"]}), QUERY, "linear", None),
    (compressed(group(4, "int", "group", 128) | {"targets": ["re:.*experts.*"]}), EXPERTS, "experts", 4),
])  # fmt: skip
def test_which_modules_are_quantised(config: dict, name: str, kind: str, bits: int | None) -> None:
    scheme = recipe(config).scheme([name], kind)
    assert (scheme and scheme.bits) == bits


def test_mixed_precision_goes_by_name() -> None:
    layers = {QUERY: {"quant_algo": "FP8"}, f"{EXPERTS}.0.up_proj": {"quant_algo": "NVFP4", "group_size": 16}}
    mixed = recipe({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    chosen = [mixed.scheme([n], k) for n, k in ((QUERY, "linear"), (EXPERTS, "experts"), ("model.x", "linear"))]
    assert [scheme and scheme.bits for scheme in chosen] == [8, 4, None]


def test_names_of_wrapped_models() -> None:
    assert QUERY in Names(["model.language_model.layers.3.self_attn.q_proj"])
    assert QUERY in Names([r"re:^model\.language_model\.layers\.3\."])
    assert "visual.blocks.0.attn.qkv" in Names(["re:.*vision_tower.*"])
    assert "model.layers.31.mlp.up_proj" not in Names(["model.layers.3"])


def test_an_unknown_method_says_so() -> None:
    found = recipe({"quant_method": "hypothetical"})
    assert found.scheme([QUERY], "linear") is None
    assert "hypothetical" in found.assumptions[0]


@pytest.mark.parametrize("config", [
    {"quant_method": "gptq", "bits": "four"},
    {"quant_method": "fp8", "weight_block_size": 128},
    {"quant_method": "fp8", "weight_block_size": ["a", 0]},
    {"quant_method": "modelopt", "quant_algo": "FP5"},
    {"quant_method": "gptq", "bits": 4, "group_size": None},
    {"quant_method": "gptq", "bits": 4, "dynamic": ["+:.*"]},
    {"quant_method": "auto-round", "bits": 4, "extra_config": {"lm_head": 16}},
    {"quant_method": ["fp8"]},
    {"quant_method": "fp8", "ignored_layers": "lm_head"},
    {"quant_method": "compressed-tensors", "config_groups": [1]},
    {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": 1}}},
    {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": [1]}}},
    {"quant_method": "quark", "global_quant_config": {"weight": []}},
    {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": ["re:("]},
])  # fmt: skip
def test_malformed(config: dict) -> None:
    with pytest.raises(InputError):
        recipe(config)
