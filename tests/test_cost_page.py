"""The cost page with the shared inputs beside it: its numbers are the plan's, its own inputs are in the address."""

from planner import units
from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.gpu import gpu_named
from planner.month import month
from planner.plan import plan
from tests.screens import metrics, opened


def test_numbers_are_the_plans_own() -> None:
    cost = plan(model_named("meta-llama/Meta-Llama-3-8B"), Deployment(gpu=gpu_named("A100-SXM-80GB"))).cost
    assert cost is not None
    page = opened("cost")
    shown = metrics(page)
    assert shown["A million output tokens"] == units.usd(cost.usd_per_million_output_tokens.value)
    assert shown["A million input tokens"] == units.usd(cost.usd_per_million_input_tokens.value)
    assert shown["A request"] == units.usd(cost.usd_per_request.value)
    bought = month(cost, 1_000_000)
    assert shown["A month"] == units.usd(bought.usd.value)
    assert [len(page.get("plotly_chart")), len(page.table)] == [2, 1]
    assert all(chart.proto.alt for chart in page.get("plotly_chart"))


def test_own_price_wins_and_has_no_spread() -> None:
    page = opened("cost")
    page.number_input(key="usd_per_gpu_hour").set_value(4.0)
    page.number_input(key="redundancy").set_value(2.0).run()
    assert metrics(page)["An hour"] == "$8.00"
    ranges = page.dataframe[0].value
    assert set(ranges["By the quotes' range"]) == {"your own price: none"}


def test_a_second_plan_and_an_api_stand_beside() -> None:
    page = opened("cost")
    page.selectbox(key="other_gpu").set_value("A100-SXM-80GB")
    page.selectbox(key="other_kv_cache_dtype").set_value("fp8")
    page.number_input(key="api_output").set_value(0.3).run()
    assert not page.exception
    columns = list(page.table[0].value.columns)
    assert columns[1:] == ["This: 1 × A100-SXM-80GB, KV auto", "Other: 1 × A100-SXM-80GB, KV fp8"]
    said = "\n".join(markdown.value for markdown in page.markdown)
    assert "Other: 1 × A100-SXM-80GB, KV fp8 first costs less than This" in said
    assert "costs less than the API" in said


def test_load_in_tokens() -> None:
    """1,000 million output tokens at 1,024 a request are 976,562.5 requests."""
    page = opened("cost")
    page.get("button_group")[0].set_value("million output tokens").run()
    assert not page.exception
    assert "976,562 requests" in "\n".join(markdown.value for markdown in page.markdown)


def test_without_a_quote_nothing_is_free() -> None:
    page = opened("cost")
    page.selectbox(key="price_kind").set_value("reserved").run()
    assert "unknown is not free" in page.info[0].value
    assert not page.metric
