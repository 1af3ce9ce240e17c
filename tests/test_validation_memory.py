"""`validate memory`: predictions held against published start-up logs (tests/startup/rows.jsonl), end to end."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.units import GIB
from planner.validation.memory import validate
from planner.validation.startup import deployment_of, gpu_of, model_of, version_of

ROWS = [json.loads(line) for line in (Path(__file__).parent / "startup" / "rows.jsonl").read_text().splitlines()]
PRINTED = ("model_weights_gib", "activation_peak_gib", "non_torch_gib", "cuda_graph_estimate_gib", "max_concurrency")


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return validate(ROWS)


def test_rows_with_all_inputs_stated_are_within_one_percent(report: dict[str, Any]) -> None:
    stated = report["all_inputs_stated"]
    assert stated["n"] >= 50
    assert stated["median_abs_error_pct"] <= 1
    assert stated["p90_abs_error_pct"] <= 5


def test_every_row_is_compared_or_skipped_with_a_reason(report: dict[str, Any]) -> None:
    assert report["n"] == len(report["rows"])
    assert report["n"] + len(report["skipped"]) == len(ROWS)
    assert all(skipped["reason"] for skipped in report["skipped"])
    assert sum(group["n"] for group in report["by_source_group"].values()) == report["n"]


def test_printed_parts_are_not_inputs(report: dict[str, Any]) -> None:
    blind = validate([{key: value for key, value in row.items() if key not in PRINTED} for row in ROWS])
    assert [row["predicted"] for row in blind["rows"]] == [row["predicted"] for row in report["rows"]]


def test_the_observation_is_not_an_input() -> None:
    row = next(row for row in ROWS if row["id"] == "t141")
    twice = validate([row, row | {"kv_tokens": 1}, row | {"kv_tokens": None}])["rows"]
    assert twice[0]["predicted"] == twice[1]["predicted"]
    assert twice[2]["unit"] == "GiB"


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"gpu_model": "H100", "gpu_memory_utilization": 0.9}, "model"),
        ({"model": "Qwen/Qwen3-8B", "gpu_memory_utilization": 0.9}, "gpu_model"),
        ({"model": "Qwen/Qwen3-8B", "gpu_model": "H100"}, "gpu_memory_utilization"),
    ],
)
def test_what_is_missing_is_named(row: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        (model_of(row), deployment_of(row))


def test_a_printed_total_wins_and_names_the_device() -> None:
    assert gpu_of({"gpu_model": "NVIDIA H100 80GB", "gpu_mem_gib": 79.19}).memory == int(79.19 * GIB)
    assert gpu_of({"gpu_mem_gib": 139.8}).name == "H200-SXM"
    assert gpu_of({"gpu_model": "2x NVIDIA RTX 3090"}).name == "RTX 3090"
    assert gpu_of({"gpu_model": "NVIDIA H200 NVL MIG slice 71424MiB", "gpu_mem_gib": 69.75}).name == "H200-NVL"


def test_quantisation_of_a_checkpoint_the_catalog_only_knows_unquantised() -> None:
    online = model_of({"model": "meta-llama/Llama-3.1-8B-Instruct", "quantization": "fp8"})
    assert online.quantization_config["quant_method"] == "fp8"
    assert model_of({"model": "Qwen/Qwen3-8B"}).quantization_config == {}


def test_versions_that_logs_only_hint_at() -> None:
    assert version_of({"vllm_version": "0.11.0+582e4e37.nv25.11"}) == "0.11.0"
    assert version_of({"notes": "kv_cache_utils.py:864 (0.10.2-era)"}) == "0.10.2"
    assert version_of({}) == "0.32.0"
