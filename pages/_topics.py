"""One topic of a server's history: its charts two by two, the same in a table, and why the rest is not drawn."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import streamlit as st

from monitor.panels import KV_USAGE, LATENCIES, LENGTHS, TOPICS, WASTE, Panel, lines, marks, why_not
from monitor.snapshot import Snapshot
from monitor.thresholds import Thresholds
from monitor.window import Window
from pages import _charts, _monitor_charts, _monitor_tables, _tables
from pages._monitor_tables import Drawn
from planner.plan import Plan

CONFIGURATION, MISSING = "Configuration", "Not reported"
CHOICES = (*TOPICS, CONFIGURATION, MISSING)
_OBSERVED = {"Latency": LATENCIES, "Lengths": LENGTHS}
"""Topics whose table holds quantiles of the window instead of the lines' values."""


def show(topic: str, history: Sequence[Snapshot], window: Window | None, thresholds: Thresholds) -> None:
    """Draws it; only the visible topic costs anything."""
    latest = history[-1]
    if topic == CONFIGURATION:
        _tables.show(_tables.configuration(latest))
    elif topic == MISSING:
        st.dataframe(_tables.missing(latest), hide_index=True, alt="What this server does not report, and why")
    else:
        drawn = charts(topic, history, thresholds)
        if topic in _OBSERVED and window is not None:
            _tables.show(_monitor_tables.quantiles(window, _OBSERVED[topic]))
        elif drawn:
            _tables.show(_monitor_tables.values(drawn))
        not_drawn(topic, drawn, latest)


def charts(topic: str, history: Sequence[Snapshot], thresholds: Thresholds) -> list[Drawn]:
    """Draws the charts of a topic; what was drawn."""
    drawn = [(panel, found) for panel in TOPICS[topic] if (found := lines(panel, history))]
    restarted = marks(history)
    for column, (panel, found) in zip(cycle(st.columns(2)), drawn, strict=False):
        chart = _monitor_charts.over_time(panel, found, restarted, limits(panel, thresholds))
        with column:
            _charts.show(chart, key=panel.title)
    return drawn


def limits(panel: Panel, thresholds: Thresholds) -> Mapping[str, float]:
    """The thresholds that a panel is held against."""
    if panel is KV_USAGE:
        return {"act": thresholds.usage_act, "alarm": thresholds.usage_alarm}
    promised = {"ttft": thresholds.ttft_p99, "tpot": thresholds.tpot_p99}.get(panel.source.key)
    if promised is not None:
        return {"promised": promised}
    return {"act": thresholds.fragmentation} if panel is WASTE else {}


def not_drawn(topic: str, drawn: Sequence[Drawn], latest: Snapshot) -> None:
    """Why the rest of a topic has no chart."""
    titles = {panel.title for panel, _ in drawn}
    left = [f"{panel.title}: {why_not(panel, latest)}" for panel in TOPICS[topic] if panel.title not in titles]
    if left:
        st.caption("Not drawn. " + ". ".join(left) + ".")


def planned(plan: Plan) -> Mapping[str, float]:
    """What a plan says of the throughput."""
    return {} if plan.latency is None else {"planned output": plan.latency.output_tokens_per_s.value}
