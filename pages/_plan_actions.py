"""What can be done with saved plans: save, open, rename, duplicate, delete and take back."""

import streamlit as st

from pages import _inputs, _plan_shelf, _verdict
from planner.plan import Plan
from planner.record import to_json
from planner.store import Saved, Shelf

_OPENED, _DELETED = "plan_opened", "plan_deleted"


def save_form(shelf: Shelf, made: Plan) -> None:
    """Keeps the plan of the sidebar under a name, with why it is kept."""

    def save() -> None:
        shelf.put(_plan_shelf.PLAN, st.session_state["save_name"], to_json(made), st.session_state["save_note"])
        st.session_state.update(save_name="", save_note="")

    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input("Name", key="save_name", placeholder="Chat, December")
        st.text_input("Note", key="save_note", placeholder="why it is kept")
        st.button("Save the plan of the sidebar", icon=":material/bookmark_add:", type="primary", key="save",
                  on_click=_plan_shelf.act, args=(save,))  # fmt: skip


def said() -> None:
    """What was done last: what an opened plan lost, and a way back for one that was deleted."""
    _plan_shelf.say_problem()
    if _OPENED in st.session_state:
        name, lost = st.session_state.pop(_OPENED)
        if lost:
            st.warning(_verdict.escaped(f"“{name}” is open, but: {'; '.join(lost)}."), icon=":material/warning:")
        else:
            st.success(_verdict.escaped(f"“{name}” is open in the sidebar."), icon=":material/check_circle:")


def undo_bar(shelf: Shelf) -> None:
    """The plan deleted last, and its way back."""
    gone: Saved | None = st.session_state.get(_DELETED)
    if gone is not None:
        with st.container(horizontal=True, vertical_alignment="center", border=True):
            st.markdown(_verdict.escaped(f":material/delete: “{gone.name}” is deleted."))
            st.button(
                "Undo", icon=":material/undo:", key="undo", on_click=_plan_shelf.act, args=(_restore, shelf, gone)
            )


def bin_of(shelf: Shelf) -> None:
    """Those deleted in the last 30 days."""
    with st.expander("Deleted in the last 30 days"):
        gone = _plan_shelf.kept(_plan_shelf.PLAN, deleted=True)
        if not gone:
            st.caption("None.")
            return
        label = st.selectbox("Deleted plan", list(gone), key="deleted_plan")
        st.button("Take it back", icon=":material/undo:", key="restore", on_click=_plan_shelf.act,
                  args=(_restore, shelf, gone[label]))  # fmt: skip


def open_button(name: str, made: Plan) -> None:
    """Puts a plan into the sidebar."""

    def open_it() -> None:
        st.session_state[_OPENED] = name, _inputs.open_plan(made)

    st.button("Open in the sidebar", icon=":material/edit:", key="open", on_click=_plan_shelf.act, args=(open_it,))


def delete_button(shelf: Shelf, one: Saved) -> None:
    """Takes it off the list."""

    def delete() -> None:
        shelf.delete(one.id)
        st.session_state[_DELETED] = one

    st.button("Delete", icon=":material/delete:", key="delete", on_click=_plan_shelf.act, args=(delete,))


def rename_form(shelf: Shelf, one: Saved) -> None:
    """Another name or note, for it or for a copy; the plan itself never changes."""
    name_key, note_key = f"name {one.id}", f"note {one.id}"

    def rename() -> None:
        shelf.describe(one.id, st.session_state[name_key], st.session_state[note_key])
        _choose(shelf.one(one.id))

    def duplicate() -> None:
        copy = shelf.duplicate(one.id, st.session_state[name_key])
        shelf.describe(copy.id, copy.name, st.session_state[note_key])
        _choose(copy)

    with st.expander("Rename or duplicate"), st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input("Name", one.name, key=name_key)
        st.text_input("Note", one.note, key=note_key)
        st.button("Rename", icon=":material/edit_note:", key="rename", on_click=_plan_shelf.act, args=(rename,))
        st.button("Duplicate", icon=":material/content_copy:", key="duplicate", on_click=_plan_shelf.act,
                  args=(duplicate,))  # fmt: skip


def _restore(shelf: Shelf, one: Saved) -> None:
    shelf.restore(one.id)
    st.session_state.pop(_DELETED, None)
    _choose(one)


def _choose(one: Saved) -> None:
    """The one shown next."""
    st.session_state[_plan_shelf.CHOSEN] = _plan_shelf.label_of(one)
