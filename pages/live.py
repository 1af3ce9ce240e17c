"""Live: one server now. Verdict, six signals, charts by topic, the cache configuration, and what is not reported."""

import streamlit as st

from monitor.series import gauges, rates
from pages import _charts, _collector, _signals, _tables, _verdict

st.title("Live")
target = _collector.target()
if target is None:
    _collector.connect()
    st.stop()

with st.container(horizontal=True, vertical_alignment="bottom"):
    span = st.segmented_control(
        "Window",
        list(_collector.SPANS),
        default=_collector.DEFAULT_SPAN,
        key="span",
        bind="query-params",
        required=True,
    )
    st.toggle("Pause", key="paused")


@st.fragment(run_every=_collector.refresh())
def page() -> None:
    """Redrawn with every scrape, unless paused."""
    state = _collector.state(target)
    window = state.window(_collector.SPANS[span])
    _verdict.show(_collector.verdict(state))
    if state.latest is None:
        return
    for number, engine in enumerate(state.latest.engines):
        past = window.engines[number] if window and number < len(window.engines) else None
        _signals.show(engine, past)
    recent = state.since(_collector.SPANS[span])
    left, right = st.columns(2)
    with left:
        _charts.show(_charts.kv_usage(gauges(recent, "kv_usage")), key="kv_usage")
        _charts.show(_charts.measured(rates(recent, "output_tokens_per_s"), "output tokens/s"), key="output")
    with right:
        _charts.show(_charts.measured(gauges(recent, "running", "waiting"), "requests"), key="requests")
        _charts.show(_charts.measured(rates(recent, "ttft_p99", "tpot_p99"), "seconds"), key="latency")
    st.subheader("Cache configuration")
    _tables.show(_tables.configuration(state.latest))
    with st.expander("Not reported, and why"):
        st.dataframe(_tables.missing(state.latest), hide_index=True)


page()
