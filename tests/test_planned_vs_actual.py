"""The same settings planned for and served: the plan says before what a real vLLM says after, to the block."""

from collections.abc import Callable

import pytest

from monitor.compare import compare
from monitor.deviation import Comparison
from monitor.reading import read
from monitor.scrape import scrape
from monitor.snapshot import EngineSnapshot
from monitor.tiny_model import CONFIG
from planner.deployment import Deployment
from planner.families import model_spec
from planner.gpu import gpu_named
from planner.plan import Plan, plan
from planner.verdict import Level


def planned(kv_cache_dtype: str) -> Plan:
    deployment = Deployment(
        gpu=gpu_named("CPU: this machine"),
        cpu_kvcache_space=1,
        block_size=128,
        max_model_len=2048,
        kv_cache_dtype=kv_cache_dtype,
    )
    return plan(model_spec(CONFIG), deployment)


def seen(url: str) -> EngineSnapshot:
    (engine,) = read(scrape(url).text).engines
    return engine


def causes(comparison: Comparison) -> dict[str, str]:
    return {each.quantity: each.cause for each in comparison.deviations if each.is_off}


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_the_plan_is_what_the_engine_reports(real_engine: Callable[..., str], kv_cache_dtype: str) -> None:
    engine = seen(real_engine(kv_cache_dtype))
    made = planned(kv_cache_dtype)
    assert made.capacity is not None
    for capacity in made.capacity:  # on this device the pool is given, so the least and the most are the same
        assert capacity.num_gpu_blocks == engine.num_gpu_blocks
        assert capacity.kv_cache_size_tokens == engine.kv_cache_size_tokens
        assert capacity.max_concurrency == engine.values["kv_cache_max_concurrency"]
    comparison = compare(made, engine)
    assert comparison.verdict.level is Level.GOOD
    assert comparison.verdict.word == "As planned"


def test_a_plan_for_another_kv_dtype_is_told_so(real_engine: Callable[..., str]) -> None:
    comparison = compare(planned("fp8"), seen(real_engine("auto")))
    assert comparison.verdict.word == "Not as planned"
    for quantity in ("kv_cache_size_tokens", "num_gpu_blocks", "max_concurrency", "bytes_per_token"):
        assert causes(comparison)[quantity].startswith("KV dtype: planned fp8, the server runs auto")
