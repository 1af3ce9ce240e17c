"""Plans against recorded pages of real servers, and against the same pages with one setting changed by hand."""

import pytest

from monitor.compare import compare
from monitor.deviation import Comparison
from monitor.reading import read
from monitor.window import window
from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.plan import Plan, plan
from planner.verdict import Level
from planner.workload import Workload
from tests.recorded import page


def planned(**flags: object) -> Plan:
    given: dict[str, object] = {"gpu": gpu_named("cpu"), "cpu_kvcache_space": 1, "max_model_len": 2048, **flags}
    load = Workload(input_tokens=200, output_tokens=100)
    return plan(model_named("tiny-llama"), Deployment(**given), load)  # type: ignore[arg-type]


def held(made: Plan, text: str) -> Comparison:
    (engine,) = read(text).engines
    return compare(made, engine)


def off(found: Comparison) -> dict[str, str]:
    return {each.quantity: each.cause for each in found.deviations if each.is_off}


IDLE = page("0.32.0-idle-whole")


def test_a_server_as_planned() -> None:
    """The recorded server: 1 GiB, blocks of 128, bfloat16: 4,096 blocks, 524,288 tokens, 256 requests of 2,048."""
    found = held(planned(), IDLE)
    assert (found.verdict.level, found.verdict.word) == (Level.GOOD, "As planned")
    actual = {each.quantity: (each.actual, each.ratio) for each in found.deviations}
    assert actual["kv_cache_size_tokens"] == (524_288, 1)
    assert actual["num_gpu_blocks"] == (4_096, 1)
    assert actual["bytes_per_token"] == (2_048, 1)


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        ({"kv_cache_dtype": "fp8"}, "KV dtype: planned fp8, the server runs auto."),
        ({"cpu_kvcache_space": 2}, "pool size: the server's KV cache is 1 GiB."),
        ({"max_model_len": 1024}, "--max-model-len: the server accepts 2,048 tokens."),
        ({"block_size": 64}, "block size: planned 64, the server runs 128."),
    ],
    ids=["KV dtype", "pool", "length", "block size"],
)
def test_the_setting_that_explains_the_difference_is_named(flags: dict[str, object], cause: str) -> None:
    found = held(planned(**flags), IDLE)
    assert found.verdict.word == "Not as planned"
    assert cause in off(found).values()
    assert found.verdict.reason.endswith(cause)


def test_two_wrong_settings_are_both_named() -> None:
    """Planned with FP8 in 4 GiB: 8 times as many tokens. The pool explains 4 times of it, the dtype the rest."""
    cause = off(held(planned(kv_cache_dtype="fp8", cpu_kvcache_space=4), IDLE))["kv_cache_size_tokens"]
    assert cause == "pool size: the server's KV cache is 1 GiB. KV dtype: planned fp8, the server runs auto."


def test_on_a_gpu_the_utilization_is_named_and_else_the_memory() -> None:
    """A made-up H100 server: 0.5 of its memory where 0.9 was planned; then less memory with the same settings."""
    deployment = Deployment(gpu=gpu_named("H100-SXM"), gpu_memory_utilization=0.9)
    made = plan(model_named("llama-3-8b"), deployment)
    half = plan(model_named("llama-3-8b"), Deployment(gpu=gpu_named("H100-SXM"), gpu_memory_utilization=0.5))
    assert half.capacity is not None

    def server(utilization: float) -> str:
        blocks = half.capacity[0].num_gpu_blocks if half.capacity else 0
        return (
            f'vllm:cache_config_info{{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="{blocks}",'
            f'kv_cache_size_tokens="{blocks * 16}",gpu_memory_utilization="{utilization}"}} 1\n'
            'vllm:num_requests_running{engine="0",model_name="m"} 0\n'
        )

    assert off(held(made, server(0.5)))["num_gpu_blocks"] == (
        "--gpu-memory-utilization: planned 0.9, the server runs 0.5."
    )
    assert off(held(made, server(0.9)))["num_gpu_blocks"].startswith("less memory was left than planned")


def test_usage_is_held_against_the_lengths_seen() -> None:
    """10 running, finished ones had 300 + 200 tokens: 3 blocks of 128 at the start, 4 at half, 4 at the end."""

    def server(used: int) -> str:
        return (
            'vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="4096",'
            'kv_cache_size_tokens="524288",kv_cache_max_concurrency="256.0"} 1\n'
            'vllm:num_requests_running{engine="0",model_name="m"} 10\n'
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {used / 4095}\n'
            + "".join(
                f'vllm:request_{name}_tokens_{part}{{engine="0",model_name="m"{le}}} {value}\n'
                for name, total in (("prompt", 3000), ("generation", 2000))
                for part, le, value in (("bucket", ',le="+Inf"', 10), ("count", "", 10), ("sum", "", total))
            )
        )

    usage = next(each for each in held(planned(), server(35)).deviations if each.quantity == "used_blocks")
    assert usage.planned == (40, 30, 40)
    assert not usage.is_off
    assert off(held(planned(), server(12))) == {
        "used_blocks": "running requests share a prefix, or are shorter than those that finished."
    }
    assert off(held(planned(), server(90))) == {"used_blocks": "running requests are longer than those that finished."}


def test_what_a_version_does_not_report_is_not_compared() -> None:
    found = held(planned(), page("0.9.2-start"))
    concurrency = next(each for each in found.deviations if each.quantity == "max_concurrency")
    assert concurrency.actual is None
    assert concurrency.ratio is None
    assert "0.24" in concurrency.note


def test_engines_of_a_data_parallel_server_are_compared_apart() -> None:
    spanned = window(read(page("0.32.0-dp2-start")), read(page("0.32.0-dp2-load")), 5.0)
    found = [compare(planned(), engine) for engine in spanned.engines]
    assert [each.engine for each in found] == ["0", "1"]
    for each in found:  # a rate is there, but the plan has no speed for an unmeasured CPU
        speed = next(one for one in each.deviations if one.quantity == "output_tokens_per_s")
        assert (speed.planned, speed.note) == (None, "the plan has no speed for this device")
        assert speed.actual


def test_a_plan_that_does_not_start_is_no_plan_to_compare() -> None:
    made = plan(model_named("meta-llama/Llama-3.1-70B"), Deployment(gpu=gpu_named("L4")))
    with pytest.raises(InputError, match="a plan whose engine starts"):
        held(made, IDLE)


def test_another_model_than_planned_is_named() -> None:
    """Qwen2.5-0.5B's token takes 2 x 24 layers x 2 heads x 64 x 2 bytes = 12,288, the tiny model's 2,048."""
    deployment = Deployment(gpu=gpu_named("cpu"), cpu_kvcache_space=1, max_model_len=2048)
    found = held(plan(model_named("qwen2.5-0.5b"), deployment), IDLE)
    assert "another model: planned Qwen/Qwen2.5-0.5B" in found.verdict.reason


def test_a_dtype_that_does_not_explain_the_bytes_is_not_blamed() -> None:
    """With 8 bits Qwen2.5-0.5B's token takes 6,144 bytes, with 16 bits 12,288; the server's takes 2,048."""
    deployment = Deployment(gpu=gpu_named("cpu"), cpu_kvcache_space=1, max_model_len=2048, kv_cache_dtype="fp8")
    found = held(plan(model_named("qwen2.5-0.5b"), deployment), IDLE)
    assert found.causes[0].startswith("another model: planned Qwen/Qwen2.5-0.5B")
