"""The experiment that runs beside the dashboard: its form, its progress, its end. One at a time for all sessions."""

import time
from collections.abc import Callable

import streamlit as st

from monitor.background import PORT, Background, model_folder
from monitor.engine_check import installed
from monitor.experiment import Setup
from monitor.experiment_result import KIND, Experiment, as_json
from pages import _labels, _plan_shelf, _source, _verdict
from planner.errors import InputError
from planner.fields import meanings, scalars
from planner.kv_dtype import KV_DTYPES

_SIZES = ("prompts", "max_tokens", "max_model_len", "gpu_memory_utilization", "repeat", "port")
_WHO = "Starting one runs a process on the dashboard's machine, so only those may who may edit"


@st.cache_resource(on_release=Background.cancel, show_spinner=False)
def background() -> Background:
    """What runs it, for all sessions."""
    return Background()


def show() -> None:
    """The form while nothing runs, else how far it is."""
    if not installed():
        st.info("There is no engine beside this dashboard, which an experiment needs.", icon=":material/info:")
        st.code("make engine", language="bash")
        return
    now = background().progress
    if now is not None and now.is_running:
        _progress()
        return
    if now is not None and now.problem:
        st.error(_verdict.literal(now.problem), icon=":material/cancel:")
    reason = _source.why_no_edit()
    with st.expander("A new experiment", icon=":material/science:", expanded=now is None and not reason):
        st.caption(f"{_WHO} {_source.shared().path.name}.")
        if reason:
            st.info(reason, icon=":material/lock:")
        _form(bool(reason))


def _form(is_locked: bool) -> None:
    defaults = scalars(Setup)
    with st.form("new experiment", border=False):
        model = st.text_input(placeholder="empty: a tiny random model", disabled=is_locked,
                              **_words("model", "; on the dashboard's machine"))  # fmt: skip
        dtypes = st.multiselect(options=list(KV_DTYPES), default=["auto", "fp8"], disabled=is_locked,
                                **_words("kv_cache_dtypes"))  # fmt: skip
        entered = {}
        for column, name in zip([*st.columns(3), *st.columns(3)], _SIZES, strict=True):
            default = PORT if name == "port" else defaults[name][1]
            entered[name] = column.number_input(value=default, disabled=is_locked, **_words(name))
        is_begun = st.form_submit_button("Start", icon=":material/play_arrow:", type="primary", disabled=is_locked)
    if is_begun and not _source.why_no_edit():
        try:
            background().start(Setup(model=model_folder(model), kv_cache_dtypes=dtypes, **entered), _keep())
        except InputError as error:
            st.error(_verdict.refused(error), icon=":material/cancel:")
            return
        st.rerun()


def _words(field: str, where: str = "") -> dict[str, str]:
    """Label, help and key of a field."""
    said = _labels.explained(field, f"{meanings(Setup)[field]}{where}")
    return {"label": _labels.EXPERIMENT[field], "help": said, "key": f"experiment {field}"}


def _keep() -> Callable[[Experiment], object]:
    """What the thread does with the result; it has no session to ask."""
    shelf = _plan_shelf.shelf()
    return lambda found: shelf and shelf.put(KIND, found.title, as_json(found))


@st.fragment(run_every=1.0)
def _progress() -> None:
    now = background().progress
    if now is None or not now.is_running:
        st.rerun()
        return
    dtypes = ", ".join(now.setup.kv_cache_dtypes)
    st.markdown(f"**Running:** {_verdict.literal(now.setup.model.name)} with KV dtype {dtypes}.")
    st.progress(now.share, text=now.text(time.time()))
    is_ending, is_locked = background().is_ending, bool(_source.why_no_edit())
    st.button("It is being ended …" if is_ending else "Cancel", icon=":material/stop:", key="cancel",
              on_click=background().cancel, disabled=is_ending or is_locked)  # fmt: skip
