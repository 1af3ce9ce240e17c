"""The signals above the fold, for one engine: what it holds, what waits, and how fast it answers."""

import streamlit as st

from monitor import metrics
from monitor.snapshot import EngineSnapshot
from monitor.window import EngineWindow
from planner import units

NOT_REPORTED = "–"


def show(engine: EngineSnapshot, window: EngineWindow | None) -> None:
    """Draws one engine's signals; what its version does not report is a dash with the reason in its help."""
    st.subheader(f"{engine.model_name or 'Model not named'}, engine {engine.engine or '0'}", anchor=False)
    with st.container(horizontal=True):
        st.metric("KV cache in use", _share(engine.kv_usage), border=True, help=engine.missing.get("kv_usage"))
        st.metric("KV tokens in use", _of(engine.used_tokens, engine.capacity_tokens), border=True)
        st.metric("KV memory in use", _memory(engine), border=True, help="Known where the pool was set in bytes")
        st.metric("Running", _count(engine.running), border=True, help=engine.missing.get("running"))
        st.metric("Waiting", _count(engine.waiting), border=True, help=engine.missing.get("waiting"))
    if window is None:
        st.caption("Rates need a second page; it is on its way.")
        return
    with st.container(horizontal=True):
        st.metric("Output", _rate(window.output_tokens_per_s, "tokens/s"), border=True)
        st.metric("TTFT p50 / p99", _quantiles(window, metrics.TTFT), border=True, help="Time to first token")
        st.metric("TPOT p50 / p99", _quantiles(window, metrics.TPOT), border=True, help="Time per output token")
        st.metric("Prefix hits", _share(window.prefix_hit_rate), border=True, help="Of prompt tokens looked up")
        st.metric("Preemptions", _rate(window.preemptions_per_s, "/s"), border=True)


def _quantiles(window: EngineWindow, metric: metrics.Metric) -> str:
    if window.quantile(metric, 0.5) is None and metric is metrics.TPOT:
        metric = metrics.ITL
    return " / ".join(_quantile(window, metric, q) for q in (0.5, 0.99))


def _quantile(window: EngineWindow, metric: metrics.Metric, q: float) -> str:
    found = window.quantile(metric, q)
    if found is None:
        return NOT_REPORTED
    return f"> {units.duration(found.low)}" if found.is_above_buckets else units.duration(found.value)


def _memory(engine: EngineSnapshot) -> str:
    return NOT_REPORTED if engine.used_bytes is None else units.memory(engine.used_bytes)


def _share(ratio: float | None) -> str:
    return NOT_REPORTED if ratio is None else units.share(ratio)


def _count(number: float | None) -> str:
    return NOT_REPORTED if number is None else units.count(number)


def _of(part: float | None, whole: float | None) -> str:
    return f"{_count(part)} of {_count(whole)}"


def _rate(rate: float | None, unit: str) -> str:
    return NOT_REPORTED if rate is None else f"{units.count(rate)} {unit}" if rate >= 10 else f"{rate:.2g} {unit}"
