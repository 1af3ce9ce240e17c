"""Advice: each finding on a plan that has its cause, its numbers from planning again or by hand."""

from dataclasses import replace
from typing import Any

import pytest

from planner.advice import advice, block_wastes, waste
from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.finding import Finding, held, kv_tokens
from planner.gpu import gpu_named
from planner.plan import Plan, plan
from planner.units import count
from planner.verdict import Level
from planner.workload import Workload


def made(model: str, gpu: str, load: Workload = Workload(), **flags: Any) -> Plan:
    return plan(model_named(model), Deployment(gpu=gpu_named(gpu), **flags), load)


LLAMA = made("meta-llama/Meta-Llama-3-8B", "a100")


def found(plan: Plan, name: str) -> Finding:
    return next(each for each in advice(plan) if each.id == name)


def ids(plan: Plan) -> list[str]:
    return [each.id for each in advice(plan)]


def test_waste_by_hand() -> None:
    """On average half a block less half a token is empty; a request of 100 tokens fills 4 blocks of 32 but for 28."""
    assert waste(100, 32) == (15.5 / 115.5, 28 / 128)
    assert waste(1_000, 1)[0] == 0
    assert [each.block_size for each in block_wastes(LLAMA)] == [8, 16, 32, 64]
    assert "multiple of 16" in block_wastes(LLAMA)[0].refusal


def test_every_finding_ends_in_an_action() -> None:
    for each in advice(LLAMA):
        assert each.reason.endswith(".")
        assert each.action.endswith(".")


def test_quantise_on_a_device_that_only_stores() -> None:
    finding = found(LLAMA, "6.1")
    eight = LLAMA.on(replace(LLAMA.deployment, kv_cache_dtype="fp8"))
    assert finding.level is Level.WARNING
    assert "Storage only on A100" in finding.reason
    assert f"{count(kv_tokens(LLAMA))} → {count(kv_tokens(eight), 'KV tokens')}" in finding.reason
    assert "--kv-cache-dtype fp8" in finding.action


def test_leave_16_bits_where_the_pool_is_not_the_limit() -> None:
    finding = found(LLAMA.on(workload=Workload(concurrency=8)), "6.1")
    assert finding.level is Level.GOOD
    assert "Leave 16 bits" in finding.action


def test_int8_where_fp8_is_refused() -> None:
    """Triton's FP8 cache needs compute capability 8.9, and gpt-oss gets Triton on an A100."""
    finding = found(made("openai/gpt-oss-20b", "a100"), "6.1")
    assert "int8_per_token_head" in finding.action


def test_heads_and_bits_multiply() -> None:
    assert "75 %" in found(LLAMA, "6.2").reason
    assert "87.5 %" in found(LLAMA, "6.2").reason


def test_the_cache_moves_the_price() -> None:
    finding = found(LLAMA, "6.4")
    assert "less" in finding.reason
    assert "6.4" not in ids(made("meta-llama/Meta-Llama-3-8B", "a100", Workload(concurrency=8)))


def test_long_context_on_a_quantised_cache() -> None:
    long = made("meta-llama/Llama-3.1-8B-Instruct", "h100", kv_cache_dtype="fp8", max_model_len=32_768)
    finding = found(long, "6.5")
    assert "32,768 tokens" in finding.reason
    assert "--kv-cache-dtype-skip-layers 0 1 30 31" in finding.action
    assert "6.5" not in ids(made("meta-llama/Meta-Llama-3-8B", "h100", kv_cache_dtype="fp8"))  # 8,192 tokens


def test_every_head_cached_on_its_own() -> None:
    finding = found(made("meta-llama/Llama-2-7b-hf", "l4", max_model_len=2_048), "6.5")
    assert "1 GiB" in finding.reason  # 2 · 32 · 32 · 128 · 2 bytes · 2,048 tokens
    assert "75 %" in finding.reason


def test_a_shorter_step_frees_activations() -> None:
    """DeepSeek-V3's 7,168-wide hidden states and experts' workspace: 8,192 tokens a step on an H200."""
    base = made("deepseek-ai/DeepSeek-V3", "h200", Workload(input_tokens=8_192), tensor_parallel_size=8)
    finding = found(base, "activation")
    shorter = base.on(replace(base.deployment, max_num_batched_tokens=4_096))
    assert shorter.budget is not None
    assert base.budget is not None
    assert shorter.budget.available_kv.value > base.budget.available_kv.value
    assert count(kv_tokens(shorter), "KV tokens") in finding.reason
    assert finding.action == "Set --max-num-batched-tokens 4096."


def test_latents_under_tensor_parallelism() -> None:
    base = made("deepseek-ai/DeepSeek-V3", "h200", Workload(input_tokens=8_192), tensor_parallel_size=8)
    finding = found(base, "mla")
    assert "--tensor-parallel-size 1 --data-parallel-size 8 --enable-expert-parallel" in finding.action
    spread = replace(base.deployment, tensor_parallel_size=1, data_parallel_size=8, enable_expert_parallel=True)
    assert count(8 * held(base.on(spread))) in finding.reason


def test_more_sequences_than_the_pool_holds() -> None:
    base = made("meta-llama/Meta-Llama-3-8B", "h100", Workload(input_tokens=7_000))
    assert held(base) * 2 < 1_024
    assert "--max-num-seqs" in found(base, "max_num_seqs").action


def test_fewer_sequences_than_the_pool_holds() -> None:
    base = made("meta-llama/Meta-Llama-3-8B", "h100", max_num_seqs=16)
    assert f"--max-num-seqs {held(base)}" in found(base, "max_num_seqs").action


def test_utilization() -> None:
    assert "--gpu-memory-utilization 0.95" in found(LLAMA, "gpu_memory_utilization").action
    assert "gpu_memory_utilization" not in ids(LLAMA.on(replace(LLAMA.deployment, gpu_memory_utilization=0.95)))


def test_ranks_beyond_the_kv_heads() -> None:
    """Llama-3-70B has 8 KV heads: 16 ranks store each twice, unless the copies share the tokens."""
    base = made("meta-llama/Meta-Llama-3-70B", "h100", tensor_parallel_size=16)
    finding = found(base, "tensor_parallel_size")
    assert finding.level is Level.BAD
    assert "stored 2 times" in finding.reason
    assert "--decode-context-parallel-size 2" in finding.action
    assert "tensor_parallel_size" not in ids(base.on(replace(base.deployment, tensor_parallel_size=8)))


def test_windows_that_save_nothing() -> None:
    """Gemma-3-27B on H100 defaults keeps 1,024 − 1 + 2 · 8,192 tokens: it saves nothing below about 17k."""
    base = made("google/gemma-3-27b-it", "h100", Workload(input_tokens=4_000))
    assert "17,407 tokens" in found(base, "sliding_window").reason
    assert "11.4 %" in found(base, "padding").reason  # 8 of 70 layers
    long = base.on(workload=Workload(input_tokens=20_000))
    assert "sliding_window" not in ids(long)


def test_states_while_prefixes_are_cached() -> None:
    base = made("Qwen/Qwen3-Next-80B-A3B-Instruct", "h100", tensor_parallel_size=4)
    assert "--no-enable-prefix-caching" in found(base, "state").action
    sizes = {each.block_size: each for each in block_wastes(base)}
    assert "The engine makes it" in sizes[16].refusal  # the state's page decides the block


@pytest.mark.parametrize("model", ["meta-llama/Meta-Llama-3-70B", "openai/gpt-oss-20b"])
def test_nothing_is_advised_where_nothing_is_held(model: str) -> None:
    assert advice(made(model, "t4")) == ()
