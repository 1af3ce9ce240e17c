"""The six signals above the fold: what a server holds, what waits, and how fast it answers."""

import streamlit as st

from monitor import metrics
from monitor.histogram import Histogram
from monitor.metrics import Metric
from monitor.summary import Summary
from pages._tables import MISSING
from planner import units


def show(found: Summary) -> None:
    """Draws them; what the version does not report is a dash with the reason in its help."""
    with st.container(horizontal=True):
        _card("KV cache in use", _share(found.kv_usage), _held(found), found.reason(metrics.KV_USAGE))
        _card("Running", _count(found.running), _room(found), found.reason(metrics.RUNNING))
        _card("Waiting", _count(found.waiting), _why_waiting(found), found.reason(metrics.WAITING))
        _card("Output", _rate(found.output_tokens_per_s, "tokens/s"), _prompts(found),
              found.reason(metrics.GENERATION_TOKENS))  # fmt: skip
        _latency("Time to first token, p99", found.ttft, found, metrics.TTFT)
        _latency("Time per output token, p99", found.tpot, found, metrics.TPOT)


def _card(label: str, value: str, below: str, why: str | None = None) -> None:
    reason = f"Not reported: {why}" if value == MISSING and why else None
    st.metric(label, value, below or None, delta_color="off", delta_arrow="off", border=True, help=reason)


def _latency(label: str, observed: Histogram | None, found: Summary, metric: Metric) -> None:
    """The p99 with the bucket it surely lies in: that is all that buckets know."""
    p99, p50 = (observed.quantile(q) if observed else None for q in (0.99, 0.5))
    if p99 is None or p50 is None:
        why = found.reason(metric) or "nothing ended in this window"
        _card(label, MISSING, "", why)
    elif p99.is_above_buckets:
        _card(label, f"> {units.duration(p99.low)}", f"above the last bucket, p50 {units.duration(p50.value)}")
    else:
        bounds = f"{units.duration(p99.low)} to {units.duration(p99.high)}"
        _card(label, units.duration(p99.value), f"in {bounds}, p50 {units.duration(p50.value)}")


def _held(found: Summary) -> str:
    if found.used_tokens is None or found.capacity_tokens is None:
        return ""
    memory = "" if found.used_bytes is None else f", {units.memory(found.used_bytes)}"
    return f"{units.count(found.used_tokens)} of {units.count(found.capacity_tokens, 'tokens')}{memory}"


def _room(found: Summary) -> str:
    left = found.concurrency_left
    return "" if left is None else f"room for about {units.count(left)} more"


def _why_waiting(found: Summary) -> str:
    parts = [f"{reason} {units.count(number)}" for reason, number in found.waiting_for]
    if found.preemptions_per_s is not None:
        parts.append(f"{units.rate(found.preemptions_per_s, 'preemptions/s')}")
    return ", ".join(parts)


def _prompts(found: Summary) -> str:
    hits = "" if found.prefix_hit_rate is None else f", {units.share(found.prefix_hit_rate)} cached"
    return "" if found.prompt_tokens_per_s is None else f"prompts {units.count(found.prompt_tokens_per_s)}/s{hits}"


def _share(ratio: float | None) -> str:
    return MISSING if ratio is None else units.share(ratio)


def _count(number: float | None) -> str:
    return MISSING if number is None else units.count(number)


def _rate(rate: float | None, unit: str) -> str:
    return MISSING if rate is None else units.rate(rate, unit)
