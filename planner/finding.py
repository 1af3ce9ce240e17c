"""Finding: one piece of advice on a plan, and the phrases that findings share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.units import count
from planner.verdict import Level

if TYPE_CHECKING:
    from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One piece of advice.

    id      the row of the article's advice, or the limit
    level   good (as it should be), warning (a gain is left) or bad (work is lost)
    reason  a sentence with the numbers that decide
    action  the next step, always one
    """

    id: str
    level: Level
    reason: str
    action: str


def is_bound_by_pool(plan: "Plan") -> bool:
    """More requests would run if the KV pool held more."""
    wanted = plan.workload.concurrency or plan.deployment.step_seqs
    return held(plan) < min(wanted, plan.deployment.step_seqs)


def held(plan: "Plan") -> int:
    """Requests of the load's full length that the pool of one replica holds, whatever max_num_seqs says  [requests]."""
    return 0 if plan.capacity is None else plan.capacity[0].streams


def kv_tokens(plan: "Plan") -> int:
    """What the engine would log as its KV cache size  [tokens]."""
    return 0 if plan.capacity is None else plan.capacity[0].kv_cache_size_tokens


def gain(before: "Plan", after: "Plan") -> str:
    """What the second plan holds and makes beside the first, in words."""
    said = f"{_change(kv_tokens(before), kv_tokens(after), 'KV tokens')}, "
    said += _change(held(before), held(after), "requests at once")
    if before.latency is None or after.latency is None:
        return said
    rates = before.latency.output_tokens_per_s.value, after.latency.output_tokens_per_s.value
    return f"{said}, {_change(*rates, 'tokens/s')}"


def _change(before: float, after: float, noun: str) -> str:
    return f"{count(before)} → {count(after, noun)}"
