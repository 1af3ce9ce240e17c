"""The dashboard: its pages, the frame around them, and what is done once when the server starts and stops."""

import gc
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st

from pages import _inputs, _plan_shelf, _source

SETTLED = 60.0  # s between two looks at all objects
_PAGES = Path(__file__).parent / "pages"


def pages() -> list[st.Page]:
    """The screens, in the order in which a reader meets them; the default one is the bare address."""
    return [
        st.Page(_PAGES / "overview.py", title="Overview", icon=":material/dashboard:", default=True),
        st.Page(_PAGES / "plan.py", title="Plan capacity", icon=":material/memory:", url_path="plan"),
        st.Page(_PAGES / "speed.py", title="Speed", icon=":material/speed:", url_path="speed"),
        st.Page(_PAGES / "compression.py", title="Compression", icon=":material/compress:", url_path="compression"),
        st.Page(_PAGES / "cost.py", title="Cost", icon=":material/payments:", url_path="cost"),
        st.Page(_PAGES / "catalog.py", title="Models and devices", icon=":material/list_alt:", url_path="catalog"),
        st.Page(_PAGES / "live.py", title="Live", icon=":material/monitor_heart:", url_path="live"),
        st.Page(_PAGES / "fleet.py", title="Fleet", icon=":material/dns:", url_path="fleet"),
        st.Page(_PAGES / "history.py", title="History", icon=":material/history:", url_path="history"),
        st.Page(_PAGES / "alerts.py", title="Alerts", icon=":material/notifications:", url_path="alerts"),
        st.Page(_PAGES / "plans.py", title="Saved plans", icon=":material/bookmarks:", url_path="plans"),
        st.Page(_PAGES / "compare.py", title="Planned vs actual", icon=":material/compare_arrows:", url_path="compare"),
        st.Page(_PAGES / "calibrate.py", title="Calibrate", icon=":material/tune:", url_path="calibrate"),
        st.Page(_PAGES / "headroom.py", title="Headroom", icon=":material/trending_up:", url_path="headroom"),
        st.Page(_PAGES / "experiment.py", title="Experiment", icon=":material/science:", url_path="experiment"),
        st.Page(_PAGES / "article.py", title="The article, checked", icon=":material/fact_check:", url_path="article"),
    ]


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[dict[str, object]]:
    """Claims the pages before the first deep link, and starts what goes on without a visitor."""
    # Streamlit warns of every call outside a visitor's session; this one is meant.
    logging.getLogger("streamlit.runtime.scriptrunner_utils.script_run_context").setLevel(logging.ERROR)
    st.navigation(pages())
    _inputs.warm()
    _source.shared()
    stopping = threading.Event()
    threading.Thread(target=_settle, args=(stopping,), name="settle", daemon=True).start()
    yield {}
    stopping.set()
    _source.stop()


def _settle(stopping: threading.Event) -> None:
    """Streamlit collects all garbage after every run of a page: 6 ms for each ten servers whose pages are kept.

    So what has lived for a while is taken out of it, and looked through once a minute instead.
    """
    while True:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        if stopping.wait(SETTLED):
            return


app = st.App(__file__, lifespan=lifespan)


def frame() -> None:
    """What every page has: navigation, the plan's inputs, and one place where wrong input is shown."""
    st.set_page_config(page_title="KV cache planner and monitor", page_icon="🧮", layout="wide")
    page = st.navigation(pages(), expanded=True)
    _inputs.sidebar(_source.names(), _plan_shelf.calibrations())
    page.run()


if __name__ == "__main__":
    frame()
