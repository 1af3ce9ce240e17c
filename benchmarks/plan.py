"""What a plan costs to make: in process, and through the command line. Medians; the machine is whatever it is.

python benchmarks/plan.py
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace

from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.gpu import gpu_named
from planner.plan import plan
from planner.workload import Workload

# Compiled modules are kept, as on any user's machine.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ROUNDS, RUNS = 2_000, 7
COMMAND = [sys.executable, "-m", "planner", "plan", "llama-3-8b", "--gpu", "A100-SXM-80GB", "--json"]


def main() -> None:
    model, deployment = model_named("llama-3-8b"), Deployment(gpu=gpu_named("A100-SXM-80GB"))
    loads = [Workload(input_tokens=1_000 + step) for step in range(ROUNDS)]
    print(f"one plan, another load each time   {_microseconds(lambda i: plan(model, deployment, loads[i])):8.1f} µs")
    lengths = [replace(deployment, max_model_len=4_096 + step) for step in range(ROUNDS)]
    print(f"one plan, another deployment each  {_microseconds(lambda i: plan(model, lengths[i])):8.1f} µs")
    print(f"command line, CPU                  {_cpu_seconds(COMMAND):8.3f} s")
    bare = _cpu_seconds([sys.executable, "-c", "import argparse, json"])
    print(f"  of it, Python alone              {bare:8.3f} s")


def _microseconds(call: object) -> float:
    times = []
    for step in range(ROUNDS):
        start = time.perf_counter()
        call(step)  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _cpu_seconds(command: list[str]) -> float:
    spent = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return statistics.median(spent)


if __name__ == "__main__":
    main()
