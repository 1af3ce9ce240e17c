"""Pages of real and old servers -> Snapshot. Expected values are read off the pages by hand; each trap has its test."""

from math import isclose

import pytest

from monitor import metrics
from monitor.reading import MAX_ENGINES, read
from monitor.snapshot import EngineSnapshot, Snapshot
from tests.recorded import OTHERS, PAGES, RAY, V0_2_7, V0_5_5, V0_8_5, page


def only(snapshot: Snapshot) -> EngineSnapshot:
    [engine] = snapshot.engines
    return engine


# page: versions, then for each engine usage, running, waiting, blocks, block size, used blocks, used tokens, capacity
TRUTH = {
    "0.8.5-V0-start": ("0.6-0.11", (0.0, 0, 0, 32768, 16, 0, 0, 524288)),
    "0.8.5-V0-load": ("0.7-0.11", (0.003509521484375, 12, 0, 32768, 16, 115, 1840, 524288)),
    "0.9.2-start": ("0.9-0.10", (0.0, 0, 0, 32768, 16, 0, 0, 524288)),
    "0.10.2-load": ("0.10", (0.0034188034188034067, 12, 0, 4096, 128, 14, 1792, 524288)),
    "0.28.0-load": ("0.24-0.29", (0.003907203907203893, 12, 0, 4096, 128, 16, 2048, 524288)),
    "0.31.0-load": ("0.31", (0.003907203907203893, 12, 0, 4096, 128, 16, 2048, 524288)),
    "0.32.0-idle-whole": ("0.32-0.33", (0.0, 0, 0, 4096, 128, 0, 0, 524288)),
    "0.32.0-load": ("0.32-0.33", (0.03565323565323564, 48, 0, 4096, 128, 146, 18688, 524288)),
    "0.32.0-shared-prefix": ("0.32-0.33", (0.00439560439560438, 5, 0, 4096, 128, 18, 2304, 524288)),
    "0.32.0-after-aborts": ("0.32-0.33", (0.0, 0, 0, 4096, 128, 0, 0, 524288)),
    "0.32.0-preempt-blocks80-load": ("0.32-0.33", (0.8860759493670887, 7, 3, 80, 32, 70, 2240, 2560)),
    "0.32.0-preempt-blocks80-after": ("0.32-0.33", (0.0, 0, 0, 80, 32, 0, 0, 2560)),
    "0.32.0-apiservers2-load": ("0.32-0.33", (0.0034188034188034067, 12, 0, 4096, 128, 14, 1792, 524288)),
    "0.32.0-kvblockmetrics-load": ("0.32-0.33", (0.30379746835443033, 12, 0, 80, 32, 24, 768, 2560)),
    "0.32.0-ngramspec-after": ("0.32-0.33", (0.0, 0, 0, 4096, 128, 0, 0, 524288)),
    "0.32.0-dp2-start": ("0.32-0.33", (0.0, 0, 0, 4096, 128, 0, 0, 524288), (0.0, 0, 0, 4096, 128, 0, 0, 524288)),
    "0.32.0-dp2-load": (
        "0.32-0.33",
        (0.0024420024420024333, 6, 0, 4096, 128, 10, 1280, 524288),
        (0.00146520146520146, 6, 0, 4096, 128, 6, 768, 524288),
    ),
    "0.32.0-disablelogstats-start": (None, (None,) * 8),
    "0.32.0-disablelogstats-load": (None, (None,) * 8),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_recorded_page_reads_right(name: str) -> None:
    snapshot = read(page(name))
    versions, *engines = TRUTH[name]
    assert (snapshot.kind, snapshot.version_range, snapshot.bad_line_count) == ("vllm", versions, 0)
    read_engines = [
        (
            e.kv_usage,
            e.running,
            e.waiting,
            e.num_gpu_blocks,
            e.block_size,
            e.used_blocks,
            e.used_tokens,
            e.capacity_tokens,
        )
        for e in snapshot.engines
    ]
    assert read_engines == engines


@pytest.mark.parametrize("name", [*PAGES])
def test_missing_is_not_zero(name: str) -> None:
    """Trap 1: each key of the table is either a value or a reason, never both, never neither."""
    for engine in read(page(name)).engines:
        keys = {metric.key for metric in metrics.METRICS if metric.scope == "engine"}
        assert engine.values.keys() | engine.missing.keys() == keys
        assert not engine.values.keys() & engine.missing.keys()
        assert all(engine.missing.values())


def test_counters_of_a_real_server() -> None:
    engine = only(read(page("0.32.0-preempt-blocks80-after")))
    assert engine.number(metrics.PREEMPTIONS) == 145
    assert engine.number(metrics.PROMPT_TOKENS) == engine.number(metrics.PREFIX_QUERIES) == 27302
    assert engine.number(metrics.GENERATION_TOKENS) == 38774
    assert engine.number(metrics.PREFIX_HITS) == 0
    assert engine.number(metrics.FINISHED) == engine.split(metrics.FINISHED)["length"] == 138
    assert engine.kv_cache_dtype == "auto"
    assert engine.number(metrics.BLOCKS_OVERRIDE) == 80


def test_reasons_name_the_version_and_the_flag() -> None:
    old, new = read(page("0.10.2-load")).missing, read(page("0.32.0-load")).missing
    assert old["waiting_by_reason"] == "not in this version: vLLM reports it from 0.20.0"
    assert new["swapped"] == "not in this version: vLLM reported it until 0.9.0"
    assert new["block_lifetime"] == "only with --kv-cache-metrics"
    assert new["spec_drafts_total"] == "only with speculative decoding"
    assert new["sliding_window"] == "not set on this server"
    assert "block_lifetime" not in read(page("0.32.0-kvblockmetrics-load")).missing
    assert "spec_drafts_total" not in read(page("0.32.0-ngramspec-after")).missing


def test_data_parallel_engines_stay_apart_and_capacity_counts_once() -> None:
    """Trap 2: each rank reports 8,192 blocks, the sum; its pool of 524,288 tokens is its own."""
    snapshot = read(page("0.32.0-dp2-load"))
    assert [engine.engine for engine in snapshot.engines] == ["0", "1"]
    assert [engine.num_gpu_blocks for engine in snapshot.engines] == [4096, 4096]
    assert [engine.kv_cache_size_tokens for engine in snapshot.engines] == [524288, 524288]
    assert [engine.number(metrics.PROMPT_TOKENS) for engine in snapshot.engines] == [1801, 224]
    # Rejections have no engine label: they are the server's, and nobody's twice.
    assert snapshot.server[metrics.REJECTED.key] == {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
    assert snapshot.missing[metrics.REJECTED.key] == "said of the whole server, not of each engine"


def test_data_parallel_without_token_capacity_divides_too() -> None:
    text = "".join(
        f'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="3000"}} 1\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.5\n'
        for rank in range(3)
    )
    assert [engine.num_gpu_blocks for engine in read(text).engines] == [1000, 1000, 1000]


def test_usage_counts_blocks_held_without_the_null_block() -> None:
    """Trap 3: 70 of 79 usable blocks are 0.886, and in tokens as well; bytes set by hand are not those of 80 blocks."""
    engine = only(read(page("0.32.0-preempt-blocks80-load")))
    assert engine.kv_usage == pytest.approx(70 / 79)
    assert (engine.used_blocks, engine.free_blocks, engine.usable_blocks, engine.used_tokens) == (70, 9, 79, 2240)
    assert engine.used_bytes is None


@pytest.mark.parametrize(("held", "usage"), [(k, 1 - (79 - k) / 79) for k in range(80)])
def test_used_blocks_are_exact(held: int, usage: float) -> None:
    """The gauge as vLLM works it out: 1 - free / (N - 1), for every number of blocks of a pool of 80."""
    text = (
        f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}\nvllm:cache_config_info{{engine="0",num_gpu_blocks="80"}} 1\n'
    )
    assert only(read(text)).used_blocks == held


def test_waste_is_an_estimate_near_the_truth() -> None:
    """Measured against known requests: 15 % with unique prompts, 4.3 % while preempting (true means over the run)."""
    assert only(read(page("0.32.0-load"))).block_waste_share == pytest.approx(0.15, abs=0.03)
    assert only(read(page("0.32.0-preempt-blocks80-load"))).block_waste_share == pytest.approx(0.043, abs=0.03)
    assert only(read(page("0.32.0-idle-whole"))).block_waste_share is None


def test_room_for_more_requests() -> None:
    engine = only(read(page("0.32.0-preempt-blocks80-load")))
    assert engine.concurrency_left == pytest.approx(9 / (70 / 7))


@pytest.mark.parametrize("usage", ["37.5", "-0.1", "NaN", "-nan(ind)", "+Inf"])
def test_impossible_shares_are_rejected_and_said(usage: str) -> None:
    """Trap 8: nothing else on the page is lost."""
    snapshot = read(f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}\nvllm:num_requests_running{{engine="0"}} 2\n')
    assert only(snapshot).kv_usage is None
    assert snapshot.missing["kv_usage"].startswith("rejected: ")
    assert only(snapshot).running == 2


def test_a_number_that_no_server_reaches_is_rejected() -> None:
    snapshot = read('vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:num_requests_running{engine="0"} 1e300\n')
    assert (only(snapshot).kv_usage, only(snapshot).running) == (0.5, None)
    assert snapshot.missing["running"] == "rejected: 1e+300 is no count"


def test_a_silenced_engine_names_the_flag_to_remove() -> None:
    """Trap 10: 200, a full page of HTTP metrics, and nothing of the engine."""
    snapshot = read(page("0.32.0-disablelogstats-load"))
    assert set(snapshot.missing.values()) == {
        "the engine reports nothing: remove --disable-log-stats from the server's flags"
    }
    assert only(snapshot).values == {}
    assert snapshot.server[metrics.HTTP_REQUESTS.key] == {"2xx": 13}


def test_series_a_process_are_one_series_the_largest() -> None:
    """Trap 12."""
    text = (
        'vllm:num_requests_running{pid="1"} 0\nvllm:num_requests_running{pid="2"} 7\n'
        'vllm:kv_cache_usage_perc{pid="1"} NaN\nvllm:kv_cache_usage_perc{pid="2"} 0.8\n'
        'vllm:kv_cache_usage_perc{pid="3"} 0.2\n'
    )
    engine = only(read(text))
    assert (engine.running, engine.kv_usage, engine.labels) == (7, 0.8, {})


def test_token_usage_is_accepted_where_reported() -> None:
    """Trap 13: no version so far has it, and vLLM never had a fragmentation metric."""
    assert only(read('vllm:kv_cache_token_usage_perc{engine="0"} 0.5\n')).number(metrics.KV_TOKEN_USAGE) == 0.5
    assert read(page("0.32.0-load")).missing["kv_token_usage"] == "not reported by this server"


def test_0_2_7() -> None:
    snapshot = read(V0_2_7)
    engine = only(snapshot)
    assert snapshot.version_range == "0.2-0.6"
    assert (engine.engine, engine.model_name, engine.kv_usage, engine.running, engine.waiting) == (
        None,
        "llama",
        0.25,
        4,
        0,
    )
    assert (engine.number(metrics.SWAPPED), engine.number(metrics.AVG_OUTPUT_RATE)) == (1, 37.25)
    assert engine.number(metrics.GENERATION_TOKENS) is engine.used_blocks is engine.number(metrics.PREEMPTIONS) is None


def test_0_5_5() -> None:
    snapshot = read(V0_5_5)
    engine = only(snapshot)
    assert snapshot.version_range == "0.5-0.6"
    assert (engine.used_blocks, engine.free_blocks, engine.used_tokens) == (3000, 8560, 48000)
    assert engine.kv_cache_dtype == "fp8_e5m2"
    assert engine.values["enable_prefix_caching"] is False
    assert snapshot.missing["prefix_hit_rate"] == "prefix caching is off: the server says -1"
    assert engine.number(metrics.PROMPT_TOKENS) == 5453083
    tpot = engine.histogram(metrics.TPOT)
    assert tpot is not None
    assert tpot == engine.histogram(metrics.ITL)
    assert isclose(tpot.mean or 0, 0.03)


def test_early_v1_counted_its_null_block_and_prefixes_in_blocks() -> None:
    snapshot = read(V0_8_5)
    engine = only(snapshot)
    assert snapshot.version_range == "0.7-0.9"
    assert (engine.used_blocks, engine.free_blocks) == (99, 900)
    assert engine.number(metrics.PREFIX_QUERIES) == 80
    assert "prefix queries and hits are in blocks, not tokens (before 0.9.0)" in snapshot.notes


def test_v0_before_its_first_request() -> None:
    config = next(line for line in V0_5_5.splitlines() if "cache_config" in line)
    snapshot = read(config)
    assert only(snapshot).running is None
    assert snapshot.missing["running"] == "no request served yet: this engine (V0) reports it after the first"
    assert only(snapshot).num_gpu_blocks == 11560


def test_ray_replicas_stay_apart() -> None:
    snapshot = read(RAY)
    assert snapshot.kind == "vllm"
    assert [(e.engine, e.model_name, e.labels["ReplicaId"], e.running, e.kv_usage) for e in snapshot.engines] == [
        ("0", "m", "a", 3, 0.5),
        ("0", "m", "b", 5, 0.75),
    ]
    assert snapshot.engines[0].number(metrics.GENERATION_TOKENS) == 100
    assert "Ray leaves out what is 0" in snapshot.engines[1].missing["generation_tokens_total"]


def test_tritons_vllm_backend() -> None:
    """It writes vLLM's names among its own, labelled with its model's name and version."""
    text = 'nv_inference_count{model="x"} 1\nvllm:prompt_tokens_total{model="opt",version="1"} 10\n'
    engine = only(read(text))
    assert (engine.model_name, engine.number(metrics.PROMPT_TOKENS)) == ("opt", 10)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_engines_are_named_and_not_misread(kind: str) -> None:
    snapshot = read(OTHERS[kind])
    assert (snapshot.kind, snapshot.version_range) == (kind, None)
    assert not any(engine.values for engine in snapshot.engines)
    assert set(snapshot.missing) >= {"kv_usage", "running", "waiting"}


def test_a_stray_name_of_another_engine_does_not_decide() -> None:
    assert read(OTHERS["sglang"] + "vllm:num_requests_running 9\n").kind == "sglang"


def test_what_fits_several_engines_is_the_servers() -> None:
    snapshot = read(
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 2\n'
        "vllm:num_requests_waiting 4\n"
    )
    assert [engine.waiting for engine in snapshot.engines] == [None, None]
    assert snapshot.server["waiting"] == 4


def test_the_servers_own_version_is_exact() -> None:
    snapshot = read(page("0.32.0-load"), version="0.32.0")
    assert snapshot.version_range == "0.32.0"


def test_names_that_never_met_give_no_version() -> None:
    both = 'vllm:avg_prompt_throughput_toks_per_s 1\nvllm:admission_rejections_total{reason="x"} 1\n'
    assert read(both).version_range is None


def test_a_page_of_endless_engines_stays_bounded() -> None:
    snapshot = read("".join(f'vllm:num_requests_running{{engine="{rank}"}} 1\n' for rank in range(5000)))
    assert len(snapshot.engines) == MAX_ENGINES
    assert snapshot.notes == (f"more than {MAX_ENGINES} engines on the page: the first are read",)


@pytest.mark.parametrize(
    "text", ["", "\n", "<html></html>", "garbage " * 1000, "{}", "vllm:num_requests_running", "\0" * 100]
)
def test_garbage_reads_as_nothing(text: str) -> None:
    snapshot = read(text)
    assert (snapshot.kind, snapshot.engines) == ("unknown", ())
    assert snapshot.missing["kv_usage"] == "no metrics of an LLM engine on this page"


@pytest.mark.parametrize("name", PAGES)
def test_half_a_page_reads_without_exception(name: str) -> None:
    text = page(name)
    for cut in range(0, len(text), 997):
        read(text[:cut])


def test_unreadable_lines_are_said() -> None:
    snapshot = read("vllm:num_requests_running 1\nvllm:num_requests_waiting x\n")
    assert only(snapshot).running == 1
    assert snapshot.notes == ("unreadable lines: 1, the first: vllm:num_requests_waiting x",)
