"""Planned vs actual: a plan against a server, a group or a span of history, each difference with its likely cause."""

import streamlit as st

from pages import _compare_plan, _comparison, _plan_actions, _source, _span, _tables
from planner.record import to_json

NOW, BACK, DRIFT = "Now", "Looking back", "Drift over days"

st.title("Planned vs actual")
_source.choose()
_plan_actions.said()
target, groups = _source.target(), _source.groups()
with st.container(horizontal=True, vertical_alignment="bottom"):
    group = None
    if groups:
        group = st.selectbox("Group", groups, index=None, key="group", bind="query-params", width=200,
                             placeholder="the server alone")  # fmt: skip
    which = _compare_plan.choice()
    when = st.segmented_control("When", [NOW, BACK, DRIFT], default=NOW, key="when", bind="query-params", required=True)
    if when == NOW:
        st.segmented_control(
            "Window of every rate", list(_source.SPANS), default=_source.DEFAULT_SPAN, key="span", bind="query-params",
            required=True,
        )  # fmt: skip
        st.toggle("Pause", key="paused")
names = _source.in_group(group) if group else [target] if target else []
if not names:
    _source.connect()
    st.stop()
plan = _compare_plan.chosen(which, names)


@st.fragment(run_every=_source.refresh())
def live() -> None:
    """Redrawn with every scrape, unless paused."""
    _comparison.now(plan, names)


if when == NOW:
    live()
else:
    start, end = _span.chosen()
    if when == BACK:
        _comparison.between(plan, names, start, end)
    else:
        name = st.selectbox("Server", names, key="drift_of", bind="query-params") if group else names[0]
        _comparison.drift(plan, name, start, end)

st.subheader("The same from the shell", anchor=False)
st.code(f"python -m monitor compare PLAN.json {_source.address(names[0])}", language="bash")
st.download_button(
    "PLAN.json", _tables.as_text(to_json(plan)), "PLAN.json", "application/json", icon=":material/download:"
)
