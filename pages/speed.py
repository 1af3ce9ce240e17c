"""Speed: what bounds a step, where its time goes, and what more requests at once do."""

import streamlit as st

from pages import _charts, _compression_tables, _inputs, _tables, _verdict
from planner import units
from planner.speed_curves import load_curves, roofline, step_shares, verdict

plan = _inputs.made()
st.title("Speed")
_verdict.show_limit(plan)
_verdict.show(verdict(plan))
if plan.latency is None:
    st.stop()

found = plan.latency
with st.container(horizontal=True):
    st.metric("Time per output token", units.duration(found.tpot_s.value), border=True)
    st.metric("Time to first token", units.duration(found.ttft_s.value), border=True)
    st.metric("Output", units.count(found.output_tokens_per_s.value, "tokens/s"), border=True)
    st.metric("Requests running", units.count(found.streams), border=True, help="On one replica")
    st.metric("Floor of a token", units.duration(found.floor_tpot_s), border=True, help="Everything read once, at peak")
_tables.show(_tables.predictions(plan))

left, right = st.columns(2)
with left:
    st.subheader("Under the roof of the device")
    roof = roofline(plan)
    _charts.show(_charts.roofline(roof), key="roofline")
    st.caption(roof.finding)
    _tables.show(_compression_tables.roofline(roof))
with right:
    st.subheader("Where a decoding step goes")
    parts = step_shares(found)
    _charts.show(_charts.step_parts(parts), key="step_parts")
    _tables.show(_compression_tables.step(parts))

st.subheader("More requests at once")
curves = load_curves(plan)
_charts.show(_charts.throughput_over_load(curves.throughput), key="throughput_over_load")
st.caption(curves.throughput.finding)
left, right = st.columns(2)
with left:
    _charts.show(_charts.latency_over_load(curves.tpot, "time per output token"), key="tpot_over_load")
    st.caption(curves.tpot.finding)
with right:
    _charts.show(_charts.latency_over_load(curves.ttft, "time to first token"), key="ttft_over_load")
    st.caption(curves.ttft.finding)
st.dataframe(_compression_tables.loads(curves), hide_index=True)
if found.assumptions:
    st.info("Assumed: " + " ".join(found.assumptions), icon=":material/info:")
