"""Which span of time a page looks back on: so far back from now, or whole days."""

import time
from datetime import UTC, datetime

import streamlit as st

from monitor.times import SPANS, back, between
from pages import _verdict
from planner.errors import InputError

_DAYS = "days"
_DEFAULT = "1 h"


def chosen() -> tuple[float, float]:
    """Both ends as Unix time; a wrong order ends the page."""
    span = st.segmented_control(
        "Span", [*SPANS, _DAYS], default=_DEFAULT, key="back", bind="query-params", required=True
    )
    if span != _DAYS:
        return back(span, time.time())
    today = datetime.now(UTC).date()
    with st.container(horizontal=True):
        first = st.date_input("From (UTC)", today, max_value=today, key="from", bind="query-params")
        last = st.date_input("To, that day included", today, max_value=today, key="to", bind="query-params")
    try:
        return between(first, last)
    except InputError as error:
        st.error(_verdict.refused(error), icon=":material/cancel:")
        st.stop()
