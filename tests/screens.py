"""A page as its visitors get it, under the frame's inputs, without a browser; and what is read off it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from monitor.sources import Sources
from pages import _source
from tests.watched import Servers

Open = Callable[..., AppTest]


def screen(name: str, servers: bool, calibrations: bool) -> None:
    import runpy

    from pages import _inputs, _plan_shelf, _source

    _inputs.sidebar(_source.names() if servers else (), _plan_shelf.calibrations() if calibrations else None)
    runpy.run_path(f"{_inputs.__file__.removesuffix('_inputs.py')}{name}.py")


def unopened(name: str, *, servers: bool = False, calibrations: bool = False) -> AppTest:
    """The page before its first run.

    servers       its inputs list the servers known by name: without `reading`, a real watch starts for that
    calibrations  its inputs list the calibrations that were saved
    """
    return AppTest.from_function(screen, default_timeout=60, args=(name, servers, calibrations))


def opened(name: str, *, servers: bool = False, calibrations: bool = False, **widgets: object) -> AppTest:
    """The page with these widgets set, after its first run: opened("live", servers=True, endpoint="chat-1")."""
    page = unopened(name, servers=servers, calibrations=calibrations)
    for key, value in widgets.items():
        page.session_state[key] = value
    page.run()
    assert not page.exception
    return page


def reading(servers: Servers, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """What all pages read from: these servers, and the folder's monitor.toml."""
    found = Sources(folder / "monitor.toml", watch=lambda config: servers)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(_source, "shared", lambda: found)
    return found


def rows(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.value.to_dict("records")
    return [{key: read(value) if isinstance(value, str) else value for key, value in row.items()} for row in found]


def read(text: str) -> str:
    """Without the marks that part an address or an icon, which nobody sees."""
    return text.replace("\N{WORD JOINER}", "")


def metrics(page: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in page.metric}


def boxes(page: AppTest) -> str:
    return " ".join(read(box.value) for kind in (page.error, page.warning, page.success, page.info) for box in kind)


def charts(page: AppTest) -> list[str]:
    """Titles of the charts, each of which plotly finds no fault with."""
    for chart in page.get("plotly_chart"):
        go.Figure(json.loads(chart.proto.spec))
    return [chart.proto.alt.partition(" over time")[0] for chart in page.get("plotly_chart")]
