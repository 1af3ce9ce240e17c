"""Planned vs actual: the plan against the server watched, each difference with its likely cause."""

import streamlit as st

from monitor.compare import compare
from pages import _collector, _inputs, _tables, _verdict

plan = _inputs.made()
st.title("Planned vs actual")
target = _collector.target()
if target is None:
    _collector.connect()
    st.stop()
if plan.capacity is None:
    _verdict.show(plan.verdict)
    st.stop()
span = st.segmented_control(
    "Window", list(_collector.SPANS), default=_collector.DEFAULT_SPAN, key="span", bind="query-params", required=True
)


@st.fragment(run_every=_collector.refresh())
def page() -> None:
    """Redrawn with every scrape."""
    state = _collector.state(target)
    if state.latest is None:
        _verdict.show(_collector.verdict(state))
        return
    window = state.window(_collector.SPANS[span])
    for engine in window.engines if window else state.latest.engines:
        found = compare(plan, engine)
        st.subheader(f"{found.model_name or 'Model not named'}, engine {found.engine or '0'}", anchor=False)
        _verdict.show(found.verdict)
        _tables.show(_tables.comparison(found))


page()
