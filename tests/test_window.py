"""Two pages -> Window: rates, quantiles, restarts. Expected values by hand arithmetic on recorded or short pages."""

from array import array
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor import metrics
from monitor.histogram import Histogram, Quantile, shape
from monitor.reading import read
from monitor.window import EngineWindow, Window, window
from planner.errors import InputError
from tests.recorded import V0_2_7, page


def between(before: str, after: str, seconds: float = 10.0) -> EngineWindow:
    [engine] = window(read(before), read(after), seconds).engines
    return engine


def counters(**values: float) -> str:
    return "".join(f'vllm:{name}{{engine="0",model_name="m"}} {value}\n' for name, value in values.items())


def test_rates_of_a_data_parallel_server_stay_apart() -> None:
    """Counters of the second page over 5 s: the first is idle from its start."""
    found = window(read(page("0.32.0-dp2-start")), read(page("0.32.0-dp2-load")), 5.0)
    assert [engine.engine for engine in found.engines] == ["0", "1"]
    assert [engine.output_tokens_per_s for engine in found.engines] == [231 / 5, 49 / 5]
    assert [engine.prompt_tokens_per_s for engine in found.engines] == [1801 / 5, 224 / 5]
    assert [engine.prefix_hit_rate for engine in found.engines] == [1024 / 1801, 0.0]
    assert not found.has_restarted


def test_live_tokens_of_known_requests() -> None:
    """Engine 0 has 2 + 4 requests of the run alive: 1,801 - 253 prompt and 231 - 200 output tokens."""
    found = window(read(page("0.32.0-dp2-start")), read(page("0.32.0-dp2-load")), 5.0)
    assert [engine.live_tokens for engine in found.engines] == [1801 - 253 + 231 - 200, 224 + 49]


def test_live_tokens_only_from_an_idle_start() -> None:
    assert between(page("0.32.0-load"), page("0.32.0-load")).live_tokens is None


def test_preemptions() -> None:
    engine = between(page("0.32.0-preempt-blocks80-load"), page("0.32.0-preempt-blocks80-after"))
    before = read(page("0.32.0-preempt-blocks80-load")).engines[0].number(metrics.PREEMPTIONS) or 0
    assert engine.preemptions_per_s == (145 - before) / 10


def test_quantiles_show_the_bucket_they_lie_in() -> None:
    """Trap 11: 10 requests, 9 below 0.5 s and 1 between 0.5 and 1 s: p99 lies there, at 0.5 + 0.5 x 0.9."""

    def text(*counts: int) -> str:
        buckets = zip(("0.5", "1.0", "+Inf"), counts, strict=True)
        return "".join(f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{le}"}} {n}\n' for le, n in buckets)

    found = between(text(1, 1, 1), text(10, 11, 11)).quantile(metrics.TTFT, 0.99)
    assert found is not None
    assert (found.low, found.high) == (0.5, 1.0)
    assert found.value == pytest.approx(0.95)
    above = between(text(1, 1, 1), text(1, 1, 11)).quantile(metrics.TTFT, 0.99)
    assert above == Quantile(1.0, 1.0, inf)
    assert above.is_above_buckets
    assert between(text(1, 1, 1), text(1, 1, 1)).quantile(metrics.TTFT, 0.99) is None


@given(st.lists(st.floats(0.0, 4.0), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_interval_holds_the_true_quantile(observed: list[float], q: float) -> None:
    bounds = (0.5, 1.0, 2.0, inf)
    counts = array("d", (sum(value <= bound for value in observed) for bound in bounds))
    found = Histogram(bounds=bounds, counts=counts, total=sum(observed)).quantile(q)
    true = sorted(observed)[max(0, -int(-q * len(observed) // 1) - 1)]
    assert found is not None
    assert found.low <= true <= found.high
    assert found.low <= found.value <= found.high


def test_a_bucket_that_lags_does_not_count_backwards() -> None:
    made = shape(("1.0", "2.0", "+Inf"))
    assert made is not None
    assert list(made.histogram([5.0, 4.0, 6.0]).counts) == [5.0, 5.0, 6.0]


def test_a_restart_starts_the_rates_again_and_is_marked() -> None:
    """Trap 5: 1,000 tokens before, 40 after: 4 a second at least, never -96."""
    engine = between(counters(generation_tokens_total=1000), counters(generation_tokens_total=40))
    assert engine.has_restarted
    assert engine.output_tokens_per_s == 4.0


def test_a_restart_is_seen_by_the_process_too() -> None:
    """The new process has already counted more than the old one had."""
    before = counters(generation_tokens_total=10) + "process_start_time_seconds 1000\n"
    after = counters(generation_tokens_total=50) + "process_start_time_seconds 2000\n"
    engine = between(before, after)
    assert engine.has_restarted
    assert engine.output_tokens_per_s == 5.0


def test_a_restart_is_seen_without_statistics() -> None:
    """With --disable-log-stats the page has no engine, but still says when its process began."""
    silent = page("0.32.0-disablelogstats-start")
    again = window(read(silent), read(page("0.32.0-dp2-start")), 60.0)  # began 146 s later
    assert again.engines == ()
    assert again.has_restarted
    assert not window(read(silent), read(silent), 60.0).has_restarted


def test_api_servers_that_answer_in_turn_are_no_restart() -> None:
    before = counters(generation_tokens_total=10) + "process_start_time_seconds 1003.5\n"
    after = counters(generation_tokens_total=50) + "process_start_time_seconds 1000.0\n"
    assert not between(before, after).has_restarted
    assert not between(after.replace("50", "10"), before.replace("10\n", "50\n")).has_restarted


@given(
    st.dictionaries(
        st.sampled_from(["prompt_tokens_total", "generation_tokens_total", "num_preemptions_total"]),
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
    )
)
def test_no_rate_is_ever_negative(values: dict[str, tuple[int, int]]) -> None:
    before, after = (counters(num_requests_running=1, **{k: v[i] for k, v in values.items()}) for i in (0, 1))
    engine = between(before, after)
    rates = (engine.output_tokens_per_s, engine.prompt_tokens_per_s, engine.preemptions_per_s)
    assert all(rate is None or rate >= 0 for rate in rates)


def test_missing_counters_have_no_rate() -> None:
    engine = between(counters(num_requests_running=1), counters(num_requests_running=1))
    assert engine.output_tokens_per_s is engine.prefix_hit_rate is engine.preemptions_per_s is None
    assert engine.quantile(metrics.TTFT, 0.5) is None


def test_a_counter_that_appears_in_v1_gives_no_rate_yet() -> None:
    """It may have counted for days before a proxy let it through."""
    engine = between(counters(num_requests_running=1), counters(num_requests_running=1, generation_tokens_total=10**9))
    assert engine.output_tokens_per_s is None


def test_v0_counts_from_its_first_request() -> None:
    engine = between(page("0.8.5-V0-start"), page("0.8.5-V0-load"))
    assert engine.output_tokens_per_s == 21.2
    assert engine.requests_per_s == 0.1
    ttft = engine.histogram(metrics.TTFT)
    assert ttft is not None
    assert ttft.count == 13


def test_versions_without_counters_say_their_own_average() -> None:
    engine = between(V0_2_7, V0_2_7)
    assert (engine.output_tokens_per_s, engine.prompt_tokens_per_s) == (37.25, 120.5)


BUSY = {"num_requests_running": 7, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.4, "prompt_tokens_total": 9}


def test_gauges_that_froze() -> None:
    """Trap 4."""
    frozen = counters(**BUSY, generation_tokens_total=100)
    assert between(frozen, frozen).has_stale_gauges
    assert not between(frozen, frozen, seconds=2).has_stale_gauges
    assert not between(frozen, counters(**BUSY, generation_tokens_total=101)).has_stale_gauges
    idle = counters(num_requests_running=0, kv_cache_usage_perc=0, generation_tokens_total=100, prompt_tokens_total=9)
    assert not between(idle, idle).has_stale_gauges


def test_waiting_with_nothing_running_is_a_livelock() -> None:
    """Trap 6."""
    stuck = counters(num_requests_running=0, num_requests_waiting=3, generation_tokens_total=5)
    assert between(stuck, stuck).is_livelocked
    assert not between(
        stuck, counters(num_requests_running=1, num_requests_waiting=2, generation_tokens_total=6)
    ).is_livelocked


def test_hit_rate_of_zero_is_a_value_and_of_nothing_is_none() -> None:
    """Trap 7."""

    def text(queries: int) -> str:
        return counters(prefix_cache_queries_total=queries, prefix_cache_hits_total=0)

    assert between(text(0), text(50)).prefix_hit_rate == 0.0
    assert between(text(50), text(50)).prefix_hit_rate is None


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_no_time_is_no_window(seconds: float) -> None:
    snapshot = read(V0_2_7)
    with pytest.raises(InputError, match="seconds"):
        window(snapshot, snapshot, seconds)


def test_snapshots_carry_their_own_time() -> None:
    found: Window = window(read(V0_2_7, at=100.0), read(V0_2_7, at=107.5))
    assert found.seconds == 7.5
