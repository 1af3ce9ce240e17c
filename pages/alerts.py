"""Alerts: what is wrong now, what was, when a rule speaks, who is told, and the same rules for Prometheus."""

import time

import streamlit as st

from monitor.config import without_secrets
from monitor.handover import FORMATS, text
from monitor.health import group_verdict
from pages import _monitor_tables, _source, _span, _tables, _threshold_form, _verdict

LANGUAGES = {"grafana": "json"}

st.title("Alerts")
_source.choose()


@st.fragment(run_every=_source.refresh())
def active() -> None:
    """Redrawn with every cycle."""
    states = [each.state for each in _source.fleet()]
    _verdict.show(group_verdict(states))
    found = [finding for state in states for finding in state.findings]
    if found:
        _tables.show(_monitor_tables.findings(found, time.time()))


active()
if not _source.names():
    _source.connect()

st.subheader("Timeline")
start, end = _span.chosen()
events = _source.source().events(start, end)
if events:
    st.dataframe(_monitor_tables.events(events), hide_index=True, key="timeline", alt="Findings that began or ended")
else:
    st.caption("No finding began or ended in this span.")

st.subheader("Who is told")
config = _source.shared().config
if config.webhooks:
    _tables.show(_monitor_tables.webhooks(without_secrets(config).webhooks))
else:
    st.caption(f"Nobody: add a [[webhooks]] table with name and url to {_source.shared().path.name}.")

st.subheader("When a rule speaks")
_threshold_form.show()

st.subheader("The same rules elsewhere")
st.caption(
    "Made from the same file and thresholds. `python -m monitor rules --format …` prints them too, with what is "
    "hidden here: secrets that the file itself holds."
)
form = st.segmented_control("For", FORMATS, default=FORMATS[0], key="rules_for", bind="query-params", required=True)
rules, kind = text(form, without_secrets(config)), LANGUAGES.get(form, "yaml")
st.download_button(f"Download for {form}", rules, f"vllm-{form}.{kind}", icon=":material/download:")
st.code(rules, language=kind, height=420)
