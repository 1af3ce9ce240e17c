"""A Verdict at the top of a page: icon, word, deciding number, what to do, and the inputs it rests on."""

import streamlit as st

from planner.plan import Plan
from planner.verdict import Level, Verdict

_BOXES = {
    Level.GOOD: (st.success, ":material/check_circle:"),
    Level.WARNING: (st.warning, ":material/warning:"),
    Level.BAD: (st.error, ":material/cancel:"),
    Level.UNKNOWN: (st.info, ":material/help:"),
}


def show(verdict: Verdict) -> None:
    """Draws one verdict."""
    box, icon = _BOXES[verdict.level]
    lines = [f"**{verdict.word}.** {escaped(f'{verdict.reason} {verdict.action}')}", f":small[{verdict.context}]"]
    box("  \n".join(line for line in lines if line != ":small[]"), icon=icon)


def escaped(text: str) -> str:
    """Text whose dollars stay dollars: Markdown takes two of them for a formula."""
    return text.replace("$", r"\$")


def show_limit(plan: Plan) -> None:
    """Draws the plan's own verdict where it does not fit, so that no page looks fine without it."""
    if plan.limit is not None:
        show(plan.verdict)
