"""Findings on a plan, under its verdict: what to change or to leave, why, and the next step."""

import streamlit as st

from pages import _tables
from planner.advice import advice
from planner.plan import Plan
from planner.verdict import Level

_WORDS = {Level.GOOD: "✓ fine", Level.WARNING: "⚠ a gain is left", Level.BAD: "✗ wasted", Level.UNKNOWN: "? unknown"}


def show(plan: Plan) -> None:
    """Draws every finding; nothing where the plan holds no KV cache."""
    found = advice(plan)
    if not found:
        return
    st.subheader("Advice")
    _tables.show(
        [{"": _WORDS[each.level], "About": each.id, "Next step": each.action, "Why": each.reason} for each in found]
    )
