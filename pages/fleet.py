"""Fleet: every server watched, worst first, what they are together, and who may add or remove one."""

import streamlit as st

from monitor.fleet import by_group, by_model, having
from monitor.health import group_verdict
from pages import _monitor_tables, _source, _tables, _target_form, _verdict
from planner.units import duration

st.title("Fleet")
_source.choose()
if not _source.names():
    _source.connect()
    _target_form.show()
    st.stop()

with st.container(horizontal=True, vertical_alignment="bottom"):
    words = st.text_input("Find", key="find_server", bind="query-params", placeholder="name, model, label, verdict …")
    groups = _source.groups()
    if groups:
        group = st.selectbox("Group", groups, index=None, key="group", bind="query-params", placeholder="all")
    else:
        group = None
    st.toggle("Pause", key="paused")


@st.fragment(run_every=_source.refresh())
def page() -> None:
    """Redrawn with every cycle, unless paused."""
    everyone = _source.fleet()
    found = having(everyone, words, group)
    _verdict.show(group_verdict([each.state for each in found]))
    window = duration(_source.thresholds().window)
    st.caption(f"{len(found)} of {len(everyone)} servers, the worst first, then the fullest. Rates over {window}.")
    st.dataframe(
        _monitor_tables.fleet(found, "live", st.query_params.to_dict()), hide_index=True, placeholder="–",
        column_config=_monitor_tables.FLEET_COLUMNS, key="fleet", alt="Servers with verdict and load, the worst first",
    )  # fmt: skip
    st.subheader("Together")
    _tables.show(_monitor_tables.totals(by_model(found), "Model"))
    if groups:
        _tables.show(_monitor_tables.totals(by_group(found), "Group"))


page()
_target_form.show()
