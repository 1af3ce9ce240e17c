"""Compression: savings by hand arithmetic, layouts as vLLM 0.32 gave them, and what is said of support."""

from dataclasses import replace
from typing import Any

import pytest

from planner.catalog.models import model_named
from planner.compression import Outcome, arithmetic, compressed, outcomes, scaled
from planner.compression_methods import METHODS
from planner.deployment import Deployment
from planner.errors import InputError
from planner.families import model_spec
from planner.gpu import gpu_named
from planner.kv_layout import kv_layout
from planner.plan import Plan, plan
from planner.verdict import Level
from planner.workload import Workload

LLAMA_2, LLAMA_3 = "meta-llama/Llama-2-7b-hf", "meta-llama/Meta-Llama-3-8B"


def made(model: str = LLAMA_2, gpu: str = "a100", load: Workload = Workload(), **flags: Any) -> Plan:
    return plan(model_named(model), Deployment(gpu=gpu_named(gpu), **flags), load, usd_per_gpu_hour=4.0)


@pytest.mark.parametrize(
    ("stack", "saving"),
    [
        (["mha"], 0.0),
        (["gqa8"], 1 - 8 / 32),
        (["mqa"], 1 - 1 / 32),  # 96.9 %
        (["fp8"], 1 / 2),  # twice, never four times
        (["gqa8", "fp8"], 1 - 1 / 8),  # 87.5 %
        (["fp8", "gqa8"], 1 - 1 / 8),
        (["int8_per_token_head"], 1 - (2 * 128 + 2 * 4) / (2 * 128 * 2)),  # a float32 scale a side
        (["gqa8", "int8_per_token_head"], 1 - 8 / 32 * 264 / 512),
        (["int4_per_token_head"], 1 - (2 * 64 + 2 * 4) / 512),
        (["nvfp4"], 1 - 2 * (64 + 8) / 512),  # a byte of scale for each 16 elements
        (["mla"], 1 - (4 * 128 + 64) * 2 / (2 * 32 * 128 * 2)),
        (["cla2"], 1 / 2),
        (["h2o"], 0.8),
        (["prune50"], 1 / 2),
        (["streaming_llm"], 1 / 2),  # 4 + 1,020 of 2,048 tokens
        (["mqa", "fp8", "cla2"], 1 - 1 / 32 / 2 / 2),
        (["fp8", "mixed_ends"], 1 - (28 / 2 + 4) / 32),
        (["offload"], 0.0),
        (["prefix"], 0.0),
    ],
)
def test_savings_of_a_model_with_32_kv_heads_of_128(stack: list[str], saving: float) -> None:
    outcome = compressed(made(), stack)
    assert outcome.saving == pytest.approx(saving, abs=1e-4)  # whole blocks and bytes
    assert outcome.saving_of_multihead == pytest.approx(saving, abs=1e-4)


def test_the_multihead_start_of_a_grouped_model() -> None:
    """Llama-3-8B has 8 of 32 KV heads: 75 % less than multi-head before anything is done, 87.5 % in FP8."""
    outcome = compressed(made(LLAMA_3), ["gqa8", "fp8"])
    assert outcome.multihead == 2 * 32 * 32 * 128 * 2 * 2_048
    assert (outcome.saving, outcome.saving_of_multihead) == (0.5, 0.875)
    assert outcome.in_vllm == "--kv-cache-dtype fp8"  # its checkpoint has the 8 heads already


def test_numbers_are_the_plans() -> None:
    base = made()
    assert compressed(base, []).plan == base
    quantized = made(kv_cache_dtype="fp8")
    outcome = compressed(base, ["fp8"])
    assert outcome.plan == quantized
    assert compressed(quantized, []).plan == base
    assert outcome.plan.latency is not None
    assert base.latency is not None
    assert outcome.plan.latency.output_tokens_per_s.value > base.latency.output_tokens_per_s.value
    assert outcome.plan.cost is not None
    assert base.cost is not None
    assert outcome.plan.cost.usd_per_million_output_tokens.value < base.cost.usd_per_million_output_tokens.value


def test_layers_left_in_16_bits_grow_in_one_table() -> None:
    """vLLM 0.32's get_kv_cache_groups: 8 layers of 8 heads of 128, two unquantised, are one group of 327,680 bytes."""
    layout = kv_layout(model_spec(plain(8)), served(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("0", "1")))
    assert [(group.page_size_bytes, group.block_size) for group in layout.groups] == [(327_680, 16)]


def test_windows_left_in_16_bits_get_blocks_of_equal_bytes() -> None:
    """vLLM 0.32: 10 windowed layers in 16 bits and 2 full in FP8 make 5 groups of 16 tokens and one of 32."""
    types = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(12)]
    model = model_spec(plain(12) | {"sliding_window": 1024, "layer_types": types})
    layout = kv_layout(model, served(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("sliding_window",)))
    assert [(group.block_size, group.page_size_bytes) for group in layout.groups].count((16, 2 * 65_536)) == 5
    assert [(group.block_size, group.page_size_bytes) for group in layout.groups].count((32, 2 * 65_536)) == 1


def plain(layers: int) -> dict[str, Any]:
    return {"model_type": "llama", "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": layers,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 2048, "vocab_size": 512,
            "max_position_embeddings": 8192}  # fmt: skip


def served(**flags: Any) -> Deployment:
    return Deployment(gpu=gpu_named("h100"), **flags)


def test_what_vllm_lacks_is_computed_and_said() -> None:
    outcome = compressed(made(), ["gqa8", "h2o"])
    assert outcome.in_vllm.startswith("not in vLLM")
    assert "H2O" in outcome.in_vllm
    assert outcome.saving == pytest.approx(1 - 0.25 * 0.2, abs=1e-4)
    assert outcome.verdict.level is Level.WARNING


def test_a_dtype_the_kernels_refuse_is_computed_and_said() -> None:
    """No latent kernel reads NVFP4; DeepSeek-V3's 576 elements would take (288 + 36) of 1,152 bytes."""
    outcome = compressed(made("deepseek-ai/DeepSeek-V3", "h200", tensor_parallel_size=8), ["nvfp4"])
    assert "No latent-attention kernel" in outcome.in_vllm
    assert outcome.saving == pytest.approx(1 - 324 / 1_152, abs=1e-3)
    assert outcome.base.layout is not None
    assert outcome.base.layout.bytes_per_token == 70_272  # published: 61 layers of 576 elements of 2 bytes


@pytest.mark.parametrize(("dtype", "since"), [("int8_per_token_head", "0.20.0"), ("int4_per_token_head", "0.25.0"),
                                              ("nvfp4", "0.21.0"), ("turboquant_4bit_nc", "0.20.0")])  # fmt: skip
def test_the_release_that_first_took_a_dtype_is_named(dtype: str, since: str) -> None:
    """vLLM's release notes: PRs 38378 and 38479 in 0.20.0, 40177 in 0.21.0, 40835 in 0.25.0."""
    outcome = compressed(made(vllm_version="0.19.1"), [dtype])
    assert f"came with vLLM {since}" in outcome.in_vllm
    assert since in next(method.since for method in METHODS if method.key == dtype)
    assert outcome.saving is not None


def test_fp8_on_an_a100_is_storage_only() -> None:
    assert "Storage only" in arithmetic(gpu_named("a100"), "fp8")
    assert "Attention computes in FP8" in arithmetic(gpu_named("h100"), "fp8")
    assert "FP8 units" in arithmetic(gpu_named("MI300X"), "fp8")
    assert "Storage only" in arithmetic(gpu_named("h100"), "int8_per_token_head")
    assert arithmetic(gpu_named("h100"), "auto") == ""


def test_host_memory_in_tokens() -> None:
    """64 GiB of Llama-3-8B's 131,072 bytes a token."""
    outcome = compressed(made(LLAMA_3), ["offload"])
    assert "524,288 tokens" in " ".join(outcome.notes)
    assert "--kv-offloading-size 64" in outcome.plan.deployment.serve_command("m")


def test_flags_of_layers_left_in_16_bits() -> None:
    outcome = compressed(made(), ["fp8", "mixed_ends"])
    assert outcome.in_vllm == "--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0 1 30 31"
    assert "--kv-cache-dtype-skip-layers 0 1 30 31" in outcome.plan.deployment.serve_command("m")
    assert "Nothing is quantised" in " ".join(compressed(made(), ["mixed_ends"]).notes)


def test_layers_are_shared_between_attention_layers_only() -> None:
    """Qwen3-Next: 12 of 48 layers have attention, so 6 caches are left."""
    outcome = compressed(made("Qwen/Qwen3-Next-80B-A3B-Instruct", "h100", tensor_parallel_size=4), ["cla2"])
    assert outcome.plan.layout is not None
    assert outcome.base.layout is not None
    assert outcome.plan.layout.bytes_per_token * 2 == outcome.base.layout.bytes_per_token


def test_pages_beside_recurrent_states_hold_more_tokens() -> None:
    base = made("Qwen/Qwen3-Next-80B-A3B-Instruct", "h100", tensor_parallel_size=4).layout
    assert base is not None
    half = scaled(base, 0.5)
    assert half.bytes_per_block == base.bytes_per_block
    assert half.blocks_per_request(100_000) < base.blocks_per_request(100_000)


def test_a_stack_holds_one_method_of_a_kind() -> None:
    with pytest.raises(InputError, match="one method for dtype"):
        compressed(made(), ["fp8", "nvfp4"])
    with pytest.raises(InputError, match="any of mha, gqa8"):
        compressed(made(), ["zip"])


@pytest.mark.parametrize(
    ("model", "gpu"),
    [(LLAMA_3, "cpu"), ("openai/gpt-oss-20b", "h100"), ("Qwen/Qwen2.5-7B-Instruct", "l4"), (LLAMA_2, "MI300X"),
     ("google/gemma-3-27b-it", "b200"), ("deepseek-ai/DeepSeek-V2-Lite", "a100")],
)  # fmt: skip
def test_every_method_has_bytes_or_a_reason(model: str, gpu: str) -> None:
    found = outcomes(made(model, gpu, Workload(input_tokens=3_000)))
    assert len(found) == 1 + len(METHODS)
    for outcome in found:
        assert outcome.request_bytes or outcome.obstacles, outcome.name
        assert outcome.in_vllm
        assert (outcome.saving or 0) < 1
        assert outcome.mean_bytes_per_token == per_token(outcome)


def per_token(outcome: Outcome) -> float | None:
    return None if outcome.request_bytes is None else outcome.request_bytes / outcome.plan.workload.tokens


def test_a_device_too_small_still_has_bytes() -> None:
    outcome = compressed(made("meta-llama/Meta-Llama-3-70B", "l4"), ["fp8"])
    assert outcome.saving == 0.5
    assert outcome.plan.capacity is None


def test_methods_say_all_that_is_known() -> None:
    assert len({method.key for method in METHODS}) == len(METHODS)
    for method in METHODS:
        assert all((method.principle, method.quality, method.source, method.training, method.difficulty)), method.key
        assert bool(method.flag) == (method.support == "flag"), method.key


def test_a_plan_made_by_another_load_keeps_its_price() -> None:
    base = made()
    other = base.on(workload=replace(base.workload, input_tokens=2_000))
    assert (other.workload.input_tokens, other.usd_per_gpu_hour) == (2_000, 4.0)
