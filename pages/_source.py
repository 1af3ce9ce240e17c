"""Where pages get servers from: the sources that all sessions share, and what a session looks at, paused or not."""

import streamlit as st

from monitor import health
from monitor.config import MonitorConfig, can_edit, config_path
from monitor.fleet import Member, members
from monitor.source import Source, TargetState
from monitor.sources import Sources
from monitor.targets import shortened
from monitor.thresholds import Thresholds
from pages import _verdict
from planner.errors import InputError
from planner.verdict import Verdict

SPANS = {"1 min": 60.0, "5 min": 300.0, "15 min": 900.0}
DEFAULT_SPAN = "5 min"
FIRST_PAGE = 0.5
"""How long a page waits for the first answer of a new target before it draws "Connecting"  [s]."""


@st.cache_resource(on_release=Sources.stop, show_spinner=False)
def shared() -> Sources:
    """Started with the server, so that recording goes on without a visitor."""
    started = Sources(config_path())
    started.start()
    return started


def stop() -> None:
    """Ends it with the server."""
    shared.clear()


def source() -> Source:
    """What the session reads from."""
    return shared().chosen(st.session_state.get("read_from"))


def choose() -> None:
    """The choice of what to read from, where there is one; what is wrong with file or source is said beside it."""
    choices = shared().choices
    if len(choices) > 1:
        st.segmented_control(
            "Read from", choices, default=choices[0], key="read_from", bind="query-params", required=True
        )
    for problem in filter(None, (shared().file_problem, source().problem)):
        st.warning(_verdict.literal(problem), icon=":material/warning:")


def names() -> list[str]:
    """Servers known by name."""
    return [target.name for target in source().targets()]


def target() -> str | None:
    """The name of the server in the inputs, or that of its address, watched from now on; a wrong one ends the page."""
    chosen = str(st.session_state.get("endpoint") or "").strip()
    if not chosen:
        return None
    if source().state(chosen) is None:
        try:
            shared().watch.watch(chosen)
        except InputError as error:
            st.error(_verdict.refused(error), icon=":material/cancel:")
            st.stop()
        shared().watch.wait_for_page(chosen, FIRST_PAGE)
    found = shared().state(chosen, st.session_state.get("read_from"))
    return chosen if found is None else found.name


def state(name: str) -> TargetState:
    """What is known of the server now, or what was known when the session paused."""
    if not (st.session_state.get("paused") and "last_state" in st.session_state):
        st.session_state["last_state"] = shared().state(name, st.session_state.get("read_from"))
    kept: TargetState = st.session_state["last_state"]
    return kept


def of(name: str) -> Source:
    """The source that knows the server."""
    return shared().of(name, st.session_state.get("read_from"))


def usual(name: str, at: float) -> tuple[float, float] | None:
    """Output tokens/s below which the throughput rule speaks, and what is usual; None where nothing is learnt."""
    return shared().usual(name, at)


def span() -> float:
    """The window that rates are over  [s]."""
    return SPANS[st.session_state.get("span") or DEFAULT_SPAN]


def verdict(found: TargetState) -> Verdict:
    """The verdict on one server."""
    return health.verdict(found, span())


def thresholds() -> Thresholds:
    """What the rules are held against."""
    return shared().config.thresholds


def refresh() -> float | None:
    """Seconds between two drawings; None while paused."""
    return None if st.session_state.get("paused") else shared().config.interval


def why_no_edit() -> str:
    """Why this visitor cannot change the file; empty where he can."""
    found = shared()
    if can_edit(found.path, found.config, visitor()):
        return ""
    if not can_edit(found.path, MonitorConfig(), None):
        return f"{found.path.name} cannot be written by this dashboard: edit it by hand, it is read again at once."
    who = visitor() or "you are not logged in"
    return f"Only the editors named in {found.path.name} change it ({who}): {', '.join(found.config.editors)}."


def visitor() -> str | None:
    """Who it is by e-mail address, where the dashboard asks its visitors to log in."""
    return str(st.user.get("email")) if st.user.get("is_logged_in") else None


def groups() -> list[str]:
    """The groups that servers are in."""
    return sorted({target.group for target in source().targets() if target.group})


def in_group(group: str) -> list[str]:
    """Names of the servers in a group."""
    return [target.name for target in source().targets() if target.group == group]


def address(name: str) -> str:
    """Where a server is."""
    found = of(name).state(name)
    return shortened(name if found is None else found.target.shown_url)


def fleet() -> list[Member]:
    """All servers judged, or as they were when the session paused."""
    if not (st.session_state.get("paused") and "last_fleet" in st.session_state):
        st.session_state["last_fleet"] = _judged(source(), str(st.session_state.get("read_from")))
    kept: list[Member] = st.session_state["last_fleet"]
    return kept


@st.cache_resource(ttl=1.0, show_spinner=False)
def _judged(_source: Source, which: str) -> list[Member]:
    """Once a second for all sessions."""
    return members(_source, thresholds().window)


def connect() -> None:
    """How to connect, for those who have not."""
    st.info("No server is chosen.", icon=":material/info:")
    st.markdown(
        "Choose a server under **Server to watch**, or type the address of a vLLM server, such as `http://host:8000`; "
        "its `/metrics` page is on by default and needs no key. Servers to watch all the time are listed in "
        f"`{shared().path.name}`; the page *Fleet* adds them. No server at hand? The demo starts a real vLLM on this "
        "machine's CPU with a tiny random model, sends it a steady load and opens this page on it:"
    )
    st.code("make demo", language="bash")
