"""Gpu: one accelerator as its datasheet describes it, and the catalog of them."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog import entries
from planner.errors import InputError, whole_number
from planner.units import GB, GIB

AMX = "amx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator (dense peaks, no sparsity).

    name                the datasheet's product name
    vendor              nvidia, amd, intel, google, huawei or cpu
    architecture        ampere, hopper, blackwell, cdna3, …; amx where this machine's CPU multiplies matrices
    memory              what the driver reports as total, the middle of what was seen  [bytes]
    memory_low          the least that was seen  [bytes]
    memory_high         the most that was seen  [bytes]
    memory_bandwidth    peak, 0 where it is unknown  [bytes/s]
    peak_flops          matrix peak by dtype: bfloat16 (any 16-bit float), fp8, int8, fp4  [FLOP/s]
    link_bandwidth      to the other GPUs of a node, one direction, a GPU  [bytes/s]
    link                NVLink4, PCIe4, …
    compute_capability  CUDA's (major, minor), None where there is none  [version]
    tdp                 board power  [W]
    source              where the numbers come from, and when read
    measured_flops      what a large matrix product reached, by dtype, where published  [FLOP/s]
    measured_bandwidth  what a large copy reached, where published  [bytes/s]
    note                what to know before using the numbers
    aliases             other names it goes by
    """

    name: str
    vendor: str
    architecture: str
    memory: int
    memory_low: int
    memory_high: int
    memory_bandwidth: float
    peak_flops: Mapping[str, float] = field(hash=False)
    link_bandwidth: float
    link: str
    compute_capability: tuple[int, int] | None
    tdp: float | None
    source: str
    measured_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    measured_bandwidth: float | None = None
    note: str = ""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("memory_low", "memory", "memory_high"):
            whole_number(f"gpu.{name}", getattr(self, name), most=2**60, is_optional=False)

    @property
    def is_cpu(self) -> bool:
        """Runs vLLM's CPU backend, whose KV pool is VLLM_CPU_KVCACHE_SPACE and not a share of memory."""
        return self.vendor == "cpu"


@cache
def gpus() -> tuple[Gpu, ...]:
    """Every device of the catalog, the CPU of this machine last."""
    return tuple(gpu_from(entry) for entry in entries("gpus.jsonl"))


def gpu_named(name: str, own: Sequence[Gpu] = ()) -> Gpu:
    """The device of that name or alias, whatever its case and punctuation; the user's own devices win.

    >>> gpu_named("h100").name, gpu_named("A100-80GB").name, gpu_named("rtx-4090").name, gpu_named("CPU").name
    ('H100-SXM', 'A100-SXM-80GB', 'RTX 4090', 'cpu')

    Raises InputError, which lists near names.
    """
    for device in own:
        if plain(name) in _names(device):
            return device
    if plain(name) in _by_name():
        return _by_name()[plain(name)]
    known = [device.name for device in (*own, *gpus())]
    near = [each for each in known if plain(name) and plain(name) in plain(each)]
    near = near or get_close_matches(name, known, n=4, cutoff=0.4) or known
    raise InputError("gpu", name, "one of " + ", ".join(near))


def plain(name: str) -> str:
    """A device's name without case, punctuation and the words that say nothing.

    >>> plain("NVIDIA GeForce RTX 4090"), plain("H100-SXM5")
    ('rtx4090', 'h100sxm5')
    """
    words = re.sub(r"\b(nvidia|geforce|tesla|amd|instinct|intel|google|huawei)\b", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", words)


@cache
def _by_name() -> dict[str, Gpu]:
    return {name: device for device in gpus() for name in _names(device)}


def _names(device: Gpu) -> tuple[str, ...]:
    return tuple(plain(name) for name in (device.name, *device.aliases))


_TEXT = {"vendor": "", "architecture": "", "link": "PCIe4", "source": "the user's own", "note": ""}
_PCIE4_GB_S = 32.0  # an ordinary slot, where the user's own device states no link
_KEYS = frozenset({*_TEXT, "name", "aliases", "memory_gib", "memory_bandwidth_gb_s", "peak_tflops", "measured_tflops",
                   "measured_gb_s", "link_gb_s", "compute_capability", "tdp_w", "date"})  # fmt: skip


def gpu_from(entry: Mapping[str, Any]) -> Gpu:
    """A device from one table in the catalog's format (see planner.catalog), in base units.

    Needs name, memory_gib (a number, or [least, middle, most]), memory_bandwidth_gb_s and peak_tflops with bfloat16.
    Raises InputError naming the key.
    """
    name = entry.get("name")
    if not isinstance(name, str) or not plain(name):
        raise InputError("gpus.name", name, "the name of the device")
    where = f"gpus[{name}]"
    for key in entry:
        if key not in _KEYS:
            raise InputError(f"{where}.{key}", entry[key], "one of " + ", ".join(sorted(_KEYS)))
    text = {key: _text(entry, key, where, default) for key, default in _TEXT.items()}
    low, middle, high = _memory(entry, where)
    peaks, measured = _flops(entry, "peak_tflops", where), entry.get("measured_gb_s")
    if "bfloat16" not in peaks and not _is_unmeasured_cpu(entry):
        raise InputError(f"{where}.peak_tflops", entry.get("peak_tflops"), "a table with at least bfloat16, in TFLOP/s")
    return Gpu(
        name=name,
        vendor=text["vendor"],
        architecture=AMX if text["vendor"] == "cpu" and _has_amx() else text["architecture"],
        memory=middle,
        memory_low=low,
        memory_high=high,
        memory_bandwidth=_bandwidth(entry, where),
        peak_flops=peaks,
        link_bandwidth=_positive(entry.get("link_gb_s", _PCIE4_GB_S), f"{where}.link_gb_s", "GB/s") * GB,
        link=text["link"],
        compute_capability=_capability(entry.get("compute_capability"), where),
        tdp=None if "tdp_w" not in entry else _positive(entry["tdp_w"], f"{where}.tdp_w", "W"),
        source=", read ".join(filter(None, (text["source"], str(entry.get("date", ""))))),
        measured_flops=_flops(entry, "measured_tflops", where),
        measured_bandwidth=None if measured is None else _positive(measured, f"{where}.measured_gb_s", "GB/s") * GB,
        note=text["note"],
        aliases=tuple(str(alias) for alias in entry.get("aliases", ())),
    )


def _has_amx() -> bool:
    """Whether this machine's CPU has Intel's matrix extension, for which vLLM has kernels of its own."""
    try:
        return "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def _is_unmeasured_cpu(entry: Mapping[str, Any]) -> bool:
    """The CPU this runs on has no datasheet here: its speed is unknown until it has been measured."""
    return entry.get("vendor") == "cpu" and "memory_bandwidth_gb_s" not in entry


def _bandwidth(entry: Mapping[str, Any], where: str) -> float:
    """Peak memory bandwidth, 0 where it is unknown  [bytes/s]."""
    if _is_unmeasured_cpu(entry):
        return 0.0
    return _positive(entry.get("memory_bandwidth_gb_s"), f"{where}.memory_bandwidth_gb_s", "GB/s") * GB


def _positive(value: object, where: str, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(where, value, f"a number above 0, in {unit}")
    return float(value)


def _text(entry: Mapping[str, Any], key: str, where: str, default: str) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str):
        raise InputError(f"{where}.{key}", value, "text")
    return value


def _flops(entry: Mapping[str, Any], key: str, where: str) -> dict[str, float]:
    table = entry.get(key, {})
    if not isinstance(table, Mapping):
        raise InputError(f"{where}.{key}", table, "a table from dtype to TFLOP/s")
    return {dtype: _positive(value, f"{where}.{key}.{dtype}", "TFLOP/s") * 1e12 for dtype, value in table.items()}


def _memory(entry: Mapping[str, Any], where: str) -> tuple[int, int, int]:
    """Least, middle and most total memory  [bytes]; a CPU's is what this system reports."""
    if entry.get("vendor") == "cpu" and "memory_gib" not in entry:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total, total
    given = entry.get("memory_gib")
    sizes = given if isinstance(given, list) and len(given) == 3 else [given] * 3
    low, middle, high = (int(_positive(size, f"{where}.memory_gib", "GiB as torch reports") * GIB) for size in sizes)
    if not low <= middle <= high:
        raise InputError(f"{where}.memory_gib", given, "[least, middle, most] in this order")
    return low, middle, high


def _capability(value: object, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    major, dot, minor = str(value).partition(".")
    if not (dot and major.isdigit() and minor.isdigit()):
        raise InputError(f"{where}.compute_capability", value, 'CUDA\'s, such as "9.0"')
    return int(major), int(minor)
