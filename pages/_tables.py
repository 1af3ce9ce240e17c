"""Domain types -> tables beside the charts: one row a thing, every number with its unit."""

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st

from monitor.report import as_json
from monitor.snapshot import Snapshot
from pages import _verdict
from planner import units
from planner.kv_layout import KvLayout
from planner.latency import Range
from planner.memory import MemoryBudget, Part
from planner.plan import Plan

Rows = list[dict[str, str]]
MISSING = "–"


def show(rows: Rows) -> None:
    """Draws a short table in full, its texts wrapped; what Markdown would take for markup stays text."""
    shown = [{key: _verdict.literal(text) for key, text in row.items()} for row in rows]
    st.table(shown, hide_index=True, border="horizontal")


def budget(found: MemoryBudget) -> Rows:
    """Each term of the memory budget with its range, formula and source."""
    return [_part_row(part) for part in (found.total, found.requested, *found.parts)]


def _part_row(part: Part) -> dict[str, str]:
    return {
        "Part": part.name.replace("_", " "),
        "Memory": units.memory(part.value),
        "Range": f"{units.memory(part.low)} to {units.memory(part.high)}",
        "Formula": part.formula,
        "Source": part.source,
    }


def layout(found: KvLayout) -> Rows:
    """Each group of layers that share one block table."""
    return [
        {
            "Group": group.kind,
            "Layers": units.count(group.layers),
            "Padding layers": units.count(group.padding_layers),
            "Block": units.count(group.block_size, "tokens") if group.block_size else "state",
            "Page": units.memory(group.page_size_bytes),
            "KV heads": units.count(group.num_kv_heads),
            "Head size": f"{group.head_size} + {group.head_size_v}",
            "Window": units.count(group.sliding_window, "tokens") if group.sliding_window else "all",
        }
        for group in found.groups
    ]


def predictions(plan: Plan) -> Rows:
    """What is predicted, with the range that held four of five published measurements of its kind."""
    latency, cost = plan.latency, plan.cost
    rows: list[tuple[str, Range | None, Any]] = [
        ("Time to first token", latency and latency.ttft_s, units.duration),
        ("Time per output token", latency and latency.tpot_s, units.duration),
        ("Output tokens a second", latency and latency.output_tokens_per_s, units.count),
        ("A million output tokens", cost and cost.usd_per_million_output_tokens, units.usd),
        ("A million input tokens", cost and cost.usd_per_million_input_tokens, units.usd),
    ]
    shown = [(name, value, form) for name, value, form in rows if value is not None]
    return [
        {"Prediction": name, "Value": form(value.value), "Range": f"{form(value.low)} to {form(value.high)}"}
        for name, value, form in shown
    ]


def configuration(page: Snapshot) -> Rows:
    """What each engine says of its cache, and what it does not say, with the reason."""
    found = as_json(page)
    engines: list[Mapping[str, Any]] = found["engines"]  # type: ignore[assignment]
    missing: Mapping[str, str] = found["missing"]  # type: ignore[assignment]
    keys = ("model_name", "block_size", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency",
            "kv_cache_dtype", "gpu_memory_utilization", "kv_cache_memory_bytes", "enable_prefix_caching")  # fmt: skip
    return [
        {
            "Setting": key,
            **{f"engine {engine['engine'] or '–'}": _plain(engine.get(key)) for engine in engines},
            "Why not": missing.get(key, ""),
        }
        for key in keys
    ]


def missing(page: Snapshot) -> Rows:
    """What this page does not report, with the reason."""
    reasons: Mapping[str, str] = as_json(page)["missing"]  # type: ignore[assignment]
    return [{"Metric": key, "Why": reason} for key, reason in reasons.items()]


def _plain(value: object) -> str:
    return (
        "–" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    )


def as_text(value: Mapping[str, Any]) -> str:
    """JSON for a download."""
    return json.dumps(value, indent=2)
