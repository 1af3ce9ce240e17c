"""Servers held against a plan, drawn: verdict, causes, chart and table of one; sums and rows of a group."""

from collections.abc import Mapping, Sequence

import streamlit as st

from monitor.drift import drifts, periods, points, verdict
from monitor.group import Server, group_verdict, servers, sums
from monitor.panels import marks
from monitor.snapshot import Snapshot
from monitor.usage import usage_lines
from pages import _charts, _compare_charts, _compare_tables, _source, _tables, _verdict
from planner.plan import Plan


def now(made: Plan, names: Sequence[str]) -> None:
    """As they are, over the window chosen; one that does not answer is said to be silent."""
    states = {name: _source.of(name).state(name) for name in names}
    pages = {name: state.since(_source.span()) if state and state.latest else () for name, state in states.items()}
    silent = {name: str(_source.verdict(state)) for name, state in states.items() if state and state.error}
    show(made, servers(made, pages, silent))


def between(made: Plan, names: Sequence[str], start: float, end: float) -> None:
    """As they were between two Unix times [s]."""
    pages: Mapping[str, Sequence[Snapshot]] = {name: _source.of(name).snapshots(name, start, end) for name in names}
    show(made, servers(made, pages))


def show(made: Plan, found: Sequence[Server]) -> None:
    """One in full, or several in rows with one of them in full."""
    if len(found) == 1:
        _one(made, found[0])
        return
    _verdict.show(group_verdict(found))
    _tables.show(_compare_tables.servers(found))
    st.caption("Actual over planned, engine by engine; the worst first. Together:")
    _tables.show(_compare_tables.deviations(sums(made, found)))
    names = [each.name for each in found]
    name = st.selectbox("In full", names, key="in_full", bind="query-params")
    _one(made, found[names.index(name)])


def _one(made: Plan, server: Server) -> None:
    if server.silence:
        st.warning(_verdict.literal(f"{server.name}: {server.silence}"), icon=":material/warning:")
    if not server.found:
        _verdict.show(server.verdict)
    for each in server.found:
        st.subheader(
            f"{_verdict.literal(each.model_name or 'Model not named')}, engine {each.engine or '0'}", anchor=False
        )
        _verdict.show(each.verdict)
        if each.causes:
            st.markdown("\n".join(f"1. {_verdict.literal(cause)}" for cause in each.causes))
    lines = usage_lines(made, server.pages)
    if any(line.known for line in lines):
        _charts.show(_compare_charts.usage(lines, marks(server.pages)), key=f"usage {server.name}")
    for each in server.found:
        if len(server.found) > 1:
            st.caption(f"Engine {each.engine}")
        _tables.show(_compare_tables.deviations(each.deviations))


def drift(made: Plan, name: str, start: float, end: float) -> None:
    """How actual over planned moved, day by day."""
    history = _source.of(name).snapshots(name, start, end, points(start, end))
    found = drifts(periods(made, history))
    _verdict.show(verdict(found, f"{name}; plan: {made.inputs}"))
    if not found:
        return
    _charts.show(_compare_charts.drift(found), key="drift")
    _tables.show(_compare_tables.drifts(found))
