"""How much more traffic fits: ceilings worked out by hand from a calibration whose terms are simple."""

from dataclasses import replace

import pytest

from planner.errors import InputError
from planner.headroom import alternatives, arriving, as_json, as_text, cost_at, growth, headroom, planned_rate
from planner.plan import plan
from planner.verdict import Level
from planner.workload import Slo, Workload
from tests.test_calibration import LOAD, MEASURED, MODEL, SERVER

# A step takes 10 ms whatever is in it, and prompts nothing: 100 tokens a second for each request that runs.
STEADY = replace(MEASURED, step_s=10e-3, sequence_s=0.0, token_s=0.0, prompt_token_s=0.0, first_s=0.0)
ASKED = replace(LOAD, concurrency=None)


def test_the_pool_is_the_ceiling() -> None:
    """64 blocks of 128 hold 32 requests of 128 + 48 tokens, 2 blocks each. One is served in 64 steps of 10 ms and one
    more before its first token: 32 / 0.64 s at most, and the first token waits for its steps."""
    server = replace(SERVER, num_gpu_blocks_override=64)
    found = headroom(plan(MODEL, server, ASKED, calibration=STEADY), 10.0)
    assert (found.first.kind, found.first.streams) == ("kv_cache", 32)
    served = 63 * 10e-3 + found_first_token(server)
    assert found.first.request_rate.value == pytest.approx(32 / served)
    assert found.factor == pytest.approx(32 / served / 10)


def found_first_token(server: object) -> float:
    """The plan's own time to first token at 32 requests at random: steps only, prompts take no time."""
    made = plan(MODEL, server, replace(LOAD, concurrency=None, request_rate=1.0), calibration=STEADY)  # type: ignore[arg-type]
    assert made.latency is not None
    return made.latency.ttft_s.value


def test_max_num_seqs_is_the_ceiling() -> None:
    server = replace(SERVER, max_num_seqs=8, max_num_batched_tokens=2048)
    found = headroom(plan(MODEL, server, ASKED, calibration=STEADY), 1.0)
    assert (found.first.kind, found.first.streams) == ("max_num_seqs", 8)
    assert found.first.request_rate.value == pytest.approx(8 / (63 * 10e-3 + found_first_token(server)))


def test_prompts_alone_fill_the_device() -> None:
    """A prompt of 128 tokens takes 128 × 1 ms: not even 1 / 0.128 s = 7.8 of them a second, whatever the pool."""
    slow = replace(STEADY, prompt_token_s=1e-3)
    found = headroom(plan(MODEL, SERVER, ASKED, calibration=slow), 1.0)
    assert found.first.request_rate.value < 7.8
    assert {each.kind: each for each in found.ceilings}["compute"].request_rate.value == pytest.approx(7.8, rel=0.03)
    assert found.gain < 0.2


def test_a_promise_is_the_ceiling() -> None:
    """A step of 10 ms and 1 ms for each request: 20 ms are broken by the eleventh."""
    growing = replace(STEADY, sequence_s=1e-3)
    found = headroom(plan(MODEL, SERVER, ASKED, Slo(tpot_s=20e-3), calibration=growing), 1.0)
    assert found.first.kind == "tpot"
    assert found.first.streams == pytest.approx(10, abs=0.01)


def test_a_promise_that_one_request_breaks_leaves_nothing() -> None:
    found = headroom(plan(MODEL, SERVER, ASKED, Slo(tpot_s=5e-3), calibration=STEADY), 1.0)
    assert (found.first.kind, found.first.request_rate.value) == ("tpot", 0.0)


def test_a_second_replica_takes_twice_as_much() -> None:
    made = plan(MODEL, replace(SERVER, num_gpu_blocks_override=64), ASKED, calibration=STEADY)
    one, two = headroom(made, 1.0), headroom(alternatives(made)["One more replica"], 1.0)
    assert two.first.request_rate.value == pytest.approx(2 * one.first.request_rate.value)


def test_fp8_is_not_offered_twice() -> None:
    made = plan(MODEL, replace(SERVER, kv_cache_dtype="fp8"), ASKED, calibration=STEADY)
    assert "FP8 KV cache" not in alternatives(made)


def test_without_a_speed_there_is_no_headroom() -> None:
    with pytest.raises(InputError, match="a device whose speed is known, or a calibration"):
        headroom(plan(MODEL, SERVER, Workload(input_tokens=10, output_tokens=10)), 1.0)


def test_what_arrives_as_planned() -> None:
    """16 in flight, 64 tokens each: a sixty-fourth of the plan's tokens/s. As many as fit is no traffic."""
    made = plan(MODEL, SERVER, LOAD, calibration=STEADY)
    assert made.latency is not None
    assert planned_rate(made) == pytest.approx(made.latency.output_tokens_per_s.value / 64)
    assert planned_rate(plan(MODEL, SERVER, ASKED, calibration=STEADY)) == 0.0
    assert planned_rate(arriving(made, 7.0)) == 7.0


def test_growth_ends_at_what_the_engine_takes() -> None:
    """Steps of 10 ms: every TPOT is 10 ms, and 8 requests at once are all there is, drawn a quarter further."""
    made = plan(MODEL, replace(SERVER, max_num_seqs=8, max_num_batched_tokens=2048), ASKED, calibration=STEADY)
    found = headroom(made, 2.0)
    throughput, tpot = growth(made, found)
    most = found.first.request_rate.value
    assert throughput.x[-2:] == pytest.approx((most, 1.25 * most))
    assert throughput.y[-2:] == pytest.approx((most * 64, most * 64))
    assert tpot.y == pytest.approx([10e-3] * len(tpot.y))
    assert {line.label for line in tpot.limits} == {"max_num_seqs", "now"}


def test_the_verdict_is_by_how_much_is_left() -> None:
    made = plan(MODEL, replace(SERVER, num_gpu_blocks_override=64), ASKED, calibration=STEADY)
    most = headroom(made, 0.0).first.request_rate.value
    levels = [headroom(made, most * part).verdict().level for part in (0.0, 0.5, 0.9, 1.1)]
    assert levels == [Level.UNKNOWN, Level.GOOD, Level.WARNING, Level.BAD]


def test_dollars_at_a_ceiling() -> None:
    """36 dollars an hour are a cent a second, and nothing of it is spent on prompts."""
    server = replace(SERVER, num_gpu_blocks_override=64)
    made = plan(MODEL, server, ASKED, usd_per_gpu_hour=36.0, calibration=STEADY)
    first = headroom(made, 1.0).first
    spent = cost_at(made, first)
    assert spent is not None
    assert spent.usd_per_million_output_tokens.value == pytest.approx(0.01 / (first.request_rate.value * 64) * 1e6)


def test_headroom_as_json() -> None:
    found = headroom(plan(MODEL, replace(SERVER, num_gpu_blocks_override=64), ASKED, calibration=STEADY), 10.0)
    said = as_json(found)
    assert [each["kind"] for each in said["ceilings"]] == [each.kind for each in found.ceilings]
    assert (said["factor"], said["ceilings"][0]["streams"]) == (found.factor, 32)
    assert as_text(found).startswith(found.finding)
