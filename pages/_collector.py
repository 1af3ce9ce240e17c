"""The one collector that all sessions share, and what a session looks at: its target, paused or not."""

import streamlit as st

from monitor import health
from monitor.collector import INTERVAL, Collector
from monitor.source import TargetState
from monitor.targets import Target
from planner.errors import InputError
from planner.verdict import Verdict

SPANS = {"1 min": 60.0, "5 min": 300.0, "15 min": 900.0, "1 h": 3600.0}
DEFAULT_SPAN = "5 min"
MOST_TARGETS = 50
FIRST_PAGE = 0.5
"""How long a page waits for the first answer of a new target before it draws "Connecting"  [s]."""


@st.cache_resource(on_release=Collector.stop, show_spinner=False)
def collector() -> Collector:
    """Started with the first target that anybody watches."""
    started = Collector(interval=INTERVAL)
    started.start()
    return started


def stop() -> None:
    """Ends the collector when the server stops."""
    collector.clear()


def target() -> str | None:
    """The address in the inputs, watched from now on; None when there is none. A wrong one ends the page."""
    address = str(st.session_state.get("endpoint") or "").strip()
    if not address:
        return None
    try:
        _watch(address)
        collector().wait_for_page(address, FIRST_PAGE)
    except InputError as error:
        st.error(str(error), icon=":material/cancel:")
        st.stop()
    return address


def _watch(address: str) -> None:
    """Watch one more server; beyond the limit the one added first is forgotten, so that addresses do not pile up."""
    watched = [target.name for target in collector().targets]
    if address not in watched and len(watched) >= MOST_TARGETS:
        collector().remove(watched[0])
    collector().add(Target(name=address, url=address))


def state(address: str) -> TargetState:
    """What is known of the target now, or what was known when the session paused."""
    if not st.session_state.get("paused"):
        st.session_state["last_state"] = collector().state(address)
    kept: TargetState = st.session_state["last_state"]
    return kept


def verdict(found: TargetState) -> Verdict:
    """The verdict on what happened in the span chosen on the live page, five minutes where none was."""
    span = SPANS[st.session_state.get("span") or DEFAULT_SPAN]
    return health.verdict(found, span)


def refresh() -> float | None:
    """Seconds between two drawings; None while paused."""
    return None if st.session_state.get("paused") else INTERVAL


def connect() -> None:
    """How to connect, for those who have not."""
    st.info("No server is watched yet.", icon=":material/info:")
    st.markdown(
        "Enter the address of a vLLM server under **Server to watch**, such as `http://host:8000`; "
        "its `/metrics` page is on by default and needs no key. No server at hand? The demo starts a real vLLM on this "
        "machine's CPU with a tiny random model, sends it a steady load and opens this page on it:"
    )
    st.code("make demo", language="bash")
