"""Which plan is compared: the sidebar's, a saved one as it was, or the one that a server itself shows."""

from collections.abc import Sequence

import streamlit as st

from monitor.adopt import adopted
from monitor.source import TargetState
from monitor.traffic import Traffic, traffic
from pages import _inputs, _plan_actions, _plan_shelf, _plan_tables, _source, _tables, _verdict
from planner.catalog.models import models
from planner.changes import changes
from planner.errors import InputError
from planner.plan import Plan
from planner.record import from_json

SIDEBAR, SAVED, ADOPTED = "The sidebar's", "A saved one", "The server's own"


def choice() -> str:
    """Where the plan is taken from."""
    which: str = st.segmented_control(
        "Plan", [SIDEBAR, SAVED, ADOPTED], default=SIDEBAR, key="plan_from", bind="query-params", required=True
    )
    return which


def chosen(which: str, names: Sequence[str]) -> Plan:
    """The plan to hold these servers against; without one the page ends."""
    try:
        found = _saved() if which == SAVED else _adopted(names) if which == ADOPTED else _inputs.made()
    except InputError as error:
        st.error(_verdict.refused(error), icon=":material/cancel:")
        st.stop()
    if found is None:
        st.stop()
    if found.capacity is None:
        _verdict.show(found.verdict)
        st.stop()
    return found


def _saved() -> Plan | None:
    """One that was kept, with its own model, device and prices, whatever the catalog says today."""
    found = _plan_shelf.kept(_plan_shelf.PLAN)
    if found == {}:
        st.info("No plan is saved yet: the page *Saved plans* keeps the sidebar's.", icon=":material/info:")
    if not found:
        return None
    one = _plan_shelf.select("Saved plan", _plan_shelf.PLAN, found)
    if one is None:
        return None
    body = one.body
    made = from_json(body)
    if changed := changes(body, made):
        with st.expander("This planner works some figures out otherwise than the one that saved it"):
            _tables.show(_plan_tables.as_it_was(body, changed, is_planned_again=True))
    return made


def _adopted(names: Sequence[str]) -> Plan | None:
    """What a server says of itself, as a plan; it says neither device nor ranks, so they are asked for."""
    states = [state for name in names if (state := _source.of(name).state(name)) and state.latest]
    state = next((each for each in states if each.latest and each.latest.engines), None)
    if state is None or state.latest is None:
        st.info("No server has said anything to adopt yet.", icon=":material/info:")
        return None
    engine = state.latest.engines[0]
    devices = [gpu.name for gpu in _inputs.own().devices]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        model = st.selectbox(
            "Model it serves", [*_inputs.uploads().references(), *(known.checkpoints[0] for known in models())],
            index=None, key="adopt_model", bind="query-params", accept_new_options=True,
            placeholder=engine.model_name or "not said",
        )  # fmt: skip
        device = st.selectbox("Its device", devices, devices.index(st.session_state["gpu"]), key="adopt_gpu",
                              bind="query-params")  # fmt: skip
        ranks = st.number_input("Its ranks (tensor parallel)", 1, value=st.session_state["tensor_parallel_size"],
                                key="adopt_ranks", bind="query-params")  # fmt: skip
    load = _load(state)
    made = adopted(
        engine, _inputs.own().gpu_named(device), versions=state.latest.versions, load=load, model=model or "",
        tensor_parallel_size=ranks, find=lambda name: _inputs.named(name).spec,
    )  # fmt: skip
    if load is None:
        made = made.on(workload=_inputs.made().workload)
    of_load = "with the load that is there" if load else "with the load of the sidebar, for too few requests finished"
    st.caption(_verdict.literal(f"{made.inputs}; as {state.name} says of itself, {of_load}."))
    _plan_actions.open_button(f"{state.name} as it is", made)
    return made


def _load(state: TargetState) -> Traffic | None:
    window = state.window(_source.span())
    return traffic(window.engines[0]) if window and window.engines else None
