"""The metric table: complete, consistent, and known under every name."""

import re
from collections import Counter

import pytest

from monitor.metrics import CONFIG, HISTOGRAMS, METRICS, NEWEST, OPEN, engine_of, slots
from tests.recorded import PAGES, page

# Reported by servers, but of no use to a monitor: request parameters and retired internals.
NOT_READ = {"vllm:lora_requests_info", "vllm:cache_config_info"}


def test_keys_are_unique_and_words_of_the_house() -> None:
    assert max(Counter(metric.key for metric in METRICS).values()) == 1
    assert all(re.fullmatch(r"[a-z0-9_]+", metric.key) and metric.unit and metric.meaning for metric in METRICS)
    assert {metric.kind for metric in METRICS} == {"gauge", "counter", "histogram", "config"}


def test_names_are_newest_first_and_within_known_releases() -> None:
    for metric in METRICS:
        assert len(metric.names) == len(metric.spans)
        assert list(metric.spans) == sorted(metric.spans, reverse=True), metric.key
        assert all(first <= last and (last <= NEWEST or last == OPEN) for first, last in metric.spans), metric.key


@pytest.mark.parametrize("name", PAGES)
def test_every_name_a_real_server_writes_has_its_place(name: str) -> None:
    """Trap 5: `_created` series are noise and have none."""
    for line in page(name).splitlines():
        if line.startswith("vllm:"):
            wire = re.split(r"[{ ]", line)[0]
            assert bool(slots(wire)) != (wire in NOT_READ or wire.endswith("_created")), wire


def test_every_metric_is_found_under_all_its_names() -> None:
    for metric in {*METRICS} - {*CONFIG}:
        for rank, name in enumerate(metric.names):
            wire = f"{name}_count" if metric in HISTOGRAMS else name
            found = [(slot.metric, slot.rank) for slot in slots(wire)]
            assert (metric, rank) in found
            if metric.scope == "engine":
                bare = wire.removeprefix("vllm:")
                assert slots(f"ray_vllm:{bare}") == slots(f"ray_vllm_{bare}") == slots(f"vllm_{bare}") == slots(wire)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("vllm:num_requests_running", "vllm"),
        ("ray_vllm_num_requests_running", "vllm"),
        ("sglang:token_usage", "sglang"),
        ("tgi_queue_size", "tgi"),
        ("llamacpp:requests_processing", "llamacpp"),
        ("trtllm_kv_cache_utilization", "trtllm"),
        ("nv_trt_llm_request_metrics", "trtllm"),
        ("http_requests_total", None),
    ],
)
def test_engines_by_prefix(name: str, engine: str | None) -> None:
    assert engine_of(name) == engine
