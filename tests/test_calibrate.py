"""A calibration finds the constants that made the traffic: a server that obeys the law, then with noise."""

import random
from dataclasses import replace

import pytest

from monitor.calibrate import Accuracy, accuracy, calibration, evidence, uncalibrated, verdict
from monitor.traffic import Traffic, workload
from planner.errors import InputError
from planner.latency import latency
from planner.plan import plan
from planner.verdict import Level
from planner.workload import Workload
from tests.obeying import history
from tests.test_calibration import LOAD, MEASURED, MODEL, SERVER

PLAN = plan(MODEL, SERVER, LOAD)
TRUTH = replace(MEASURED, step_s=8e-3, sequence_s=2e-4, token_s=3e-8, prompt_token_s=2e-5, first_s=5e-3)


def served(streams: float, prompt: int, output: int, noise: float = 1.0) -> Traffic:
    """What a window of this load looks like on a server whose constants are the truth; noise lengthens the gaps."""
    load = Workload(input_tokens=prompt, output_tokens=output, request_rate=1.0)
    assert PLAN.layout is not None
    found = latency(MODEL, SERVER, load, PLAN.layout, PLAN.weights, 4096, streams, calibration=TRUTH)
    assert found is not None
    gap, rate = found.tpot_s.value * noise, found.output_tokens_per_s.value / output
    return Traffic(
        seconds=20.0, gap_s=gap, running=rate * gap * (output - 1), input_tokens=prompt, output_tokens=output,
        prompt_tokens_per_s=rate * prompt, prefix_hit_ratio=0.0, requests_per_s=rate,
        output_tokens_per_s=rate * output, ttft_s=found.ttft_s.value, queue_s=0.0,
    )  # fmt: skip


LOADS = [
    (streams, prompt, output) for streams in (1, 4, 12, 32) for prompt, output in ((64, 32), (512, 128), (128, 256))
]


def test_the_constants_of_an_exact_server_are_found() -> None:
    found = calibration(PLAN, [served(*load) for load in LOADS], "exact", "2026-11-30")
    assert found.step_s == pytest.approx(TRUTH.step_s, rel=0.01)
    assert found.sequence_s == pytest.approx(TRUTH.sequence_s, rel=0.05)
    assert found.token_s == pytest.approx(TRUTH.token_s, rel=0.15)  # the law spares a request its own prompt
    assert found.prompt_token_s == pytest.approx(TRUTH.prompt_token_s, rel=0.05)
    assert found.windows == len(LOADS)
    assert found.seconds == 20.0 * len(LOADS)


def test_later_windows_at_other_loads_are_predicted() -> None:
    """With 5 % of noise in each window; loads that were never fitted."""
    chance = random.Random(7)
    seen = [served(*load, noise=chance.gauss(1, 0.05)) for load in LOADS * 3]
    later = [served(streams, 300, 100) for streams in (2, 8, 20)]
    found = accuracy(PLAN, calibration(PLAN, seen, "noisy", "2026-11-30"), later)
    tpot = found[0]
    assert (tpot.metric, tpot.before, tpot.windows) == ("tpot_s", None, 3)  # this CPU was never measured
    assert tpot.after < 0.05


def test_errors_say_what_the_traffic_could_not_tell() -> None:
    """One length at every load: requests and tokens cannot be told apart, and the fit says so or leaves one out."""
    found = calibration(PLAN, [served(streams, 256, 128) for streams in range(1, 20)], "one length", "2026-11-30")
    assert found.sequence_s == 0 or found.token_s == 0
    assert found.step_s == pytest.approx(TRUTH.step_s, rel=0.02)


def test_the_load_of_the_windows_becomes_a_workload() -> None:
    """40 requests of 100 + 10 tokens and 120 of 300 + 50 in 40 s: 4 a second, (40 × 100 + 120 × 300) / 160 in."""
    base = served(4, 64, 32)
    seen = [
        replace(base, requests_per_s=2.0, input_tokens=100.0, output_tokens=10.0),
        replace(base, requests_per_s=6.0, input_tokens=300.0, output_tokens=50.0),
    ]
    found = workload(seen)
    assert (found.request_rate, found.input_tokens, found.output_tokens) == (4.0, 250, 40)


def test_too_little_traffic_is_refused() -> None:
    with pytest.raises(InputError, match="windows: found 3, accepted: at least 8"):
        calibration(PLAN, [served(*load) for load in LOADS[:3]], "few", "2026-11-30")


def test_the_evidence_of_a_history() -> None:
    """Ten windows of 20 s, three without a request: 7 can be used, and one more is needed."""
    found = evidence(history([2.0, 0.0, 3.0, 0.0, 1.0, 2.0, 0.0, 4.0, 5.0, 1.0], 20))
    assert (found.windows, len(found.steady), found.preempted) == (10, 7, 0)
    assert found.finding.startswith("7 of 10 windows can be used; in 3 too little")
    assert found.lack == "1 window more with traffic, 8 in all"
    assert evidence(history([2.0] * 8, 20)).lack == ""


@pytest.mark.parametrize(
    ("before", "after", "level"), [(0.4, 0.03, Level.GOOD), (None, 0.2, Level.WARNING), (0.02, 0.03, Level.WARNING)]
)
def test_a_calibration_is_judged_on_later_windows(before: float | None, after: float, level: Level) -> None:
    later = [Accuracy(metric="tpot_s", before=before, after=after, covered=1.0, windows=6)]
    assert verdict(MEASURED, later).level is level
    assert verdict(MEASURED, []).word == "Unproven"


def test_a_new_calibration_begins_without_the_old_one() -> None:
    made = plan(MODEL, SERVER, LOAD, calibration=replace(MEASURED, other_bytes=2**20))
    assert uncalibrated(made) == PLAN
