"""The compression page with the shared inputs beside it: a stack from the address, its numbers the plan's own."""

import pytest
from streamlit.testing.v1 import AppTest

from planner import units
from planner.catalog.models import model_named
from planner.compression import compressed
from planner.compression_methods import METHODS
from planner.deployment import Deployment
from planner.gpu import gpu_named
from planner.plan import plan
from tests.screens import metrics, opened


def drawn(*stack: str) -> AppTest:
    page = opened("compression")
    if stack:
        page.multiselect(key="stack").set_value(list(stack)).run()
    assert not page.exception
    return page


def test_numbers_are_those_of_a_plan_with_the_dtype() -> None:
    """gqa8 changes nothing in Llama-3-8B, so the default stack is the plan with an FP8 cache."""
    made = plan(model_named("meta-llama/Meta-Llama-3-8B"), Deployment(gpu=gpu_named("A100-SXM-80GB"),
                                                                     kv_cache_dtype="fp8"))  # fmt: skip
    assert made.capacity is not None
    assert made.latency is not None
    page = drawn()
    shown = metrics(page)
    assert shown["KV cache tokens"] == units.count(made.capacity[0].kv_cache_size_tokens)
    assert shown["Output"] == units.count(made.latency.output_tokens_per_s.value, "tokens/s")
    assert "87.5 %" in page.success[0].value
    assert page.code[0].value == made.deployment.serve_command("meta-llama/Meta-Llama-3-8B")


def test_every_method_is_in_the_matrix_and_in_the_chart() -> None:
    page = drawn()
    rows = page.dataframe[0].value
    assert len(rows) == 1 + len(METHODS)
    assert {"Quality", "Source", "Training", "Difficulty", "In vLLM", "Since vLLM"} <= set(rows.columns)
    (chart,) = page.get("plotly_chart")
    assert "FP8 64 KiB" in chart.proto.alt


@pytest.mark.parametrize("stack", [["h2o"], ["mqa", "h2o"]])
def test_what_vllm_lacks_is_a_warning(stack: list[str]) -> None:
    page = drawn(*stack)
    assert "Not in vLLM" in page.warning[0].value
    assert any("does not" in caption.value for caption in page.caption)


def test_two_of_a_kind_are_refused_in_words() -> None:
    assert "one method for dtype" in drawn("fp8", "nvfp4").error[0].value


def test_nothing_chosen_is_the_plan_in_16_bits() -> None:
    page = opened("compression")
    page.multiselect(key="stack").set_value([]).run()
    base = compressed(plan(model_named("meta-llama/Meta-Llama-3-8B"), Deployment(gpu=gpu_named("A100-SXM-80GB"))), [])
    assert base.plan.capacity is not None
    shown = metrics(page)
    assert shown["Requests that fit"] == units.count(base.plan.capacity[0].streams)
