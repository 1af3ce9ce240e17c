"""Every layout in kv_layout/rows.jsonl, planned again: vLLM 0.32.0's own figures (kv_layout/SOURCE.md)."""

import json
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.validation import read_rows
from planner.validation.kv import deployment_of, validate

ROWS = Path(__file__).parent / "kv_layout" / "rows.jsonl"
CONFIGS = Path(__file__).parent / "kv_layout" / "configs.json"


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("configs")
    for name, config in json.loads(CONFIGS.read_text()).items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return folder


def test_every_row_equals_vllm(configs: Path) -> None:
    rows = read_rows(ROWS)
    summary = validate(rows, configs)
    assert summary["differences"] == []
    assert summary["compared"] == summary["equal"] == len(rows) > 150


def test_a_difference_names_model_field_and_both_figures(configs: Path) -> None:
    row = next(row for row in read_rows(ROWS) if row["model"] == "gpt-oss-20b" and row["method"] == "meta")
    summary = validate([{**row, "block_size": 32}], configs)
    assert summary["equal"] == 0
    assert summary["differences"] == [
        {"model": "gpt-oss-20b", "tp": row["tp"], "dtype": row["kv_cache_dtype"], "field": "block_size", "planned": 16,
         "vllm": 32, "variant": row["variant"]}
    ]  # fmt: skip


def test_a_start_where_vllm_refuses_is_a_difference(configs: Path) -> None:
    row = {"model": "gpt-oss-20b", "tp": 1, "kv_cache_dtype": "auto", "method": "error", "error": "no"}
    assert validate([row], configs)["differences"][0]["field"] == "layout"


def test_weights_count_apart(configs: Path) -> None:
    row = next(row for row in read_rows(ROWS) if row["model"] == "gpt-oss-20b" and row["method"] == "meta")
    summary = validate([{**row, "weight_bytes_rank": 1}], configs)
    assert (summary["equal"], summary["weights_compared"], summary["weights_within_0_5_pct"]) == (1, 1, 0)
    assert [difference["field"] for difference in summary["differences"]] == ["weight_bytes_rank"]


def test_options_are_read_from_the_words_of_a_variant() -> None:
    deployment = deployment_of({"variant": "h100, prefix caching off", "tp": 2})
    assert (deployment.gpu.name, deployment.enable_prefix_caching, deployment.step_tokens) == ("H100-SXM", False, 8192)
    assert deployment_of({"variant": "h100, max_num_batched_tokens 2048"}).step_tokens == 2048
    assert deployment_of({"variant": "b200 with FlashInfer"}).gpu.name == "B200"


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n" + text + "\n")
    with pytest.raises(InputError, match=r"rows\.jsonl:2"):
        read_rows(tmp_path / "rows.jsonl")
