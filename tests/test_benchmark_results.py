"""Results of other load generators: a real run of vLLM's own client, and published files of GuideLLM and AIPerf."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monitor.benchmark_results import Spread, measurements, measurements_in
from monitor.engine import INTERPRETER, SETTINGS
from planner.errors import InputError

CLIENT = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def test_vllm_s_own_client(real_engine: Callable[..., str], tiny_model: Path, tmp_path: Path) -> None:
    """Eight requests of 64 tokens in and 32 out, two of them at once, on the real engine."""
    subprocess.run(
        [
            str(INTERPRETER), "-c", CLIENT, "--backend", "openai", "--base-url", real_engine(), "--model", "tiny",
            "--tokenizer", str(tiny_model), "--dataset-name", "random", "--random-input-len", "64",
            "--random-output-len", "32", "--num-prompts", "8", "--max-concurrency", "2", "--ignore-eos",
            "--disable-tqdm", "--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json",
        ],
        env=SETTINGS, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    text = (tmp_path / "result.json").read_text()
    said = json.loads(text)
    (found,) = measurements(tmp_path / "result.json")
    assert measurements_in(f"{text}\n{text}") == (found, found)  # as --append-result writes a second one
    assert (found.tool, found.model, found.requests) == ("vLLM", "tiny", 8)
    assert (found.concurrency, found.request_rate) == (2, None)
    assert (found.input_tokens, found.output_tokens) == (pytest.approx(64, abs=2), 32)
    assert found.output_tokens_per_s == pytest.approx(8 * 32 / said["duration"])
    assert found.ttft == Spread(said["median_ttft_ms"] / 1000, said["p99_ttft_ms"] / 1000)
    assert found.tpot == Spread(said["median_tpot_ms"] / 1000, said["p99_tpot_ms"] / 1000)
    assert found.itl == Spread(said["median_itl_ms"] / 1000, said["p99_itl_ms"] / 1000)
    assert 0 < found.ttft.p50 + 31 * found.tpot.p50 < said["duration"]  # 32 tokens are a first one and 31 gaps


def spread(mean: float, p50: float, p99: float, count: int) -> dict[str, Any]:
    return {"successful": {"mean": mean, "count": count, "percentiles": {"p50": p50, "p99": p99}}}


# Qwen3-4B on 4 Intel GPUs, one request at a time: github.com/danielkorat/guidellm-bench, 20260302_1917, commit 8f24116
GUIDELLM: dict[str, Any] = {
    "metadata": {"version": 1, "guidellm_version": "0.5.0.dev0"},
    "args": {"target": "http://0.0.0.0:8000", "profile": "synchronous", "model": "Qwen/Qwen3-4B-Thinking-2507"},
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "config": {
                "strategy": {"type_": "synchronous", "worker_count": 1, "max_concurrency": 1},
                "backend": {"target": "http://0.0.0.0:8000", "model": "Qwen/Qwen3-4B-Thinking-2507"},
            },
            "metrics": {
                "request_totals": {"successful": 26, "errored": 0, "incomplete": 0, "total": 26},
                "prompt_token_count": spread(108.3076923076923, 93.0, 393.0, 26),
                "output_token_count": spread(1024.0, 1024.0, 1024.0, 26),
                "time_to_first_token_ms": spread(41.564391209529, 38.51747512817383, 66.09249114990234, 26),
                "time_per_output_token_ms": spread(20.437601291073058, 20.39888361468911, 21.035373443737626, 26624),
                "inter_token_latency_ms": spread(20.416949492521294, 20.379306750330173, 21.01822379514036, 26598),
                "output_tokens_per_second": spread(48.92818442323981, 49.06996115868782, 49.54409506484916, 26624),
            },
        }
    ],
}


def test_guidellm() -> None:
    """Its inter-token latency is what others call TPOT; a request of 1,024 tokens took 20.9 s."""
    (found,) = measurements_in(json.dumps(GUIDELLM))
    assert (found.tool, found.model, found.requests) == ("GuideLLM", "Qwen/Qwen3-4B-Thinking-2507", 26)
    assert (found.concurrency, found.request_rate) == (1, None)
    assert (found.input_tokens, found.output_tokens) == (pytest.approx(2816 / 26), 1024)
    assert found.ttft == Spread(pytest.approx(0.0385175, rel=1e-5), pytest.approx(0.0660925, rel=1e-5))
    assert found.tpot == Spread(pytest.approx(0.0203793, rel=1e-5), pytest.approx(0.0210182, rel=1e-5))
    assert found.itl is None
    assert found.output_tokens_per_s == pytest.approx(48.9282)
    assert found.ttft is not None
    assert found.tpot is not None
    assert found.ttft.p50 + 1023 * found.tpot.p50 == pytest.approx(20.889, rel=1e-3)  # the file's median latency


@pytest.mark.parametrize(
    ("strategy", "concurrency", "rate"),
    [
        ({"type_": "concurrent", "streams": 16}, 16, None),
        ({"type_": "throughput", "max_concurrency": 512}, 512, None),
        ({"type_": "poisson", "rate": 2.5, "max_concurrency": None}, None, 2.5),
        ({"kind": "constant", "rate": 4}, None, 4.0),
    ],
)
def test_guidellm_loads(strategy: dict[str, Any], concurrency: int | None, rate: float | None) -> None:
    """As its scheduler's strategies name them; a report of version 2 has `config` where version 1 has `args`."""
    report = {"metadata": {"version": 2}, "config": {"model": "m"}, "benchmarks": GUIDELLM["benchmarks"] * 2}
    report = json.loads(json.dumps(report))
    report["benchmarks"][1]["config"] = {"strategy": strategy}
    found = measurements_in(json.dumps(report))[1]
    assert (found.model, found.concurrency, found.request_rate) == ("m", concurrency, rate)


# Qwen3.6 in NVFP4 on an RTX 5090, ShareGPT, 16 at once: github.com/anud18/qwen36-vllm-aiperf-benchmark, commit 0861548
AIPERF: dict[str, Any] = {
    "schema_version": "1.3",
    "aiperf_version": "0.10.0",
    "request_count": {"unit": "requests", "avg": 96.0},
    "time_to_first_token": {"unit": "ms", "avg": 119.13046, "p50": 120.50948349999999, "p99": 254.48861884999985},
    "inter_token_latency": {"unit": "ms", "avg": 13.05021, "p50": 13.248111012987014, "p99": 30.299305585142843},
    "inter_chunk_latency": {"unit": "ms", "avg": 13.05400, "p50": 8.765324452833257, "p99": 119.59844855472231},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 1040.1442436393677},
    "output_sequence_length": {"unit": "tokens", "avg": 198.80208333333334, "p50": 155.0},
    "input_sequence_length": {"unit": "tokens", "avg": 367.28125, "p50": 282.5},
    "benchmark_duration": {"unit": "sec", "avg": 18.34841669},
    "total_osl": {"unit": "tokens", "avg": 19085.0},
    "input_config": {
        "models": {"items": [{"name": "qwen3.6-nvfp4"}]},
        "phases": [
            {"name": "warmup", "type": "concurrency", "exclude_from_results": True, "requests": 16, "concurrency": 4},
            {"name": "profiling", "type": "concurrency", "requests": 96, "concurrency": 16},
        ],
    },
}


def test_aiperf() -> None:
    (found,) = measurements_in(json.dumps(AIPERF, indent=2))
    assert (found.tool, found.model, found.requests, found.concurrency) == ("AIPerf", "qwen3.6-nvfp4", 96, 16)
    assert (found.input_tokens, found.output_tokens) == (367.28125, pytest.approx(19085 / 96))
    assert found.output_tokens_per_s == pytest.approx(19085 / 18.34841669)
    assert found.ttft == Spread(pytest.approx(0.1205095, rel=1e-5), pytest.approx(0.2544886, rel=1e-5))
    assert found.tpot == Spread(pytest.approx(0.0132481, rel=1e-5), pytest.approx(0.0302993, rel=1e-5))
    assert found.itl == Spread(pytest.approx(0.0087653, rel=1e-5), pytest.approx(0.1195984, rel=1e-5))


def test_an_older_aiperf_and_one_without_streaming() -> None:
    """Up to 0.9 the model and the load stood elsewhere; without streaming there is no first token to time."""
    older = {key: value for key, value in AIPERF.items() if key not in ("time_to_first_token", "inter_token_latency")}
    older["input_config"] = {"endpoint": {"model_names": ["Qwen/Qwen3-0.6B"]}, "loadgen": {"request_rate": 10.0}}
    (found,) = measurements_in(json.dumps(older))
    assert (found.model, found.concurrency, found.request_rate) == ("Qwen/Qwen3-0.6B", None, 10.0)
    assert (found.ttft, found.tpot) == (None, None)


def changed(result: dict[str, Any], path: str, value: object) -> str:
    copy = json.loads(json.dumps(result))
    *folders, last = path.split("/")
    place = copy
    for each in folders:
        place = place[int(each) if each.isdecimal() else each]
    place[last] = value
    return json.dumps(copy)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "file: found 'nothing', accepted: JSON of `vllm bench serve"),
        ("time,value\n1,2\n", "file: found 'no JSON: Expecting value at line 1, column 1', accepted: JSON of `vllm be"),
        ("[1, 2]", "file: found 'a list', accepted: JSON"),
        ('{"results": {}, "config": 1}', "file: found 'a dict with config, results', accepted: JSON"),
        (json.dumps({**GUIDELLM, "benchmarks": []}), "benchmarks: found"),
        (changed(GUIDELLM, "benchmarks/0/metrics/time_to_first_token_ms/successful/percentiles/p99", "fast"),
         "benchmarks[0].metrics.time_to_first_token_ms.p99: found 'fast', accepted: a number"),
        (changed(GUIDELLM, "benchmarks/0/metrics/output_tokens_per_second/successful/count", 0),
         "benchmarks[0].metrics.output_tokens_per_second: found 'no answered request'"),
        (changed(GUIDELLM, "benchmarks/0/config", None), "benchmarks[0].config: found None, accepted: a table"),
        (changed(AIPERF, "time_to_first_token/unit", "hours"), "time_to_first_token.unit: found 'hours', accepted"),
        (changed(AIPERF, "output_token_throughput/avg", -1), "output_token_throughput.avg: found -1, accepted"),
        (changed(AIPERF, "input_config/models", {}), "input_config.models: found"),
        (changed(AIPERF, "input_config/phases", [3]), "input_config.phases[0]: found 3, accepted: a table"),
        ('{"model_id": "m", "completed": 1, "output_throughput": NaN}', "output_throughput: found nan, accepted"),
        (f'{{"model_id": "m", "completed": {10**400}, "output_throughput": 1}}', "completed: found '1000000"),
        ('{"model_id": "m", "completed": 0, "output_throughput": 1}', "completed: found 0, accepted: at least one"),
    ],
)  # fmt: skip
def test_another_file_is_named(content: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        measurements_in(content)
    assert str(refused.value).startswith(said)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file: found"):
        measurements(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\ufffd\ufffd", "no JSON: Expecting value at line 1, column 1"),
        (json.dumps(AIPERF, indent=2)[:200], "no JSON: Unterminated string starting at line 11, column 5"),
        (f"{json.dumps(GUIDELLM)}\n\n{{'tool': 1}}\n",
         "no JSON: Expecting property name enclosed in double quotes at line 3, column 2"),
        ("[" * 100_000, "no JSON that can be read: nested too deeply, or a number of too many digits"),
        ("9" * 5000, "no JSON that can be read: nested too deeply, or a number of too many digits"),
        (json.dumps({"x\0" * 1000: 1}), "a dict with " + "x·" * 33 + "x…"),
    ],
    ids=["a picture", "half a file", "a line", "nested", "a long number", "a long key"],
)  # fmt: skip
def test_nothing_of_another_file_is_echoed_but_a_short_line(content: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        measurements_in(content)
    assert (refused.value.field, refused.value.found) == ("file", said)
    assert len(said) <= 80
    assert said.isprintable()
