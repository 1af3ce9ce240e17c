"""Drift over days, on a made-up server whose every figure is set: 1,000 gaps of 10 ms a day, 1 % slower each day."""

import pytest

from monitor.drift import DAY, drifts, periods
from monitor.reading import read
from monitor.snapshot import Snapshot
from planner.plan import plan
from planner.workload import Workload
from tests.test_calibration import MEASURED, MODEL, SERVER

PLAN = plan(MODEL, SERVER, Workload(input_tokens=100, output_tokens=50, concurrency=1), calibration=MEASURED)


def page(at: float, gaps: int, gap_s: float) -> Snapshot:
    """A page on which so many gaps of this length were counted, one request of 100 + 50 tokens for every 50."""
    lines = [
        'vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="4096",'
        'kv_cache_size_tokens="524288",kv_cache_max_concurrency="256.0"} 1',
        'vllm:num_requests_running{engine="0",model_name="m"} 1',
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {2 / 4095}',
        f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {gaps}',
        f'vllm:prompt_tokens_total{{engine="0",model_name="m"}} {gaps * 2}',
        'vllm:num_preemptions_total{engine="0",model_name="m"} 0',
        f'vllm:request_success_total{{engine="0",model_name="m",finished_reason="length"}} {gaps // 50}',
    ]
    for name, count, total in (
        ("inter_token_latency_seconds", gaps, gaps * gap_s),
        ("request_prompt_tokens", gaps // 50, gaps * 2),
        ("request_generation_tokens", gaps // 50, gaps),
    ):
        for part, value in (('bucket{le="+Inf",', count), ("count{", count), ("sum{", total)):
            lines.append(f'vllm:{name}_{part}engine="0",model_name="m"}} {value}')
    return read("\n".join(lines), at=at, wall=at)


def days(number: int, slower: float) -> list[Snapshot]:
    """Two pages a day; the server begins anew each night, so that a day's gaps have one length."""
    pages = []
    for day in range(20_000, 20_000 + number):
        gap = 10e-3 * (1 + slower * (day - 20_000))
        pages += [page(day * DAY + 60, 500, gap), page(day * DAY + 80_000, 1_500, gap)]
    return pages


def test_a_server_that_grows_slower_by_a_percent_a_day() -> None:
    """The calibration says 9 ms + 0.1 ms + 125 tokens x 10 ns = 9.10125 ms for the gap of one request."""
    found = {each.quantity: each for each in drifts(periods(PLAN, days(10, 0.01)))}
    tpot = found["tpot_s"]
    assert len(tpot.ratios) == 10
    assert tpot.ratios[0] == pytest.approx(10e-3 / 9.10125e-3)
    assert tpot.ratios[9] == pytest.approx(10.9e-3 / 9.10125e-3)
    assert tpot.finding.endswith("it grows by 1.1 % of the plan a day.")


def test_a_steady_server_does_not_drift() -> None:
    found = {each.quantity: each for each in drifts(periods(PLAN, days(10, 0.0)))}
    assert found["tpot_s"].finding.endswith("it does not drift.")


def test_two_days_are_no_trend() -> None:
    found = drifts(periods(PLAN, days(2, 0.5)))
    assert "too few periods for a trend" in next(each for each in found if each.quantity == "tpot_s").finding
