"""Outcomes of compression and speeds -> tables: one row a method, a part or a load."""

from collections.abc import Callable, Sequence

from pages._tables import MISSING, Rows
from planner import units
from planner.compression import Outcome
from planner.plan import Plan
from planner.speed_curves import LoadCurves, Roofline, StepShare


def matrix(found: Sequence[Outcome]) -> Rows:
    """Every method alone, with all that is known of it."""
    return [_row(each) for each in found]


def _row(each: Outcome) -> dict[str, str]:
    method = each.methods[-1] if each.methods else None
    plan = each.plan
    return {
        "Method": each.name,
        "Principle": method.principle if method else "keys and values as the model computes them",
        "KV cache a token": _said(each.bytes_per_token, units.memory),
        "KV cache a request": _said(each.request_bytes, units.memory),
        "Saved, of 16 bits": _said(each.saving, units.share),
        "Saved, of a KV head for each query head": _said(each.saving_of_multihead, units.share),
        "KV cache size": MISSING
        if plan.capacity is None
        else units.count(plan.capacity[0].kv_cache_size_tokens, "tokens"),
        "Requests that fit": MISSING if plan.capacity is None else units.count(plan.capacity[0].streams),
        "Output": _speed(plan),
        "A million output tokens": _price(plan),
        "In vLLM": each.in_vllm,
        "Since vLLM": (method.since if method else "") or MISSING,
        "Quality": method.quality if method else "the reference",
        "Training": method.training if method else "none",
        "Difficulty": method.difficulty if method else MISSING,
        "To know": " ".join(each.notes),
        "Source": method.source if method else MISSING,
    }


def before_and_after(each: Outcome) -> Rows:
    """The plan in 16 bits, and with the stack."""
    rows: list[tuple[str, Callable[[Plan], str]]] = [
        ("KV cache a token", lambda plan: _said(plan.layout and plan.layout.bytes_per_token, units.memory)),
        ("KV cache tokens", lambda plan: _said(plan.capacity and plan.capacity[0].kv_cache_size_tokens, units.count)),
        ("Requests that fit", lambda plan: _said(plan.capacity and plan.capacity[0].streams, units.count)),
        ("Time per output token", lambda plan: _said(plan.latency and plan.latency.tpot_s.value, units.duration)),
        ("Output", _speed),
        ("A million output tokens", _price),
    ]
    return [{"Figure": name, "In 16 bits": said(each.base), "With the stack": said(each.plan)} for name, said in rows]


def stack(each: Outcome) -> Rows:
    """The methods of the stack, in order."""
    return [
        {
            "Method": method.name,
            "Principle": method.principle,
            "Quality": method.quality,
            "Training": method.training,
            "Difficulty": method.difficulty,
            "Source": method.source,
        }
        for method in each.methods
    ]


def roofline(found: Roofline) -> Rows:
    """The plan's phases under the roof."""
    return [
        {
            "Phase": point.name,
            "FLOP a byte": f"{point.intensity:,.1f}",
            "Reached": units.flops(point.reached),
            "Roof there": units.flops(point.attainable),
        }
        for point in found.points
    ]


def step(found: Sequence[StepShare]) -> Rows:
    """The parts of a step."""
    return [
        {
            "Part": part.name,
            "Time": units.duration(part.seconds),
            "Share": units.share(part.share),
            "Meaning": part.meaning,
        }
        for part in found
    ]


def loads(found: LoadCurves) -> Rows:
    """Each point of the curves."""
    return [
        {
            "Requests at once": units.count(plan.workload.concurrency or 0),
            "Output": _speed(plan),
            "Time per output token": units.duration(plan.latency.tpot_s.value),
            "Time to first token": units.duration(plan.latency.ttft_s.value),
            "Running": units.count(plan.latency.streams),
            "Waiting": units.count(plan.latency.waiting),
            "A million output tokens": _price(plan),
        }
        for plan in found.plans
        if plan.latency is not None
    ]


def _said(value: float | None, form: units.Formatter) -> str:
    return MISSING if value is None else form(value)


def _speed(plan: Plan) -> str:
    return MISSING if plan.latency is None else units.count(plan.latency.output_tokens_per_s.value, "tokens/s")


def _price(plan: Plan) -> str:
    return MISSING if plan.cost is None else units.usd(plan.cost.usd_per_million_output_tokens.value)
