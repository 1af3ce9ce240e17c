"""Calibrate: the traffic that was there, and the constants it teaches, to plan this model on this device with."""

from dataclasses import replace

import streamlit as st

from monitor import metrics
from monitor.arrivals import past, peak, spread
from monitor.calibrate import evidence, uncalibrated
from pages import _calibration_form, _charts, _inputs, _loop_tables, _source, _span, _tables
from planner.workload import Workload

PAGES = 720  # of a span: 5 s apart in an hour
LENGTHS = {"Prompts": metrics.PROMPT_LENGTH, "Outputs": metrics.OUTPUT_LENGTH}
MEAN, PEAK = "the mean of the span", "its busiest stretch"


def take(load: Workload) -> None:
    """Into the sidebar's inputs; a callback, since it must come before they are drawn."""
    rate, hits = (float(f"{each:.4g}") for each in (load.request_rate or 0, load.prefix_hit_ratio))
    st.session_state.update(input_tokens=load.input_tokens, output_tokens=load.output_tokens, concurrency=None,
                            request_rate=rate, prefix_hit_ratio=hits)  # fmt: skip


plan = uncalibrated(_inputs.made())
st.title("Calibrate")
_source.choose()
target = _source.target()
if target is None:
    _source.connect()
    st.stop()
start, end = _span.chosen()
history = _source.of(target).snapshots(target, start, end, PAGES)
seen, load, busiest = evidence(history), past(history), peak(history)
verdict = st.empty()

st.subheader("The traffic that was there")
if load is None or load.workload is None or busiest is None:
    st.info(f"No traffic to learn from in this span. {seen.finding}", icon=":material/help:")
    st.stop()
_tables.show(_loop_tables.traffic(load.workload, plan.workload, busiest))
for column, (title, metric) in zip(st.columns(2), LENGTHS.items(), strict=True):
    lengths = spread(history, metric)
    if lengths.bounds:
        with column:
            _charts.show(_charts.lengths(title, lengths), key=title)
with st.container(horizontal=True, vertical_alignment="bottom"):
    which = st.segmented_control("Arrivals of", (MEAN, PEAK), default=MEAN, key="load_of", required=True)
    taken = load.workload if which == MEAN else replace(load.workload, request_rate=busiest.requests_per_s)
    st.button("Take this load into the plan", icon=":material/input:", key="take", on_click=take, args=(taken,))

st.subheader("The constants it teaches")
_calibration_form.show(plan, seen, history[-1], verdict)
