"""Overview: two verdicts, the plan's and the server's, and where to go from here."""

import streamlit as st

from pages import _collector, _inputs, _verdict

plan = _inputs.made()
st.title("Overview")
left, right = st.columns(2)
with left:
    st.subheader("The plan")
    _verdict.show(plan.verdict)
    st.page_link("pages/plan.py", label="Plan capacity: memory, speed, cost, and the command", icon=":material/memory:")
with right:
    st.subheader("The server")
    target = _collector.target()
    if target is None:
        _collector.connect()
    else:
        _verdict.show(_collector.verdict(_collector.state(target)))
        st.page_link("pages/live.py", label="Live: what it does now", icon=":material/monitor_heart:")
        st.page_link("pages/compare.py", label="Planned vs actual", icon=":material/compare_arrows:")
