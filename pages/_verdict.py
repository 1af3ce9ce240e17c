"""A Verdict at the top of a page: icon, word, deciding number, what to do, and the inputs it rests on."""

import re

import streamlit as st

from planner.errors import InputError
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
    lines = [f"**{verdict.word}.** {literal(f'{verdict.reason} {verdict.action}')}"]
    if verdict.context:
        lines.append(f":small[{literal(verdict.context)}]")
    box("  \n".join(lines), icon=icon)


def escaped(text: str) -> str:
    """Markdown of ours whose dollars stay dollars: two of them are taken for a formula."""
    return text.replace("$", r"\$")


def literal(text: str) -> str:
    """Text that people or servers wrote, shown as it is: no markup, formula, icon or list. Addresses may be links.

    Icons are looked for after the backslashes are gone, so a mark without width parts them.

    >>> print(literal("**b** $1 tpot_s"))
    \\*\\*b\\*\\* \\$1 tpot_s
    """
    return _LOOKED_FOR.sub(f"\\g<0>{_NO_WIDTH}", _MARKUP.sub(r"\\\g<0>", text))


_MARKUP = re.compile(
    r"[\\`*~$\[\]<]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|:(?=[A-Za-z])|^(?=>|[#+=-]+(?:\s|$))", re.MULTILINE
)
_LOOKED_FOR = re.compile(r":(?=[\w+-]*[a-z][\w+/-]*:)|^\d+(?=[.)]\s)", re.MULTILINE)
_NO_WIDTH = "\N{WORD JOINER}"


def refused(error: Exception) -> str:
    """An error in Markdown: what was found is another's text, what is accepted is ours."""
    ours = error.accepted if isinstance(error, InputError) else ""
    return f"{literal(str(error).removesuffix(ours))}{escaped(ours)}"


def show_limit(plan: Plan) -> None:
    """Draws the plan's own verdict where it does not fit, so that no page looks fine without it."""
    if plan.limit is not None:
        show(plan.verdict)
