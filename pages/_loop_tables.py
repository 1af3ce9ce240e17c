"""Traffic, calibrations, ceilings and what else could be run -> tables."""

from collections.abc import Mapping, Sequence

from monitor.arrivals import Peak
from monitor.calibrate import Accuracy
from monitor.times import moment
from pages._tables import MISSING, Rows
from planner import units
from planner.calibration import TERMS, Calibration
from planner.cost import Cost
from planner.fields import meanings
from planner.headroom import Ceiling, Headroom, arriving, cost_at
from planner.latency import Latency, Range
from planner.plan import Plan
from planner.workload import Workload

_METRICS = {
    "tpot_s": "Time per output token",
    "ttft_s": "Time to first token",
    "output_tokens_per_s": "Output tokens a second",
}
_KINDS = {
    "kv_cache": "KV cache",
    "max_num_seqs": "--max-num-seqs",
    "compute": "the device's time",
    "ttft": "promised time to first token",
    "tpot": "promised time per output token",
}


def traffic(load: Workload, planned: Workload, peak: Peak | None) -> Rows:
    """The load that was there beside the one that was planned for."""
    rate = "" if planned.request_rate is None else units.rate(planned.request_rate, "requests/s")
    asked = units.count(planned.concurrency, "at once") if planned.concurrency else "as many as fit"
    busiest = MISSING if peak is None else units.rate(peak.requests_per_s, "requests/s")
    when = "Busiest" if peak is None else f"Busiest {units.duration(peak.seconds)}, until {moment(peak.at)}"
    rows = [
        ("Prompt, mean", units.count(load.input_tokens, "tokens"), units.count(planned.input_tokens, "tokens")),
        ("Output, mean", units.count(load.output_tokens, "tokens"), units.count(planned.output_tokens, "tokens")),
        ("Arrivals, mean", units.rate(load.request_rate or 0.0, "requests/s"), rate or asked),
        (when, busiest, rate or asked),
        ("Prompt tokens found in the cache", units.share(load.prefix_hit_ratio), units.share(planned.prefix_hit_ratio)),
    ]
    return [{"Traffic": name, "There": there, "In the plan": plan} for name, there, plan in rows]


def terms(found: Calibration) -> Rows:
    """Its constants with their standard errors."""
    said = meanings(Calibration)
    return [
        {
            "Term": term,
            "Meaning": said[term].partition("  ")[0],
            "Value": units.duration(getattr(found, term)),
            "Standard error": units.duration(found.errors[term]) if term in found.errors else MISSING,
        }
        for term in TERMS
    ]


def accuracy(later: Sequence[Accuracy]) -> Rows:
    """The error on windows it was not fitted on, before and after."""
    return [
        {
            "Prediction": _METRICS[each.metric],
            "Error without it, median": "no prediction" if each.before is None else units.share(each.before),
            "Error with it, median": units.share(each.after),
            "In its range": units.share(each.covered),
            "Later windows": units.count(each.windows),
        }
        for each in later
    ]


def ceilings(found: Headroom) -> Rows:
    """What stops a growing load, the first first."""
    return [_ceiling_row(each, found) for each in found.ceilings]


def _ceiling_row(each: Ceiling, found: Headroom) -> dict[str, str]:
    rate, reason = each.request_rate, each.reason
    return {
        "What stops it": f"{reason[:1].upper()}{reason[1:]}",
        "At": f"{units.rate(rate.value, 'requests/s')} ({_range(rate)})",
        "Times the present traffic": _times(found.times(each)),
        "Running then": MISSING if each.kind == "compute" else units.count(each.streams),
        "Time per output token then": _tpot(each.latency),
    }


def _times(factor: float | None) -> str:
    return MISSING if factor is None else f"{factor:.3g} ×"


def beside(plans: Mapping[str, Plan], rooms: Mapping[str, Headroom | None], rate: float) -> Rows:
    """The present plan and what else could be run: a column each, at the present traffic and at its ceiling."""
    figures = {name: _figures(plan, rooms[name], rate) for name, plan in plans.items()}
    rows = next(iter(figures.values()))
    return [{"Figure": row, **{name: said[row] for name, said in figures.items()}} for row in rows]


def _figures(plan: Plan, room: Headroom | None, rate: float) -> dict[str, str]:
    loaded, first = arriving(plan, rate), room and room.first
    at_now = f"at {units.rate(rate, 'requests/s')}" if rate else "as planned"
    return {
        "KV cache size": MISSING
        if plan.capacity is None
        else units.count(plan.capacity[0].kv_cache_size_tokens, "tokens"),
        "Requests at once, a replica": units.count(plan.streams),
        "Takes at most": MISSING if first is None else units.rate(first.request_rate.value, "requests/s"),
        "Its range, requests/s": MISSING if first is None else _range(first.request_rate),
        "What stops it then": str(plan.limit or MISSING) if first is None else _KINDS[first.kind],
        "Times the present traffic": _times(room and room.factor),
        f"Time per output token {at_now}": _tpot(loaded.latency),
        f"A million output tokens {at_now}": _usd(loaded.cost),
        "Time per output token at most": _tpot(first and first.latency),
        "A million output tokens at most": _usd(first and cost_at(plan, first)),
    }


def _range(found: Range) -> str:
    return f"{units.rate(found.low, '')}to {units.rate(found.high, '')}".strip()


def _tpot(found: Latency | None) -> str:
    return MISSING if found is None else units.duration(found.tpot_s.value)


def _usd(found: Cost | None) -> str:
    return MISSING if found is None else units.usd(found.usd_per_million_output_tokens.value)
