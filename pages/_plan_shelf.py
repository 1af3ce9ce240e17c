"""The shelf on which plans, calibrations and experiments are kept: monitor.toml's store, its trouble said in a line."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAPIException

from monitor.experiment_result import KIND as EXPERIMENT
from pages import _source, _verdict
from planner.calibration import Calibration
from planner.errors import InputError
from planner.record import calibration_from
from planner.store import Saved, Shelf, StoreError

PLAN, CALIBRATION = "plan", "calibration"
"""Kinds of documents."""
CHOSEN = {PLAN: "saved", EXPERIMENT: "experiment"}
"""Key of the widget that holds the one chosen of a kind, and its name in the address."""
_PROBLEM = "shelf_problem"


def shelf() -> Shelf | None:
    """Where documents are kept; None where monitor.toml wants nothing kept. Raises InputError for a wrong address."""
    url = _source.shared().config.store
    return _opened(url) if url else None


@st.cache_resource(on_release=Shelf.close, max_entries=4, show_spinner=False)
def _opened(url: str) -> Shelf:
    return Shelf(url)


def label_of(saved: Saved) -> str:
    """Its name, and its number, for two may have the same name."""
    return f"{saved.name} (#{saved.id})"


def kept(kind: str, *, deleted: bool = False) -> Mapping[str, Saved] | None:
    """Those of a kind by name, the newest first; None, and why on the page, where they cannot be read."""
    try:
        found = shelf()
        if found is None:
            st.info(f"Nothing is kept: `store` is empty in {_source.shared().path.name}.", icon=":material/info:")
            return None
        return {label_of(each): each for each in found.all(kind, deleted=deleted)}
    except (StoreError, InputError) as error:
        st.error(_verdict.refused(error), icon=":material/cancel:")
        return None


def calibrations() -> Mapping[str, Calibration]:
    """Those saved, by name; none where they cannot be read, which the page of saved plans says."""
    return _calibrations(_source.shared().config.store)


@st.cache_resource(ttl=10.0, show_spinner=False)
def _calibrations(url: str) -> Mapping[str, Calibration]:
    """Read every few seconds for all sessions: the sidebar of every page has them, and a store may be slow or gone."""
    try:
        found = _opened(url).all(CALIBRATION) if url else []
        return {label_of(each): calibration_from(each.body) for each in found}
    except (StoreError, InputError):
        return {}


def refresh() -> None:
    """A calibration was saved: the sidebar has it from now on."""
    _calibrations.clear()


def choose(one: Saved) -> None:
    """The one of its kind that is shown next."""
    st.session_state[CHOSEN[one.kind]] = label_of(one)


def choose_newest(kind: str, shelf: Shelf) -> None:
    """The newest of its kind is shown next; none where nothing is left."""
    left = shelf.all(kind)
    st.session_state[CHOSEN[kind]] = label_of(left[0]) if left else None


def select(label: str, kind: str, found: Mapping[str, Saved]) -> Saved | None:
    """The one chosen of those found, the newest at first; None, and why on the page, where it is not there.

    The address always names it, the newest too, so that a copied link means the same one later.
    """
    key, before = CHOSEN[kind], st.session_state
    asked = before.get(key) or before.get(f"{key}_missing") or st.query_params.get(key)
    before[f"{key}_missing"] = None if asked is None or asked in found else asked
    if before[f"{key}_missing"] is None:
        before[key] = asked or next(iter(found))
        if not st.query_params.get(key):
            with suppress(StreamlitAPIException):  # a box that was drawn before writes it itself
                st.query_params[key] = before[key]
    chosen: str | None = st.selectbox(
        label, list(found), index=None, key=key, bind="query-params", required=True, placeholder="choose one"
    )
    if chosen is not None:
        before[f"{key}_missing"] = None
        return found[chosen]
    missing = before[f"{key}_missing"]
    gone = InputError(key, missing, f"one {kind} of the list")
    st.error(_verdict.refused(gone) if missing else f"Choose one {kind} of the list.", icon=":material/cancel:")
    return None


def act(action: Callable[..., Any], *given: Any, where: str = _PROBLEM) -> None:
    """Does it, from a callback; what goes wrong is said by the page that is drawn next, there."""
    try:
        action(*given)
    except (StoreError, InputError) as error:
        st.session_state[where] = _verdict.refused(error)


def say_problem(where: str = _PROBLEM) -> None:
    """What went wrong just now, once."""
    problem = st.session_state.pop(where, "")
    if problem:
        st.error(problem, icon=":material/cancel:")
