"""The servers of monitor.toml: one is added, changed or removed by those who may."""

from collections.abc import Mapping

import streamlit as st

from monitor.config import put_target, remove_target
from monitor.targets import Target
from pages import _source
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
                put_target(path, _target(entered))
                _done(f"{entered['name']} is saved to {path.name}.")
            elif is_removed:
                remove_target(path, before.name)
                _done(f"{before.name} is removed from {path.name}.")
        except InputError as error:
            st.error(str(error), icon=":material/cancel:")


def _fields(before: Target, key: str) -> dict[str, str | bool]:
    said = meanings(Target)
    left, right = st.columns(2)
    return {
        "name": left.text_input("name", before.name, help=said["name"], disabled=before.name != "", key=f"{key} name"),
        "url": right.text_input("url", before.url, help=said["url"], placeholder="http://host:8000", key=f"{key} url"),
        "group": left.text_input("group", before.group, help=said["group"], key=f"{key} group"),
        "ca_file": right.text_input("ca_file", before.ca_file, help=said["ca_file"], key=f"{key} ca_file"),
        "labels": left.text_area("labels", _lines(before.labels), help=f"{said['labels']}; one a line: region = eu",
                                 key=f"{key} labels"),
        "headers": right.text_area("headers", _lines(before.headers), key=f"{key} headers",
                                   help=f"{said['headers']}; one a line: Authorization = Bearer ${{TOKEN}}"),
        "verify": st.checkbox("verify", before.verify, help=said["verify"], key=f"{key} verify"),
    }  # fmt: skip


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
        found[key.strip()] = value.strip()
    return found


def _done(text: str) -> None:
    """Taken at once, so that the page shows it."""
    _source.shared().reload()
    st.toast(text, icon=":material/check_circle:")
    st.rerun()
