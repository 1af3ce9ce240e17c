"""The dashboard: its pages, the frame around them, and what is done once when the server starts and stops."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st

from monitor.heap import settled
from pages import _inputs, _plan_shelf, _source

_PAGES = Path(__file__).parent / "pages"


def pages() -> dict[str, list[st.Page]]:
    """The screens by what they are for, in the order in which a reader meets them; the first has the bare address."""
    overview = st.Page(_PAGES / "overview.py", title="Overview", icon=":material/dashboard:", default=True)
    return {
        "": [overview],
        "Plan": [
            _page("plan", "Plan capacity", "memory"),
            _page("speed", "Speed", "speed"),
            _page("compression", "Compression", "compress"),
            _page("cost", "Cost", "payments"),
            _page("plans", "Saved plans", "bookmarks"),
            _page("catalog", "Models and devices", "list_alt"),
        ],
        "Monitor": [
            _page("fleet", "Fleet", "dns"),
            _page("live", "Live", "monitor_heart"),
            _page("history", "History", "history"),
            _page("alerts", "Alerts", "notifications"),
        ],
        "Planned and actual": [
            _page("compare", "Planned vs actual", "compare_arrows"),
            _page("calibrate", "Calibrate", "tune"),
            _page("headroom", "Headroom", "trending_up"),
            _page("experiment", "Experiment", "science"),
            _page("article", "The article, checked", "fact_check"),
        ],
    }


def _page(name: str, title: str, icon: str) -> st.Page:
    return st.Page(_PAGES / f"{name}.py", title=title, icon=f":material/{icon}:", url_path=name)


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[dict[str, object]]:
    """Claims the pages before the first deep link, and starts what goes on without a visitor."""
    # Streamlit warns of every call outside a visitor's session; this one is meant.
    logging.getLogger("streamlit.runtime.scriptrunner_utils.script_run_context").setLevel(logging.ERROR)
    st.navigation(pages())
    _inputs.warm()
    _source.shared()
    with settled():
        yield {}
    _source.stop()


app = st.App(__file__, lifespan=lifespan)


def frame() -> None:
    """What every page has: navigation, the plan's inputs, and one place where wrong input is shown."""
    st.set_page_config(page_title="KV cache planner and monitor", page_icon="🧮", layout="wide")
    page = st.navigation(pages(), expanded=True)
    _inputs.sidebar(_source.names(), _plan_shelf.calibrations())
    page.run()


if __name__ == "__main__":
    frame()
