"""Parameters and weights: against vLLM's own model classes, published totals and hand arithmetic."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.families import model_spec
from planner.gpu import gpu_named
from planner.model import ModelSpec
from planner.weights import parameters, stage_layers, stage_weights, weight_assumptions, weight_bytes_per_rank

CASES = [json.loads(line) for line in (Path(__file__).parent / "weights" / "cases.jsonl").read_text().splitlines()]
DEVICES = {8: "A100-SXM-80GB", 9: "H100-SXM", 10: "B200"}
# The few bytes of KV scales and of routers that a checkpoint quantises after all are left out.
TOLERANCE = 0.005


def deployment(ranks: int = 1, generation: int = 9, **flags: object) -> Deployment:
    return Deployment(gpu=gpu_named(DEVICES[generation]), tensor_parallel_size=ranks, **flags)  # type: ignore[arg-type]


def case(name: str) -> ModelSpec:
    """The model of one of the cases."""
    return model_spec(next(item for item in CASES if item["model"] == name)["config"], name)


@pytest.mark.parametrize("item", CASES, ids=[item["model"] for item in CASES])
def test_equal_to_vllm(item: dict) -> None:
    model = model_spec(item["config"], item["model"])
    for ranks, generation, expected in item["rows"]:
        weights = stage_weights(model, deployment(ranks, generation, dtype=item["dtype"]))[0]
        assert weights.total == pytest.approx(expected, rel=TOLERANCE)
        assert sum(weights.by_dtype.values()) == weights.total
        if not model.quantization_config and item["source"] == "published config":
            assert weights.total == expected
    if "total_params" in item:
        assert parameters(model).total == item["total_params"]


@pytest.mark.parametrize(("name", "published"), [
    ("meta-llama/Llama-2-7b-hf", 6_738_415_616),  # safetensors headers on the hub, as are all of these
    ("meta-llama/Meta-Llama-3-8B", 8_030_261_248),
    ("meta-llama/Llama-3.1-70B", 70_553_706_496),
    ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
    ("Qwen/Qwen3-32B", 32_762_123_264),
])  # fmt: skip
def test_published_totals(name: str, published: int) -> None:
    assert parameters(model_named(name)).total == published


def test_parts_by_hand() -> None:
    """Llama-3-8B: 128,256 × 4,096 tables; q and o 4,096², k and v 4,096 × 1,024; three matrices of 4,096 × 14,336."""
    parts = parameters(model_named("meta-llama/Meta-Llama-3-8B"))
    assert parts.embedding == parts.head == 128_256 * 4096
    assert parts.attention == 32 * (2 * 4096**2 + 2 * 4096 * 1024)
    assert parts.mlp == 32 * 3 * 4096 * 14_336
    assert parts.norms == 65 * 4096
    assert parts.active == parts.total - parts.embedding


def test_active_parameters_of_a_mixture() -> None:
    """Mixtral visits 2 of its 8 experts; Qwen3-30B-A3B's card says 3.3 billion are activated."""
    mixtral = parameters(case("mixtral-8x7b"))
    assert mixtral.active == mixtral.total - mixtral.embedding - mixtral.experts * 6 // 8
    assert parameters(case("qwen3-30b-a3b")).active == pytest.approx(3.3e9, rel=0.1)


def test_dense_and_experts_make_the_total() -> None:
    weights = stage_weights(case("qwen3-30b-a3b"), deployment(2))[0]
    assert weights.dense + weights.experts + weights.embedding + weights.encoder == weights.total
    assert weights.experts == 48 * 128 * 3 * 2048 * 768 // 2 * 2  # half of each expert, two bytes a weight


def test_a_tied_table_is_read_by_every_step() -> None:
    tied, untied = case("qwen2.5-0.5b"), case("qwen2.5-7b")
    assert stage_weights(tied, deployment())[0].embedding == 0
    assert stage_weights(untied, deployment())[0].embedding == 152_064 * 3584 * 2


def test_pipeline_stages() -> None:
    """vLLM 0.32's get_pp_indices, and its model built for the first and last of three stages of two ranks."""
    assert stage_layers(80, 3) == (27, 27, 26)
    assert stage_layers(61, 4) == (15, 15, 16, 15)
    first, _, last = stage_weights(model_named("meta-llama/Llama-3.1-70B"), deployment(2, pipeline_parallel_size=3))
    assert (first.total, last.total) == (24_153_784_320, 23_298_129_920)
    first, _, last = stage_weights(case("qwen3-vl-8b"), deployment(2, pipeline_parallel_size=3))
    assert (first.total, last.total) == (3_518_834_544, 3_518_842_736)


def test_expert_parallel() -> None:
    """Dealt out or cut, eight ranks hold the same BF16 experts (vLLM 0.32: 7,680,585,728); data parallel deals on."""
    model = case("qwen3-30b-a3b")
    assert weight_bytes_per_rank(model, deployment(8, enable_expert_parallel=True)) == 7_680_585_728
    assert weight_bytes_per_rank(model, deployment(8)) == 7_680_585_728
    two = stage_weights(model, deployment(4, data_parallel_size=2, enable_expert_parallel=True))[0]
    assert two.experts == stage_weights(model, deployment(8))[0].experts


def test_kv_heads_are_replicated() -> None:
    """Two KV heads on eight ranks: one on each, so a rank holds more than an eighth of keys and values."""
    config = {"model_type": "llama", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 2,
              "num_hidden_layers": 1, "intermediate_size": 4096, "vocab_size": 1024}  # fmt: skip
    attention = 2 * 128 * 1024 + 2 * 64 * 1024  # two query heads of 64, out of them, one key and one value head
    weights = stage_weights(model_spec(config), deployment(8))[0]
    assert weights.total == 2 * (attention + 3 * 512 * 1024 + 2 * 128 * 1024 + 3 * 1024)


def test_vocabulary_is_padded() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
              "intermediate_size": 128, "vocab_size": 1001}  # fmt: skip
    assert parameters(model_spec(config)).embedding == 1024 * 64


def test_mxfp4_experts_are_padded_by_device() -> None:
    """gpt-oss-20b: 13.76 GB with Triton on H100, 14.68 GB with Marlin on A100 and TensorRT-LLM on B200 (vLLM 0.32)."""
    sizes = [weight_bytes_per_rank(case("gpt-oss-20b"), deployment(1, generation)) for generation in (8, 9, 10)]
    assert sizes == [14_679_227_520, 13_761_264_768, 14_679_227_520]


def test_absorbed_matrices_only_beside_fp8() -> None:
    """DeepSeek-V3: 61 layers × 128 heads × (128 + 128) × 512 × 2 bytes on H100; none for BF16 attention."""
    assert stage_weights(case("deepseek-v3"), deployment())[0].absorbed == 61 * 128 * 256 * 512 * 2
    assert stage_weights(case("deepseek-v3"), deployment(1, 10))[0].absorbed == 0
    assert stage_weights(case("glm-4.7-flash"), deployment())[0].absorbed == 0


def test_what_was_assumed() -> None:
    plain = case("llama-2-7b")
    assert weight_assumptions(plain) == ()
    seeing = replace(plain, wrapper={"model_type": "hypothetical", "vision_config": {"hidden_size": 1024}})
    assert "encoder" in weight_assumptions(seeing)[0]
    other = replace(plain, quantization_config={"quant_method": "hypothetical"})
    assert "hypothetical" in weight_assumptions(other)[0]


def test_equal_specs_share_one_count() -> None:
    model = case("llama-2-7b")
    before = parameters.cache_info().hits
    assert parameters(replace(model)) is parameters(model)
    assert parameters.cache_info().hits > before
