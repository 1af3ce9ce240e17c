"""Cost by hand: an hour's parts, a month in whole deployments, break-evens, and what moves the price."""

from dataclasses import replace

import pytest

from planner.catalog.models import model_named
from planner.cost import HOURS_A_MONTH, Billing, Cost, hour
from planner.deployment import Deployment
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.latency import Range
from planner.month import api_break_even, bills, break_even, findings, month
from planner.plan import Plan, plan
from planner.price import prices
from planner.record import from_json, to_json
from planner.sensitivity import price_spread, sensitivities, verdict
from planner.verdict import Level
from planner.workload import Workload


def priced(usd_per_hour: float, requests: float) -> Cost:
    token = Range(1.0, 1.0, 1.0)
    return Cost(hour=hour(1, usd_per_hour), usd_per_million_output_tokens=token, usd_per_million_input_tokens=token,
                usd_per_request=token, requests_per_month=Range(requests, requests / 2, requests * 2),
                prefill_share=0.1)  # fmt: skip


def made(gpu: str = "A100-SXM-80GB", billing: Billing = Billing(), usd: float | None = None, **flags: object) -> Plan:
    server = Deployment(gpu=gpu_named(gpu), **flags)  # type: ignore[arg-type]
    return plan(model_named("llama-3-8b"), server, Workload(concurrency=59), usd_per_gpu_hour=usd, billing=billing)


def test_an_hour_by_hand() -> None:
    """2 × $3 + 0.5 + 0.25 + 0.125 + 0.125 + 2 × 0.7 kW × $0.10, and half of it again for the spare."""
    found = hour(2, 3.0, Billing(cpu_usd_per_hour=0.5, memory_usd_per_hour=0.25, network_usd_per_hour=0.125,
                                 storage_usd_per_hour=0.125, watts_per_gpu=700, usd_per_kwh=0.1,
                                 redundancy=1.5))  # fmt: skip
    assert found.devices == 6
    assert found.power == pytest.approx(0.14)
    assert found.total == pytest.approx(7.14 * 1.5)


def test_idle_hours_and_spares_are_paid() -> None:
    busy, idle = made(usd=4.0), made(usd=4.0, billing=Billing(busy_share=0.25, redundancy=2))
    assert busy.cost is not None
    assert idle.cost is not None
    assert idle.cost.usd_per_hour == 8
    assert idle.cost.usd_per_request.value == pytest.approx(8 * busy.cost.usd_per_request.value)
    assert idle.cost.requests_per_month.value == pytest.approx(busy.cost.requests_per_month.value / 4)


def test_billing_survives_json() -> None:
    before = made(billing=Billing(price_kind="on demand", busy_share=0.5, cpu_usd_per_hour=1.0))
    after = from_json(to_json(before))
    assert after.billing == before.billing
    assert after.cost == before.cost


def test_a_plan_written_before_billing_is_read() -> None:
    data = to_json(made())
    del data["inputs"]["billing"]
    assert from_json(data).billing == Billing()


@pytest.mark.parametrize(
    ("field", "value"), [("busy_share", 0.0), ("redundancy", 0.5), ("watts_per_gpu", -1.0), ("price_kind", "leased")]
)
def test_wrong_billing_names_the_field(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        Billing(**{field: value})  # type: ignore[arg-type]


def test_kinds_of_price() -> None:
    """Quotes of the H100 reserved are 1.75 to 6.50, spot 2.46 (CoreWeave) to 6.57 (GCP); an A100 has neither."""
    h100, a100 = gpu_named("H100"), gpu_named("A100")
    reserved, spot = prices(h100, kind="reserved"), prices(h100, kind="spot")
    assert reserved is not None
    assert spot is not None
    assert (reserved.low, reserved.high) == (1.75, 6.5)
    assert (spot.low, spot.high) == (2.46, 6.57)
    assert prices(a100, kind="reserved") is None
    unpriced = made(billing=Billing(price_kind="reserved"))
    assert unpriced.cost is None
    assert verdict(unpriced).level is Level.UNKNOWN
    assert made(billing=Billing(price_kind="reserved"), usd=2.0).cost is not None


def test_a_month_is_bought_in_whole_deployments() -> None:
    """2,500 requests at 1,000 each (500 to 2,000) take 3 (5 to 2) at $730."""
    found = month(priced(1.0, 1_000), 2_500)
    assert found.deployments == (3, 2, 5)
    assert found.usd == (3 * HOURS_A_MONTH, 2 * HOURS_A_MONTH, 5 * HOURS_A_MONTH)
    assert found.filled == pytest.approx(2_500 / 3_000)
    assert found.usd_per_request == pytest.approx(3 * 730 / 2_500)
    with pytest.raises(InputError, match="requests_per_month"):
        month(priced(1.0, 1_000), 0)


@pytest.mark.parametrize(
    ("cheap", "dear", "at"),
    [
        ((1, 1_000), (2.5, 4_000), 2_000),  # two cheap ones for $2 hold 2,000, a third makes it $3
        ((1, 1_000), (1, 2_000), 1_000),  # the same price: the slower is full at 1,000
        ((10, 10), (16, 15), 10),  # dearer a request, yet cheaper than two while one is enough
        ((1, 1_000), (3, 1_000), None),
        ((0, 1_000), (3, 9_000), None),
    ],
)
def test_break_even_of_two_staircases(cheap: tuple[float, float], dear: tuple[float, float], at: float | None) -> None:
    one, other = priced(*cheap), priced(*dear)
    assert break_even(one, other) == break_even(other, one) == at
    if at is not None:
        assert month(other, at).usd.value >= month(one, at).usd.value
        assert month(other, at + 1).usd.value < month(one, at + 1).usd.value


def test_break_even_with_an_api() -> None:
    """$730 a month against a tenth of a cent a request: 730,000 requests, if the deployment serves as many."""
    assert api_break_even(priced(1.0, 1e6), 0.001) == pytest.approx(730_000)
    assert api_break_even(priced(1.0, 1e5), 0.001) is None
    assert api_break_even(priced(1.0, 1e6), 0.0) is None


def test_bills_show_load_and_break_even() -> None:
    curves = bills({"one": priced(1, 1_000), "other": priced(2.5, 4_000)}, 500, api_usd=2.0)
    assert set(curves) == {"one", "other", "API"}
    assert {limit.value for limit in curves["one"].limits} == {2_000, 365, 912.5, 500}
    assert curves["one"].x[-1] > 4_000
    said = list(findings({"one": priced(1, 1_000), "other": priced(3, 1_000)}, 500, api_usd=0.01))
    assert "Break-even: one costs less at every load." in said
    assert "Break-even: other costs less than the API at no load." in said


def test_the_price_has_a_spread_of_its_own() -> None:
    """Quotes of the A100-SXM-80GB are $1.39 (RunPod) to $3.43 (AWS); the user's own price has none."""
    plan = made()
    ends = price_spread(plan)
    assert ends is not None
    assert [end.usd_per_hour for end in ends] == [1.39, 3.43]
    assert price_spread(made(usd=4.0)) is None


def test_what_moves_the_price_is_planned_again() -> None:
    plan = made()
    found = {each.name: each for each in sensitivities(plan)}
    swings = [each.swing for each in sensitivities(plan)]
    assert swings == sorted(swings, reverse=True)
    eight = plan.on(replace(plan.deployment, kv_cache_dtype="fp8"))
    assert eight.cost is not None
    assert plan.cost is not None
    assert found["KV dtype"].low == eight.cost.usd_per_million_output_tokens.value
    now = plan.cost.usd_per_million_output_tokens.value
    assert found["Busy share of paid hours"].high == pytest.approx(now / 0.3)
    assert found["Price of a GPU hour, on demand quotes"].high == pytest.approx(now * 3.43 / 1.79)
    assert {"Prompt length", "Output length", "Speed, range of the prediction"} <= set(found)
