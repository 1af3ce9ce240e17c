"""Servers as a whole, worst first, and what they are together."""

import pytest

from monitor import metrics
from monitor.finding import Condition, Finding
from monitor.fleet import Member, by_group, by_model, having, members, total
from monitor.summary import Summary, summary, usage_over_time
from planner.verdict import Level
from tests.recorded import OTHERS, page
from tests.watched import DOWN, Servers, state


def test_one_engine_is_the_server() -> None:
    """80 blocks of 32 tokens, of which 79 hold requests; the window of 10 s is the gap between the two pages."""
    found = summary(state("t", page("0.32.0-idle-whole"), page("0.32.0-preempt-blocks80-load")), 60)
    engine = found.state.history[-1].engines[0]
    assert (found.running, found.waiting) == (engine.running, engine.waiting)
    assert found.kv_usage == found.kv_usage_mean == engine.kv_usage
    assert found.capacity_tokens == 80 * 32
    assert found.seconds == 10.0
    assert found.models == (engine.model_name,)
    assert found.ttft is not None
    assert found.ttft.count > 0


def test_engines_of_one_server_are_added_and_the_fullest_is_named() -> None:
    found = summary(state("t", page("0.32.0-dp2-start"), page("0.32.0-dp2-load")), 60)
    first, second = found.state.history[-1].engines
    assert None not in (first.running, second.running, first.kv_usage, second.kv_usage)
    assert found.running == (first.running or 0) + (second.running or 0)
    assert found.kv_usage == max(first.kv_usage or 0, second.kv_usage or 0)
    assert found.kv_usage_mean == pytest.approx(((first.kv_usage or 0) + (second.kv_usage or 0)) / 2)
    assert found.capacity_tokens == (first.capacity_tokens or 0) + (second.capacity_tokens or 0)
    past = found.state.window(60)
    assert past is not None
    both = [engine.histogram(metrics.TTFT) for engine in past.engines]
    assert found.ttft is not None
    assert found.ttft.count == sum(each.count for each in both if each)


def test_what_one_engine_does_not_report_is_not_reported_by_the_whole() -> None:
    lines = ('vllm:num_requests_running{engine="0"} 2', 'vllm:num_requests_waiting{engine="1"} 3')
    found = summary(state("t", "\n".join(lines)), 60)
    assert (found.running, found.waiting, found.kv_usage, found.output_tokens_per_s) == (None, None, None, None)
    assert summary(state("t"), 60) == Summary(state=state("t"))


def test_usage_over_time_ends_with_the_last_page() -> None:
    pages = [f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {share / 100}\n' for share in range(90)]
    assert usage_over_time(state("t", *pages), points=3) == [0.29, 0.59, 0.89]


def fleet() -> list[Member]:
    load, idle = page("0.32.0-load"), page("0.32.0-idle-whole")
    condition = Condition(rule="saturated", engine="0", level=Level.BAD, word="Saturated", reason="", action="")
    pressed = (Finding(target="full", condition=condition, since=0.0),)
    full = state("full", idle, page("0.32.0-preempt-blocks80-load"), findings=pressed)
    well, gone = state("well", idle, load, group="chat"), state("gone", load, group="chat", error=DOWN)
    states = (well, gone, full, state("other", OTHERS["sglang"]))
    return members(Servers(*states), 60)


def test_the_worst_comes_first() -> None:
    assert [each.state.name for each in fleet()] == ["full", "gone", "other", "well"]


def test_search_looks_at_all_that_names_a_server() -> None:
    assert [each.state.name for each in having(fleet(), "REGION=eu saturated")] == ["full"]
    assert [each.state.name for each in having(fleet(), "", "chat")] == ["gone", "well"]
    assert having(fleet(), "nowhere") == []


def test_totals_leave_out_servers_that_are_not_heard() -> None:
    found = fleet()
    chat = next(each for each in by_group(found) if each.name == "chat")
    well = next(each for each in found if each.state.name == "well").summary
    assert (chat.servers, chat.well, chat.silent) == (2, 1, 1)
    assert (chat.running, chat.waiting) == (well.running, well.waiting)
    assert chat.kv_usage == pytest.approx((well.used_tokens or 0) / (well.capacity_tokens or 1))
    assert sum(each.servers for each in by_model(found)) == 4
    assert total("none", []).kv_usage is None
