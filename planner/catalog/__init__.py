"""Facts with source and date, one JSON object a line: gpus.jsonl, prices.jsonl and the models.

gpus.jsonl    memory_gib: [least, middle, most] of what drivers report to torch, not the marketing size;
              memory_bandwidth_gb_s and link_gb_s (one direction) in GB/s; peak_tflops: dense matrix peaks;
              measured_tflops and measured_gb_s: what a large product and a large copy reached.
prices.jsonl  usd_per_gpu_hour as quoted, without commitment unless `kind` says otherwise.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@cache
def entries(name: str) -> tuple[dict[str, Any], ...]:
    """The lines of one catalog file, read once."""
    with (FOLDER / name).open(encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines)
