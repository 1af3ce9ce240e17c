"""The speed of the device at hand, measured with torch where the engine is installed, and kept as one's own device.

What is measured is what is reached: medians of several runs stand as `measured_…`. The best run stands for the peak
where no datasheet says it, so that the physical floor of a plan stays below whatever this device does on a good day.
"""

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from planner.catalog import entries
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.units import GB, GIB

INTERPRETER = Path(__file__).resolve().parent.parent / ".venv-engine" / "bin" / "python"  # what `make engine` installs
SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "measure_device.py"
PATIENCE = 300.0
"""How long measuring may take; torch alone takes up to a minute to load on a busy machine  [s]."""
_TERA = 1e12
_MATRIX_DTYPES = ("bfloat16", "fp8", "int8")  # those of planner.gpu.Gpu.peak_flops that torch multiplies


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One device, as torch found it. Rates are those of single runs, in the order of running.

    name                cpu, or what torch calls the device
    vendor              cpu, nvidia or amd
    processor           what it is, with the extensions that matter
    threads             that torch computes with on a CPU, 0 elsewhere  [threads]
    memory              total  [bytes]
    compute_capability  CUDA's, None where there is none
    copies              reading and writing together, of copying a large tensor  [bytes/s]
    reads               of adding up a large tensor  [bytes/s]
    flops               of large square matrix products, by dtype  [FLOP/s]
    torch               its version
    date                of the measurement
    """

    name: str
    vendor: str
    processor: str
    threads: int
    memory: int
    compute_capability: str | None
    copies: tuple[float, ...]
    reads: tuple[float, ...]
    flops: Mapping[str, tuple[float, ...]] = field(hash=False)
    torch: str
    date: str

    @property
    def entry(self) -> dict[str, Any]:
        """The device as a table of the catalog's format, which planner.gpu.gpu_from reads.

        Peaks are a datasheet's where the catalog knows the device by this name. Else they are the best runs, and of
        8-bit products only those faster than 16-bit ones: a device that unpacks gains nothing.
        """
        known = _catalog_entry(self.name)
        best = {dtype: max(self.flops[dtype]) / _TERA for dtype in _MATRIX_DTYPES if dtype in self.flops}
        peaks = {dtype: _four_digits(peak) for dtype, peak in best.items() if peak >= best["bfloat16"]}
        fastest = _four_digits(max(*self.copies, *self.reads) / GB)
        measured = f"{self.processor}, measured with torch {self.torch}"
        sheet = known["source"] + "; " if "peak_tflops" in known else ""
        table = {
            "name": self.name,
            "vendor": self.vendor,
            "architecture": known.get("architecture"),
            "memory_gib": None if self.vendor == "cpu" else round(self.memory / GIB, 2),  # a CPU's is read anew
            "memory_bandwidth_gb_s": known.get("memory_bandwidth_gb_s") or fastest,
            "peak_tflops": known.get("peak_tflops") or peaks,
            "measured_gb_s": _four_digits(median(self.copies) / GB),
            "measured_tflops": {dtype: _four_digits(median(runs) / _TERA) for dtype, runs in self.flops.items()},
            "link": known.get("link"),
            "link_gb_s": known.get("link_gb_s"),
            "compute_capability": self.compute_capability,
            "tdp_w": known.get("tdp_w"),
            "source": sheet + measured,
            "date": self.date,
        }
        return {key: value for key, value in table.items() if value is not None}

    @property
    def lines(self) -> Iterator[str]:
        """For a person: each quantity's median and the range of its runs."""
        threads = f", {self.threads} threads" if self.threads else ""
        yield f"{self.name}: {self.processor}{threads}, {self.memory / GIB:.1f} GiB, torch {self.torch}, {self.date}"
        yield _line("copy, read + write", self.copies, GB, "GB/s")
        yield _line("read", self.reads, GB, "GB/s")
        for dtype, runs in self.flops.items():
            yield _line(f"matrix product, {dtype}", runs, _TERA, "TFLOP/s")


def measured(python: Path = INTERPRETER, arguments: Sequence[str] = ()) -> tuple[Measurement, ...]:
    """Measures the devices that torch sees in this interpreter: CUDA's where there are any, else the CPU.

    arguments  of scripts/measure_device.py

    Raises InputError where there is no such interpreter, or it does not measure.
    """
    command, wanted = [str(python), str(SCRIPT), *arguments], "an interpreter with torch: `make engine` installs one"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except OSError as problem:
        raise InputError("python", str(python), f"{wanted} ({problem.strerror})") from None
    except subprocess.TimeoutExpired:
        raise InputError("python", str(python), f"an interpreter that measures within {PATIENCE:.0f} s") from None
    if done.returncode or not done.stdout:
        last = (done.stderr.strip().splitlines() or ["it found no such device"])[-1]
        raise InputError("python", str(python), f"{wanted} ({last})")
    return tuple(measurements(done.stdout.splitlines()))


def measurements(lines: Iterable[str]) -> Iterator[Measurement]:
    """What scripts/measure_device.py printed. Raises InputError where a line is something else."""
    for line in lines:
        try:
            said = json.loads(line)
            runs = {dtype: tuple(rates) for dtype, rates in said.pop("flop_per_s").items()}
            copies, reads = (tuple(said.pop(f"{what}_bytes_per_s")) for what in ("copy", "read"))
            if not (copies and reads and runs["bfloat16"]):
                raise ValueError(line)
            yield Measurement(**said, copies=copies, reads=reads, flops=runs)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError("measurement", line[:60], "a line of scripts/measure_device.py") from None


def _catalog_entry(name: str) -> Mapping[str, Any]:
    try:
        known = gpu_named(name).name
    except InputError:
        return {}
    return next(entry for entry in entries("gpus.jsonl") if entry["name"] == known)


def _line(what: str, runs: Sequence[float], unit: float, name: str) -> str:
    low, middle, high = (value / unit for value in (min(runs), median(runs), max(runs)))
    return f"  {what:<26} {middle:8.3g} {name:<8} ({low:.3g} to {high:.3g} in {len(runs)} runs)"


def _four_digits(value: float) -> float:
    """
    >>> _four_digits(0.43047912), _four_digits(4813.46)
    (0.4305, 4813.0)
    """
    return float(f"{value:.4g}")
