"""Saved plans -> tables: what was said when they were saved, and what this planner says."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from pages._tables import MISSING, Rows
from planner import units
from planner.changes import Change
from planner.store import Saved

_SHOWN = {
    "fits": "Fits",
    "limit": "First limit",
    "kv_cache_size_tokens": "KV tokens",
    "num_gpu_blocks": "KV blocks",
    "bytes_per_token": "KV cache a token",
    "streams": "Requests at once",
    "ttft_s": "Time to first token",
    "tpot_s": "Time per output token",
    "output_tokens_per_s": "Output",
    "usd_per_hour": "An hour",
    "usd_per_million_output_tokens": "A million output tokens",
}
"""The figures that are always shown."""


def plans(found: Mapping[str, Saved]) -> list[dict[str, Any]]:
    """One saved plan a row, with what it said then."""
    return [
        {
            "Name": label,
            "Saved": datetime.fromtimestamp(each.at, UTC),
            "Note": each.note,
            "Model": _input(each, "model", "name"),
            "Device": _input(each, "deployment", "gpu", "name"),
            "Verdict then": "✓ Fits" if each.body.get("fits") else f"✗ {each.body.get('limit') or 'Does not fit'}",
            "KV tokens": each.body.get("kv_cache_size_tokens"),
            "At once": each.body.get("streams"),
            "$ a million output tokens": each.body.get("usd_per_million_output_tokens"),
        }
        for label, each in found.items()
    ]


def _input(saved: Saved, *path: str) -> str:
    found: Any = saved.body.get("inputs")
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return str(found or MISSING)


PLAN_COLUMNS = {
    "Saved": st.column_config.DatetimeColumn("Saved (UTC)", format="YYYY-MM-DD HH:mm", timezone="UTC"),
    "KV tokens": st.column_config.NumberColumn(format="localized"),
    "At once": st.column_config.NumberColumn(format="localized", help="Requests of the load's length"),
    "$ a million output tokens": st.column_config.NumberColumn(format="dollar"),
}


def as_it_was(saved: Mapping[str, Any], changed: Sequence[Change], is_planned_again: bool) -> Rows:
    """Its main figures, and every other that this planner works out otherwise, as it was and today."""
    same = "the same" if is_planned_again else MISSING
    today = {each.key: each.now for each in changed}
    keys = dict.fromkeys((*(key for key in _SHOWN if saved.get(key) is not None), *today))
    return [
        {
            "Figure": _SHOWN.get(key, key),
            "As it was": _figure(key, saved.get(key)),
            "Today": _figure(key, today[key]) if key in today else same,
        }
        for key in keys
    ]


def _figure(key: str, value: Any) -> str:
    """A figure of a plan in the unit that its key says."""
    plain = key.removesuffix("_low").removesuffix("_high")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return MISSING if value is None else str(value)
    if plain.startswith("usd_"):
        return units.usd(value)
    if plain.endswith("_per_s"):
        return units.rate(value, "tokens/s")
    if plain.endswith("_s"):
        return units.duration(value)
    return units.memory(value) if "bytes" in plain else units.count(value)
