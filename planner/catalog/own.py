"""A team's own GPUs and prices, from a TOML file beside the catalog.

[[gpus]]
name = "RTX 4090 48GB"
memory_gib = 47.4
memory_bandwidth_gb_s = 1008
peak_tflops = { bfloat16 = 165, fp8 = 330 }

[[prices]]
gpu = "H100-SXM"
usd_per_gpu_hour = 2.10
source = "our contract of 2026"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.gpu import Gpu, gpu_from, gpu_named
from planner.price import Price, own_price


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a team adds to the catalog; its devices and prices win over the catalog's."""

    gpus: tuple[Gpu, ...] = ()
    prices: tuple[Price, ...] = ()


def own_catalog(path: str | Path) -> Own:
    """The devices and prices of a planner.toml.

    Raises InputError naming the file, or the key in it, and what is accepted there.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise InputError(str(path), str(problem), "a readable TOML file with [[gpus]] and [[prices]]") from problem
    for key in document:
        if key not in ("gpus", "prices"):
            raise InputError(f"{path}: {key}", document[key], "[[gpus]] and [[prices]]")
    devices = tuple(gpu_from(entry) for entry in _tables(document, "gpus"))
    return Own(gpus=devices, prices=tuple(_price(entry, devices) for entry in _tables(document, "prices")))


def _tables(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    tables = document.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise InputError(key, tables, f"[[{key}]] tables")
    return tables


def _price(entry: Mapping[str, Any], devices: tuple[Gpu, ...]) -> Price:
    for key in entry:
        if key not in ("gpu", "usd_per_gpu_hour", "source"):
            raise InputError(f"prices.{key}", entry[key], "gpu, usd_per_gpu_hour, source")
    if not isinstance(entry.get("gpu"), str):
        raise InputError("prices.gpu", entry.get("gpu"), "the name of a device")
    device = gpu_named(entry["gpu"], devices)
    return own_price(device, entry.get("usd_per_gpu_hour"), str(entry.get("source", "the user's own")))  # type: ignore[arg-type]
