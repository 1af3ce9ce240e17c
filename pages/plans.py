"""Saved plans: keep the plan of the sidebar under a name, open one again, and see what it said when it was saved."""

import streamlit as st

from pages import _bin, _inputs, _plan_actions, _plan_shelf, _plan_tables, _tables, _verdict
from planner.changes import changes
from planner.errors import InputError
from planner.record import from_json
from planner.store import Saved


def show(chosen: Saved) -> None:
    """One in full, with what can be done with it."""
    today, changed = None, []
    try:
        today = from_json(chosen.body)
        changed = changes(chosen.body, today)
    except InputError as error:
        st.warning(
            f"It cannot be planned again, so only what it said is shown. {_verdict.refused(error)}",
            icon=":material/warning:",
        )
    with st.container(horizontal=True, vertical_alignment="center"):
        if today is not None:
            _plan_actions.open_button(chosen.name, today)
        st.download_button(
            "As JSON",
            _tables.as_text(chosen.body),
            f"{chosen.name}.json",
            "application/json",
            icon=":material/download:",
        )
        _bin.delete_button(shelf, chosen)
    if changed:
        st.warning(
            "This planner works some figures out otherwise than the one that saved it: both are shown.",
            icon=":material/warning:",
        )
    _tables.show(_plan_tables.as_it_was(chosen.body, changed, today is not None))
    _plan_actions.rename_form(shelf, chosen)


plan = _inputs.made()
st.title("Saved plans")
_verdict.show(plan.verdict)
_plan_actions.said()
found = _plan_shelf.kept(_plan_shelf.PLAN)
if found is None:
    st.stop()
shelf = _plan_shelf.shelf()

_plan_actions.save_form(shelf, plan)
_bin.undo_bar(shelf, _plan_shelf.PLAN)
if found:
    st.dataframe(
        _plan_tables.plans(found), hide_index=True, column_config=_plan_tables.PLAN_COLUMNS, placeholder="–",
        key="plans", alt="Saved plans with what they said then, the newest first",
    )  # fmt: skip
    chosen = _plan_shelf.select("Saved plan", _plan_shelf.PLAN, found)
    if chosen is not None:
        show(chosen)
else:
    st.caption("No plan is saved yet.")
_bin.bin_of(shelf, _plan_shelf.PLAN)
