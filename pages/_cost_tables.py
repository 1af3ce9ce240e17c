"""Costs -> tables: every price with what the speed and what the quotes make of it, said apart."""

from collections.abc import Iterable, Mapping
from dataclasses import fields

from pages._tables import MISSING, Rows
from planner import units
from planner.cost import Cost, Hour
from planner.latency import Range
from planner.month import Month
from planner.plan import Plan
from planner.price import prices
from planner.sensitivity import Sensitivity

_PRICES = {
    "A million output tokens": "usd_per_million_output_tokens",
    "A million input tokens": "usd_per_million_input_tokens",
    "A request": "usd_per_request",
}


def ranges(cost: Cost, by_quotes: tuple[Cost, Cost] | None) -> Rows:
    """Each price with two ranges: of the predicted speed, and of the quotes at the predicted speed."""
    rows = []
    for name, key in _PRICES.items():
        value: Range = getattr(cost, key)
        ends = [units.usd(getattr(end, key).value) for end in by_quotes or ()]
        rows.append({"Price": name, "Value": units.usd(value.value), "By the speed's range": _range(value, units.usd),
                     "By the quotes' range": " to ".join(ends) or "your own price: none"})  # fmt: skip
    return rows


def hour(found: Hour) -> Rows:
    """What an hour is paid for."""
    parts = [(item.name, getattr(found, item.name)) for item in fields(found)]
    return [{"Part": name, "Dollars an hour": units.usd(value)} for name, value in (*parts, ("total", found.total))]


def quotes(plan: Plan) -> Rows:
    """The quotes behind the price, each with date and source."""
    known = prices(plan.deployment.gpu, kind=plan.billing.price_kind)
    return [
        {"Provider": quote.provider, "Kind": quote.kind, "A GPU hour": units.usd(quote.usd_per_hour),
         "Date": quote.date, "Source": quote.source}
        for quote in (known.quotes if known else ())
    ]  # fmt: skip


def sensitivities(found: Iterable[Sensitivity]) -> Rows:
    """Each input with its two values and the price they give."""
    return [
        {"Input": each.name, "Lower value": each.low_input, "A million output tokens": units.usd(each.low),
         "Upper value": each.high_input, "A million output tokens then": units.usd(each.high)}
        for each in found
    ]  # fmt: skip


def named(one: Plan, other: Plan) -> dict[str, Plan]:
    """Two plans under names that tell them apart."""
    return {f"{word}: {plan.deployment.gpus} × {plan.deployment.gpu.name}, KV {plan.deployment.kv_cache_dtype}": plan
            for word, plan in (("This", one), ("Other", other))}  # fmt: skip


def side_by_side(plans: Mapping[str, Plan], months: Mapping[str, Month]) -> Rows:
    """One quantity a row, one plan a column."""
    columns = {name: _column(plan, months.get(name)) for name, plan in plans.items()}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    return [{"Quantity": row, **{name: column.get(row, MISSING) for name, column in columns.items()}} for row in names]


def _column(plan: Plan, month: Month | None) -> dict[str, str]:
    shown = {"Verdict": f"{plan.verdict.word}: {plan.verdict.reason}"}
    if plan.latency is not None:
        speed = plan.latency
        shown["Requests at once, one replica"] = units.count(speed.streams)
        shown["Time per output token"] = _with_range(speed.tpot_s, units.duration)
        shown["Output tokens a second"] = _with_range(speed.output_tokens_per_s, units.count)
    if plan.cost is not None:
        shown["Dollars an hour"] = units.usd(plan.cost.usd_per_hour)
        shown |= {name: _with_range(getattr(plan.cost, key), units.usd) for name, key in _PRICES.items()}
    if month is not None:
        shown["Deployments for the month's load"] = _with_range(month.deployments, units.count)
        shown["Dollars a month"] = _with_range(month.usd, units.usd)
        shown["Used of what is paid"] = units.share(month.filled)
    return shown


def _with_range(value: Range, form: units.Formatter) -> str:
    return form(value.value) if value.low == value.high else f"{form(value.value)} ({_range(value, form)})"


def _range(value: Range, form: units.Formatter) -> str:
    return f"{form(value.low)} to {form(value.high)}"
