"""Measurements of load generators beside a plan whose every figure is known by hand."""

from dataclasses import replace

import pytest

from monitor.benchmark_check import check, planned_for
from monitor.benchmark_results import Measurement, Spread
from planner.plan import plan
from planner.verdict import Level
from tests.test_calibration import LOAD, MODEL, SERVER
from tests.test_headroom import STEADY

# Every step takes 10 ms, within 10 %, and prompts take no time.
MADE = plan(MODEL, SERVER, LOAD, calibration=STEADY)
FOUND = Measurement(
    tool="vLLM", model="tiny", input_tokens=100.4, output_tokens=50.0, requests=64, concurrency=8, request_rate=None,
    ttft=None, tpot=Spread(10.5e-3, None), itl=None, output_tokens_per_s=790.0,
)  # fmt: skip


def test_the_plan_is_of_the_load_that_was_measured() -> None:
    load = planned_for(MADE, FOUND).workload
    assert (load.input_tokens, load.output_tokens, load.concurrency, load.request_rate) == (100, 50, 8, None)
    arriving = planned_for(MADE, replace(FOUND, concurrency=None, request_rate=2.5)).workload
    assert (arriving.concurrency, arriving.request_rate) == (None, 2.5)
    assert planned_for(MADE, replace(FOUND, concurrency=None)).workload.concurrency == LOAD.concurrency


def test_no_more_are_in_flight_than_were_sent() -> None:
    """`--max-concurrency` of a hundred million is no load, and 64 requests are."""
    assert planned_for(MADE, replace(FOUND, concurrency=10**8)).workload.concurrency == FOUND.requests == 64


def test_of_one_token_there_is_no_time_between_tokens() -> None:
    _, tpot, rate = check(MADE, replace(FOUND, output_tokens=1.0)).deviations
    assert (tpot.planned, tpot.is_off) == (None, False)
    assert rate.planned is not None


def test_what_is_in_the_plan_s_range_is_as_planned() -> None:
    found = check(MADE, FOUND)
    first, tpot, _ = found.deviations
    assert (first.actual, first.note) == (None, "the tool was not told to keep it")
    assert tpot.planned is not None
    assert (tpot.planned.value, tpot.ratio, tpot.is_off) == (pytest.approx(10e-3), pytest.approx(1.05), False)
    assert found.verdict.level is Level.GOOD


@pytest.mark.parametrize(("tpot", "said"), [(20e-3, "slower"), (5e-3, "faster")])
def test_what_is_off_says_which_way(tpot: float, said: str) -> None:
    (cause,) = check(MADE, replace(FOUND, tpot=Spread(tpot, None))).causes
    assert cause.startswith(f"{said} than planned")


def test_a_plan_without_a_speed_has_nothing_to_compare() -> None:
    found = check(plan(MODEL, SERVER, LOAD), FOUND)
    assert found.verdict.level is Level.UNKNOWN
    assert found.deviations[1].note == "the plan has no speed here: this device was never measured"
