"""The plan's KV layout against vLLM's own code, on demand: it takes an engine's interpreter half a minute."""

import streamlit as st

from monitor.engine import EngineError
from monitor.engine_check import Check, check, installed
from pages import _tables, _verdict
from planner.plan import Plan


def show(plan: Plan) -> None:
    """A button that asks vLLM, and what it said of this very plan."""
    if not installed():
        st.caption("`make engine` installs a vLLM beside the dashboard, whose own code can then check this layout.")
        return
    question = (plan.model.name, plan.deployment, plan.pool_bytes)
    if st.button("Check with vLLM", key="check_with_vllm", icon=":material/rule:"):
        with st.spinner("vLLM lays out the same model in an interpreter of its own; this takes up to a minute …"):
            try:
                st.session_state["engine_check"] = (question, check(plan))
            except EngineError as error:
                st.error(_verdict.refused(error), icon=":material/cancel:")
    asked, found = st.session_state.get("engine_check", (None, None))
    if found is not None and asked == question:
        _verdict.show(found.verdict)
        if found.lines:
            _tables.show(_rows(found))


def _rows(found: Check) -> list[dict[str, str]]:
    return [
        {
            "Quantity": line.quantity,
            "Planned": _plain(line.planned),
            "vLLM": _plain(line.engine),
            "Equal": "✓ equal" if line.is_equal else "✗ different",
        }
        for line in found.lines
    ]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else f"{value:,}"
