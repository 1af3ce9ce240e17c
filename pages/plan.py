"""Plan capacity: does it fit, what it holds, how fast it is, what it costs, and the command that starts it."""

import streamlit as st

from pages import _advice, _charts, _engine_check, _inputs, _tables, _verdict
from planner import units
from planner.curves import concurrency_over_length, kv_over_concurrency
from planner.record import figures, to_json
from planner.report import report

plan = _inputs.made()
st.title("Plan capacity")
_verdict.show(plan.verdict)
if plan.layout is None or plan.budget is None:
    st.stop()

found = figures(plan)
with st.container(horizontal=True):
    stored = f"{units.memory(found['request_stored_bytes'])} stored"
    st.metric(
        "KV cache a request", units.memory(found["request_bytes"]), stored, delta_color="off", delta_arrow="off",
        border=True, help="What vLLM charges at full length, on a rank; stored is that without padding and slack",
    )  # fmt: skip
    st.metric("KV cache a token", units.memory(plan.layout.bytes_per_token), border=True, help="A rank")
    if plan.capacity is not None:
        st.metric("KV cache size", units.count(found["kv_cache_size_tokens"], "tokens"), border=True)
        st.metric("Requests at once", units.count(plan.streams), border=True, help="Of the load's full length")
    if plan.latency is not None:
        st.metric("Time per output token", units.duration(found["tpot_s"]), border=True)
        st.metric("Output", units.count(found["output_tokens_per_s"], "tokens/s"), border=True)
    if plan.cost is not None:
        st.metric("A million output tokens", units.usd(found["usd_per_million_output_tokens"]), border=True)

st.subheader("What one GPU's memory is spent on")
_charts.show(_charts.memory_budget(plan.budget), key="memory_budget")
_tables.show(_tables.budget(plan.budget))

if plan.capacity is not None:
    left, right = st.columns(2)
    with left:
        st.subheader("KV cache against requests at once")
        _charts.show(_charts.kv_over_concurrency(kv_over_concurrency(plan)), key="kv_over_concurrency")
    with right:
        st.subheader("Requests at once against their length")
        _charts.show(_charts.concurrency_over_length(concurrency_over_length(plan)), key="concurrency_over_length")

st.subheader("How the KV cache is laid out")
_tables.show(_tables.layout(plan.layout))
_engine_check.show(plan)
st.subheader("Predictions and their ranges")
_tables.show(_tables.predictions(plan))
if plan.assumptions:
    st.info("Assumed: " + " ".join(plan.assumptions), icon=":material/info:")

_advice.show(plan)
st.subheader("The command")
st.code(plan.deployment.serve_command(plan.model.name), language="bash")
with st.container(horizontal=True):
    st.download_button("Report", report(plan), file_name="plan.md", icon=":material/description:")
    st.download_button("JSON", _tables.as_text(to_json(plan)), file_name="plan.json", icon=":material/data_object:")
