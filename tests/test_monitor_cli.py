"""python -m monitor: the commands as a user runs them."""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread

import pytest

from monitor.__main__ import main
from planner.record import to_json
from tests.recorded import OTHERS, PAGES, page
from tests.test_benchmark_check import MADE
from tests.test_benchmark_results import GUIDELLM

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for name in PAGES:
        (tmp_path / f"{name}.prom").write_text(page(name))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    assert main([*map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(found, dict)
    return found


def test_read_one_page(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "read", saved / "0.32.0-load.prom")
    assert (found["engine"], found["version_range"], found["version_low"]) == ("vllm", "0.32-0.33", "0.32.0")
    [engine] = found["engines"]
    expected = {
        "engine": "0",
        "model_name": "./tiny",
        "kv_usage": 0.03565323565323564,
        "running": 48,
        "waiting": 0,
        "preemptions_total": 0,
        "num_gpu_blocks": 4096,
        "block_size": 128,
        "kv_cache_dtype": "auto",
        "kv_cache_size_tokens": 524288,
        "used_blocks": 146,
        "used_tokens": 18688,
        "swapped": None,
    }
    assert {key: engine[key] for key in expected} == expected
    assert {
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_queries_total",
        "prefix_hits_total",
    } <= engine.keys()
    assert found["missing"]["swapped"] == "not in this version: vLLM reported it until 0.9.0"
    assert "window" not in found


@pytest.mark.parametrize("name", PAGES)
def test_every_null_has_its_reason(name: str, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "read", saved / f"{name}.prom")
    for engine in found["engines"]:
        assert {key for key, value in engine.items() if value is None} <= found["missing"].keys()


def test_read_two_pages(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "read", saved / "0.32.0-dp2-start.prom", saved / "0.32.0-dp2-load.prom", "--seconds", 5)
    first, second = found["window"]
    assert (first["engine"], first["seconds"], first["restarted"]) == ("0", 5.0, False)
    assert (first["output_tokens_per_s"], second["output_tokens_per_s"]) == (46.2, 9.8)
    assert first["ttft_p99_low_s"] <= first["ttft_p99_s"] <= first["ttft_p99_high_s"]
    assert (first["ttft_p99_low_s"], first["ttft_p99_high_s"]) == (0.1, 0.25)
    assert second["tpot_p50_s"] is None
    assert second["missing"]["tpot_p50_s"] == "nothing observed in these 5 s"


def test_what_only_some_servers_do_has_its_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over 10 s: 100 drafts of 3 with 150 accepted, 2 GB out and 0.5 GB back, 40 TFLOP, 4 refused, a block for 3 s."""
    counts = {
        'spec_decode_num_drafts_total{engine="0"': 100,
        'spec_decode_num_draft_tokens_total{engine="0"': 300,
        'spec_decode_num_accepted_tokens_total{engine="0"': 150,
        'spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"': 90,
        'spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"': 60,
        'kv_offload_store_bytes_total{engine="0"': 2e9,
        'kv_offload_load_bytes_total{engine="0"': 5e8,
        'kv_offload_tiering_write_bytes_total{engine="0",tier="disk"': 1e9,
        'estimated_flops_per_gpu_total{engine="0"': 4e13,
        'admission_rejections_total{reason="max_num_queued_reqs"': 4,
        'prompt_tokens_by_source_total{engine="0",source="local_compute"': 70,
        'kv_block_lifetime_seconds_bucket{engine="0",le="2"': 0,
        'kv_block_lifetime_seconds_bucket{engine="0",le="5"': 8,
        'kv_block_lifetime_seconds_bucket{engine="0",le="+Inf"': 8,
    }
    pages = tmp_path / "a.prom", tmp_path / "b.prom"
    for path, times in zip(pages, (1, 2), strict=True):
        waiting = 'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 3\n'
        path.write_text(waiting + "".join(f"vllm:{name}}} {times * count}\n" for name, count in counts.items()))
    found = answer(capsys, "read", *pages, "--seconds", 10)
    [engine], [row] = found["engines"], found["window"]
    assert engine["waiting_by_reason"] == {"capacity": 3}
    expected = {
        "spec_acceptance_rate": 0.5,
        "tokens_per_draft": 2.5,
        "spec_accepted_by_position": {"0": 90, "1": 60},
        "offload_store_bytes_per_s": 2e8,
        "offload_load_bytes_per_s": 5e7,
        "tier_write_bytes": {"disk": 1e9},
        "flops_per_s": 4e12,
        "rejections_per_s": 0.4,
        "rejections_by_reason": {"max_num_queued_reqs": 4},
        "prompt_tokens_by_source": {"local_compute": 70},
        "block_lifetime_count": 8,
        "block_lifetime_p50_s": 3.5,
        "block_lifetime_p50_low_s": 2,
        "block_lifetime_p50_high_s": 5,
        "tier_read_bytes": None,
    }
    assert {key: row[key] for key in expected} == expected
    assert row["missing"]["tier_read_bytes"] == "only with an offloading connector with tiers"
    assert main(["read", *map(str, pages), "--seconds", "10"]) == 0
    text = capsys.readouterr().out
    assert "50 % accepted, 2.50 tokens each" in text
    assert "200 MB/s out, 50 MB/s back" in text


def test_a_page_that_powershell_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.prom"
    path.write_text('vllm:num_requests_running{engine="0"} 7\r\n', encoding="utf-16")
    assert answer(capsys, "read", path)["engines"][0]["running"] == 7


def test_above_the_last_bucket_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = tmp_path / "a.prom", tmp_path / "b.prom"
    for path, slow in zip(pages, (0, 5), strict=True):
        path.write_text(
            'vllm:time_to_first_token_seconds_bucket{engine="0",le="2.5"} 1\n'
            f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {1 + slow}\n'
        )
    [engine] = answer(capsys, "read", *pages, "--seconds", 1)["window"]
    assert (engine["ttft_p99_s"], engine["ttft_p99_low_s"], engine["ttft_p99_high_s"]) == (2.5, 2.5, "+Inf")
    assert main(["read", *map(str, pages), "--seconds", "1"]) == 0
    assert "p99 above 2.5 s (the last bucket)" in capsys.readouterr().out


def test_text_is_for_people(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = [str(saved / f"0.32.0-{moment}.prom") for moment in ("dp2-start", "dp2-load")]
    assert main(["read", *pages, "--seconds", "5"]) == 0
    text = capsys.readouterr().out
    assert "vLLM 0.32-0.33, 2 engines" in text
    assert "10 of 4,095" in text
    assert "engine 0, over 5 s" in text
    assert "about 29.8 % (estimate)" in text
    assert "not in this version" in text


@pytest.mark.parametrize("kind", OTHERS)
def test_other_engines(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.prom"
    path.write_text(OTHERS[kind])
    found = answer(capsys, "read", path)
    assert found["engine"] == kind
    assert all(engine["kv_usage"] is engine["running"] is None for engine in found["engines"])
    assert main(["read", str(path)]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["read", "no-such-file.prom"],
        ["read", "."],
        ["read", "a.prom", "b.prom"],
        ["snapshot", "ftp://host"],
        ["snapshot", "127.0.0.1:1"],
        ["snapshot", "127.0.0.1:1", "--seconds", "0"],
        ["calibrate", "plan.json", "127.0.0.1:1", "--write", "/no/such/folder/c.json"],
        ["calibrate", "plan.json", "127.0.0.1:1", "--name", " "],
    ],
)
def test_trouble_is_one_line_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("monitor: ")
    assert printed.err.count("\n") == 1


def test_snapshot_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Twice, with a second page of 50 tokens more, and the version that the server says."""
    tokens = count(0, 50)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {next(tokens)}\n'
            body = b'{"version": "0.32.0"}' if self.path == "/version" else text.encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        found = answer(capsys, "snapshot", f"127.0.0.1:{server.server_port}", "--seconds", 0.2)
        server.shutdown()
    [engine] = found["window"]
    assert found["version_range"] == "0.32.0"
    assert engine["output_tokens_per_s"] == pytest.approx(50 / engine["seconds"])
    assert 0.2 <= engine["seconds"] < 2


def test_it_runs_as_a_module_and_starts_quickly(saved: Path) -> None:
    """Under 0.3 s of CPU, twice that allowed for a busy machine."""
    code = (
        "import resource, sys; from monitor.__main__ import main; sys.argv[0] = 'monitor';"
        "main(['read', sys.argv[1]]); use = resource.getrusage(resource.RUSAGE_SELF);"
        "print(use.ru_utime + use.ru_stime, file=sys.stderr)"
    )
    path = str(saved / "0.32.0-load.prom")
    timed = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(timed.stderr) < 0.6
    plain = subprocess.run(
        [sys.executable, "-m", "monitor", "read", path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert plain.stdout == timed.stdout


def test_a_pool_of_unknown_size_is_one_dash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Some servers say `num_gpu_blocks="None"`; what is known of two is still said."""
    path = tmp_path / "page.prom"
    path.write_text(
        'vllm:num_requests_running{engine="0"} 3\n'
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None",kv_cache_size_tokens="1600"} 1\n'
    )
    assert main(["read", str(path)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "KV blocks    -" in lines
    assert "KV tokens    - of 1,600" in lines


def test_a_password_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "http://ann:pa55@127.0.0.1:99999"]) == 2
    assert "found 'http://127.0.0.1:99999'" in (said := capsys.readouterr().err)
    assert "pa55" not in said


@pytest.fixture
def benchmark(tmp_path: Path) -> tuple[Path, Path]:
    """A plan of steps of 10 ms, within 10 %, and twice the result of GuideLLM: 20.4 ms and 48.9 tokens/s."""
    (tmp_path / "plan.json").write_text(json.dumps(to_json(MADE)))
    (tmp_path / "result.json").write_text(json.dumps({**GUIDELLM, "benchmarks": GUIDELLM["benchmarks"] * 2}))
    return tmp_path / "plan.json", tmp_path / "result.json"


def test_a_benchmark_is_held_against_a_plan(benchmark: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = answer(capsys, "benchmark", *benchmark)["benchmarks"]
    assert first == second
    assert first["context"].startswith("GuideLLM: 26 requests to Qwen/Qwen3-4B-Thinking-2507; ")
    assert "108 in + 1,024 out, 1 at once" in first["context"]
    assert first["verdict"] == "Not as planned"
    _, tpot, rate = first["deviations"]
    assert (tpot["quantity"], tpot["planned"], tpot["off"]) == ("tpot_s", pytest.approx(0.01), True)
    assert (tpot["planned_low"], tpot["planned_high"]) == (pytest.approx(0.009), pytest.approx(0.011))
    assert (tpot["actual"], tpot["ratio"]) == (pytest.approx(0.0203793, rel=1e-5), pytest.approx(2.03793, rel=1e-5))
    assert rate["actual"] == pytest.approx(48.9282)
    assert main(["benchmark", *map(str, benchmark)]) == 0
    once, again = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert once == again
    context, verdict, _, line, _ = once.split("\n")
    assert context == first["context"]
    assert verdict.startswith("Not as planned: ttft_s is 192 % of the plan.")
    assert line.split()[:9] == ["tpot_s", "0.01", "(0.009", "to", "0.011)", "0.02038", "s", "204", "%"]


def test_what_is_no_benchmark_is_one_line_and_status_2(
    benchmark: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    plan, result = benchmark
    picture = plan.with_name("picture.json")
    picture.write_text("\x89PNG\r\n")
    (deep := plan.with_name("deep.json")).write_text("[" * 100_000)
    for arguments, said in (
        ((plan, plan.with_name("none.json")), "file: found"),
        ((plan, picture), "file: found 'no JSON: Expecting value at line 1, column 1', accepted: JSON of"),
        ((plan, plan), "file: found 'a dict with"),
        ((result, result), "inputs: found None"),
        ((picture, result), "plan: found"),
        ((deep, result), "plan: found"),
        ((plan,), "the following arguments are required: result"),
    ):
        assert main(["benchmark", *map(str, arguments)]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert printed.err.startswith(f"monitor: {said}")
