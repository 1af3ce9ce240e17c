"""Domain types -> figures. One way to draw a threshold, planned is dashed, every chart comes with its alt text."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import log10
from typing import NamedTuple

import plotly.graph_objects as go
import streamlit as st
from plotly.basedatatypes import BaseFigure

from monitor.arrivals import Spread
from planner.article_speed import Rates
from planner.compression import Outcome
from planner.curves import Curve
from planner.memory import MemoryBudget
from planner.sensitivity import Sensitivity
from planner.speed_curves import Roofline, StepShare
from planner.units import GIB, KIB, count, duration, memory, share, usd

_NAMES = {
    "weights": "Weights",
    "activation": "Activations",
    "non_torch": "Non-torch",
    "cuda_graph": "CUDA graphs",
    "available_kv": "KV cache",
}
THRESHOLD = "#808080"  # readable on white and on black
_TOPS = (1.0, 0.93, 0.86, 0.79, 0.72)  # of labels whose lines are close to each other


class Chart(NamedTuple):
    """A figure and what it says, for those who do not see it."""

    figure: BaseFigure
    alt: str


def show(chart: Chart, key: str) -> None:
    """Draws a chart with its alt text."""
    st.plotly_chart(chart.figure, key=key, alt=chart.alt, config={"displaylogo": False})


def memory_budget(budget: MemoryBudget) -> Chart:
    """One rank's memory as a bar up to the device's total, the KV cache in the colour it has everywhere."""
    figure = _figure("GiB of one GPU", "", height=210)
    for part, start in reversed(budget.stacked):
        figure.add_bar(
            x=[part.value / GIB], base=[start / GIB], y=["GPU"], orientation="h", name=_NAMES[part.name],
            hovertext=f"{memory(part.value)}: {part.formula}", hoverinfo="text+name",
        )  # fmt: skip
    rest = budget.unreserved
    figure.add_bar(
        x=[rest / GIB], base=[budget.spent / GIB], y=["GPU"], orientation="h", name="Not requested",
        marker_color=THRESHOLD, opacity=0.3, hovertext=memory(rest), hoverinfo="text+name",
    )  # fmt: skip
    figure.update_layout(barmode="overlay", yaxis_visible=False, legend_y=-0.55)
    _threshold(figure, x=budget.requested.value / GIB, label=f"requested {memory(budget.requested.value)}")
    parts = ", ".join(f"{_NAMES[part.name]} {memory(part.value)}" for part in budget.parts)
    return Chart(figure, f"Memory of one GPU of {memory(budget.total.value)}: {parts}, not requested {memory(rest)}.")


def kv_over_concurrency(curve: Curve) -> Chart:
    """KV memory against requests at once, with the pool it must stay under."""
    return _planned(curve, "requests at once", "KV cache, GiB", scale=GIB)


def concurrency_over_length(curve: Curve) -> Chart:
    """Requests at once against their length."""
    return _planned(curve, "tokens a request", "requests at once", scale=1, kind="log")


def sensitivities(found: Sequence[Sensitivity], now: float) -> Chart:
    """A bar for each input, from the price at its lower value to that at its upper, the largest on top."""
    figure = _figure("dollars a million output tokens", "", height=340)
    names = [each.name for each in found]
    figure.add_bar(y=names, x=[each.swing for each in found], base=[min(each.low, each.high) for each in found],
                   orientation="h", name="swing", hoverinfo="skip", opacity=0.5)  # fmt: skip
    for name, symbol, prices, inputs in (
        ("at the lower value", "circle", [each.low for each in found], [each.low_input for each in found]),
        ("at the upper value", "diamond", [each.high for each in found], [each.high_input for each in found]),
    ):
        figure.add_scatter(y=names, x=prices, mode="markers", marker={"symbol": symbol, "size": 11}, name=name,
                           hovertext=inputs)  # fmt: skip
    figure.update_yaxes(autorange="reversed", automargin=True)
    _threshold(figure, x=now, label=f"planned {usd(now)}")
    said = "; ".join(f"{each.name}: {usd(each.low)} at {each.low_input}, {usd(each.high)} at {each.high_input}"
                     for each in found)  # fmt: skip
    return Chart(figure, f"What moves the planned {usd(now)} a million output tokens. {said}.")


def bills(curves: Mapping[str, Curve]) -> Chart:
    """Dollars a month against requests a month: stairs for deployments, a line for an API."""
    figure = _figure("requests a month", "dollars a month")
    for name, curve in curves.items():
        shape = "linear" if name == "API" else "vh"
        figure.add_scatter(x=curve.x, y=curve.y, mode="lines", line={"dash": "dash", "shape": shape}, name=name)
    for limit in {limit.label: limit for curve in curves.values() for limit in curve.limits}.values():
        _threshold(figure, x=limit.value, label=limit.label)
    return Chart(figure, " ".join(curve.finding for curve in curves.values()))


def claimed_rates(found: Sequence[Rates]) -> Chart:
    """Tokens a second as claimed, as the bandwidth allows, and as planned, for each KV dtype."""
    figure = _figure("output tokens/s", "", height=300)
    shown = {
        "planned": [each.planned.value for each in found],
        "ceiling with the real 8 KV heads": [each.ceiling_real for each in found],
        "ceiling with 32 KV heads": [each.ceiling for each in found],
        "claimed": [each.claimed for each in found],
    }
    for name, rates in shown.items():
        words = [f"{name} {count(rate)}" for rate in rates]
        figure.add_bar(y=[each.name for each in found], x=rates, orientation="h", name=name, text=words,
                       textposition="auto")  # fmt: skip
    figure.update_layout(showlegend=False)
    said = "; ".join(
        f"{each.name}: claimed {count(each.claimed)}, ceiling {count(each.ceiling)} with 32 KV heads and "
        f"{count(each.ceiling_real)} with 8, planned {count(each.planned.value)}" for each in found
    )  # fmt: skip
    return Chart(figure, f"Output tokens a second. {said}.")


def bytes_a_token(found: Sequence[Outcome]) -> Chart:
    """KV bytes a token of each method, the plan in 16 bits on top; what vLLM lacks is hatched and says so."""
    figure = _figure("KV cache a token of the load's request, KiB", "", height=620)
    shown = [each for each in found if each.mean_bytes_per_token is not None]
    names = [f"{each.name} (not in vLLM)" if each.obstacles else each.name for each in shown]
    figure.add_bar(
        y=names, x=[(each.mean_bytes_per_token or 0) / KIB for each in shown], orientation="h",
        marker_pattern_shape=["/" if each.obstacles else "" for each in shown],
        text=[f"saves {share(each.saving or 0)}" for each in shown], textposition="outside",
        hovertext=[each.in_vllm for each in shown],
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", automargin=True, dtick=1)
    widest = max((each.mean_bytes_per_token or 0 for each in shown), default=0)
    figure.update_xaxes(range=[0, widest / KIB / 0.85])  # room for the words beside the longest bar
    base = next((each.mean_bytes_per_token for each in shown if not each.methods), None)
    if base is not None:
        _threshold(figure, x=base / KIB, label=f"16 bits {memory(base)}")
    said = [f"{name} {memory(each.mean_bytes_per_token or 0)}" for name, each in zip(names, shown, strict=True)]
    return Chart(figure, f"KV cache a token by method. {'; '.join(said)}.")


def roofline(found: Roofline) -> Chart:
    """The roof of the device, and where the plan's phases lie below it; both axes logarithmic."""
    figure = _figure("FLOP a byte read", "TFLOP/s")
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1)
    figure.add_scatter(x=found.x, y=[value / 1e12 for value in found.y], mode="lines", name="roof of the device")
    for point, symbol in zip(found.points, ("circle", "diamond"), strict=True):
        figure.add_scatter(
            x=[point.intensity], y=[point.reached / 1e12], mode="markers+text", text=[point.name], name=point.name,
            textposition="bottom right", marker={"symbol": symbol, "size": 12},
        )  # fmt: skip
    _threshold(figure, x=found.ridge, label=f"ridge {count(found.ridge)}")
    figure.update_layout(showlegend=False)
    return Chart(figure, found.finding)


def step_parts(found: Sequence[StepShare]) -> Chart:
    """One decoding step as a stacked bar."""
    figure = _figure("ms of one decoding step", "", height=190)
    for part in found:
        figure.add_bar(x=[part.seconds / 1e-3], y=["step"], orientation="h", name=part.name,
                       hovertext=f"{duration(part.seconds)}: {part.meaning}", hoverinfo="text+name")  # fmt: skip
    figure.update_layout(barmode="stack", yaxis_visible=False, legend_y=-0.7, legend_traceorder="normal")
    said = ", ".join(f"{part.name} {duration(part.seconds)}" for part in found)
    return Chart(figure, f"Where one decoding step goes: {said}.")


def throughput_over_load(curve: Curve) -> Chart:
    """Output tokens a second against requests at once."""
    return _planned(curve, "requests at once", "output tokens/s", scale=1)


def latency_over_load(curve: Curve, name: str) -> Chart:
    """A latency against requests at once, with what was promised."""
    return _planned(curve, "requests at once", f"{name}, ms", scale=1e-3)


def throughput_over_arrivals(curve: Curve) -> Chart:
    """Output tokens a second against arrivals, each ceiling drawn."""
    return _planned(curve, "arrivals, requests/s", "output tokens/s", scale=1)


def latency_over_arrivals(curve: Curve) -> Chart:
    """Time per output token against arrivals, with the ceilings and what was promised."""
    return _planned(curve, "arrivals, requests/s", "time per output token, ms", scale=1e-3)


def lengths(title: str, found: Spread) -> Chart:
    """How many of all requests were how long."""
    figure = _figure("tokens, up to", "of all requests", height=260)
    labels = [count(bound) for bound in found.bounds]
    figure.add_bar(
        x=labels, y=found.shares, text=[share(each) for each in found.shares], textposition="auto", name=title
    )
    figure.update_layout(title={"text": title, "x": 0, "font": {"size": 14}})
    figure.update_xaxes(type="category")
    figure.update_yaxes(tickformat=".0%")
    said = ", ".join(f"{share(each)} up to {label}" for each, label in zip(found.shares, labels, strict=True) if each)
    return Chart(figure, f"{title}, tokens: {said}.")


def _planned(curve: Curve, x_title: str, y_title: str, scale: float, kind: str = "linear") -> Chart:
    figure = _figure(x_title, y_title)
    figure.update_xaxes(type=kind, dtick=1 if kind == "log" else None)
    figure.update_yaxes(type=kind, dtick=1 if kind == "log" else None)
    figure.add_scatter(
        x=curve.x, y=[value / scale for value in curve.y], mode="lines", line_dash="dash", name="planned"
    )
    for limit, top in zip(curve.limits, cycle(_TOPS), strict=False):
        if limit.axis == "x":
            side = "left" if limit.value < curve.x[-1] / 4 and kind == "linear" else "right"
            _threshold(figure, x=limit.value, label=limit.label, top=top, side=side)
        else:
            _threshold(figure, y=limit.value / scale, label=limit.label)
    return Chart(figure, curve.finding)


def _figure(x_title: str, y_title: str, height: int = 320) -> go.Figure:
    layout = go.Layout(height=height, margin={"l": 0, "r": 0, "t": 30, "b": 0}, legend={"orientation": "h", "y": 1.15})
    figure = go.Figure(layout=layout)
    figure.update_xaxes(title=x_title, rangemode="tozero")
    figure.update_yaxes(title=y_title, rangemode="tozero")
    return figure


def _threshold(
    figure: go.Figure,
    label: str,
    x: float | None = None,
    y: float | None = None,
    above: bool = True,
    top: float = 1.0,
    side: str = "right",
) -> None:
    style = {"line_dash": "dot", "line_color": THRESHOLD}
    note = {"text": label, "font_color": THRESHOLD, "showarrow": False}
    if x is not None:
        figure.add_vline(x=x, **style)
        is_log = figure.layout.xaxis.type == "log"  # an annotation on a log axis stands at the exponent
        figure.add_annotation(x=log10(x) if is_log else x, y=top, yref="paper", xanchor=side, yanchor="bottom", **note)
    else:
        figure.add_hline(y=y, **style)
        upright = "bottom" if above else "top"
        figure.add_annotation(y=y, x=0, xref="paper", xanchor="left", yanchor=upright, **note)
