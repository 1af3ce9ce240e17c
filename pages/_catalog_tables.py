"""Catalog rows -> tables that sort by their numbers: the unit stands in the head of the column."""

from collections.abc import Iterable, Mapping
from typing import Any

import streamlit as st

from planner import units
from planner.catalog.browse import DeviceRow, ModelRow
from planner.gpu import Gpu
from planner.hub import FoundModel
from planner.price import Price

Table = list[dict[str, Any]]

PARTS = ("embedding", "attention", "mlp", "experts", "norms", "head", "encoder", "other", "active")
COUNT = st.column_config.NumberColumn(format="compact")
WHOLE = st.column_config.NumberColumn(format="localized")
MODEL_COLUMNS = {
    "Parameters": COUNT,
    "Published": COUNT,
    **{part.capitalize(): COUNT for part in PARTS},
    "KV bytes a token, 16-bit": WHOLE,
    "KV bytes a token, FP8": WHOLE,
    "State bytes a request": WHOLE,
}
USD = st.column_config.NumberColumn(format="$%.2f")
GIB = st.column_config.NumberColumn(format="%.2f")
DEVICE_COLUMNS = {
    **{f"Memory, {word}, GiB": GIB for word in ("least", "middle", "most")},
    "Bandwidth, GB/s": WHOLE,
    **{f"{word}, $ an hour": USD for word in ("Cheapest", "Median", "Dearest")},
}
QUOTE_COLUMNS = {"$ an hour": USD}


def models(rows: Iterable[ModelRow], text: str) -> Table:
    """Shapes that hold every word of the text somewhere."""
    return _matching((_model(row) for row in rows), text)


def _model(row: ModelRow) -> dict[str, Any]:
    return {
        "Model": row.checkpoints[0],
        "Architecture": row.spec.architecture,
        "Parameters": row.parameters.total,
        "Published": row.published,
        "Layers": _layers(row),
        "KV bytes a token, 16-bit": row.kv_16_bit,
        "KV bytes a token, FP8": row.kv_fp8,
        "State bytes a request": row.state,
        **{part.capitalize(): getattr(row.parameters, part) for part in PARTS},
        "Short name": row.name,
        "Other checkpoints": ", ".join(row.checkpoints[1:]),
        "Source": row.source,
        "Date": row.date,
    }


def _layers(row: ModelRow) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in row.layers.items())


def chosen(found: FoundModel, row: ModelRow) -> Table:
    """The chosen model in words, planned beside published."""
    over = row.counted_over_published
    return [
        {
            "Model": row.name,
            "From": found.origin,
            "Architecture": row.spec.architecture,
            "Layers": _layers(row),
            "Parameters counted": units.count(row.parameters.total),
            "Published": "not known" if row.published is None else units.count(row.published),
            "Counted / published": "–" if over is None else f"{over:.3%}".replace("%", " %"),
            "KV cache a token, 16-bit": "–" if row.kv_16_bit is None else units.memory(row.kv_16_bit),
            "FP8": "–" if row.kv_fp8 is None else units.memory(row.kv_fp8),
        }
    ]


def devices(rows: Iterable[DeviceRow], text: str) -> Table:
    """Devices that hold every word of the text somewhere."""
    return _matching((_device(row) for row in rows), text)


def _device(row: DeviceRow) -> dict[str, Any]:
    gpu, price, peaks = row.gpu, row.price, row.peak_tflops
    least, middle, most = row.memory_gib
    return {
        "Device": gpu.name,
        "Yours": "✓" if row.own else "",
        "Memory, least, GiB": least,
        "Memory, middle, GiB": middle,
        "Memory, most, GiB": most,
        "Bandwidth, GB/s": row.memory_bandwidth_gb_s,
        **{f"{dtype}, TFLOP/s": peaks.get(dtype) for dtype in ("bfloat16", "fp8", "int8", "fp4")},
        "Link": gpu.link,
        "Link, GB/s": row.link_gb_s,
        "Capability": _capability(gpu),
        "Cheapest, $ an hour": None if price is None else price.low,
        "Median, $ an hour": None if price is None else price.median,
        "Dearest, $ an hour": None if price is None else price.high,
        "Source": gpu.source,
        "Note": gpu.note,
    }


def _capability(gpu: Gpu) -> str:
    return ".".join(map(str, gpu.compute_capability or ()))


def quotes(rows: Iterable[DeviceRow], text: str) -> Table:
    """The quotes behind the prices, of devices or providers that hold every word of the text."""
    found = (_quote(quote) for row in rows if row.price is not None for quote in row.price.quotes)
    return _matching(found, text)


def _quote(quote: Price) -> dict[str, Any]:
    return {
        "Device": quote.gpu,
        "$ an hour": quote.usd_per_hour,
        "Provider": quote.provider,
        "Kind": quote.kind,
        "Date": quote.date,
        "Source": quote.source,
    }


def _matching(rows: Iterable[Mapping[str, Any]], text: str) -> Table:
    words = text.lower().split()
    return [dict(row) for row in rows if all(word in " ".join(map(str, row.values())).lower() for word in words)]
