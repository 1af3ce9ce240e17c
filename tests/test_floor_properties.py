"""No plan, however configured, promises more than the floor allows."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.gpu import gpus
from planner.kv_dtype import KV_DTYPES
from planner.plan import plan
from planner.roofline import floor_s, prompt_floor_s, work_of
from planner.workload import Workload

MODELS = ("llama-3-8b", "qwen3-0.6b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b", "gemma-3-27b", "deepseek-v3",
          "nemotron-h-8b", "minimax-m2", "nvidia/Llama-3.1-70B-Instruct-FP8",
          "Qwen/Qwen2.5-7B-Instruct-AWQ")  # fmt: skip
DEVICES = [gpu for gpu in gpus() if gpu.memory_bandwidth > 0 and gpu.peak_flops]

deployments = st.builds(
    Deployment,
    gpu=st.sampled_from(DEVICES),
    vllm_version=st.sampled_from(("0.8.5", "0.12.0", "0.19.0", "0.32.0")),
    tensor_parallel_size=st.sampled_from((1, 2, 4, 8)),
    pipeline_parallel_size=st.sampled_from((1, 2)),
    data_parallel_size=st.sampled_from((1, 2)),
    enable_expert_parallel=st.booleans(),
    kv_cache_dtype=st.sampled_from(sorted(KV_DTYPES)),
    max_num_seqs=st.none() | st.integers(1, 2048),
    max_num_batched_tokens=st.none() | st.integers(2048, 32_768),
    enforce_eager=st.booleans(),
    num_speculative_tokens=st.sampled_from((0, 0, 1, 5)),
)
lengths = st.integers(1, 16_384)
outputs = lengths | st.integers(1, 4)  # few outputs: prompts are nearly all of the work
loads = st.builds(
    Workload, input_tokens=lengths | st.integers(16_384, 131_072), output_tokens=outputs,
    concurrency=st.none() | st.integers(1, 4096), prefix_hit_ratio=st.floats(0, 0.99),
    acceptance_rate=st.none() | st.floats(0, 1),
) | st.builds(Workload, input_tokens=lengths, output_tokens=outputs, request_rate=st.floats(0.01, 1000))  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(MODELS), deployment=deployments, load=loads)
def test_no_plan_beats_the_floor(name: str, deployment: Deployment, load: Workload) -> None:
    made = plan(model_named(name), deployment, load)
    found = made.latency
    if found is None or made.layout is None:
        return
    work = work_of(made.model, deployment, made.layout, made.weights)
    batch = max(1.0, found.streams / deployment.pipeline_parallel_size)
    context = load.input_tokens + load.output_tokens / 2
    tokens = batch * (1 + deployment.num_speculative_tokens)
    floor = floor_s(deployment.gpu, work, batch, tokens, context) / found.tokens_a_step
    assert found.floor_tpot_s == floor > 0
    assert floor <= found.tpot_s.low <= found.tpot_s.value <= found.tpot_s.high < math.inf
    rate = found.output_tokens_per_s
    new = max(1.0, load.input_tokens * (1 - load.prefix_hit_ratio))
    prompt = prompt_floor_s(deployment.gpu, work, new, load.input_tokens - new)
    least = prompt / deployment.pipeline_parallel_size + load.output_tokens * floor / found.streams
    most = deployment.data_parallel_size * load.output_tokens / least
    assert 0 < rate.low <= rate.value <= rate.high <= most * 1.000001
    assert prompt <= found.ttft_s.low <= found.ttft_s.value <= found.ttft_s.high
    assert found.step.total == sum(getattr(found.step, part) for part in found.step.__dataclass_fields__)
    assert 0 <= found.prefill_share < 1


@settings(max_examples=50, deadline=None)
@given(load=loads)
def test_the_price_has_a_floor_too(load: Workload) -> None:
    """An hour of an H100 at $2 buys no more tokens than its memory can read weights for."""
    deployment = Deployment(gpu=next(gpu for gpu in DEVICES if gpu.name == "H100-SXM"))
    made = plan(model_named("llama-3-8b"), deployment, replace(load, prefix_hit_ratio=0.0), usd_per_gpu_hour=2.0)
    if made.latency is not None and made.cost is not None:
        least = 2.0 / 3600 * made.latency.floor_tpot_s / made.latency.streams * 1e6
        both = made.cost.usd_per_request.low / load.output_tokens * 1e6
        assert both >= least * 0.999999
