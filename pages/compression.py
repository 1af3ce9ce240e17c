"""Compression: pick a stack of methods, see the plan before and after, and every method beside the others."""

import streamlit as st

from pages import _charts, _compression_tables, _inputs, _tables, _verdict
from planner.compression import compressed, outcomes
from planner.compression_methods import METHODS
from planner.errors import InputError

plan = _inputs.made()
st.title("Compression")
keys = st.multiselect(
    "Stack, in order", [method.key for method in METHODS], default=["gqa8", "fp8"], key="stack", bind="query-params",
    help="At most one method of each kind: heads, KV dtype, tokens, layers, mixed precision, host memory, reuse",
)  # fmt: skip
try:
    outcome = compressed(plan, keys)
except InputError as error:
    st.error(_verdict.refused(error), icon=":material/cancel:")
    st.stop()
_verdict.show_limit(plan)
_verdict.show(outcome.verdict)
if outcome.notes:
    st.info(" ".join(outcome.notes), icon=":material/info:")

st.subheader("Before and after")
with st.container(horizontal=True):
    for row in _compression_tables.before_and_after(outcome):
        before = f"{row['In 16 bits']} in 16 bits"
        st.metric(row["Figure"], row["With the stack"], before, delta_color="off", delta_arrow="off", border=True)
_tables.show(_compression_tables.before_and_after(outcome))
if outcome.methods:
    st.subheader("The methods of the stack")
    _tables.show(_compression_tables.stack(outcome))

st.subheader("Every method alone")
every = outcomes(plan)
_charts.show(_charts.bytes_a_token(every), key="bytes_a_token")
st.caption(
    "The bar is the KV cache of a request of the load's full length on one GPU, spread over its tokens; beside it what "
    "is saved of this model in 16 bits. What vLLM has not got is hatched: it is what the pages would take if it had."
)
st.dataframe(_compression_tables.matrix(every), hide_index=True)

st.subheader("The command")
st.code(outcome.plan.deployment.serve_command(plan.model.name), language="bash")
if outcome.obstacles:
    st.caption("The command is what vLLM would need to accept; it does not: " + " ".join(outcome.obstacles))
