"""Time per output token on this machine's CPU, predicted and measured on a real vLLM: the text of docs/accuracy_cpu.md.

PYTHONPATH=. python benchmarks/cpu_accuracy.py > docs/accuracy_cpu.md

Takes a few minutes: the device is measured, then two models are served in turn. Needs the engine (`make engine`).
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import requests

from monitor import metrics
from monitor.engine import INTERPRETER, Engine, serving
from monitor.reading import read
from monitor.scrape import scrape
from monitor.snapshot import Snapshot
from monitor.tiny_model import CONFIG, write_tiny_model
from monitor.window import window
from planner.deployment import Deployment
from planner.families import model_spec
from planner.gpu import Gpu, gpu_from
from planner.latency import Latency
from planner.measurement import measured
from planner.plan import Plan, plan
from planner.units import duration
from planner.workload import Workload

PORT = 8191
STREAMS = (1, 4, 16)
INPUT, OUTPUT, ROUNDS = 128, 64, 2  # [tokens], [tokens], requests of each stream
# Read by both sides: the plan's deployment and the server's flags.
FLAGS: dict[str, Any] = {
    "enforce_eager": True,
    "max_model_len": 1024,
    "kv_cache_memory_bytes": 2**29,  # many times what 16 requests of either model take
    "enable_prefix_caching": False,
}
# 10 layers of 15.2 million parameters.
LARGE = {
    "hidden_size": 1024, "num_hidden_layers": 10, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 4096,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load on one model.

    streams    requests in flight  [requests]
    predicted  what the plan says
    server     mean of the server's own histogram  [s]
    client     mean of what clients saw between their first token and their last  [s]
    busy       load average of the machine just before  [processes]
    """

    streams: int
    predicted: Latency
    server: float
    client: float
    busy: float

    @property
    def line(self) -> str:
        tpot, step = self.predicted.tpot_s, self.predicted.step
        host = duration(step.fixed)
        cells = (
            f"{self.streams}", duration(tpot.value), f"{duration(tpot.low)} to {duration(tpot.high)}", host,
            duration(self.predicted.floor_tpot_s), duration(self.server), duration(self.client),
            f"{self.server / tpot.value:.2f}", f"{self.busy:.1f}",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def main() -> None:
    if not INTERPRETER.exists():
        sys.exit("cpu_accuracy: no engine: `make engine` installs one")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the engine is ended, too
    (device,) = measured(arguments=["--device", "cpu"])
    gpu = gpu_from(device.entry)
    print(HEAD.format(date=device.date, input=INPUT, output=OUTPUT, rounds=ROUNDS, cores=os.cpu_count()))
    print("```", *device.lines, "```", sep="\n")
    for title, changes in (("The tiny model", {}), ("A model that memory bandwidth bounds", LARGE)):
        config = CONFIG | changes
        planned = [_plan(config, gpu, streams) for streams in STREAMS]
        print(f"\n## {title}\n\n{planned[0].weights[0].total / 1e6:,.0f} MB of weights in bfloat16.\n\n{TABLE}")
        for row in _rows(config, planned):
            print(row.line, flush=True)
    print(WHY, end="")


def _plan(config: dict[str, Any], gpu: Gpu, streams: int) -> Plan:
    load = Workload(input_tokens=INPUT, output_tokens=OUTPUT, concurrency=streams)
    return plan(model_spec(config, "random"), Deployment(gpu=gpu, **FLAGS), load)


def _rows(config: dict[str, Any], planned: Sequence[Plan]) -> Iterator[Row]:
    """The planned loads on a real server, one after the other, after one round that is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "random")
        (model / "config.json").write_text(json.dumps(config))
        flags = FLAGS | {"load_format": "dummy", "served_model_name": "random"}
        with serving(Engine(model=model, port=PORT, flags=flags)) as url:
            _client_tpots(url, max(STREAMS), rounds=1)
            for made, streams in zip(planned, STREAMS, strict=True):
                assert made.latency is not None
                busy, before = os.getloadavg()[0], _snapshot(url)
                seen = _client_tpots(url, streams, ROUNDS)
                engine = window(before, _snapshot(url)).engines[0]
                server = engine.mean(metrics.TPOT)
                assert server is not None, engine.reason(metrics.TPOT)
                yield Row(streams=streams, predicted=made.latency, server=server, client=mean(seen), busy=busy)


def _snapshot(url: str) -> Snapshot:
    page = scrape(url)
    assert page.ok, page.message
    return read(page.text, at=time.monotonic())


def _client_tpots(url: str, streams: int, rounds: int) -> list[float]:
    """Seconds per output token of every request, with this many always in flight  [s]."""
    with ThreadPoolExecutor(streams) as clients:
        each = clients.map(lambda seed: [_tpot(url, random.Random(f"{seed} {turn}")) for turn in range(rounds)],
                           range(streams))  # fmt: skip
        return [tpot for tpots in each for tpot in tpots]


def _tpot(url: str, chance: random.Random) -> float:
    """Time between tokens of one streamed completion, first to last  [s]."""
    prompt = [chance.randrange(2, 256) for _ in range(INPUT)]
    body = {"prompt": prompt, "max_tokens": OUTPUT, "ignore_eos": True, "stream": True}
    with requests.post(f"{url}/v1/completions", json=body, stream=True, timeout=300) as answer:
        answer.raise_for_status()
        arrived = [time.perf_counter() for line in answer.iter_lines() if line.startswith(b"data: {")]
    return (arrived[-1] - arrived[0]) / (OUTPUT - 1)


HEAD = """# Speed on a CPU: predicted and measured

Printed by `PYTHONPATH=. python benchmarks/cpu_accuracy.py` on {date}. `python -m planner measure-device` tells the
planner how fast this machine copies and multiplies; everything else in the prediction was fitted on GPUs, so that its
range is that of an unseen device. Measured is vLLM 0.32's CPU build with random weights: eager mode, prompts of
{input} random tokens, {output} generated, {rounds} requests of each stream, no prefix cache.

“Server” is the mean of the server's own histogram of time per output token, “Client” that of the streamed tokens'
arrival, “Ratio” is server over predicted. “Fixed” is the part of a predicted step that does not depend on the size of
the model's matrices, “Busy” the load average before each run: {cores} cores are shared by clients, server and others.
"""
TABLE = """| Streams | Predicted | its range | of it fixed | floor | Server | Client | Ratio | Busy |
|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""
WHY = """
## Why they differ

A step of the tiny model is the host's own time (scheduling, launching operators, sampling, HTTP), nearly the same
whatever the streams, and larger on two shared cores than on the GPU servers whose constants the prediction takes. A
step of the larger model is reading weights: it follows the memory bandwidth, which on this virtual machine changed
between one measurement and the next (medians of 3 to 11 GB/s within an hour on 2026-11-29), so measure on a quiet one.
"""

if __name__ == "__main__":
    main()
