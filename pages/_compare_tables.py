"""Comparisons -> tables: planned with its range beside actual, and the servers of a group."""

from collections.abc import Iterable, Mapping, Sequence

from monitor.deviation import Comparison, Deviation
from monitor.drift import Drift
from monitor.group import Server
from pages._monitor_tables import ICONS
from pages._tables import MISSING, Rows
from planner import units
from planner.latency import Range

_FORMS: Mapping[str, units.Formatter] = {
    "s": units.duration,
    "bytes": units.memory,
    "ratio": units.share,
    "dollars": units.usd,
    "tokens/s": lambda value: units.rate(value, "tokens/s"),
    "requests/s": lambda value: units.rate(value, "requests/s"),
}
"""How a value of each unit is written; any other is a count of it."""


def deviations(found: Iterable[Deviation]) -> Rows:
    """Planned and actual side by side, in the order in which causes are looked for."""
    return [
        {
            "Quantity": each.quantity.replace("_", " "),
            "Planned": MISSING if each.planned is None else _range(each.planned, each.unit),
            "Actual": MISSING if each.actual is None else _written(each.actual, each.unit),
            "Ratio": MISSING if each.ratio is None else _unbroken(units.share(each.ratio)),
            "Range": _unbroken(_state(each)),
            "Likely cause, and what it rests on": " ".join(filter(None, (each.cause, each.note and f"[{each.note}]"))),
        }
        for each in found
    ]


def _state(found: Deviation) -> str:
    if found.planned is None or found.actual is None:
        return MISSING
    return "✗ outside" if found.is_off else "✓ within"


def _range(planned: Range, unit: str) -> str:
    middle = _written(planned.value, unit)
    if planned.low == planned.high:
        return f"{middle}, exactly"
    return f"{middle} ({_written(planned.low, unit)} to {_written(planned.high, unit)})"


def _unbroken(text: str) -> str:
    """The same in one line of a narrow column."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _written(value: float, unit: str) -> str:
    if unit in _FORMS:
        return _FORMS[unit](value)
    is_part = value < 100 and not float(value).is_integer()
    return f"{value:.3g} {unit}" if is_part else units.count(value, unit)


def servers(found: Sequence[Server]) -> Rows:
    """One row a server, the worst first."""
    return [
        {
            "Server": each.name,
            "Verdict": f"{ICONS[each.verdict.level]} {each.verdict.word}",
            "Capacity": _ratios(each, "kv_cache_size_tokens"),
            "KV in use": _ratios(each, "kv_usage_mean"),
            "Output": _ratios(each, "output_tokens_per_s"),
            "Running": _ratios(each, "running"),
            "First cause": next((cause for one in each.found for cause in one.causes), each.silence),
        }
        for each in found
    ]


def _ratios(server: Server, quantity: str) -> str:
    """Actual over planned of each engine."""
    found = [_ratio(each, quantity) for each in server.found]
    return ", ".join(found) or MISSING


def _ratio(found: Comparison, quantity: str) -> str:
    ratio = next((each.ratio for each in found.deviations if each.quantity == quantity), None)
    return MISSING if ratio is None else units.share(ratio)


def drifts(found: Sequence[Drift]) -> Rows:
    """What moved, and whether that is more than chance."""
    return [
        {
            "Quantity": each.quantity.replace("_", " "),
            "Engine": each.engine or MISSING,
            "First": units.share(each.ratios[0]),
            "Last": units.share(each.ratios[-1]),
            "Periods": units.count(len(each.ratios)),
            "Finding": each.finding,
        }
        for each in found
    ]
