"""What a load generator measured, held against the plan of the same load."""

from dataclasses import replace

from monitor.benchmark_results import Measurement, Spread
from monitor.deviation import Comparison, Deviation, rows
from planner.latency import Range
from planner.plan import Plan
from planner.units import count
from planner.workload import Workload

_MEDIAN = "The tool's median; the plan's is a mean."


def planned_for(made: Plan, found: Measurement) -> Plan:
    """The plan under the load that was measured; what the tool does not say is as planned."""
    planned = made.workload
    in_flight = None if found.concurrency is None else max(1, min(found.concurrency, found.requests))
    is_open = found.concurrency is None and found.request_rate is not None
    load = Workload(
        input_tokens=planned.input_tokens if found.input_tokens is None else max(1, round(found.input_tokens)),
        output_tokens=planned.output_tokens if found.output_tokens is None else max(1, round(found.output_tokens)),
        concurrency=None if is_open else in_flight or planned.concurrency,
        request_rate=found.request_rate if is_open else None if found.concurrency else planned.request_rate,
        prefix_hit_ratio=planned.prefix_hit_ratio,
        acceptance_rate=planned.acceptance_rate,
    )
    return made.on(workload=load)


def check(made: Plan, found: Measurement) -> Comparison:
    """Each latency and the throughput beside the plan's range for the load that was measured."""
    same = planned_for(made, found)
    speed = same.latency
    why_not = "" if speed else f"the plan has no speed here: {same.limit or 'this device was never measured'}"
    ttft, tpot, rate = (speed.ttft_s, speed.tpot_s, speed.output_tokens_per_s) if speed else (None, None, None)
    if same.workload.output_tokens == 1:
        tpot = None  # a request's first token is its last
    quantities = (
        _deviation("ttft_s", "s", ttft, _p50(found.ttft), why_not or _MEDIAN),
        _deviation("tpot_s", "s", tpot, _p50(found.tpot), why_not or _MEDIAN),
        _deviation("output_tokens_per_s", "tokens/s", rate, found.output_tokens_per_s, why_not),
    )
    context = (
        f"{found.tool}: {count(found.requests, 'requests')} to {found.model or 'a model not named'}; {same.inputs}"
    )
    return Comparison(engine=None, model_name=found.model or None, deviations=quantities, context=context)


def as_text(found: Comparison) -> str:
    """One load for a terminal: what was measured and planned, the verdict, and a line a quantity."""
    return "\n".join([found.context, str(found.verdict), *rows(found)])


def _deviation(quantity: str, unit: str, planned: Range | None, actual: float | None, note: str) -> Deviation:
    row = Deviation(quantity=quantity, unit=unit, planned=planned, actual=actual, note=note)
    if actual is None:
        return replace(row, note="the tool was not told to keep it")
    return row.because(f"{'slower' if _is_worse(row) else 'faster'} than planned: calibrate on this server's traffic.")


def _is_worse(row: Deviation) -> bool:
    return row.ratio is not None and (row.ratio > 1) == (row.unit == "s")


def _p50(found: Spread | None) -> float | None:
    return None if found is None else found.p50
