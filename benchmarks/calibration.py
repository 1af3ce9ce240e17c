"""A calibration on a real vLLM, and how far it is off on later windows at other loads: a part of docs/accuracy.md.

PYTHONPATH=. python benchmarks/calibration.py

Takes about six minutes: the device is measured, the tiny model is served, four loads are learnt from, three others are
held against what was learnt, and the four sent again show how much the machine itself changed meanwhile. Needs the
engine (`make engine`).
"""

import datetime
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from monitor.calibrate import accuracy, calibration, steady, windows
from monitor.engine import INTERPRETER, Engine, serving
from monitor.reading import read
from monitor.scrape import scrape
from monitor.snapshot import Snapshot
from monitor.tiny_model import CONFIG, SERVED, write_tiny_model
from monitor.traffic import Traffic
from planner.deployment import Deployment
from planner.families import model_spec
from planner.gpu import gpu_from
from planner.measurement import measured
from planner.plan import plan
from planner.units import duration, share
from planner.workload import Workload
from scripts import load
from scripts.load import Request

PORT = 8192
WINDOW, WINDOWS = 4.0, 5  # [s], windows of each load
FLAGS: dict[str, Any] = {"enforce_eager": True, "max_model_len": 2048, "kv_cache_memory_bytes": 2**28}
LEARNT = [
    (2, Request(prompt_tokens=100, output_tokens=60, shared=0.0)),
    (24, Request(prompt_tokens=300, output_tokens=100, shared=0.0)),
    (8, Request(prompt_tokens=600, output_tokens=200, shared=0.0)),
    (16, Request(prompt_tokens=50, output_tokens=150, shared=0.0)),
]
LATER = [
    (4, Request(prompt_tokens=200, output_tokens=120, shared=0.0)),
    (12, Request(prompt_tokens=400, output_tokens=80, shared=0.0)),
    (32, Request(prompt_tokens=150, output_tokens=100, shared=0.0)),
]


def main() -> None:
    if not INTERPRETER.exists():
        sys.exit("calibration: no engine: `make engine` installs one")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the engine is ended, too
    os.environ["OMP_NUM_THREADS"] = "1"  # a core of two for server and clients, so that speed stays the same
    (device,) = measured(arguments=["--device", "cpu"])
    deployment = Deployment(gpu=gpu_from(device.entry), **FLAGS)
    made = plan(model_spec(CONFIG, "tiny"), deployment, Workload(input_tokens=300, output_tokens=100, concurrency=16))
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(model=write_tiny_model(Path(folder) / "tiny"), port=PORT, flags=SERVED | FLAGS)
        with serving(engine) as url:
            seen(url, *LEARNT[0])  # warm-up
            learnt = [seen(url, *asked) for asked in LEARNT]
            found = calibration(made, [*chain(*learnt)], "benchmark", datetime.date.today().isoformat())
            later = [traffic for asked in LATER for traffic in seen(url, *asked)]
            again = [seen(url, *asked) for asked in LEARNT]
    terms = ", ".join(
        f"{term.removesuffix('_s')} {duration(getattr(found, term))} ± {duration(found.errors.get(term, 0.0))}"
        for term in ("step_s", "sequence_s", "token_s", "prompt_token_s")
    )
    print(
        f"{found.windows} windows, {found.seconds:.0f} s: {terms}; to the first token {duration(found.first_s)} more.\n"
    )
    print("| Metric | Later windows | Error before | Error after | In its range |\n|---|--:|--:|--:|--:|")
    for each in accuracy(made, found, later):
        before = "no prediction" if each.before is None else share(each.before)
        print(f"| {each.metric} | {each.windows} | {before} | {share(each.after)} | {share(each.covered)} |")
    first, last = ([median(each.gap_s for each in load) for load in loads] for loads in (learnt, again))
    drift = ", ".join(f"{now / then:.2f}" for then, now in zip(first, last, strict=True))
    print(f"\nThe machine itself: TPOT of the four loads when sent again, over what it was: {drift}.")


def seen(url: str, concurrency: int, request: Request) -> Sequence[Traffic]:
    """The traffic of one load, window by window, once it is steady."""
    stop = load.start(url, concurrency=concurrency, request=request)
    try:
        time.sleep(4)
        pages = [page(url)]
        for _ in range(WINDOWS):
            time.sleep(WINDOW)
            pages.append(page(url))
    finally:
        stop.set()
    drained = time.monotonic() + 120
    while (page(url).engines[0].running or 0) > 0 and time.monotonic() < drained:
        time.sleep(0.5)
    return steady(windows(pages, seconds=WINDOW / 2))


def page(url: str) -> Snapshot:
    found = scrape(url)
    assert found.ok, found.message
    return read(found.text, at=time.monotonic())


if __name__ == "__main__":
    main()
