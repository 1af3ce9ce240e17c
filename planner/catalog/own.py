"""A team's own GPUs and prices, from a TOML file beside the catalog: `planner.toml`, or what KV_PLANNER_OWN names.

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

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.gpu import Gpu, gpu_from, gpu_named, gpus, plain
from planner.price import Price, own_price, prices

VARIABLE, FILE = "KV_PLANNER_OWN", "planner.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a team adds to the catalog; its devices and prices win over the catalog's."""

    gpus: tuple[Gpu, ...] = ()
    prices: tuple[Price, ...] = ()

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """The team's devices, then those of the catalog that none of them replaces."""
        replaced = {plain(gpu.name) for gpu in self.gpus}
        return (*self.gpus, *(gpu for gpu in gpus() if plain(gpu.name) not in replaced))

    def gpu_named(self, name: str) -> Gpu:
        """The device of that name, the team's own first. Raises InputError, which lists near names."""
        return gpu_named(name, self.gpus)

    def usd_per_gpu_hour(self, gpu: Gpu) -> float | None:
        """What an hour of one such GPU costs the team, None where the file does not say  [dollars/hour]."""
        known = [price for price in self.prices if price.gpu == gpu.name]
        found = prices(gpu, known) if known else None
        return None if found is None else found.median


def own_path() -> Path:
    """The file that `present` reads: KV_PLANNER_OWN, or planner.toml in the working directory."""
    return Path(os.environ.get(VARIABLE) or FILE)


def present() -> Own:
    """What the file of `own_path` adds, read again when it changes; nothing where there is no planner.toml.

    Raises InputError as own_catalog does, and where KV_PLANNER_OWN names no file.
    """
    path = own_path()
    try:
        state = path.stat()
    except OSError:
        if VARIABLE in os.environ:
            raise InputError(VARIABLE, str(path), "the path of a TOML file") from None
        return Own()
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> Own:
    """own_catalog, once for each state of the file."""
    return own_catalog(path)


def own_catalog(path: str | Path) -> Own:
    """The devices and prices of a planner.toml.

    Raises InputError naming the file, or the key in it, and what is accepted there.
    """
    return _from_text(_text(Path(path)), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(str(path), str(problem), "a readable TOML file with [[gpus]] and [[prices]]") from problem


def _from_text(text: str, where: str) -> Own:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InputError(where, str(problem), "a readable TOML file with [[gpus]] and [[prices]]") from problem
    for key in document:
        if key not in ("gpus", "prices"):
            raise InputError(f"{where}: {key}", document[key], "[[gpus]] and [[prices]]")
    devices = tuple(gpu_from(entry) for entry in _tables(document, "gpus"))
    names = [plain(gpu.name) for gpu in devices]
    for gpu in devices:
        if names.count(plain(gpu.name)) > 1:
            raise InputError("gpus.name", gpu.name, "each device once")
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


def as_toml(table: str, entry: Mapping[str, Any]) -> str:
    """One device or price as the file holds it; what is empty or None is left out.

    >>> print(as_toml("prices", {"gpu": "H100-SXM", "usd_per_gpu_hour": 2.1, "source": ""}), end="")
    [[prices]]
    gpu = "H100-SXM"
    usd_per_gpu_hour = 2.1
    """
    lines = (f"{key} = {_value(value)}" for key, value in entry.items() if value not in (None, "", {}))
    return "\n".join((f"[[{table}]]", *lines, ""))


def _value(value: Any) -> str:
    """A TOML value; its strings and numbers are written like JSON's."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} = {_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}"
    return json.dumps(value)


def checked(text: str, path: Path) -> Own:
    """What the file would hold with this text at its end. Raises InputError as own_catalog does."""
    before = _text(path) if path.exists() else ""
    return _from_text(f"{before}\n{text}", str(path))


def can_save(path: Path) -> bool:
    """Whether this process may write the file; take the right away where visitors should not change it."""
    return os.access(path if path.exists() else path.parent, os.W_OK)


def save(text: str, path: Path) -> None:
    """Adds the text to the end of the file. Raises InputError, and changes nothing, where the file would be wrong."""
    checked(text, path)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")
    except OSError as problem:
        raise InputError(str(path), str(problem), "a file that can be written") from problem


def put(entry: Mapping[str, Any], path: Path) -> None:
    """Writes a device into the file, in the place of one of the same name; everything else stays as it is.

    Raises InputError, and changes nothing, where the file is wrong or would be.
    """
    before = _text(path) if path.exists() else ""
    _from_text(before, str(path))
    tables = re.split(r"^(?=\[)", before, flags=re.MULTILINE)
    kept = "".join(_without(table, entry["name"]) for table in tables)
    text = "\n".join(filter(None, (kept, as_toml("gpus", entry))))
    _from_text(text, str(path))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InputError(str(path), str(problem), "a file that can be written") from problem


def _without(table: str, name: str) -> str:
    """The text of one table; of the device of this name only the comments that follow it.

    >>> _without('[[gpus]]\\nname = "cpu"\\n# ours\\n', "CPU")
    '# ours\\n'
    """
    if not table.startswith("[[gpus]]") or plain(tomllib.loads(table)["gpus"][0]["name"]) != plain(name):
        return table
    lines = table.splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    return "".join(lines[last + 1 :]).lstrip("\n")
