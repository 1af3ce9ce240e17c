"""The thresholds of all rules: each with its meaning, editable by those who may."""

from itertools import cycle

import streamlit as st

from monitor.config import put_thresholds
from monitor.thresholds import Thresholds
from pages import _labels, _source, _verdict
from planner.errors import InputError
from planner.fields import meanings, scalars


def show() -> None:
    """The form; where it may not be saved, it says why."""
    found, path = _source.thresholds(), _source.shared().path
    reason = _source.why_no_edit()
    changed = [name for name in scalars(Thresholds) if getattr(found, name) != getattr(Thresholds(), name)]
    said = f"Changed from their defaults in {path.name}: {', '.join(changed)}." if changed else "All are the defaults."
    st.caption(said)
    with st.expander("All thresholds", icon=":material/tune:"), st.form("thresholds", border=False):
        if reason:
            st.info(reason, icon=":material/lock:")
        entered = {}
        for column, (name, (_, default)) in zip(cycle(st.columns(3)), scalars(Thresholds).items(), strict=False):
            usual = f"the default is {'none' if default is None else f'{default:g}'}"
            said = _labels.explained(name, f"{meanings(Thresholds)[name]}; {usual}")
            now, key = getattr(found, name), f"threshold {name}"
            if default is None:  # a field can be emptied only where it was made empty
                st.session_state.setdefault(key, now)
            entered[name] = column.number_input(
                _labels.THRESHOLDS[name], value=None if default is None else float(now), min_value=0.0, step=0.01,
                format="%g", help=said, placeholder="none", disabled=bool(reason), key=key,
            )  # fmt: skip
        if st.form_submit_button("Save", icon=":material/save:", type="primary", disabled=bool(reason)):
            _save(entered)


def _save(entered: dict[str, float | None]) -> None:
    """One left empty that needs a value takes its default."""
    defaults = {name: default for name, (_, default) in scalars(Thresholds).items()}
    values = {name: defaults[name] if value is None else value for name, value in entered.items()}
    try:
        put_thresholds(_source.shared().path, Thresholds(**values))
    except InputError as error:
        st.error(_verdict.refused(error), icon=":material/cancel:")
        return
    _source.shared().reload()
    st.toast("Saved; the rules are held against them from now on.", icon=":material/check_circle:")
    st.rerun()
