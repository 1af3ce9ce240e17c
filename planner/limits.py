"""What stops a plan first, in the order in which a server would meet it, and the nearest change that removes it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.deployment import Deployment
from planner.units import count, duration, memory

if TYPE_CHECKING:
    from planner.latency import Range
    from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The first thing in the way.

    kind    refused, memory, max_model_len, request_length, max_num_seqs, kv_cache, unstable, ttft or tpot
    reason  a sentence with the deciding numbers
    fix     the nearest change that makes the plan fit, empty when none was found
    """

    kind: str
    reason: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.reason} {self.fix}".rstrip()


def first_limit(plan: "Plan") -> Limit | None:
    """The first limit a plan meets, None when it fits."""
    return next((limit for rule in _RULES if (limit := rule(plan))), None)


def _refused(plan: "Plan") -> Limit | None:
    return Limit(kind="refused", reason=plan.refusal) if plan.refusal else None


def _memory(plan: "Plan") -> Limit | None:
    assert plan.budget is not None
    return Limit(kind="memory", reason=plan.budget.failure) if plan.budget.failure else None


def _max_model_len(plan: "Plan") -> Limit | None:
    assert plan.capacity is not None
    if plan.capacity[0].max_concurrency >= 1:
        return None
    return Limit(
        kind="max_model_len",
        reason=f"the KV cache cannot hold one request of max_model_len {count(plan.max_model_len, 'tokens')}; "
        f"the longest that fits is {count(plan.longest_max_model_len, 'tokens')}.",
    )


def _request_length(plan: "Plan") -> Limit | None:
    if plan.workload.tokens <= plan.max_model_len:
        return None
    return Limit(
        kind="request_length",
        reason=f"requests of {count(plan.workload.tokens, 'tokens')} are longer than "
        f"max_model_len {count(plan.max_model_len, 'tokens')}.",
    )


def _max_num_seqs(plan: "Plan") -> Limit | None:
    wanted = plan.workload.concurrency
    if wanted is None or wanted <= plan.deployment.step_seqs:
        return None
    return Limit(
        kind="max_num_seqs",
        reason=f"{count(wanted, 'requests')} at once are more than max_num_seqs {count(plan.deployment.step_seqs)}: "
        "the rest wait.",
    )


def _kv_cache(plan: "Plan") -> Limit | None:
    wanted, capacity = plan.workload.concurrency, plan.capacity
    assert capacity is not None
    assert plan.layout is not None
    if wanted is None or wanted <= plan.streams:
        return None
    need = wanted * plan.layout.request_bytes(plan.workload.tokens)
    return Limit(
        kind="kv_cache",
        reason=f"the KV cache holds {count(plan.streams)} of {count(wanted)} requests of "
        f"{count(plan.workload.tokens, 'tokens')}: {memory(need)} needed a rank, {memory(plan.pool_bytes)} there.",
    )


def _unstable(plan: "Plan") -> Limit | None:
    if plan.latency is None or plan.latency.stable:
        return None
    return Limit(
        kind="unstable",
        reason=f"{plan.workload.request_rate:g} requests/s arrive faster than they are served; the queue grows.",
    )


def _ttft(plan: "Plan") -> Limit | None:
    return _slo("ttft", "time to first token", plan.slo.ttft_s, _planned(plan, "ttft_s"))


def _tpot(plan: "Plan") -> Limit | None:
    return _slo("tpot", "time per output token", plan.slo.tpot_s, _planned(plan, "tpot_s"))


def _planned(plan: "Plan", quantity: str) -> float | None:
    found: Range | None = getattr(plan.latency, quantity, None)
    return None if found is None else found.value


def _slo(kind: str, name: str, promised: float | None, planned: float | None) -> Limit | None:
    if promised is None or planned is None or planned <= promised:
        return None
    return Limit(kind=kind, reason=f"{name} {duration(planned)} is over the promised {duration(promised)}.")


_RULES: tuple[Callable[["Plan"], Limit | None], ...] = (
    _refused, _memory, _max_model_len, _request_length, _max_num_seqs, _kv_cache, _unstable, _ttft, _tpot,
)  # fmt: skip


def nearest_fix(plan: "Plan", replan: Callable[[Deployment], "Plan"]) -> str:
    """The first single change, from the cheapest to the dearest, under which the plan fits; empty when none does.

    replan  plans the same model and load on another Deployment
    """
    for change, deployment in _changes(plan):
        if replan(deployment).fits:
            return change
    return ""


def _changes(plan: "Plan") -> Iterator[tuple[str, Deployment]]:
    now = plan.deployment
    if plan.capacity and plan.longest_max_model_len >= plan.workload.tokens:
        shorter = min(plan.longest_max_model_len, plan.model.max_position_embeddings)
        yield f"Set --max-model-len {shorter}.", replace(now, max_model_len=shorter)
    if plan.workload.tokens > plan.max_model_len:
        yield f"Set --max-model-len {plan.workload.tokens}.", replace(now, max_model_len=plan.workload.tokens)
    if plan.workload.concurrency and plan.workload.concurrency > plan.deployment.step_seqs:
        wanted = plan.workload.concurrency
        yield f"Set --max-num-seqs {wanted}.", replace(now, max_num_seqs=wanted)
    if now.gpu.is_cpu:
        for space in (8, 16, 32, 64, 128, 256):
            if space > (now.cpu_kvcache_space or 0):
                yield f"Set VLLM_CPU_KVCACHE_SPACE={space}.", replace(now, cpu_kvcache_space=space)
    elif now.utilization < 0.95:
        yield "Set --gpu-memory-utilization 0.95.", replace(now, gpu_memory_utilization=0.95)
    if now.kv_cache_dtype == "auto":
        yield "Set --kv-cache-dtype fp8 (check quality above 8k context).", replace(now, kv_cache_dtype="fp8")
    for size in (2, 4, 8):
        if size > now.tensor_parallel_size and not now.gpu.is_cpu:
            yield f"Use {size} GPUs: --tensor-parallel-size {size}.", replace(now, tensor_parallel_size=size)
    for size in (2, 4, 8):
        if size > now.data_parallel_size and plan.capacity is not None:
            yield f"Run {size} replicas: --data-parallel-size {size}.", replace(now, data_parallel_size=size)
