"""What was kept by name is deleted, and taken back: plans and experiments alike."""

import streamlit as st

from pages import _plan_shelf, _verdict
from planner.store import Saved, Shelf


def delete_button(shelf: Shelf, one: Saved) -> None:
    """Takes it off the list."""

    def delete() -> None:
        shelf.delete(one.id)
        st.session_state[_last(one.kind)] = one
        _plan_shelf.choose_newest(one.kind, shelf)

    st.button("Delete", icon=":material/delete:", key="delete", on_click=_plan_shelf.act, args=(delete,))


def undo_bar(shelf: Shelf, kind: str) -> None:
    """The one deleted last, and its way back."""
    gone: Saved | None = st.session_state.get(_last(kind))
    if gone is not None:
        with st.container(horizontal=True, vertical_alignment="center", border=True):
            st.markdown(f":material/delete: “{_verdict.literal(gone.name)}” is deleted.")
            st.button(
                "Undo", icon=":material/undo:", key="undo", on_click=_plan_shelf.act, args=(_restore, shelf, gone)
            )


def bin_of(shelf: Shelf, kind: str) -> None:
    """Those deleted in the last 30 days."""
    with st.expander("Deleted in the last 30 days"):
        gone = _plan_shelf.kept(kind, deleted=True)
        if not gone:
            st.caption("None.")
            return
        label = st.selectbox(f"Deleted {kind}", list(gone), key=f"deleted_{kind}")
        st.button("Take it back", icon=":material/undo:", key="restore", on_click=_plan_shelf.act,
                  args=(_restore, shelf, gone[label]))  # fmt: skip


def _restore(shelf: Shelf, one: Saved) -> None:
    shelf.restore(one.id)
    st.session_state.pop(_last(one.kind), None)
    _plan_shelf.choose(one)


def _last(kind: str) -> str:
    """Where the session keeps the one deleted last."""
    return f"{kind}_deleted"
