"""The speed law: physics that must hold whatever the constants, and figures that were published."""

import math
from dataclasses import replace

import pytest

from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.latency import Latency, unknown
from planner.plan import Plan, plan
from planner.roofline import PACKED, times_over_ceiling, work_of
from planner.speed_curves import verdict
from planner.workload import Workload

LLAMA = model_named("meta-llama/Meta-Llama-3-8B")
MIXTRAL = model_named("mixtral-8x7b")
A100 = Deployment(gpu=gpu_named("A100-SXM-80GB"))
H100 = Deployment(gpu=gpu_named("H100-SXM"))
TALK = Workload(concurrency=59)


def planned(model: str = "meta-llama/Meta-Llama-3-8B", deployment: Deployment = H100, load: Workload = TALK) -> Plan:
    return plan(model_named(model), deployment, load)


def speed(model: str = "meta-llama/Meta-Llama-3-8B", deployment: Deployment = H100, load: Workload = TALK) -> Latency:
    found = planned(model, deployment, load).latency
    assert found is not None
    return found


def test_llama_3_8b_on_an_a100_does_what_such_a_card_can() -> None:
    """A step reads 15 GB of weights and 12 GB of KV at about 2 TB/s: 59 streams in 20 to 25 ms, not in 1.5 ms."""
    found = speed(deployment=A100)
    assert 2_000 <= found.output_tokens_per_s.value <= 3_500
    assert found.regime == "memory"
    assert found.floor_tpot_s == pytest.approx((15.0e9 + 59 * 1536 * 131_072) / 2.039e12, rel=0.01)


def test_the_claim_of_39294_tokens_a_second_is_ten_and_twenty_six_times_over_the_ceiling() -> None:
    """16 GB of weights; 2,048 tokens of 131,072 bytes with Llama-3-8B's 8 KV heads, four times that with 32."""
    factors = [times_over_ceiling(39_294, 59, 16e9 + 59 * 2048 * bytes_a_token, A100.gpu)
               for bytes_a_token in (131_072, 524_288)]  # fmt: skip
    assert [round(factor) for factor in factors] == [10, 26]


def test_parts_of_a_step_are_the_time_per_output_token() -> None:
    for load in (TALK, Workload(concurrency=4), Workload(input_tokens=8000, output_tokens=100, concurrency=32)):
        found = speed(load=load)
        assert found.step.total == pytest.approx(found.tpot_s.value)
        assert min(found.step.weights, found.step.kv, found.step.fixed, found.step.prefill) > 0
        assert found.step.all_reduce == 0


def test_closed_loop_obeys_littles_law() -> None:
    found = speed(load=Workload(concurrency=20, input_tokens=700, output_tokens=300))
    served = found.ttft_s.value + 299 * found.tpot_s.value
    assert found.output_tokens_per_s.value == pytest.approx(20 * 300 / served)


def test_streams_beyond_the_pool_wait_for_their_first_token() -> None:
    full = speed(load=Workload(concurrency=100_000))
    assert full.streams < 100_000
    assert full.waiting == pytest.approx(100_000 - full.streams)
    assert full.ttft_s.value > 60
    assert full.output_tokens_per_s.value == pytest.approx(
        speed(load=Workload(concurrency=int(full.streams))).output_tokens_per_s.value, rel=0.02
    )


def test_open_loop_runs_as_many_as_arrive_while_one_is_served() -> None:
    found = speed(load=Workload(request_rate=4.0, input_tokens=1000, output_tokens=200))
    assert found.stable
    assert found.output_tokens_per_s == (800, 800, 800)
    assert found.streams == pytest.approx(4.0 * (found.ttft_s.value + 199 * found.tpot_s.value), rel=0.01)


@pytest.mark.parametrize("concurrency", [16, None])
def test_prompts_of_one_output_token_come_no_faster_than_their_arithmetic(concurrency: int | None) -> None:
    """1,024 tokens × 2 × 6.98e9 FLOP and attention are 14.6 TFLOP: 312 TFLOP/s allow 21.4 prompts a second."""
    found = speed(deployment=A100, load=Workload(input_tokens=1024, output_tokens=1, concurrency=concurrency))
    assert 10 < found.output_tokens_per_s.value < found.output_tokens_per_s.high <= 21.5
    assert found.ttft_s.value == pytest.approx(found.streams / found.output_tokens_per_s.value)
    assert 0.8 < found.prefill_share < 1


def test_prompts_that_arrive_faster_than_they_can_be_read_grow_the_queue() -> None:
    for rate, stable in ((10.0, True), (70.0, False)):
        load = Workload(input_tokens=1024, output_tokens=1, request_rate=rate)
        assert speed(deployment=A100, load=load).stable == stable


def test_no_first_token_before_its_prompt_is_read() -> None:
    """10,922 tokens: 152 TFLOP of matrices and 31 of attention at 165.2 TFLOP/s."""
    load = Workload(input_tokens=10_922, output_tokens=256, concurrency=1)
    found = speed("meta-llama/Llama-3.1-8B", Deployment(gpu=gpu_named("RTX4090")), load)
    assert found.ttft_s.low == pytest.approx(1.112, rel=0.002)


def test_open_loop_that_cannot_keep_up_says_so() -> None:
    found = speed(load=Workload(request_rate=500.0))
    assert not found.stable
    assert found.ttft_s.value == math.inf
    assert found.output_tokens_per_s.value < 500 * 1024


def test_more_streams_are_slower_each_and_faster_together() -> None:
    found = [speed(load=Workload(concurrency=streams)) for streams in (1, 4, 16, 64)]
    assert [f.tpot_s.value for f in found] == sorted(f.tpot_s.value for f in found)
    rates = [f.output_tokens_per_s.value for f in found]
    assert rates == sorted(rates)


@pytest.mark.parametrize(
    ("better", "than"),
    [
        (replace(H100, tensor_parallel_size=2), H100),
        (H100, replace(H100, enforce_eager=True)),
        (H100, replace(H100, vllm_version="0.11.0")),
        (Deployment(gpu=gpu_named("H200-SXM")), H100),
        (H100, A100),
    ],
)
def test_what_makes_a_token_come_sooner(better: Deployment, than: Deployment) -> None:
    assert speed(deployment=better).tpot_s.value < speed(deployment=than).tpot_s.value


def test_quantised_weights_are_read_faster() -> None:
    one = Workload(concurrency=1)
    sixteen, eight, four = (speed(name, H100, one).step.weights for name in (
        "meta-llama/Llama-3.1-8B-Instruct", "nvidia/Llama-3.1-8B-Instruct-FP8",
        "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4"))  # fmt: skip
    assert sixteen > eight > four


def test_fp8_weights_on_an_a100_are_unpacked_to_sixteen_bits() -> None:
    """Ampere has no FP8 tensor cores: Marlin converts while multiplying."""
    found = planned("nvidia/Llama-3.1-8B-Instruct-FP8", A100)
    assert found.layout is not None
    work = work_of(found.model, A100, found.layout, found.weights)
    assert (work.dense.kind, work.dense.flops) == (PACKED, A100.gpu.peak_flops["bfloat16"])


def test_a_step_reads_the_experts_its_tokens_were_routed_to() -> None:
    """Mixtral routes 2 of 8 experts: 1 − (1 − 2/8)^n of them are read by n tokens."""
    found = planned("mixtral-8x7b", replace(H100, tensor_parallel_size=2))
    assert found.layout is not None
    work = work_of(found.model, found.deployment, found.layout, found.weights)
    assert [work.visited(n) for n in (1, 2)] == [0.25, 0.4375]
    assert work.visited(16) == pytest.approx(0.99, abs=0.001)
    assert work.weight_bytes(1) * 2 == pytest.approx(2 * 12.7e9, rel=0.02)  # 12.7 B active parameters in 16 bits


def test_windowed_layers_stop_reading_at_their_window() -> None:
    """gpt-oss alternates full attention with windows of 128 tokens: 18 layers of 8 heads of 64, twice, in 16 bits."""
    found = planned("openai/gpt-oss-120b", replace(H100, tensor_parallel_size=4))
    assert found.layout is not None
    work = work_of(found.model, found.deployment, found.layout, found.weights)
    layers = 18 * 2 * (8 // 4) * 64 * 2
    assert work.kv_bytes(10_000) - work.kv_bytes(9_000) == pytest.approx(1_000 * layers)
    assert work.kv_bytes(10_000) == pytest.approx((10_000 + 128) * layers)


def test_a_latent_cache_is_not_split_between_ranks() -> None:
    """DeepSeek-V3: 61 layers of 576 elements on every rank, in 16 bits."""
    found = planned("deepseek-ai/DeepSeek-V3", replace(H100, gpu=gpu_named("H200-SXM"), tensor_parallel_size=8))
    assert found.layout is not None
    work = work_of(found.model, found.deployment, found.layout, found.weights)
    assert work.kv_bytes(1_000) == 1_000 * 61 * 576 * 2


def test_prefix_hits_shorten_the_first_token_and_leave_the_step() -> None:
    cold, warm = (speed(load=Workload(concurrency=8, input_tokens=8000, prefix_hit_ratio=hits)) for hits in (0.0, 0.9))
    assert warm.ttft_s.value < cold.ttft_s.value / 2
    assert warm.step.kv == cold.step.kv


def test_speculation_pays_when_drafts_are_accepted_and_costs_when_not() -> None:
    plain = speed(load=Workload(concurrency=4))
    drafting = replace(H100, num_speculative_tokens=3)
    good, bad = (speed(deployment=drafting, load=Workload(concurrency=4, acceptance_rate=a)) for a in (0.8, 0.0))
    assert good.tokens_a_step == pytest.approx(2.952)
    assert good.tpot_s.value < plain.tpot_s.value < bad.tpot_s.value


def test_pipeline_stages_cost_a_token_nothing_and_split_the_batch() -> None:
    deep = speed(deployment=replace(H100, pipeline_parallel_size=2), load=Workload(concurrency=2))
    flat = speed(load=Workload(concurrency=1))
    assert deep.step.weights == pytest.approx(flat.step.weights, rel=0.01)


def test_replicas_share_the_streams() -> None:
    two = speed(deployment=replace(H100, data_parallel_size=2), load=Workload(concurrency=32))
    one = speed(load=Workload(concurrency=16))
    assert two.output_tokens_per_s.value == pytest.approx(2 * one.output_tokens_per_s.value)


def test_arithmetic_binds_above_the_turning_point_only() -> None:
    """Short contexts on a small card: beyond some batch the products take longer than the reading."""
    short = Workload(input_tokens=1, output_tokens=64, concurrency=1)
    found = speed(deployment=Deployment(gpu=gpu_named("H20")), load=short)
    assert found.turning_streams < math.inf
    above = speed(deployment=Deployment(gpu=gpu_named("H20")), load=replace(short, concurrency=1000))
    assert (found.regime, above.regime) == ("memory", "compute")


def test_prompts_bind_where_they_take_most_of_the_time() -> None:
    found = planned(load=Workload(input_tokens=8000, output_tokens=100, concurrency=64))
    assert found.latency is not None
    assert found.latency.prefill_share > 0.5
    assert found.latency.regime == "prefill"
    said = verdict(found)
    assert said.word == "Prefill-bound"
    assert "the arithmetic of prompts takes" in said.reason


def test_recurrent_state_is_read_alike_whatever_the_kv_dtype() -> None:
    """Of a hybrid FP8 halves the few attention layers' bytes and leaves the state: it cannot be slower."""
    load = Workload(concurrency=16)
    wide, eight = (speed("nvidia/NVIDIA-Nemotron-Nano-9B-v2", replace(H100, kv_cache_dtype=dtype), load)
                   for dtype in ("auto", "fp8"))  # fmt: skip
    assert eight.step.kv < wide.step.kv
    assert eight.output_tokens_per_s.value > wide.output_tokens_per_s.value


def test_a_decoder_reads_its_encoders_output_every_step() -> None:
    """Whisper large v3: 32 layers × 1,500 encoder tokens × 2 × 20 heads × 64 × 2 bytes are 246 MB a sequence."""
    found = planned("whisper-large-v3", H100, Workload(input_tokens=4, output_tokens=100, concurrency=8))
    assert found.layout is not None
    work = work_of(found.model, found.deployment, found.layout, found.weights)
    assert work.encoder_bytes == 32 * 1500 * 2 * 20 * 64 * 2
    assert work.kv_bytes(54) == work.encoder_bytes + 32 * 54 * 2 * 20 * 64 * 2


def test_more_than_the_pool_holds_of_full_length_is_explained() -> None:
    found = planned(load=Workload(concurrency=100_000, input_tokens=1024, output_tokens=1024))
    assert found.latency is not None
    assert found.latency.streams > found.streams
    assert any(f"where the pool holds {found.streams:,} of full length" in line for line in found.latency.assumptions)


def test_a_device_that_was_not_measured_has_no_speed() -> None:
    unmeasured = replace(gpu_named("cpu"), memory_bandwidth=0.0, peak_flops={})
    assert "have not been measured" in unknown(unmeasured)
    server = Deployment(gpu=unmeasured, cpu_kvcache_space=1.0, dtype="bfloat16")
    assert plan(model_named("qwen2.5-0.5b"), server, Workload(concurrency=1)).latency is None


def test_an_unseen_device_has_a_wider_range() -> None:
    seen = speed().tpot_s
    unseen = speed(deployment=Deployment(gpu=gpu_named("MI300X"))).tpot_s
    assert unseen.high / unseen.low > seen.high / seen.low


def test_one_more_stream_does_not_widen_a_range_at_once() -> None:
    """Measurements had 128 streams, then 256: between them one kind's range turns into the other's."""
    ttft = [speed(load=Workload(input_tokens=64, output_tokens=64, concurrency=streams)).ttft_s
            for streams in (128, 129, 256)]  # fmt: skip
    width = [each.high / each.value for each in ttft]
    assert width[0] < width[1] < 1.05 * width[0] < width[2]


def test_an_acceptance_rate_is_a_ratio() -> None:
    with pytest.raises(InputError, match="acceptance_rate"):
        Workload(acceptance_rate=1.5)
