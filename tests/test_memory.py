"""The memory budget against what start-up logs printed (vLLM 0.19 on H100: llm-d-planner#205), and its own rules."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.activation import activation_bytes
from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.gpu import gpu_named
from planner.memory import Part, graph_sizes, memory_budget, rotary_bytes
from planner.units import GIB

LLAMA = model_named("meta-llama/Llama-3.1-8B-Instruct")
WEIGHTS = 2 * 8_030_261_248  # Llama-3.1-8B in BF16; logs print 14.99 GiB, rotary tables included


def served(gpu: str = "H100", **flags: Any) -> Deployment:
    return Deployment(gpu=gpu_named(gpu), **{"vllm_version": "0.19.0", "max_model_len": 8192} | flags)


@pytest.mark.parametrize(
    ("model", "ranks", "weights", "activation", "non_torch", "available"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 14.99, 1.89, 0.25, 58.11),
        ("Qwen/Qwen2.5-7B-Instruct", 2, 7.12, 2.21, 2.06, 63.84),
        ("google/gemma-2-27b-it", 1, 50.72, 3.66, 0.26, 20.59),
        ("microsoft/phi-4", 1, 27.39, 1.52, 0.25, 46.08),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 1, 29.43, 1.93, 0.26, 43.61),  # experts' workspace
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 2, 43.51, 1.21, 2.07, 28.44),
        ("openai/gpt-oss-20b", 2, 7.01, 2.87, 2.07, 63.28),  # 59.32 at 0.90, here at 0.95
        ("google/gemma-3-4b-it", 1, 8.58, 3.89, 0.25, 62.51),  # image encoder
    ],
)
def test_parts_as_vllm_0_19_prints_them_on_h100(
    model: str, ranks: int, weights: float, activation: float, non_torch: float, available: float
) -> None:
    deployment = served(tensor_parallel_size=ranks, gpu_memory_utilization=0.95)
    spec = model_named(model)
    budget = memory_budget(spec, deployment, int(weights * GIB) - rotary_bytes(spec))  # printed with the tables
    assert budget.activation.value / GIB == pytest.approx(activation, abs=0.06)
    assert budget.non_torch.value / GIB == pytest.approx(non_torch, abs=0.03)
    assert budget.available_kv.value / GIB == pytest.approx(available, abs=0.1)
    assert budget.available_kv.low <= available * GIB <= budget.available_kv.high


# Qwen3-14B, vLLM 0.15 (llm-d-planner#205); Llama-3.1-8B, 0.11 (llm-d-planner docs); Qwen2.5-Math-1.5B, 0.7 on 22.06 GiB
@pytest.mark.parametrize(
    ("model", "flags", "activation"),
    [
        ("Qwen/Qwen3-14B", {"vllm_version": "0.15.0"}, 5.64),
        ("meta-llama/Llama-3.1-8B-Instruct", {"vllm_version": "0.11.0"}, 4.76),
        (
            "Qwen/Qwen2.5-Math-1.5B",
            {"vllm_version": "0.7.3", "max_num_seqs": 256, "max_num_batched_tokens": 4096},
            1.40,
        ),
    ],
)
def test_before_0_17_the_sampler_sorted_the_vocabulary(model: str, flags: dict[str, Any], activation: float) -> None:
    assert activation_bytes(model_named(model), served(**flags)) / GIB == pytest.approx(activation, abs=0.02)


def test_long_steps_are_bound_by_the_forward_pass() -> None:
    """vLLM 0.17.1 on a 69.75 GiB slice left 46.78 GiB at 8,192 tokens a step, 40.34 at 65,536 (ssaketh-ch@72703ba)."""
    short, long = (
        activation_bytes(LLAMA, served(vllm_version="0.17.1", max_num_seqs=256, max_num_batched_tokens=tokens))
        for tokens in (8_192, 65_536)
    )
    assert (long - short) / GIB == pytest.approx(46.78 - 40.34, rel=0.02)


def test_an_image_encoder_of_any_size_is_profiled_with_its_largest_image() -> None:
    """Qwen3.5-9B on an L40S, 0.19: 39.98 requested − 17.66 weights − 20.27 KV = 2.05, little of it not torch's."""
    deployment = served("L40S", max_num_batched_tokens=8192)
    assert activation_bytes(model_named("Qwen/Qwen3.5-9B"), deployment) / GIB == pytest.approx(1.99, abs=0.06)


# buffers of each model as vLLM 0.32 builds it on the meta device, bytes a rank
@pytest.mark.parametrize(
    ("model", "rope", "buffers"),
    [
        ("llama-3.1-8b", {}, 33_554_944),
        ("deepseek-v3", {}, 20_972_496),
        ("gemma-3-27b", {"rope_scaling": {"factor": 8, "type": "linear"}, "rope_local_base_freq": 1e4}, 302_023_650),
        ("glm-4.5", {"partial_rotary_factor": 0.5}, 16_778_688),
        ("qwen3-next-80b-a3b", {"partial_rotary_factor": 0.25, "rope_theta": 1e7}, 33_554_624),
    ],
)
def test_rotary_tables_as_vllm_builds_them(model: str, rope: dict[str, Any], buffers: int) -> None:
    spec = model_named(model)
    assert rotary_bytes(replace(spec, config={**spec.config, **rope})) == pytest.approx(buffers, rel=0.001)


def test_models_without_rotation_have_no_tables() -> None:
    assert rotary_bytes(model_named("jamba-1.5-mini")) == 0
    assert rotary_bytes(model_named("nemotron-h-8b")) == 0


def test_utilization_is_a_share_of_the_total() -> None:
    budget = memory_budget(LLAMA, served(other_memory=2 * GIB), WEIGHTS)
    assert budget.requested.value == pytest.approx(0.9 * budget.total.value, abs=1)
    assert budget.available_kv == memory_budget(LLAMA, served(), WEIGHTS).available_kv


def test_graphs_are_charged_from_0_21_on() -> None:
    before = memory_budget(LLAMA, served(vllm_version="0.20.2"), WEIGHTS)
    after = memory_budget(LLAMA, served(vllm_version="0.21.0"), WEIGHTS)
    assert not before.graphs_charged
    assert before.available_kv.value - after.available_kv.value == after.cuda_graph.value
    assert after.cuda_graph.low < 0.84 * GIB < after.cuda_graph.high  # what 0.19 printed as its estimate
    eager = memory_budget(LLAMA, served(vllm_version="0.21.0", enforce_eager=True), WEIGHTS)
    assert eager.cuda_graph.value == 0


# 1, 2, 4, 8 … 248 by 8, 256 … 512 by 16: 51 sizes; up to 256: 35; up to 1,024 on Blackwell: 83 (vLLM 0.32)
@pytest.mark.parametrize(
    ("gpu", "version", "seqs", "sizes"),
    [("H100", "0.32.0", 1024, 51), ("H100", "0.32.0", 128, 35), ("B200", "0.32.0", 1024, 83), ("H100", "0.32.0", 2, 3)],
)
def test_captured_sizes(gpu: str, version: str, seqs: int, sizes: int) -> None:
    assert graph_sizes(served(gpu, vllm_version=version, max_num_seqs=seqs)) == sizes


def test_the_last_stage_of_a_pipeline_binds() -> None:
    """It holds the head and runs the sampler."""
    deployment = served(pipeline_parallel_size=2)
    budget = memory_budget(LLAMA, deployment, (WEIGHTS // 2, WEIGHTS // 2))
    assert budget.activation.value == pytest.approx(activation_bytes(LLAMA, deployment, last=True), abs=1)
    heavy_first = memory_budget(LLAMA, deployment, (WEIGHTS, WEIGHTS // 4))
    assert heavy_first.weights.value == WEIGHTS + rotary_bytes(LLAMA)


def test_cpu_pool_is_exactly_what_was_set() -> None:
    budget = memory_budget(LLAMA, served("cpu", cpu_kvcache_space=1, vllm_version="0.32.0"), 0)
    assert budget.available_kv == Part("available_kv", GIB, GIB, GIB)


def test_a_given_pool_replaces_the_budget() -> None:
    """Qwen3-8B, vLLM 0.19.1: 'reserved 5.32 GiB memory for KV Cache as specified by kv_cache_memory_bytes'."""
    budget = memory_budget(LLAMA, served(kv_cache_memory_bytes=5_713_920_000, gpu_memory_utilization=0.45), WEIGHTS)
    assert budget.available_kv.value == 5_713_920_000
    assert not budget.failure


def test_failures_are_named_before_they_happen() -> None:
    assert "free at start" in memory_budget(LLAMA, served(other_memory=10 * GIB), WEIGHTS).failure
    assert memory_budget(LLAMA, served(other_memory=10 * GIB), WEIGHTS).highest_utilization == 0.86
    assert "weights alone" in memory_budget(LLAMA, served("L4"), 25 * GIB).failure
    assert "nothing" in memory_budget(LLAMA, served("RTX 4090"), 21 * GIB).failure
    assert "does not fit" in memory_budget(LLAMA, served("L4", kv_cache_memory_bytes=20 * GIB), WEIGHTS).failure
    assert memory_budget(LLAMA, served(), WEIGHTS).failure == ""


def test_every_part_explains_itself() -> None:
    budget = memory_budget(LLAMA, served(), WEIGHTS)
    for part in (
        budget.total,
        budget.requested,
        budget.cuda_graph,
        budget.other_processes,
        budget.at_start,
        *budget.parts,
    ):
        assert part.formula
        assert part.source


FLAGS = st.fixed_dictionaries(
    {
        "gpu_memory_utilization": st.floats(0.05, 1.0),
        "vllm_version": st.sampled_from(["0.7.3", "0.11.0", "0.19.0", "0.21.0", "0.32.0"]),
        "tensor_parallel_size": st.sampled_from([1, 2, 8]),
        "max_num_seqs": st.integers(1, 4096),
        "max_num_batched_tokens": st.integers(1, 131_072),
        "enforce_eager": st.booleans(),
        "num_speculative_tokens": st.integers(0, 5),
    }
)
DEVICES = st.sampled_from(["T4", "L4", "A100", "H100", "B200", "MI300X", "GB10", "RTX 4090"])
MODELS = st.sampled_from(["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "google/gemma-3-4b-it"])


@given(MODELS, DEVICES, FLAGS, st.integers(0, 200 * GIB))
def test_parts_never_exceed_the_request(model: str, gpu: str, flags: dict[str, Any], weights: int) -> None:
    budget = memory_budget(model_named(model), served(gpu, **flags), weights)
    assert budget.available_kv.low <= budget.available_kv.value <= budget.available_kv.high
    assert budget.available_kv.value == 0 or sum(part.value for part in budget.parts) <= budget.requested.value
    assert sum(part.value for part in budget.parts) + budget.unreserved >= budget.total.value


@given(MODELS, DEVICES, FLAGS, st.integers(0, 100 * GIB), st.floats(0.05, 1.0))
def test_more_utilization_never_leaves_less(
    model: str, gpu: str, flags: dict[str, Any], weights: int, utilization: float
) -> None:
    less, more = sorted((flags["gpu_memory_utilization"], utilization))
    spec, deployment = model_named(model), served(gpu, **flags)
    left = [
        memory_budget(spec, replace(deployment, gpu_memory_utilization=share), weights).available_kv
        for share in (less, more)
    ]
    assert all(low <= high for low, high in zip(left[0][1:], left[1][1:], strict=True))
