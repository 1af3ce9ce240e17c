"""The metric table: complete, consistent, and known under every name."""

import re
from collections import Counter

import pytest

from monitor.metrics import AROUND, CONFIG, ENGINES, HISTOGRAMS, METRICS, NEWEST, OPEN, engine_of, slots, version
from monitor.reading import PRODUCT, read
from tests.recorded import FOLDER, PAGES, page

RELEASED = [line.split("\t") for line in (FOLDER / "names.tsv").read_text().splitlines()]
"""Every name in vLLM's sources, the first release that has it and the last."""
RELEASES = sorted({release for _, *span in RELEASED for release in span}, key=version)

# Reported by servers, but of no use to a monitor of the KV cache, or said better by another name.
NOT_READ = re.compile(
    r"vllm:(?:cache_config(?:_info)?"  # read by its labels
    r"|diffusion\w*|hf3fs_\w+|umbp_\w+|rl_\w+|sleep_mode_\w+|tool_call_\w+|watermark_\w+|websocket_\w+|spec_decode"
    r"|model_(?:execute|forward)_time_milliseconds|request_params_best_of|tokens_total"  # V0's internals
    r"|kv_offload_(?:config_info|cpu_\w*(?:read|write)_usage_perc|cpu_allocation_size|(?:load_|store_)?size|total_time)"
    r"|kv_offload_\w*lookup_sync_delay_seconds|simple_kv_offload_info"
    r"|kv_offload_tiering_(?!read_bytes|write_bytes|chunk_)\w+"
    r"|hisparse_(?:host_block_\w+|host_to_device_bytes|pending_page_transfers)?"
    r"|mooncake_store_operation_(?:keys_total|time_seconds|total)"
    r"|(?:nixl|mooncake)_(?:num_descriptors|num_failed_(?:recvs|notifications)|num_notifications_\w+|post_time_seconds))"
)


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
            left = NOT_READ.fullmatch(re.sub("_(bucket|sum|count)$", "", wire)) or wire.endswith("_created")
            assert bool(slots(wire)) != bool(left), wire


@pytest.mark.parametrize(("name", "first", "last"), RELEASED)
def test_every_name_of_every_release_is_read_or_left_out_on_purpose(name: str, first: str, last: str) -> None:
    """With the releases that have it: a counter goes by two names, before 0.9 with `_total` in the source."""
    found = slots(name) or slots(f"{name}_count")
    assert bool(found) != bool(NOT_READ.fullmatch(name)), name
    for metric, rank, _ in found:
        low, high = metric.spans[rank]
        assert low <= version(first), metric.key
        assert version(last) <= high, metric.key


def of_release(release: str, engine: str, *, has_everything: bool) -> str:
    """A page with the names of that release; or without those that need a flag or a feature."""
    labels = ",".join(f'{metric.names[0]}="9"' for metric in CONFIG if metric.first <= version(release))
    lines = [f"vllm:cache_config_info{{{labels}{engine}}} 1"] if version(release) >= (0, 3, 3) else []
    for name, *span in RELEASED:
        found = slots(name) or slots(f"{name}_count")
        if version(span[0]) <= version(release) <= version(span[1]) and found:
            metric, _, part = found[0]
            labels = f'{{model_name="m",{metric.label or "x"}="y"{engine}}}'
            if has_everything or not metric.needs:
                lines.append(f"{name}{'_count' * bool(part)}{labels} 0")
    return "\n".join(lines)


@pytest.mark.parametrize("has_everything", [False, True])
@pytest.mark.parametrize("release", RELEASES)
def test_the_range_of_a_page_holds_the_release_that_wrote_it(release: str, has_everything: bool) -> None:
    """V0 up to 0.11, V1 from 0.7.3; of a sampled release or one in between no other says more."""
    engines = [""] * (version(release) <= (0, 11, 0)) + [',engine="0"'] * (version(release) >= (0, 7, 3))
    for engine in engines:
        found = read(of_release(release, engine, has_everything=has_everything)).versions
        assert found is not None
        assert found.low <= version(release) <= found.high
        assert found.high[1] - found.low[1] <= 6


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
        ("sgl_router_requests_total", "sglang"),
        ("lmdeploy:num_requests_running", "lmdeploy"),
        ("dynamo_frontend_queued_requests", "dynamo"),
        ("nv_llm_http_service_requests_total", "dynamo"),
        ("lmcache:retrieve_hit_rate", "lmcache"),
        ("litellm_requests_metric_total", "litellm"),
        ("nv_inference_count", "triton"),
        ("te_request_count", "tei"),
        ("te_rmerature_celsius", None),
    ],
)
def test_engines_by_prefix(name: str, engine: str | None) -> None:
    assert engine_of(name) == engine


def test_everything_recognised_has_a_name_for_people() -> None:
    assert {*ENGINES, *AROUND} - {"vllm"} == {*PRODUCT}
