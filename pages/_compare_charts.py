"""Planned against actual -> figures: KV usage on one axis, and how far each quantity was from the plan day by day."""

from collections.abc import Sequence
from typing import Any

from monitor import metrics
from monitor.drift import Drift
from monitor.panels import KV_USAGE, Panel
from monitor.series import Series
from monitor.usage import LEAST, MOST, PLANNED
from pages import _monitor_charts
from pages._charts import Chart
from pages._monitor_charts import Marks

_OF_PLAN = Panel("Actual over planned, each day", "ratio", metrics.RUNNING)
_BAND: dict[str, Any] = {"showlegend": False, "line": {"width": 0}, "hoverinfo": "skip"}
"""The ends of the range; between them it is filled."""
_FILL = "rgba(128, 128, 128, 0.25)"


def usage(lines: Sequence[Series], marks: Marks) -> Chart:
    """The pool in use: measured is solid, planned is dashed, with the range of it as a band."""
    known = [line for line in lines if line.known]
    chart = _monitor_charts.over_time(KV_USAGE, known, marks)
    for trace in chart.figure.to_dict()["data"]:
        if trace["name"] in (LEAST, MOST):
            trace |= _BAND
            if trace["name"] == MOST:
                trace |= {"fill": "tonexty", "fillcolor": _FILL}
        elif trace["name"].startswith(PLANNED):
            trace["line"] = {"dash": "dash"}
    return _from_zero(chart)


def drift(found: Sequence[Drift]) -> Chart:
    """Actual over planned of every quantity; 100 % is the plan."""
    several = len({each.engine for each in found}) > 1
    lines = [
        Series(f"{each.quantity}, engine {each.engine}" if several else each.quantity, each.times, each.ratios)
        for each in found
    ]
    chart = _monitor_charts.over_time(_OF_PLAN, lines, thresholds={"as planned": 1.0})
    return _from_zero(chart)


def _from_zero(chart: Chart) -> Chart:
    """With an axis that reaches as far as the lines: how far they are apart is what is looked for."""
    axis = chart.figure.to_dict()["layout"]["yaxis"]
    axis.pop("range")
    axis |= {"rangemode": "tozero", "tickformat": ".3~p", "hoverformat": ".3~p"}
    return chart
