"""`validate serving`: predictions held against public measurements of vLLM (tests/serving/rows.jsonl.gz)."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError, Refusal
from planner.latency_law import FILE
from planner.validation.serving import METRICS, case_of, model_of, validate

TEXT = gzip.decompress((Path(__file__).parent / "serving" / "rows.jsonl.gz").read_bytes()).decode()
ROWS: list[dict[str, Any]] = [json.loads(line) for line in TEXT.splitlines()]
ROW = next(row for row in ROWS if row["model"] == "Qwen/Qwen3-14B")
MOST = {"tpot": (9.0, 23.0), "output_tokens_per_s": (9.0, 25.0), "ttft": (26.0, 60.0)}  # median and p90, per cent


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return validate(ROWS)


@pytest.mark.parametrize("metric", METRICS)
def test_predictions_are_as_good_as_promised(report: dict[str, Any], metric: str) -> None:
    found, (median, p90) = report[metric], MOST[metric]
    assert found["n"] > 600
    assert found["median_abs_error_pct"] <= median
    assert found["p90_abs_error_pct"] <= p90
    assert abs(found["bias_pct"]) < 5


@pytest.mark.parametrize("metric", METRICS)
def test_ranges_hold_four_of_five_observations(report: dict[str, Any], metric: str) -> None:
    assert 0.75 <= report[metric]["range_coverage"] <= 0.85


@pytest.mark.parametrize("metric", METRICS)
def test_groups_left_out_of_the_fit_were_predicted_as_well(metric: str) -> None:
    """What scripts/fit_latency.py wrote beside the constants."""
    written = json.loads(FILE.read_text())
    found = written["left_out_error"][metric]
    assert found["median_abs_error_pct"] <= MOST[metric][0]
    assert found["p90_abs_error_pct"] <= MOST[metric][1]
    assert 0.75 <= written["left_out_coverage"][metric] <= 0.85


def test_every_row_is_predicted_or_skipped_with_a_reason(report: dict[str, Any]) -> None:
    """235 GB of FP8 weights on one GPU of 141 GB did not run as five rows say; everything else is known."""
    assert report["n"] + len(report["skipped"]) == len(ROWS)
    assert len(report["skipped"]) == 5
    assert all("exceed" in skipped["reason"] for skipped in report["skipped"])
    assert sum(one["output_tokens_per_s"]["n"] for one in report["by_model"].values()) == report["n"]
    assert sum(one["output_tokens_per_s"]["n"] for one in report["by_gpu"].values()) == report["n"]


def test_what_was_measured_is_not_an_input() -> None:
    blind = {key: value for key, value in ROW.items() if key not in ("tpot_ms", "ttft_ms", "output_tok_s")}
    assert case_of(blind).predicted() == case_of(ROW).predicted()


@pytest.mark.parametrize(
    ("change", "named"),
    [({"model": "no/such-model"}, "model"), ({"gpu": "no such GPU"}, "gpu"), ({"input_len": None}, "input_len"),
     ({"concurrency": 0}, "concurrency"), ({"spec_decode": True}, "spec_decode"), ({"gpu": "cpu"}, "gpu"),
     ({"concurrency": math.nan}, "concurrency"), ({"input_len": math.nan}, "input_len"), ({"tp": math.nan}, "tp"),
     ({"output_len": math.inf}, "output_len"), ({"ttft_ms": math.nan}, "ttft_ms"), ({"tp": "two"}, "tp"),
     ({"tp": None, "n_gpus": 4, "dp": 3}, "n_gpus"), ({"weight_dtype": "4bit"}, "'4bit'"),
     ({"weight_dtype": "q8"}, "'q8'"), ({"weight_dtype": "w4a8"}, "'w4a8'"),
     ({"weight_dtype": "gguf-q4"}, "'gguf-q4'")],
)  # fmt: skip
def test_what_cannot_be_predicted_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        case_of(ROW | change)
    skipped = validate([ROW | change])["skipped"]
    assert len(skipped) == 1
    assert named in skipped[0]["reason"]


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Refusal, match="exceed"):
        case_of(ROW | {"model": "meta-llama/Llama-3.1-405B", "tp": 1})


@pytest.mark.parametrize(
    ("model", "dtype", "method"),
    [
        ("meta-llama/Llama-3.1-70B", "fp8/gemm=fp8/moe=fp8", "modelopt"),
        ("Qwen/Qwen3-32B", "awq-int4", "awq"),
        ("Qwen/Qwen3-32B", "w4a16-gptq", "compressed-tensors"),
        ("Qwen/Qwen3-32B", "bf16", None),
        ("MiniMaxAI/MiniMax-M2.5", "fp8/gemm=fp8/moe=fp8", "fp8"),
        ("openai/gpt-oss-120b", "fp4/gemm=nvfp4/moe=nvfp4", "mxfp4"),
        ("moonshotai/Kimi-K2.5", "int4/gemm=int4_wo/moe=int4_wo", "compressed-tensors"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "awq-int4", "awq"),
    ],
)
def test_a_weight_dtype_picks_the_checkpoint(model: str, dtype: str, method: str | None) -> None:
    config = case_of(ROW | {"model": model, "weight_dtype": dtype, "tp": 8, "gpu": "B200"}).model.quantization_config
    assert (config.get("quant_method") or ("modelopt" if "quantization" in config else None)) == method


@pytest.mark.parametrize(
    ("model", "dtype", "shape", "method"),
    [
        ("Qwen/Qwen3-32B", "w8a8-fp8", "Qwen/Qwen3-32B-FP8", "fp8"),
        ("Qwen/Qwen3-32B", "bnb-4bit", "Qwen/Qwen3-32B", "bitsandbytes"),
        ("openai/gpt-oss-120b", "w4a16_mxfp4", "openai/gpt-oss-120b", "mxfp4"),
        ("zai-org/GLM-4.6-FP8", "fp8", "zai-org/GLM-4.6", "fp8"),
        ("nvidia/MiniMax-M2.5-NVFP4", "", "MiniMaxAI/MiniMax-M2.5", "modelopt"),
        ("TheBloke/Llama-2-70B-AWQ", "", "TheBloke/Llama-2-70B-Chat-AWQ", "awq"),
    ],
)
def test_a_quantised_name_is_its_base_in_that_dtype(model: str, dtype: str, shape: str, method: str) -> None:
    found = model_of({"model": model, "weight_dtype": dtype})
    config = found.quantization_config
    assert found.name == shape
    assert (config.get("quant_method") or ("modelopt" if "quantization" in config else None)) == method


def test_mxfp4_of_a_dense_model_is_its_weights_not_its_experts() -> None:
    """4 bits and a scale byte for 32: dense matrices shrink to 0.266 of 16 bits."""
    wide, four = (case_of(ROW | {"weight_dtype": dtype}) for dtype in ("bf16", "w4a16_mxfp4"))
    assert four.stages[0].dense < 0.4 * wide.stages[0].dense


def test_arrivals_alone_are_an_open_loop() -> None:
    case = case_of(ROW | {"mode": "rate", "concurrency": None, "request_rate": 0.5})
    made = case.predicted()
    assert (case.streams, case.workload.request_rate) == (None, 0.5)
    assert made is not None
    assert made.output_tokens_per_s.value == 0.5 * case.workload.output_tokens


def test_arrivals_beyond_what_is_served_leave_no_time_to_first_token() -> None:
    found = validate([ROW | {"mode": "rate", "concurrency": None, "request_rate": 1e6}])
    assert (found["ttft"]["n"], found["output_tokens_per_s"]["n"], found["skipped"]) == (0, 1, [])


@pytest.mark.parametrize(
    ("change", "flag", "value"),
    [
        ({"kv_dtype": "bf16"}, "kv_cache_dtype", "auto"),
        ({"kv_dtype": "FP16"}, "kv_cache_dtype", "auto"),
        ({"kv_dtype": "nan"}, "kv_cache_dtype", "auto"),
        ({"kv_dtype": math.nan}, "kv_cache_dtype", "auto"),
        ({"kv_dtype": "fp8"}, "kv_cache_dtype", "fp8"),
        ({"tp": None, "n_gpus": 4}, "tensor_parallel_size", 4),
        ({"tp": None, "n_gpus": 4, "dp": 2}, "tensor_parallel_size", 2),
        ({"engine_version": "vllm 0.9.1"}, "vllm_version", "0.9.1"),
        ({"engine_version": "v0.15.x"}, "vllm_version", "0.15"),
        ({"spec_decode": "false"}, "num_speculative_tokens", 0),
    ],
)
def test_flags_are_read_however_they_are_written(change: dict[str, Any], flag: str, value: object) -> None:
    row = {key: what for key, what in ROW.items() if key not in ("n_gpus", "dp", "pp")}
    assert getattr(case_of(row | change).deployment, flag) == value
