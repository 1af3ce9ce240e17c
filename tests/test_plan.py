"""Plans against published figures, vLLM's own logs, and arithmetic done by hand (beside each)."""

import pytest

from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.errors import InputError, whole_number
from planner.gpu import gpu_named
from planner.plan import Plan, plan
from planner.units import GIB
from planner.verdict import Level
from planner.workload import Slo, Workload

LLAMA_70B = "meta-llama/Llama-3.1-70B"
SHORT = Workload(input_tokens=256, output_tokens=256, concurrency=300)


def planned(model: str, gpu: str, workload: Workload = Workload(), slo: Slo = Slo(), **flags: object) -> Plan:
    return plan(model_named(model), Deployment(gpu=gpu_named(gpu), **flags), workload, slo)  # type: ignore[arg-type]


def tokens(made: Plan) -> int:
    assert made.capacity is not None
    return made.capacity[0].kv_cache_size_tokens


def test_eight_requests_of_llama_2_7b() -> None:
    """2 x 32 layers x 32 heads x 128 x 2 bytes x 4,096 tokens x 8 = 16 GiB: the article's own example, done exactly."""
    made = planned("llama-2-7b", "A100-SXM-80GB")
    assert made.layout is not None
    assert 8 * made.layout.request_bytes(4096) == 17_179_869_184


def test_llama_3_8b_a_token_and_a_request() -> None:
    """2 x 32 layers x 8 KV heads x 128 x 2 bytes = 131,072; x 2,048 = 268,435,456."""
    made = planned("meta-llama/Meta-Llama-3-8B", "A100-SXM-80GB")
    assert made.layout is not None
    assert made.layout.bytes_per_token == 131_072
    assert made.layout.request_bytes(2048) == 268_435_456


def test_llama_3_8b_on_an_a100_holds_what_servers_log() -> None:
    """Start-up logs of this model on A100-80GB at 0.9 say 443,000 to 459,000 tokens, and FP8 twice as many."""
    flags = {"vllm_version": "0.19.0", "gpu_memory_utilization": 0.9}
    full = planned("meta-llama/Meta-Llama-3-8B", "A100-SXM-80GB", **flags)
    half = planned("meta-llama/Meta-Llama-3-8B", "A100-SXM-80GB", kv_cache_dtype="fp8", **flags)
    assert 443_000 <= tokens(full) <= 459_000
    assert tokens(half) == 2 * tokens(full)


def test_llama_3_1_70b_on_four_h100_holds_what_servers_log() -> None:
    """About 447,000 tokens in public logs of vLLM 0.19 with TP 4."""
    made = planned("meta-llama/Llama-3.1-70B", "H100-SXM", tensor_parallel_size=4, vllm_version="0.19.0")
    assert tokens(made) == pytest.approx(447_000, rel=0.03)


def test_the_cpu_pool_is_what_was_given() -> None:
    """1 GiB / (2 x 4 layers x 2 heads x 64 x 2 bytes = 2,048 bytes) = 524,288 tokens: 4,096 blocks of 128."""
    made = planned("tiny-llama", "cpu", cpu_kvcache_space=1, max_model_len=2048)
    assert made.capacity is not None
    assert {(held.num_gpu_blocks, held.kv_cache_size_tokens, held.max_concurrency) for held in made.capacity} == {
        (4_096, 524_288, 256.0)
    }
    for dtype in ("fp8", "fp8_e5m2", "int8_per_token_head"):  # the CPU's kernels keep no scales beside the numbers
        half = planned("tiny-llama", "cpu", cpu_kvcache_space=1, max_model_len=2048, kv_cache_dtype=dtype)
        assert tokens(half) == 1_048_576


def test_tensor_parallel_beyond_the_kv_heads_replicates_them() -> None:
    """Llama-3-8B has 8 KV heads: a rank holds one at TP 8, and still one at TP 16 (2 x 32 x 1 x 128 x 2 bytes)."""
    at = {size: planned("llama-3-8b", "H100-SXM", tensor_parallel_size=size).layout for size in (4, 8, 16)}
    assert [layout and layout.bytes_per_token for layout in at.values()] == [32_768, 16_384, 16_384]


def test_a_plan_that_fits_says_what_it_holds() -> None:
    verdict = planned("llama-3-8b", "A100-SXM-80GB", vllm_version="0.19.0").verdict
    assert (verdict.level, verdict.word) == (Level.GOOD, "Fits")
    assert "223 requests of 2,048 tokens at once" in verdict.reason
    assert "A100-SXM-80GB, vLLM 0.19.0" in verdict.context


@pytest.mark.parametrize(
    ("made", "kind", "fix"),
    [
        (planned("llama-3-8b", "H100-SXM", max_num_batched_tokens=8, max_num_seqs=9), "refused", ""),
        (planned("llama-3-8b", "H100-SXM", max_model_len=16_384), "refused", "--max-model-len 8192"),
        (planned("llama-3-8b", "H100-SXM", num_gpu_blocks_override=100_000), "memory", "no --num-gpu-blocks-override"),
        (planned(LLAMA_70B, "H100-SXM"), "memory", "--tensor-parallel-size 4 on 4 GPUs"),
        (planned(LLAMA_70B, "H100-SXM", tensor_parallel_size=3), "refused", "--tensor-parallel-size 4 on 4 GPUs"),
        (planned("llama-3.1-8b", "L4", Workload(input_tokens=512)), "max_model_len", "--max-model-len 32416"),
        (planned("llama-3-8b", "H100-SXM", max_model_len=1024), "request_length", "--max-model-len 2048"),
        (planned("llama-3-8b", "L40S", SHORT), "max_num_seqs", "--max-num-seqs 300"),
        (planned("llama-3-8b", "A100-SXM-80GB", Workload(concurrency=250)), "kv_cache", "--kv-cache-dtype fp8"),
        (planned("llama-3-8b", "A100-SXM-80GB", slo=Slo(tpot_s=0.001)), "tpot", ""),
        (planned("llama-3-8b", "A100-SXM-80GB", slo=Slo(ttft_s=0.001)), "ttft", ""),
        (planned("llama-3-8b", "A100-SXM-80GB", Workload(request_rate=1000)), "unstable", ""),
        (planned("llama-3-8b", "H100-SXM", other_memory=40 * GIB), "memory", "--gpu-memory-utilization 0.48"),
    ],
    ids=[
        "seqs over tokens",
        "beyond the model",
        "blocks",
        "weights",
        "heads",
        "length",
        "request",
        "seqs",
        "kv cache",
        "tpot",
        "ttft",
        "arrivals",
        "other process",
    ],
)
def test_the_first_limit_and_the_nearest_fix(made: Plan, kind: str, fix: str) -> None:
    assert not made.fits
    assert made.limit is not None
    assert made.limit.kind == kind
    assert fix in made.limit.fix
    assert made.verdict.word == "Does not fit"
    assert made.verdict.reason == made.limit.reason


def test_a_named_fix_fits() -> None:
    """The fix of 250 requests on one A100 is FP8 KV; with it they fit."""
    made = planned("llama-3-8b", "A100-SXM-80GB", Workload(concurrency=250), kv_cache_dtype="fp8")
    assert made.fits


def test_llama_3_8b_at_59_streams() -> None:
    """The article's case with the real 8 KV heads: 2,000 to 3,500 tokens/s, and $0.3 to $0.6 a million at $4/h."""
    load = Workload(input_tokens=1024, output_tokens=1024, concurrency=59)
    made = plan(model_named("llama-3-8b"), Deployment(gpu=gpu_named("A100-SXM-80GB")), load, usd_per_gpu_hour=4)
    assert made.latency is not None
    assert made.cost is not None
    assert 2_000 <= made.latency.output_tokens_per_s.value <= 3_500
    assert 0.3 <= made.cost.usd_per_million_output_tokens.value <= 0.6


def test_the_command_names_only_what_differs_from_the_engine_s_own() -> None:
    made = planned("llama-3-8b", "H100-SXM", tensor_parallel_size=2, kv_cache_dtype="fp8", enable_prefix_caching=False)
    assert made.deployment.serve_command(made.model.name) == (
        "vllm serve meta-llama/Meta-Llama-3-8B --tensor-parallel-size 2 --kv-cache-dtype fp8 --no-enable-prefix-caching"
    )


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("gemma-3-27b", 3.12e9),  # 10 layers x 32,768 tokens + 52 x 1,024, 8,192 bytes each
        ("qwen3-next-80b-a3b", 0.845e9),  # 12 layers x 32,768 tokens x 2,048 bytes + 36 states
        ("jamba-1.5-mini", 0.546e9),  # 4 layers x 32,768 tokens x 4,096 bytes + 28 states
        ("gpt-oss-20b", 0.808e9),  # 12 layers x 32,768 tokens + 12 x 128, 2,048 bytes each
    ],
)
def test_what_a_request_of_32k_stores(name: str, stored: float) -> None:
    """The figure calculators give; vLLM charges more: tokens in flight, padding layers, states kept twice."""
    layout = planned(name, "H100-SXM", max_model_len=32_768).layout
    assert layout is not None
    assert layout.stored_bytes(32_768) == pytest.approx(stored, rel=0.002)
    assert layout.request_bytes(32_768) > layout.stored_bytes(32_768)


def test_requests_in_a_step_are_at_most_its_tokens() -> None:
    """vLLM lowers its own default of max_num_seqs to max_num_batched_tokens, and refuses a larger one given."""
    assert Deployment(gpu=gpu_named("H100-SXM"), max_num_batched_tokens=64).step_seqs == 64


@pytest.mark.parametrize(
    ("given", "shown"),
    [(99_999, "99999"), (10**19, "1" + "0" * 19), (-(10**10), "-10000000000"), (10**20, "'a huge number'"),
     (-(10**5000), "'a huge number'")],
    ids=["port", "20 digits", "negative", "21 digits", "unwritable"],
)  # fmt: skip
def test_a_number_out_of_range_is_shown_while_it_can_be_read(given: int, shown: str) -> None:
    with pytest.raises(InputError) as refused:
        whole_number("port", given, most=65_535)
    assert str(refused.value) == f"port: found {shown}, accepted: an integer from 1 to 65,535"
