"""The servers of monitor.toml: one is added, changed or removed by those who may."""

from collections.abc import Mapping

import streamlit as st

from monitor.config import put_target, remove_target
from monitor.scrape import trust
from monitor.targets import Target, new_name, unset
from pages import _labels, _source, _verdict
from planner.errors import InputError
from planner.fields import meanings

_NEW = "a new one"


def show() -> None:
    """The form, or why there is none."""
    path = _source.shared().path
    with st.expander(f"Servers of {path.name}: add, change, remove", icon=":material/edit:"):
        reason = _source.why_no_edit()
        if reason:
            st.info(reason, icon=":material/lock:")
            return
        known = {target.name: target for target in _source.shared().config.targets}
        if missing := sorted({name for target in known.values() for name in unset(target)}):
            said = ", ".join(f"`{name}`" for name in missing)
            st.warning(f"Not set where this dashboard runs: {said}. Servers that need it are not asked.",
                       icon=":material/warning:")  # fmt: skip
        chosen = st.selectbox("Server", [_NEW, *known], key="target_edited")
        before = known.get(chosen, Target(name="", url=""))
        with st.form(f"target {chosen}", border=False):
            entered = _fields(before, chosen)
            save, remove = st.columns([1, 5])
            is_saved = save.form_submit_button("Save", icon=":material/save:", type="primary")
            is_removed = remove.form_submit_button("Remove", icon=":material/delete:", disabled=before.name == "")
        try:
            if is_saved:
                if before.name == "" and entered["name"] in known:
                    raise InputError(
                        "name", entered["name"], "a name that no server has yet; choose that one to change it"
                    )
                target = _target(entered)
                if before.name == "":
                    new_name(target.name)
                if target.ca_file:
                    trust(target.ca_file)
                put_target(path, target)
                _done(f"{entered['name']} is saved to {path.name}.")
            elif is_removed:
                remove_target(path, before.name)
                _done(f"{before.name} is removed from {path.name}.")
        except InputError as error:
            st.error(_verdict.refused(error), icon=":material/cancel:")


def _fields(before: Target, form: str) -> dict[str, str | bool]:
    left, right = st.columns(2)
    pair = "one a line:"
    return {
        "name": left.text_input(value=before.name, disabled=before.name != "", **_words("name", form)),
        "url": right.text_input(value=before.url, placeholder="http://host:8000", **_words("url", form)),
        "group": left.text_input(value=before.group, **_words("group", form)),
        "ca_file": right.text_input(value=before.ca_file, **_words("ca_file", form)),
        "labels": left.text_area(value=_lines(before.labels), **_words("labels", form, f"; {pair} region = eu")),
        "headers": right.text_area(value=_lines(before.headers),
                                   **_words("headers", form, f"; {pair} Authorization = Bearer ${{TOKEN}}")),
        "verify": st.checkbox(value=before.verify, **_words("verify", form)),
    }  # fmt: skip


def _words(field: str, form: str, example: str = "") -> dict[str, str]:
    """Label, help and key of a field."""
    said = _labels.explained(field, f"{meanings(Target)[field]}{example}")
    return {"label": _labels.TARGET[field], "help": said, "key": f"{form} {field}"}


def _lines(pairs: Mapping[str, str]) -> str:
    return "\n".join(f"{key} = {value}" for key, value in pairs.items())


def _target(entered: Mapping[str, str | bool]) -> Target:
    texts = {key: str(entered[key]).strip() for key in ("name", "url", "group", "ca_file")}
    pairs = {key: _pairs(key, str(entered[key])) for key in ("labels", "headers")}
    return Target(**texts, **pairs, verify=bool(entered["verify"]))


def _pairs(field: str, text: str) -> dict[str, str]:
    found = {}
    for line in filter(str.strip, text.splitlines()):
        key, equals, value = line.partition("=")
        if not equals:
            raise InputError(field, line, "key = value, one a line")
        if key.strip() in found:
            raise InputError(field, key.strip(), "each key once")
        found[key.strip()] = value.strip()
    return found


def _done(text: str) -> None:
    """Taken at once, so that the page shows it."""
    _source.shared().reload()
    st.toast(text, icon=":material/check_circle:")
    st.rerun()
