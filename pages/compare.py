"""Planned vs actual: the plan against the server watched, each difference with its likely cause."""

import streamlit as st

from monitor.compare import compare
from pages import _inputs, _source, _tables, _verdict

plan = _inputs.made()
st.title("Planned vs actual")
_source.choose()
target = _source.target()
if target is None:
    _source.connect()
    st.stop()
if plan.capacity is None:
    _verdict.show(plan.verdict)
    st.stop()
st.segmented_control(
    "Window", list(_source.SPANS), default=_source.DEFAULT_SPAN, key="span", bind="query-params", required=True
)


@st.fragment(run_every=_source.refresh())
def page() -> None:
    """Redrawn with every scrape."""
    state = _source.state(target)
    if state.latest is None:
        _verdict.show(_source.verdict(state))
        return
    window = state.window(_source.span())
    for engine in window.engines if window else state.latest.engines:
        found = compare(plan, engine)
        st.subheader(f"{found.model_name or 'Model not named'}, engine {found.engine or '0'}", anchor=False)
        _verdict.show(found.verdict)
        _tables.show(_tables.comparison(found))


page()
