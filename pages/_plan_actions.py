"""What can be done with saved plans: save, open, rename and duplicate; _bin deletes and takes back."""

from collections.abc import Callable

import streamlit as st

from pages import _inputs, _plan_shelf, _verdict
from planner.plan import Plan
from planner.record import to_json
from planner.store import Saved, Shelf

_OPENED = "plan_opened"
_RENAMING, _NOT_RENAMED = "renaming", "not_renamed"


def save_form(shelf: Shelf, made: Plan) -> None:
    """Keeps the plan of the sidebar under a name, with why it is kept."""

    def save() -> None:
        note = st.session_state["save_note"]
        _plan_shelf.choose(shelf.put(_plan_shelf.PLAN, st.session_state["save_name"], to_json(made), note))
        st.session_state.update(save_name="", save_note="")

    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input("Name", key="save_name", placeholder="Chat, December")
        st.text_input("Note", key="save_note", placeholder="why it is kept")
        st.button("Save the plan of the sidebar", icon=":material/bookmark_add:", type="primary", key="save",
                  on_click=_plan_shelf.act, args=(save,))  # fmt: skip


def said() -> None:
    """What was done last: what went wrong, and what an opened plan lost."""
    _plan_shelf.say_problem()
    if _OPENED in st.session_state:
        name, lost = st.session_state.pop(_OPENED)
        if lost:
            st.warning(_verdict.literal(f"“{name}” is open, but: {'; '.join(lost)}."), icon=":material/warning:")
        else:
            st.success(_verdict.literal(f"“{name}” is open in the sidebar."), icon=":material/check_circle:")


def open_button(name: str, made: Plan) -> None:
    """Puts a plan into the sidebar."""

    def open_it() -> None:
        st.session_state[_OPENED] = name, _inputs.open_plan(made)

    st.button("Open in the sidebar", icon=":material/edit:", key="open", on_click=_plan_shelf.act, args=(open_it,))


def rename_form(shelf: Shelf, one: Saved) -> None:
    """Another name or note, for it or for a copy; the plan itself never changes. Open until that is done."""
    name_key, note_key = f"name {one.id}", f"note {one.id}"

    def rename() -> None:
        shelf.describe(one.id, st.session_state[name_key], st.session_state[note_key])
        _plan_shelf.choose(shelf.one(one.id))

    def duplicate() -> None:
        copy = shelf.duplicate(one.id, st.session_state[name_key])
        shelf.describe(copy.id, copy.name, st.session_state[note_key])
        _plan_shelf.choose(copy)

    def attempt(action: Callable[[], None]) -> None:
        _plan_shelf.act(action, where=_NOT_RENAMED)
        st.session_state[_RENAMING] = _NOT_RENAMED in st.session_state

    with st.expander("Rename or duplicate", key=_RENAMING, on_change="rerun"):
        _plan_shelf.say_problem(_NOT_RENAMED)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            st.text_input("Name", one.name, key=name_key)
            st.text_input("Note", one.note, key=note_key)
            st.button("Rename", icon=":material/edit_note:", key="rename", on_click=attempt, args=(rename,))
            st.button("Duplicate", icon=":material/content_copy:", key="duplicate", on_click=attempt,
                      args=(duplicate,))  # fmt: skip
