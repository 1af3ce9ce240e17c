"""Headroom: how much more traffic it takes, what stops it then, when the trend gets there, what would change that."""

import streamlit as st

from pages import _charts, _inputs, _loop_tables, _now, _source, _tables, _verdict
from planner.errors import InputError
from planner.headroom import Headroom, alternatives, growth, headroom
from planner.plan import Plan


def room(made: Plan, rate: float) -> Headroom | None:
    """None where the plan has none, which its column says."""
    try:
        return headroom(made, rate)
    except InputError:
        return None


plan = _inputs.made()
st.title("Headroom")
_source.choose()
verdict = st.empty()
now = _now.now(plan)
try:
    found = headroom(now.plan, now.rate)
except InputError as error:
    with verdict.container():
        _verdict.show_limit(now.plan)
        st.error(_verdict.refused(error), icon=":material/cancel:")
    st.stop()
with verdict.container():
    _verdict.show_limit(now.plan)
    _verdict.show(found.verdict(f"Arrivals {now.said}; {now.plan.inputs}"))

st.subheader("What stops it")
_tables.show(_loop_tables.ceilings(found))
curves = growth(now.plan, found)
left, right = st.columns(2)
with left:
    _charts.show(_charts.throughput_over_arrivals(curves.throughput), key="throughput")
    st.caption(curves.throughput.finding)
with right:
    _charts.show(_charts.latency_over_arrivals(curves.tpot), key="tpot")
    st.caption(curves.tpot.finding)

st.subheader("When it gets there")
if now.trend is None:
    st.info("A trend is read from the history of a server: choose one under Server to watch.", icon=":material/info:")
else:
    st.markdown(_verdict.escaped(now.trend.finding(found.first.request_rate.value)))

st.subheader("What would change it")
plans = {"The plan": now.plan, **alternatives(now.plan)}
rooms = {name: room(each, now.rate) for name, each in plans.items()}
_tables.show(_loop_tables.beside(plans, rooms, now.rate))
