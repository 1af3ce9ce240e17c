"""Plans with constants measured on a server: every figure here is worked out by hand from the calibration's terms."""

import json
from dataclasses import replace

import pytest

from planner.calibration import Calibration, engine_of
from planner.deployment import Deployment
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.hub import model_from
from planner.plan import plan
from planner.record import from_json, to_json
from planner.workload import Workload

MODEL = model_from("demo/tiny-llama")
SERVER = Deployment(gpu=gpu_named("cpu"), cpu_kvcache_space=1, max_model_len=2048, enforce_eager=True)
LOAD = Workload(input_tokens=128, output_tokens=64, concurrency=16)
MEASURED = Calibration(
    name="Monday", model=MODEL.name, gpu="cpu", engine=engine_of(SERVER), step_s=9e-3, sequence_s=1e-4, token_s=1e-8,
    prompt_token_s=1e-5, first_s=4e-3, errors={}, bytes_per_token=2048, other_bytes=None,
    spread={"tpot": (0.9, 1.1), "ttft": (0.8, 1.2), "output_tokens_per_s": (0.9, 1.1)}, windows=10, seconds=600.0,
    fitted="2026-11-30",
)  # fmt: skip


def test_speed_is_the_sum_of_the_measured_terms() -> None:
    """9 ms + 16 × 0.1 ms + 16 × (128 + 32) × 10 ns = 10.6256 ms; 15 other prompts of 1.28 ms each in 64 tokens."""
    found = plan(MODEL, SERVER, LOAD, calibration=MEASURED).latency
    assert found is not None
    assert found.tpot_s.value == pytest.approx(10.6256e-3 + 15 / 64 * 1.28e-3)
    assert found.tpot_s.low == pytest.approx(found.tpot_s.value * 0.9)
    assert found.tpot_s.high == pytest.approx(found.tpot_s.value * 1.1)


def test_a_device_that_was_never_measured_gets_a_speed() -> None:
    """The CPU's bandwidth is unknown: no prediction without the calibration, and no floor beside it."""
    assert plan(MODEL, SERVER, LOAD).latency is None
    found = plan(MODEL, SERVER, LOAD, calibration=MEASURED).latency
    assert found is not None
    assert found.floor_tpot_s == 0


def test_the_floor_of_a_known_device_holds() -> None:
    """No calibration makes an H100 read its weights faster than its memory bandwidth."""
    gpu = gpu_named("H100-SXM")
    impossible = replace(MEASURED, gpu=gpu.name, step_s=0.0, sequence_s=0.0, token_s=0.0, prompt_token_s=0.0)
    found = plan(MODEL, Deployment(gpu=gpu), LOAD, calibration=impossible).latency
    assert found is not None
    assert found.tpot_s.value >= found.floor_tpot_s > 0


def test_tokens_of_half_the_bytes_are_read_in_half_the_time() -> None:
    only_tokens = replace(MEASURED, step_s=0.0, sequence_s=0.0, prompt_token_s=0.0)
    whole = plan(MODEL, SERVER, LOAD, calibration=only_tokens).latency
    half = plan(MODEL, replace(SERVER, kv_cache_dtype="fp8"), LOAD, calibration=only_tokens)
    assert whole is not None
    assert half.latency is not None
    assert half.latency.tpot_s.value == pytest.approx(whole.tpot_s.value / 2)
    assert any("KV dtype auto" in line and "KV dtype fp8" in line for line in half.assumptions)


def test_measured_memory_makes_the_pool_exact() -> None:
    gpu = gpu_named("A100-SXM-80GB")
    server = Deployment(gpu=gpu)
    before = plan(MODEL, server).budget
    after = plan(MODEL, server, calibration=replace(MEASURED, gpu=gpu.name, other_bytes=2**30)).budget
    assert before is not None
    assert after is not None
    assert after.available_kv.value == before.available_kv.value - 2**30
    assert after.available_kv.low == after.available_kv.high == after.available_kv.value


def test_constants_do_not_travel() -> None:
    with pytest.raises(InputError, match="this one is on cpu"):
        plan(MODEL, Deployment(gpu=gpu_named("H100-SXM")), LOAD, calibration=MEASURED)
    with pytest.raises(InputError, match="this one is of demo/tiny-llama"):
        plan(model_from("llama-3-8b"), SERVER, LOAD, calibration=MEASURED)


def test_a_plan_keeps_its_calibration_in_json() -> None:
    made = plan(MODEL, SERVER, LOAD, calibration=MEASURED)
    again = from_json(json.loads(json.dumps(to_json(made))))
    assert again.calibration == MEASURED
    assert again.latency == made.latency


@pytest.mark.parametrize("change", [{"step_s": -1.0}, {"step_s": float("nan")}, {"spread": {"tpot": (1.1, 0.9)}}])
def test_impossible_constants_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"calibration\."):
        replace(MEASURED, **change)
