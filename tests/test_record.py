"""A plan as JSON: the keys scripts rely on, the round trip, and what is said of a file that is not one."""

import json
from typing import Any

import pytest

from planner.__main__ import main
from planner.catalog.models import model_named, models
from planner.deployment import Deployment
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.plan import plan
from planner.record import figures, from_json, to_json
from planner.report import report
from planner.workload import Workload

PREDICTIONS = ("activation_bytes", "tpot_s", "ttft_s", "output_tokens_per_s", "usd_per_million_output_tokens",
               "usd_per_million_input_tokens", "available_kv_bytes", "num_gpu_blocks", "kv_cache_size_tokens",
               "max_concurrency")  # fmt: skip
KEYS = ("fits", "limit", "weight_bytes_per_rank", "bytes_per_token", "block_size", "floor_tpot_s", "serve_command",
        "assumptions", "inputs", *PREDICTIONS)  # fmt: skip


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_the_command_line_prints_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "plan", "meta-llama/Meta-Llama-3-8B", "--gpu", "a100-sxm-80gb", "--vllm-version", "0.19.0")
    assert not [key for key in KEYS if key not in found]
    assert found["bytes_per_token"] == 131_072
    assert 443_000 <= found["kv_cache_size_tokens"] <= 459_000
    for key in PREDICTIONS:
        assert found[f"{key}_low"] <= found[key] <= found[f"{key}_high"], key
    assert 0 < found["floor_tpot_s"] <= found["tpot_s_low"]


def test_what_does_not_fit_is_an_answer_and_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "plan", "meta-llama/Llama-3.1-70B", "--gpu", "H100-SXM")
    assert found["fits"] is False
    assert "weights alone" in found["limit"]
    assert found["kv_cache_size_tokens"] is None
    assert found["tpot_s"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "no-such-model", "--gpu", "H100-SXM"),
        ("plan", "llama-3-8b", "--gpu", "H1000"),
        ("plan", "llama-3-8b", "--gpu", "H100-SXM", "--tensor-parallel-size", "0"),
        ("plan", "llama-3-8b", "--gpu", "H100-SXM", "--gpu-memory-utilization", "1.5"),
        ("plan", "llama-3-8b", "--gpu", "H100-SXM", "--kv-cache-dtype", "fp5"),
        ("plan", "llama-3-8b", "--gpu", "H100-SXM", "--vllm-version", "new"),
        ("plan", "llama-3-8b", "--gpu", "H100-SXM", "--input-tokens", "-1"),
        ("plan", "/no/such/folder/config.json", "--gpu", "H100-SXM"),
        ("plan", "llama-3-8b", "--gpu", "H100-SXM", "--usd-per-gpu-hour", "-4"),
        ("plan", "llama-3-8b", "--gpu", "H100-SXM", "--input-tokens", "9" * 400),
        ("plan", "llama-3-8b", "--gpu", "cpu", "--cpu-kvcache-space", "1e300"),
        ("plan", "llama-3-8b", "--gpu", "H100-SXM", "--request-rate", "inf"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert "accepted" in output.err


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "gemma-3-27b", "nemotron-h-8b", "gpt-oss-20b"])
def test_a_plan_survives_json(name: str) -> None:
    deployment = Deployment(gpu=gpu_named("B200"), tensor_parallel_size=2, kv_cache_dtype="fp8", max_model_len=4096)
    made = plan(model_named(name), deployment, Workload(input_tokens=100, concurrency=3), usd_per_gpu_hour=5.0)
    text = json.dumps(to_json(made), allow_nan=False)
    assert figures(from_json(json.loads(text))) == figures(made)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda data: data.pop("inputs"), "inputs"),
        (lambda data: data["inputs"].update(format=99), "inputs.format"),
        (lambda data: data["inputs"]["deployment"].update(tensor_parallelism=2), "tensor_parallelism"),
        (lambda data: data["inputs"]["deployment"]["gpu"].pop("memory"), "inputs.deployment.gpu"),
        (lambda data: data["inputs"]["model"].update(config=[]), "config"),
        (lambda data: data["inputs"]["workload"].update(input_tokens="many"), "input_tokens"),
        (lambda data: data["inputs"]["deployment"]["gpu"].update(compute_capability=[8]), "gpu.compute_capability"),
        (lambda data: data["inputs"]["deployment"]["gpu"].update(peak_flops=[1]), "gpu.peak_flops"),
        (lambda data: data["inputs"]["deployment"]["gpu"]["peak_flops"].update(fp8="x"), "peak_flops.fp8"),
        (lambda data: data["inputs"].update(usd_per_gpu_hour="x"), "usd_per_gpu_hour"),
    ],
)
def test_a_spoilt_file_names_the_key(spoil: Any, named: str) -> None:
    data = json.loads(json.dumps(to_json(plan(model_named("llama-3-8b"), Deployment(gpu=gpu_named("L4"))))))
    spoil(data)
    with pytest.raises(InputError, match=named):
        from_json(data)


def test_lists_of_models_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    named = {row["name"]: row for row in printed(capsys, "models")}
    assert len(named) == len(models()) >= 100
    assert named["llama-2-7b"]["parameters"] == 6_738_415_616  # the publisher's safetensors headers
    devices = {row["name"]: row for row in printed(capsys, "gpus")}
    assert len(devices) >= 45
    quotes = {(quote["provider"], quote["usd_per_hour"], quote["date"]) for quote in devices["H100-SXM"]["quotes"]}
    assert ("RunPod", 2.69, "2026-09-25") in quotes
    assert devices["H100-SXM"]["usd_per_gpu_hour"]["low"] <= 2.69
    assert devices["cpu"]["usd_per_gpu_hour"] is None


def test_the_report_says_what_the_figures_say() -> None:
    made = plan(model_named("llama-3-8b"), Deployment(gpu=gpu_named("A100-SXM-80GB"), vllm_version="0.19.0"))
    text = report(made)
    assert text.startswith("# Fits: meta-llama/Meta-Llama-3-8B")
    assert f"{figures(made)['kv_cache_size_tokens']:,} tokens" in text
    assert "vllm serve meta-llama/Meta-Llama-3-8B" in text
