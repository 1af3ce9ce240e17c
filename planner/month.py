"""A month of a load: deployments needed, dollars, and from which load another deployment or an API is cheaper.

Deployments are bought whole and by the month, so the bill is a staircase over the load; a price a token is a line.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.cost import MILLION, Cost
from planner.curves import Curve, Line
from planner.errors import InputError
from planner.latency import Range
from planner.units import count, usd
from planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """What a month of requests needs and costs, each with the range that comes from the speed.

    requests         asked for  [requests/month]
    deployments      in use to serve them; spares are in the price of each  [deployments]
    usd              for all of them  [dollars/month]
    usd_per_request  what a request costs when whole deployments are paid  [dollars/request]
    filled           share of what they can serve that is asked for  [ratio]
    """

    requests: float
    deployments: Range
    usd: Range
    usd_per_request: float
    filled: float


def month(one: Cost, requests: float) -> Month:
    """A month of this many requests on deployments that each cost and serve as `one`.

    Raises InputError unless the load is a number above 0.
    """
    if not 0 < requests < math.inf:
        raise InputError("requests_per_month", requests, "a number above 0")
    served = one.requests_per_month
    needed = Range(*(float(math.ceil(requests / each)) for each in (served.value, served.high, served.low)))
    bill = needed.times(one.usd_per_month)
    return Month(requests=requests, deployments=needed, usd=bill, usd_per_request=bill.value / requests,
                 filled=requests / (needed.value * served.value))  # fmt: skip


def requests_of(million_output_tokens: float, workload: Workload) -> float:
    """A month's load given in millions of output tokens, as requests  [requests/month].

    >>> requests_of(1024, Workload(output_tokens=1024))
    1000000.0
    """
    return million_output_tokens * MILLION / workload.output_tokens


def break_even(one: Cost, other: Cost) -> float | None:
    """Requests a month above which the dearer of two deployments first costs less, None where it never does.

    Both bills are staircases: when n of the cheaper one are full, one more is held against as many of the dearer as
    the same load needs. Of two that cost the same, the slower counts as the cheaper.
    """
    cheap, dear = sorted((one, other), key=lambda each: (each.usd_per_month, each.requests_per_month.value))
    served, more = cheap.requests_per_month.value, dear.requests_per_month.value
    for full in range(1, _MOST_DEPLOYMENTS):
        needed = math.floor(full * served / more) + 1
        if cheap.usd_per_month * (full + 1) > dear.usd_per_month * needed:
            return full * served
    return None


def api_usd_per_request(workload: Workload, usd_per_million_input: float, usd_per_million_output: float) -> float:
    """One request at an API's prices a million tokens  [dollars/request].

    >>> api_usd_per_request(Workload(input_tokens=1000, output_tokens=500), 0.5, 1.5)
    0.00125
    """
    tokens = workload.input_tokens * usd_per_million_input + workload.output_tokens * usd_per_million_output
    return tokens / MILLION


def api_break_even(own: Cost, api_usd: float) -> float | None:
    """Requests a month above which one deployment is cheaper than an API, None where the API is at any load.

    api_usd  the API's price  [dollars/request]
    """
    requests = own.usd_per_month / api_usd if api_usd > 0 else math.inf
    return requests if requests <= own.requests_per_month.value else None


def bills(named: Mapping[str, Cost], requests: float, api_usd: float = 0.0) -> dict[str, Curve]:
    """Dollars a month against requests a month, a curve for each deployment and for the API where it has a price.

    The load and the break-evens are drawn; the axis goes far enough to show them and the first step of each.
    """
    even = [("break-even", break_even(*named.values()) if len(named) == 2 else None)]
    even += [("API", api_break_even(each, api_usd)) for each in named.values()]
    marks = [Line("x", at, f"{name} {count(at)}") for name, at in even if at is not None]
    marks.append(Line("x", requests, f"load {count(requests)}"))
    last = 1.25 * max(*(mark.value for mark in marks), *(each.requests_per_month.value for each in named.values()))
    x = tuple(last * step / _STEPS for step in range(1, _STEPS + 1))
    curves = {}
    for name, each in named.items():
        bought = month(each, requests)
        needed = count(bought.deployments.value, "deployment" if bought.deployments.value == 1 else "deployments")
        finding = f"{name}: {needed}, {usd(bought.usd.value)} a month for {count(requests, 'requests')}."
        curves[name] = Curve(x, tuple(month(each, at).usd.value for at in x), tuple(marks), finding)
    if api_usd:
        finding = f"API: {usd(api_usd * requests)} a month."
        curves["API"] = Curve(x, tuple(api_usd * at for at in x), (), finding)
    return curves


def findings(named: Mapping[str, Cost], requests: float, api_usd: float = 0.0) -> Iterator[str]:
    """The bills in sentences, and from which load another way of serving it costs less."""
    yield from (curve.finding for curve in bills(named, requests, api_usd).values())
    if len(named) == 2:
        cheap, dear = sorted(named, key=lambda name: (named[name].usd_per_month, named[name].requests_per_month.value))
        at = break_even(named[cheap], named[dear])
        if at is None:
            yield f"Break-even: {cheap} costs less at every load."
        else:
            yield f"Break-even: above {count(at, 'requests')} a month {dear} first costs less than {cheap}."
    for name, each in named.items() if api_usd else ():
        at = api_break_even(each, api_usd)
        above = "at no load" if at is None else f"above {count(at, 'requests')} a month"
        yield f"Break-even: {name} costs less than the API {above}."


_STEPS = 200
_MOST_DEPLOYMENTS = 1000  # of the cheaper kind that a break-even is looked for with  [deployments]
