"""Speed: the roofline and the load's curves by hand arithmetic, and the page that shows them."""

import math
from dataclasses import replace

import pytest

from planner import units
from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.gpu import gpu_named
from planner.plan import Plan, plan
from planner.speed_curves import load_curves, roofline, step_shares, verdict
from planner.verdict import Level
from planner.workload import Slo, Workload
from tests.screens import metrics, opened

MODEL, GPU = "meta-llama/Meta-Llama-3-8B", "A100-SXM-80GB"


def made(load: Workload = Workload(), slo: Slo = Slo()) -> Plan:
    return plan(model_named(MODEL), Deployment(gpu=gpu_named(GPU)), load, slo)


def test_decoding_one_stream_does_about_one_flop_a_byte() -> None:
    """Two FLOP a parameter of two bytes, and the same for the KV cache of grouped heads but for 4 queries a head."""
    roof = roofline(made(Workload(concurrency=1)))
    decode, prefill = roof.points
    assert decode.intensity == pytest.approx(1, rel=0.05)
    assert roof.ridge == pytest.approx(312e12 / 2.039e12)  # A100-80GB's datasheet
    assert decode.attainable == pytest.approx(decode.intensity * 2.039e12)
    assert prefill.attainable == 312e12
    assert prefill.intensity > roof.ridge > decode.intensity


def test_no_phase_is_above_the_roof() -> None:
    for concurrency in (1, 16, 200):
        for point in roofline(made(Workload(concurrency=concurrency))).points:
            assert 0 < point.reached <= point.attainable


def test_parts_are_the_whole_step() -> None:
    latency = made().latency
    assert latency is not None
    parts = step_shares(latency)
    assert math.fsum(part.seconds for part in parts) == pytest.approx(latency.step.total)
    assert math.fsum(part.share for part in parts) == pytest.approx(1)


def test_each_point_is_a_plan() -> None:
    base = made(Workload(concurrency=64), Slo(tpot_s=0.03, ttft_s=1.0))
    curves = load_curves(base)
    assert base.capacity is not None
    assert base.capacity[0].streams in curves.tpot.x
    for plan_, rate in zip(curves.plans, curves.throughput.y, strict=True):
        again = base.on(workload=replace(base.workload, concurrency=plan_.workload.concurrency))
        assert again.latency is not None
        assert again.latency.output_tokens_per_s.value == rate
    labels = {line.label for line in curves.tpot.limits}
    assert labels == {f"KV pool holds {base.capacity[0].streams}", "64 asked", "promised 30 ms"}
    assert "the promised 30 ms hold to" in curves.tpot.finding


def test_latency_grows_with_load_and_throughput_never_falls() -> None:
    curves = load_curves(made())
    assert list(curves.tpot.y) == sorted(curves.tpot.y)
    assert list(curves.throughput.y) == sorted(curves.throughput.y)


def test_the_verdict_names_what_bounds_the_speed() -> None:
    assert verdict(made()).word == "Memory-bound"
    late = verdict(made(slo=Slo(tpot_s=0.01)))
    assert late.level is Level.BAD
    unknown = replace(gpu_named(GPU), memory_bandwidth=0.0)
    assert verdict(made().on(Deployment(gpu=unknown))).word == "No speed"


def test_the_page_shows_the_plans_numbers() -> None:
    latency = made().latency
    assert latency is not None
    page = opened("speed")
    shown = metrics(page)
    assert shown["Time per output token"] == units.duration(latency.tpot_s.value)
    assert shown["Output"] == units.count(latency.output_tokens_per_s.value, "tokens/s")
    charts = page.get("plotly_chart")
    assert len(charts) == 5
    assert all(chart.proto.alt for chart in charts)
    assert "Memory-bound" in page.success[0].value
