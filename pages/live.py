"""Live: one server now. Verdict, what is wrong, six signals, and by topic everything else it reports."""

import time

import streamlit as st

from monitor.summary import summary
from pages import _monitor_tables, _signals, _source, _tables, _topics, _verdict

st.title("Live")
_source.choose()
target = _source.target()
if target is None:
    _source.connect()
    st.stop()

with st.container(horizontal=True, vertical_alignment="bottom"):
    st.segmented_control(
        "Window of every rate", list(_source.SPANS), default=_source.DEFAULT_SPAN, key="span", bind="query-params",
        required=True,
    )  # fmt: skip
    st.toggle("Pause", key="paused")


@st.fragment(run_every=_source.refresh())
def page() -> None:
    """Redrawn with every scrape, unless paused; of the topics only the visible one."""
    state, span = _source.state(target), _source.span()
    _verdict.show(_source.verdict(state))
    if state.findings:
        _tables.show(_monitor_tables.findings(state.findings, time.time(), is_one_server=True))
    if state.latest is None:
        return
    _signals.show(summary(state, span))
    topic = st.segmented_control(
        "Topic", _topics.CHOICES, default=_topics.CHOICES[0], key="topic", bind="query-params", required=True,
        label_visibility="collapsed",
    )  # fmt: skip
    _topics.show(topic, state.since(span), state.window(span), _source.thresholds())


page()
