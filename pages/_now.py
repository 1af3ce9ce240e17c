"""The traffic that headroom is measured from: what the watched server gets, else what the plan expects."""

import time
from dataclasses import dataclass

import streamlit as st

from monitor.arrivals import Trend, arrivals, load, trend
from monitor.source import Source
from monitor.times import back
from pages import _source
from planner.headroom import planned_rate
from planner.plan import Plan
from planner.units import count, duration

HOURS = 720
"""Of the month that a trend is looked for in."""
LENGTHS = "Requests as long as the server's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What headroom is measured from: the plan of those requests, how many arrive, where from, and where it leads."""

    plan: Plan
    rate: float
    said: str
    trend: Trend | None = None


def now(plan: Plan) -> Now:
    """Draws the choices there are, and says what was taken."""
    target = _source.target()
    if target is None:
        rate = planned_rate(plan)
        said = "of the plan's own load" if rate else "no server is watched, and the plan asks for as many as fit"
        return Now(plan=plan, rate=rate, said=said)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.segmented_control(
            "Arrivals over", list(_source.SPANS), default=_source.DEFAULT_SPAN, key="span", bind="query-params",
            required=True,
        )  # fmt: skip
        is_real = st.toggle(LENGTHS, value=True, key="real_lengths", bind="query-params")
    found = (state := _source.state(target)) and state.window(_source.span())
    seen, leads = found and load(found), _trend(target, str(st.session_state.get("read_from")), _source.of(target))
    if not seen:
        return Now(plan=plan, rate=0.0, said=f"{target} does not say yet how many requests end", trend=leads)
    engines = f", {count(seen.engines, 'engines')} together" if seen.engines > 1 else ""
    said = f"of {target} over {duration(seen.seconds)}{engines}"
    if is_real and seen.workload is not None:
        plan = plan.on(workload=seen.workload)
    return Now(plan=plan, rate=seen.requests_per_s, said=said, trend=leads)


@st.cache_resource(ttl=60.0, max_entries=100, show_spinner=False)
def _trend(target: str, read_from: str, _known: Source) -> Trend:
    """A month is read once a minute for all sessions."""
    start, end = back("1 month", time.time())
    history = _known.snapshots(target, start, end, HOURS)
    return trend(arrivals(history), history)
