"""Dollars: hand arithmetic on given speeds, and the article's card at $4 an hour."""

from dataclasses import replace

import pytest

from planner.catalog.models import model_named
from planner.cost import Billing, cost
from planner.deployment import Deployment
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.latency import Latency, Range
from planner.plan import plan
from planner.workload import Workload

LLAMA = plan(model_named("meta-llama/Meta-Llama-3-8B"), Deployment(gpu=gpu_named("A100-SXM-80GB")),
             Workload(concurrency=59), usd_per_gpu_hour=4.0)  # fmt: skip
assert LLAMA.latency is not None
# 1,000 tokens/s between 800 and 1,250, a quarter of the time in prefill: an hour makes 3.6 million tokens.
STEADY: Latency = replace(LLAMA.latency, output_tokens_per_s=Range(1000, 800, 1250), prefill_share=0.25)
LOAD = Workload(input_tokens=2000, output_tokens=500, concurrency=10)


def test_llama_3_8b_on_an_a100_at_four_dollars() -> None:
    """The article says $0.028; at what the card can do it is between 30 and 60 cents."""
    assert LLAMA.cost is not None
    whole = LLAMA.cost.usd_per_request.value / 1024 * 1e6
    assert 0.3 <= LLAMA.cost.usd_per_million_output_tokens.value <= whole <= 0.6


def test_input_and_output_tokens_together_are_the_bill() -> None:
    """$3.60 an hour at 1,000 tokens/s is $1 a million: 75 cents for outputs, 25 for four times as many inputs."""
    found = cost(STEADY, LOAD, gpus=2, usd_per_gpu_hour=1.8)
    assert found.usd_per_hour == pytest.approx(3.6)
    assert found.usd_per_million_output_tokens == pytest.approx((0.75, 0.6, 0.9375))
    assert found.usd_per_million_input_tokens == pytest.approx((0.0625, 0.05, 0.078125))
    assert found.usd_per_request.value == pytest.approx((500 * 0.75 + 2000 * 0.0625) / 1e6)
    assert found.usd_per_month == pytest.approx(3.6 * 730)
    assert found.requests_per_month.value == pytest.approx(2 * 3600 * 730)


def test_output_tokens_are_never_free() -> None:
    made = LLAMA.on(workload=Workload(input_tokens=8000, output_tokens=1, concurrency=64))
    assert made.cost is not None
    assert made.cost.usd_per_million_output_tokens.low > 0


def test_what_is_paid_beside_the_devices_adds_and_multiplies() -> None:
    """Two GPUs at $2 and 700 W at $0.10/kWh, servers at $1: $5.14; twice for a spare, in use half of the time."""
    billing = Billing(cpu_usd_per_hour=0.6, memory_usd_per_hour=0.2, network_usd_per_hour=0.1, storage_usd_per_hour=0.1,
                      watts_per_gpu=700, usd_per_kwh=0.10, busy_share=0.5, redundancy=2.0)  # fmt: skip
    found, plain = cost(STEADY, LOAD, 2, 2.0, billing), cost(STEADY, LOAD, 2, 2.0)
    assert found.usd_per_hour == pytest.approx(2 * 5.14)
    ratio = found.usd_per_million_output_tokens.value / plain.usd_per_million_output_tokens.value
    assert ratio == pytest.approx(2 * 5.14 / 4 / 0.5)
    assert found.requests_per_month.value == pytest.approx(plain.requests_per_month.value / 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("cpu_usd_per_hour", -1.0), ("watts_per_gpu", float("nan")), ("usd_per_kwh", float("inf")), ("busy_share", 0.0),
     ("busy_share", 1.1), ("redundancy", 0.5), ("price_kind", "stolen")],
)  # fmt: skip
def test_a_bill_out_of_range_is_named(field: str, value: float | str) -> None:
    with pytest.raises(InputError, match=field):
        Billing(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_is_dollars(price: float) -> None:
    with pytest.raises(InputError, match="usd_per_gpu_hour"):
        cost(STEADY, LOAD, 1, price)
