"""How fast torch copies, reads and multiplies here: a line of JSON for the CPU, or for each kind of CUDA device.

Run by the engine's interpreter, which has torch; planner.measurement starts it and reads what it prints.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import torch

LEAST_RUNS, PATIENCE = 3, 4.0  # [runs], and how long one quantity may take once it has them [s]
# Larger than caches, and large enough that starting the work costs nothing.
COPIED = {"cpu": 2**29, "cuda": 2**31}  # [bytes]
SIDE = {"cpu": 2048, "cuda": 8192}  # of the square matrices
SMALL_SIDE, SLOW = 256, 0.5  # sides double from the first, as long as a product takes less than this  [s]


def main() -> None:
    parser = argparse.ArgumentParser(description="Bandwidth and arithmetic of this machine, as JSON lines.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=int, default=9, help="of each quantity at most")
    parser.add_argument("--copied", type=int, help="bytes of the copied tensor")
    parser.add_argument("--side", type=int, help="rows and columns of the matrices")
    given = parser.parse_args()
    copied, side = given.copied or COPIED[given.device], given.side or SIDE[given.device]
    for device, about in devices(given.device):
        found = {
            "copy_bytes_per_s": copies(device, copied, given.runs),
            "read_bytes_per_s": reads(device, copied, given.runs),
            "flop_per_s": dict(products(device, side, given.runs)),
        }
        print(json.dumps(about | found | {"torch": torch.__version__, "date": date.today().isoformat()}), flush=True)


def devices(kind: str) -> Iterator[tuple[torch.device, dict[str, Any]]]:
    """The CPU, or the first CUDA device of each name, with what torch and the system say about it."""
    if kind == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        about = {"processor": processor(), "threads": torch.get_num_threads(), "compute_capability": None}
        yield torch.device("cpu"), {"name": "cpu", "vendor": "cpu", "memory": memory} | about
        return
    seen = set()
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        if found.name not in seen:
            seen.add(found.name)
            vendor, capability = ("amd", None) if torch.version.hip else ("nvidia", f"{found.major}.{found.minor}")
            about = {"processor": found.name, "threads": 0, "compute_capability": capability}
            yield (
                torch.device("cuda", index),
                {"name": found.name, "vendor": vendor, "memory": found.total_memory} | about,
            )


def processor() -> str:
    """What the CPU calls itself, with the matrix and 16-bit extensions that it has."""
    try:
        pairs = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
        said = {key.strip(): value.strip() for key, _, value in pairs}
    except OSError:
        return "CPU"
    flags = [flag for flag in said.get("flags", "").split() if flag.startswith(("amx", "avx512_bf16", "avx512f"))]
    return ", ".join([said.get("model name", "CPU"), *flags])


def copies(device: torch.device, size: int, runs: int) -> list[float]:
    """Bytes read and written a second, of copying a tensor to another: twice its size each time."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return rates(device, 2.0 * size, lambda: target.copy_(source), runs)


def reads(device: torch.device, size: int, runs: int) -> list[float]:
    """Bytes read a second, of adding up a tensor."""
    source = torch.ones(size // 4, device=device)
    return rates(device, size, source.sum, runs)


def products(device: torch.device, side: int, runs: int) -> Iterator[tuple[str, list[float]]]:
    """FLOP a second of square matrix products, by dtype; a dtype that torch does not multiply here is left out."""
    has_bfloat16 = device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    one = torch.ones((), device=device)

    def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)

    kinds: tuple[tuple[str, torch.dtype, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]], ...] = (
        ("float32", torch.float32, torch.mm),
        ("bfloat16", torch.bfloat16 if has_bfloat16 else torch.float16, torch.mm),
        ("int8", torch.int8, torch._int_mm),
        ("fp8", torch.float8_e4m3fn, scaled),
    )
    for name, dtype, multiply in kinds:
        with suppress(RuntimeError, NotImplementedError):
            yield name, product_rates(device, dtype, multiply, side, runs)


def product_rates(
    device: torch.device,
    dtype: torch.dtype,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    side: int,
    runs: int,
) -> list[float]:
    """FLOP a second of products of matrices of up to this side: smaller where a dtype has no fast kernel."""
    tried = min(side, SMALL_SIDE)
    while True:
        a = torch.randn(tried, tried, device=device).to(dtype)
        found = rates(device, 2.0 * tried**3, lambda a=a: multiply(a, a.t()), runs)
        if tried >= side or 2.0 * (2 * tried) ** 3 / max(found) > SLOW:
            return found
        tried *= 2


def rates(device: torch.device, work: float, do: Callable[[], object], runs: int) -> list[float]:
    """Work done a second, of each run after a first one that is not counted."""
    finish = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    do()
    finish(device)
    found: list[float] = []
    begin = time.perf_counter()
    while len(found) < runs and (len(found) < LEAST_RUNS or time.perf_counter() - begin < PATIENCE):
        start = time.perf_counter()
        do()
        finish(device)
        found.append(work / (time.perf_counter() - start))
    return found


if __name__ == "__main__":
    main()
