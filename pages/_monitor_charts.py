"""A server's history -> figures, in plotly's own words: they are drawn every few seconds."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import plotly.graph_objects as go
from plotly.basedatatypes import BaseFigure

from monitor.panels import FORMS, Panel
from monitor.series import Heat, Series
from pages._charts import THRESHOLD, Chart

_AXES = {"ratio": (".0%", ""), "s": ("~s", "s"), "B/s": ("~s", "B/s"), "FLOP/s": ("~s", "FLOP/s")}
"""Format and suffix of an axis in this unit; any other is a plain number."""
_DASHES = {"p95": "dashdot", "p99": "dot"}
_HEAT = [[0, "rgba(62, 143, 203, 0)"], [1, "rgb(62, 143, 203)"]]
"""From nothing to a blue that is seen on white and on black."""
Marks = Mapping[float, str]
"""Moments worth a line, in ms, and what happened then."""


class Figure(BaseFigure):  # type: ignore[misc]
    """Data and layout as they are. Plotly checks and copies every key of a figure in 4 ms; the tests do that once."""

    def __init__(self, data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
        self._drawn = {"data": data, "layout": layout | {"template": _theme()}}

    def to_dict(self) -> dict[str, Any]:
        return self._drawn


@cache
def _theme() -> dict[str, Any]:
    """Streamlit's, which every figure of its has."""
    theme: dict[str, Any] = go.Figure().to_dict()["layout"]["template"]
    return theme


def over_time(
    panel: Panel, lines: Sequence[Series], marks: Marks | None = None, thresholds: Mapping[str, float] | None = None
) -> Chart:
    """Measured values over time: solid lines, gaps stay gaps, restarts and thresholds are drawn and labelled."""
    layout = _layout(panel.title, _axis(panel.unit), len(lines) > 1)
    for number, (label, value) in enumerate((thresholds or {}).items()):
        _across(layout, label, value, above=number > 0 or len(thresholds or {}) == 1)
    for at, label in (marks or {}).items():
        _upright(layout, label, at)
    said = "; ".join(f"{line.name} {_range(line, panel.unit)}" for line in lines)
    figure = Figure([_trace(line) for line in lines], layout)
    return Chart(figure, f"{panel.title} over time: {said}.")


def against(
    left: Panel, lines: Sequence[Series], right: Panel, others: Sequence[Series], marks: Marks,
    planned: Mapping[str, float], usual: tuple[float, float] | None,
) -> Chart:  # fmt: skip
    """Two quantities over the same time, each with an axis of its own; planned is dashed, what is usual is a band."""
    layout = _layout(f"{left.title} (left) and {right.title.lower()} (right)", _axis(left.unit), True, height=340)
    layout["yaxis2"] = {**_axis(right.unit), "overlaying": "y", "side": "right", "showgrid": False, "tickmode": "auto"}
    said = [f"{left.title}, {line.name}: {_range(line, left.unit)}" for line in lines]
    said.extend(f"{right.title}, {line.name}: {_range(line, right.unit)}" for line in others)
    data = [_trace(line, name=f"{left.title}: {line.name}") for line in lines]
    data.extend(_trace(line, name=f"{right.title}: {line.name}", yaxis="y2") for line in others)
    for label, value in planned.items():
        _across(layout, label, value, axis="y2", dash="dash")
    if usual is not None:
        band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "yref": "y2", "y0": usual[0], "y1": usual[1]}
        layout["shapes"].append({**band, "fillcolor": THRESHOLD, "opacity": 0.15, "line": {"width": 0}})
        said.append(f"usual at this hour: {FORMS[right.unit](usual[1])}, low below {FORMS[right.unit](usual[0])}")
    for at, label in marks.items():
        _upright(layout, label, at)
    return Chart(Figure(data, layout), "; ".join(said) + ".")


def spread(title: str, unit: str, found: Heat) -> Chart:
    """How observations spread over their buckets as time goes by: darker is more of them."""
    layout = _layout(title, {"type": "category"}, False, height=340)
    form = FORMS[unit]
    labels = [f"≤ {form(bound)}" for bound in found.bounds]
    data = {"type": "heatmap", "x": found.moments, "y": labels, "z": found.shares, "colorscale": _HEAT,
            "colorbar": {"tickformat": ".0%", "thickness": 12}, "zmin": 0, "zmax": 1,
            "hovertemplate": "%{x}: %{z:.0%} %{y}<extra></extra>"}  # fmt: skip
    most = (
        ""
        if found.fullest is None
        else f" Most are between {labels[0]} and {labels[-1]}, chiefly ≤ {form(found.fullest)}."
    )
    return Chart(Figure([data], layout), f"{title} over time, the share in each bucket.{most}")


def _trace(line: Series, **more: object) -> dict[str, Any]:
    dash = next((dash for name, dash in _DASHES.items() if line.name.startswith(name)), "solid")
    return {"type": "scatter", "mode": "lines", "name": line.name, "x": line.moments, "y": line.plotted,
            "line": {"dash": dash}, **more}  # fmt: skip


def _layout(title: str, axis: Mapping[str, Any], has_legend: bool, height: int = 270) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 0, "r": 0, "t": 40, "b": 0},
        "title": {"text": title, "x": 0, "font": {"size": 14}},
        "legend": {"orientation": "h", "y": -0.3},
        "showlegend": has_legend,
        "xaxis": {"type": "date"},
        "yaxis": dict(axis),
        "shapes": [],
        "annotations": [
            {
                "text": "UTC",
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "yref": "paper",
                "y": 1,
                "showarrow": False,
                "yanchor": "bottom",
                "font": {"color": THRESHOLD, "size": 11},
            }
        ],
    }


def _axis(unit: str) -> dict[str, Any]:
    form, suffix = _AXES.get(unit, ("", ""))
    whole = {"range": [0, 1.02]} if unit == "ratio" else {"rangemode": "tozero"}
    title = {} if form else {"title": {"text": unit}}
    return {"tickformat": form, "ticksuffix": suffix, "hoverformat": form or ",.4~r", **whole, **title}


def _across(
    layout: dict[str, Any], label: str, value: float, axis: str = "y", dash: str = "dot", above: bool = True
) -> None:
    """A line from left to right; the label stands at the side of its axis."""
    style = {"dash": dash, "color": THRESHOLD, "width": 1.5}
    side = {"x": 0, "xanchor": "left"} if axis == "y" else {"x": 1, "xanchor": "right"}
    layout["shapes"].append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": value, "y1": value,
                             "line": style})  # fmt: skip
    layout["annotations"].append({"text": label, "xref": "paper", **side, "yref": axis, "y": value, "showarrow": False,
                                  "yanchor": "bottom" if above else "top", "font": {"color": THRESHOLD}})  # fmt: skip


def _upright(layout: dict[str, Any], label: str, at: float) -> None:
    style = {"dash": "dot", "color": THRESHOLD, "width": 1}
    layout["shapes"].append({"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at, "line": style})
    layout["annotations"].append({"text": label, "yref": "paper", "y": 1, "yanchor": "top", "x": at, "xanchor": "left",
                                  "textangle": 90, "showarrow": False, "font": {"color": THRESHOLD}})  # fmt: skip


def _range(line: Series, unit: str) -> str:
    form = FORMS[unit]
    return f"{form(line.known[-1])} now, {form(min(line.known))} to {form(max(line.known))}"
