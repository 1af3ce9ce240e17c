"""Several servers against one plan, on made-up servers of which every figure is set, and their usage line by line."""

import pytest

from monitor.group import group_verdict, servers, sums
from monitor.reading import read
from monitor.snapshot import Snapshot
from monitor.usage import usage_lines
from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.gpu import gpu_named
from planner.plan import plan
from planner.verdict import Level
from planner.workload import Workload
from tests.test_drift import PLAN
from tests.test_drift import page as steady

TINY = plan(
    model_named("tiny-llama"),
    Deployment(gpu=gpu_named("cpu"), cpu_kvcache_space=1, max_model_len=2048),
    Workload(input_tokens=300, output_tokens=200),
)
"""4,096 blocks of 128 tokens."""


def said(running: int, used: int, engine: int = 0, blocks: int = 4096) -> str:
    """An engine on which 10 requests of 300 + 200 tokens have finished: 3 blocks at first, 4 from half way on."""
    of = f'engine="{engine}",model_name="m"'
    lines = [
        f'vllm:cache_config_info{{block_size="128",cache_dtype="auto",engine="{engine}",num_gpu_blocks="{blocks}",'
        f'kv_cache_size_tokens="{blocks * 128}",kv_cache_max_concurrency="{blocks / 16}"}} 1',
        f"vllm:num_requests_running{{{of}}} {running}",
        f"vllm:kv_cache_usage_perc{{{of}}} {used / (blocks - 1)}",
    ]
    for name, total in (("prompt", 3000), ("generation", 2000)):
        for part, le, value in (("bucket", ',le="+Inf"', 10), ("count", "", 10), ("sum", "", total)):
            lines.append(f"vllm:request_{name}_tokens_{part}{{{of}{le}}} {value}")
    return "\n".join(lines)


def pages(*texts: str) -> list[Snapshot]:
    return [read(text, at=10.0 * number, wall=1e9 + 10 * number) for number, text in enumerate(texts)]


def test_the_worst_comes_first_and_the_silent_one_before_the_good() -> None:
    good, wrong = pages(said(10, 35)), pages(said(10, 35, blocks=2048))
    found = servers(TINY, {"good": good, "silent": (), "half": wrong}, {"silent": "Down: nothing listens there."})
    assert [each.name for each in found] == ["half", "silent", "good"]
    assert [each.verdict.level for each in found] == [Level.WARNING, Level.UNKNOWN, Level.GOOD]
    assert found[1].verdict.reason == "Down: nothing listens there."
    verdict = group_verdict(found)
    assert verdict.reason.startswith("1 of 3 servers are as planned. The worst, half: kv_cache_size_tokens is 50 %")
    assert group_verdict(servers(TINY, {"good": good})).word == "As planned"


def test_capacity_is_held_against_the_plan_of_every_server_the_silent_one_among_them() -> None:
    found = servers(TINY, {"a": pages(said(10, 35)), "b": pages(said(10, 35)), "silent": ()})
    capacity = sums(TINY, found)[0]
    assert capacity.planned == (3 * 524_288, 3 * 524_288, 3 * 524_288)
    assert capacity.actual == 2 * 524_288
    assert capacity.is_off
    assert capacity.cause.startswith("silent said nothing.")


def test_tokens_a_second_are_those_of_the_traffic_and_those_of_the_load_planned_for() -> None:
    """Two servers with gaps of 10 ms, 1,000 tokens in 100 s each: 20 tokens/s, where a request alone makes 100."""
    busy = [steady(60, 500, 10e-3), steady(160, 1500, 10e-3)]
    found = servers(PLAN, {"a": busy, "b": busy})
    _, traffic, own = sums(PLAN, found)
    assert (traffic.actual, own.actual) == (20, 20)
    each = [one for one in found[0].found[0].deviations if one.quantity == "output_tokens_per_s"]
    assert traffic.planned is not None
    assert each[0].planned is not None
    assert traffic.planned.value == pytest.approx(2 * each[0].planned.value)
    assert PLAN.latency is not None
    assert own.planned is not None
    assert own.planned.value == pytest.approx(2 * PLAN.latency.output_tokens_per_s.value)
    assert own.is_off


def test_planned_usage_follows_what_runs() -> None:
    """10 running hold 40 blocks of the 4,095 that requests can have, 30 at least; 20 hold 80; none hold none."""
    lines = {line.name: line for line in usage_lines(TINY, pages(said(10, 35), said(20, 90), said(0, 0)))}
    assert lines["in use"].values == pytest.approx((35 / 4095, 90 / 4095, 0))
    assert lines["planned"].values == pytest.approx((40 / 4095, 80 / 4095, 0))
    assert lines["planned at least"].values == pytest.approx((30 / 4095, 60 / 4095, 0))
    assert lines["planned at most"].values == pytest.approx((40 / 4095, 80 / 4095, 0))
    assert lines["planned"].times == lines["in use"].times == (1e9, 1e9 + 10, 1e9 + 20)


def test_engines_have_lines_of_their_own() -> None:
    """Engine 1 has half the pool: 10 running hold 40 of its 2,047."""

    def both(running: int) -> str:
        return said(running, 35) + "\n" + said(running, 35, engine=1, blocks=2048)

    lines = {line.name: line.values for line in usage_lines(TINY, pages(both(5), both(10)))}
    assert set(lines) == {"in use, engine 0", "planned, engine 0", "in use, engine 1", "planned, engine 1"}
    assert lines["planned, engine 0"] == pytest.approx((20 / 4095, 40 / 4095))
    assert lines["planned, engine 1"] == pytest.approx((20 / 2047, 40 / 2047))


def test_one_page_is_no_line_and_unknown_lengths_are_no_plan() -> None:
    assert usage_lines(TINY, pages(said(10, 35))) == []
    unfinished = said(10, 35).partition("\nvllm:request_")[0]
    assert [line.name for line in usage_lines(TINY, pages(unfinished, unfinished))] == ["in use"]
