"""History: what a server did over any span of time, from what was recorded or from Prometheus."""

from itertools import cycle

import streamlit as st

from monitor import metrics
from monitor.panels import KV_USAGE, THROUGHPUT, TOPICS, lines, marks, why_not, worth_a_mark
from monitor.review import review
from monitor.series import as_csv, heat
from pages import _charts, _inputs, _monitor_charts, _monitor_tables, _source, _span, _tables, _topics, _verdict

SPREADS = {
    "Time to first token": metrics.TTFT, "Time between tokens": metrics.ITL,
    "Prompts of finished requests": metrics.PROMPT_LENGTH, "Outputs of finished requests": metrics.OUTPUT_LENGTH,
}  # fmt: skip

st.title("History")
_source.choose()
target = _source.target()
if target is None:
    _source.connect()
    st.stop()
start, end = _span.chosen()
source = _source.of(target)
history, events = source.snapshots(target, start, end), source.events(start, end, target)
_verdict.show(review(target, history, events, start, end, source.problem))
if len(history) < 2:
    st.stop()

planned = {}
if st.toggle("Draw the plan of the sidebar", key="with_plan", bind="query-params"):
    planned = _topics.planned(_inputs.made())
left, right = lines(KV_USAGE, history), lines(THROUGHPUT, history)
moments = {**marks(history), **worth_a_mark(events)}
usual = _source.usual(target, end)
drawn = [(panel, found) for panel, found in ((KV_USAGE, left), (THROUGHPUT, right)) if found]
if drawn:
    _charts.show(_monitor_charts.against(KV_USAGE, left, THROUGHPUT, right, moments, planned, usual), key="against")
    _tables.show(_monitor_tables.values(drawn))
else:
    st.caption(f"Not drawn: {why_not(KV_USAGE, history[-1])}.")

st.subheader("How requests spread")
for column, (title, metric) in zip(cycle(st.columns(2)), SPREADS.items(), strict=False):
    with column:
        found = heat(history, metric)
        if found.bounds:
            _charts.show(_monitor_charts.spread(title, metric.unit, found), key=title)
        else:
            st.caption(f"{title}: {history[-1].missing.get(metric.key, 'nothing ended in this span')}.")

st.subheader("By topic")
topic = st.segmented_control("Topic", list(TOPICS), default="Requests", key="past_topic", bind="query-params",
                             required=True, label_visibility="collapsed")  # fmt: skip
by_topic = _topics.charts(topic, history, _source.thresholds())
_topics.not_drawn(topic, by_topic, history[-1])
drawn.extend(by_topic)

st.subheader("What happened")
if events:
    _tables.show(_monitor_tables.events(events))
else:
    st.caption("No finding began or ended in this span.")
named = {panel.title: found for panel, found in drawn}
st.download_button(
    "What is drawn, as CSV", lambda: as_csv(named), f"{target}.csv", "text/csv", icon=":material/download:"
)
