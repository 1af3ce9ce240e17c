"""What servers say, as rows of tables: every number with its unit, what is missing as a dash."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from monitor.config import Webhook
from monitor.finding import Event, Finding
from monitor.fleet import Member, Total
from monitor.histogram import Quantile
from monitor.metrics import Metric
from monitor.panels import FORMS, Panel
from monitor.series import Series
from monitor.times import moment, since
from monitor.window import Window
from pages._tables import MISSING, Rows
from planner import units
from planner.verdict import Level

ICONS = {Level.GOOD: "✓", Level.WARNING: "⚠", Level.BAD: "✗", Level.UNKNOWN: "?"}
"""A sign beside each word, so that nothing rests on colour."""
Drawn = tuple[Panel, Sequence[Series]]
"""A panel and its lines."""
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def values(drawn: Iterable[Drawn]) -> Rows:
    """Each line of the charts: its last value, and between what it went."""
    return [
        {
            "Chart": panel.title,
            "Line": line.name,
            "Last": FORMS[panel.unit](line.known[-1]),
            "Lowest": FORMS[panel.unit](min(line.known)),
            "Mean": _or_dash(line.mean, panel.unit),
            "Highest": FORMS[panel.unit](max(line.known)),
        }
        for panel, lines in drawn
        for line in lines
    ]


def quantiles(window: Window, observed: Iterable[Metric]) -> Rows:
    """Quantiles of what ended in the window, each with the bucket that it surely lies in."""
    return [
        {
            "Observed": metric.meaning,
            "Engine": engine.engine or MISSING,
            **{name: _quantile(engine.quantile(metric, q), FORMS[metric.unit]) for name, q in _QUANTILES.items()},
            "Mean": _or_dash(engine.mean(metric), metric.unit),
            "Requests": engine.reason(metric)
            if (found := engine.histogram(metric)) is None
            else units.count(found.count),
        }
        for metric in observed
        for engine in window.engines
    ]


def _quantile(found: Quantile | None, form: units.Formatter) -> str:
    if found is None:
        return MISSING
    if found.is_above_buckets:
        return f"above {form(found.low)}, the last bucket"
    return f"{form(found.value)} (in {form(found.low)} to {form(found.high)})"


def findings(found: Sequence[Finding], now: float, is_one_server: bool = False) -> Rows:
    """What is wrong, since when, how bad, and what to do."""
    return [
        {
            **({} if is_one_server else {"Server": each.target}),
            "Finding": f"{ICONS[each.condition.level]} {each.condition.word}",
            "Since": since(each.since, now),
            "Why": each.condition.reason,
            "What to do": each.condition.action,
        }
        for each in found
    ]


def events(found: Sequence[Event]) -> Rows:
    """The timeline, the newest first."""
    return [
        {
            "When": moment(each.at),
            "Server": each.target if each.engine is None else f"{each.target}, engine {each.engine}",
            "What": f"{ICONS[each.level]} {each.word} {each.change.value}",
            "Why": each.reason,
            "What to do": each.action,
        }
        for each in reversed(found)
    ]


def fleet(found: Sequence[Member], page: str, address: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row a server; its link keeps what else is in the address."""
    return [
        {
            "Server": f"{page}?{urlencode({**address, 'endpoint': each.state.name})}",
            "Verdict": f"{ICONS[each.verdict.level]} {each.verdict.word}",
            "KV in use": each.summary.kv_usage,
            "Lately": list(each.usage),
            "Running": each.summary.running,
            "Waiting": each.summary.waiting,
            "Output, tokens/s": each.summary.output_tokens_per_s,
            "Page": MISSING if each.state.age is None else f"{units.duration(each.state.age)} ago",
            "Model": ", ".join(each.summary.models),
            "Group": each.state.target.group,
            "Up": MISSING if each.summary.uptime is None else units.duration(each.summary.uptime),
            "Version": (each.state.latest.version_range if each.state.latest else None) or MISSING,
            "Why": each.verdict.reason,
        }
        for each in found
    ]


FLEET_COLUMNS = {
    "Server": st.column_config.LinkColumn(
        width=140, display_text=r"endpoint=([^&]*)", help="Opens the live page", pinned=True
    ),
    "Verdict": st.column_config.TextColumn(width=148),
    "KV in use": st.column_config.ProgressColumn(
        width=90, format="percent", min_value=0, max_value=1, help="Of its fullest engine"
    ),
    "Lately": st.column_config.LineChartColumn(width=60, y_min=0, y_max=1, help="KV in use over the last minutes"),
    "Running": st.column_config.NumberColumn(width=70),
    "Waiting": st.column_config.NumberColumn(width=68),
    "Output, tokens/s": st.column_config.NumberColumn("Tokens/s", width=70, format="%.0f", help="Output, tokens/s"),
    "Page": st.column_config.TextColumn(width=92, help="How old the last page is that was read"),
    "Model": st.column_config.TextColumn(width=190),
    "Group": st.column_config.TextColumn(width=100),
    "Up": st.column_config.TextColumn(width=64, help="Since the server began"),
    "Version": st.column_config.TextColumn(width=88, help="The vLLM releases that can have written its page"),
    "Why": st.column_config.TextColumn(width=460),
}
"""Widths [px] hold the longest usual text; in a window of 1,400 px all up to the model are seen without scrolling."""


def totals(found: Sequence[Total], kind: str) -> Rows:
    """What the servers of each model or group are together."""
    return [
        {
            kind: each.name or MISSING,
            "Servers": units.count(each.servers),
            "Well": units.count(each.well),
            "Not heard": units.count(each.silent),
            "KV in use": _or_dash(each.kv_usage, "ratio"),
            "KV held": _or_dash(each.used_tokens, "tokens"),
            "KV pools": _or_dash(each.capacity_tokens, "tokens"),
            "Running": MISSING if each.running is None else units.count(each.running),
            "Waiting": MISSING if each.waiting is None else units.count(each.waiting),
            "Output": _or_dash(each.output_tokens_per_s, "tokens/s"),
        }
        for each in found
    ]


def _or_dash(value: float | None, unit: str) -> str:
    return MISSING if value is None else FORMS[unit](value)


def webhooks(found: Sequence[Webhook]) -> Rows:
    """Who is told; addresses stay out, for they often are secrets."""
    return [{"Webhook": each.name, "Format": each.format, "Groups": ", ".join(each.groups) or "all"} for each in found]
