"""Overview: two verdicts, the plan's and the server's, and where to go from here."""

import streamlit as st

from monitor.health import group_verdict
from pages import _inputs, _source, _verdict

plan = _inputs.made()
st.title("Overview")
left, right = st.columns(2)
with left:
    st.subheader("The plan")
    _verdict.show(plan.verdict)
    st.page_link("pages/plan.py", label="Plan capacity: memory, speed, cost, and the command", icon=":material/memory:")
with right:
    target = _source.target()
    if target is not None:
        st.subheader("The server")
        _verdict.show(_source.verdict(_source.state(target)))
        st.page_link("pages/live.py", label="Live: what it does now", icon=":material/monitor_heart:")
        st.page_link("pages/compare.py", label="Planned vs actual", icon=":material/compare_arrows:")
    everyone = _source.fleet()
    if (everyone and target is None) or len(everyone) > 1:
        st.subheader("All servers")
        _verdict.show(group_verdict([each.state for each in everyone]))
        st.page_link("pages/fleet.py", label="Fleet: each server, the worst first", icon=":material/dns:")
        st.page_link(
            "pages/alerts.py", label="Alerts: what is wrong, since when, what to do", icon=":material/notifications:"
        )
    if not everyone and target is None:
        st.subheader("The server")
        _source.connect()
