"""A calibration from what was seen: its terms, its error before and after, and a name to keep it under."""

from dataclasses import asdict
from datetime import UTC, datetime

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from monitor.calibrate import Accuracy, Evidence, proven
from monitor.calibrate import verdict as verdict_on
from monitor.snapshot import Snapshot
from pages import _loop_tables, _plan_shelf, _tables, _verdict
from planner.calibration import Calibration
from planner.errors import InputError
from planner.plan import Plan
from planner.verdict import Level, Verdict


def show(plan: Plan, seen: Evidence, now: Snapshot, top: DeltaGenerator) -> None:
    """Fits and shows it, its verdict at the top of the page; where it cannot, what is missing."""
    fitted = _fitted(plan, seen, now)
    with top.container():
        _warn(plan, now)
        _verdict.show_limit(plan)
        _verdict.show(fitted if isinstance(fitted, Verdict) else verdict_on(*fitted))
    if isinstance(fitted, Verdict):
        st.caption(_verdict.escaped(f"None yet. {seen.finding}"))
        return
    found, later = fitted
    of = _verdict.literal(f"It is of {plan.model.name} on {plan.deployment.gpu.name}, as the sidebar has it.")
    st.caption(f"{seen.finding} Fitted on the first two thirds, proved on the last. {of}")
    _tables.show(_loop_tables.terms(found))
    st.subheader("Its error on later windows")
    if later:
        _tables.show(_loop_tables.accuracy(later))
    else:
        st.caption("No later window is left: take a longer span.")
    _save(found)


def _fitted(plan: Plan, seen: Evidence, now: Snapshot) -> tuple[Calibration, list[Accuracy]] | Verdict:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    missing = f"it needs {seen.lack}." if seen.lack else ""
    try:
        if not missing:
            return proven(plan, seen.steady, "not saved", today, now.engines[0] if now.engines else None)
    except InputError as error:
        missing = str(error)
    action = "Take a longer span, or wait for more traffic." if seen.lack else "Change the plan in the sidebar."
    return Verdict(level=Level.UNKNOWN, word="No calibration", reason=missing, action=action, context=plan.inputs)


def _warn(plan: Plan, now: Snapshot) -> None:
    """The constants would be taught by another model, or another KV cache, than the plan's: said before the verdict."""
    planned, found = plan.deployment.kv_cache_dtype, []
    names, dtypes = ({getattr(each, key) for each in now.engines} for key in ("model_name", "kv_cache_dtype"))
    served = sorted(each for each in names if each not in (None, "", plan.model.name))
    running = sorted(each for each in dtypes if each not in (None, "", planned))
    if served:
        found.append(f"The plan's model is {plan.model.name}, the server calls its model {', '.join(served)}.")
    if running:
        found.append(f"The plan's KV dtype is {planned}, the server runs {', '.join(running)}.")
    if found:
        found.append("The calibration would be kept under the plan's: choose the server's in the sidebar.")
        st.warning(_verdict.literal(" ".join(found)), icon=":material/warning:")


def _save(found: Calibration) -> None:
    def save() -> None:
        name = st.session_state["calibration_name"]
        if shelf is not None:
            shelf.put(_plan_shelf.CALIBRATION, name, asdict(found) | {"name": name.strip()})
        _plan_shelf.refresh()
        st.toast(
            f"“{_verdict.literal(name)}” is saved: choose it under Calibration in the sidebar.",
            icon=":material/check_circle:",
        )

    _plan_shelf.say_problem()
    if _plan_shelf.kept(_plan_shelf.CALIBRATION) is None:
        return
    shelf = _plan_shelf.shelf()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input("Name", key="calibration_name", placeholder="chat-1, Monday")
        st.button("Save the calibration", icon=":material/bookmark_add:", type="primary", key="save_calibration",
                  on_click=_plan_shelf.act, args=(save,))  # fmt: skip
