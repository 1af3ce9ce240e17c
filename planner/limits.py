"""What stops a plan first, in the order in which a server would meet it, and the nearest change that removes it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, NamedTuple

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


def _override(plan: "Plan") -> Limit | None:
    """A block count given outright is not checked by the engine until it allocates."""
    given = plan.deployment.num_gpu_blocks_override
    assert plan.budget is not None
    if given is None or plan.budget.given or plan.pool_bytes <= plan.budget.available_kv.value:
        return None
    there = memory(plan.budget.available_kv.value)
    reason = f"{count(given, 'blocks')} take {memory(plan.pool_bytes)} a rank, {there} is left."
    return Limit(kind="memory", reason=reason)


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
    _refused, _memory, _override, _max_model_len, _request_length, _max_num_seqs, _kv_cache, _unstable, _ttft, _tpot,
)  # fmt: skip


def nearest_fix(plan: "Plan", replan: Callable[[Deployment], "Plan"]) -> str:
    """The nearest change under which the plan fits, one flag before two and cheap before dear; empty when none does.

    replan  plans the same model and load on another Deployment
    """
    changes = list(_changes(plan))
    for chosen in chain(combinations(changes, 1), combinations(changes, 2)):
        flags = {name: value for change in chosen for name, value in change.flags.items()}
        if len(flags) == len(chosen) and replan(replace(plan.deployment, **flags)).fits:
            return "Set " + " and ".join(change.text for change in chosen) + "."
    return ""


class _Change(NamedTuple):
    """One flag set otherwise: in words, and as a field of Deployment."""

    text: str
    flags: dict[str, Any]


def _changes(plan: "Plan") -> Iterator[_Change]:
    """What may help, from the cheapest to the dearest; whether it does is for the plan to say."""
    now, load = plan.deployment, plan.workload
    longest, ceiling = plan.longest_max_model_len, plan.model.max_position_embeddings
    if plan.max_model_len > ceiling >= load.tokens:
        yield _Change(f"--max-model-len {ceiling}", {"max_model_len": ceiling})
    if load.tokens > plan.max_model_len:
        yield _Change(f"--max-model-len {load.tokens}", {"max_model_len": load.tokens})
    elif load.tokens <= longest < plan.max_model_len:
        yield _Change(f"--max-model-len {longest}", {"max_model_len": longest})
    if load.concurrency and load.concurrency > now.step_seqs:
        yield _Change(f"--max-num-seqs {load.concurrency}", {"max_num_seqs": load.concurrency})
    if now.num_gpu_blocks_override is not None:
        yield _Change("no --num-gpu-blocks-override", {"num_gpu_blocks_override": None})
    if now.gpu.is_cpu:
        for space in _CPU_SPACES:
            if space > (now.cpu_kvcache_space or 0):
                yield _Change(f"VLLM_CPU_KVCACHE_SPACE={space}", {"cpu_kvcache_space": space})
        return
    free = now.utilization if plan.budget is None else plan.budget.highest_utilization
    for utilization in dict.fromkeys((free, _HIGH_UTILIZATION)):
        if utilization != now.utilization and 0 < utilization <= free:
            yield _Change(f"--gpu-memory-utilization {utilization:g}", {"gpu_memory_utilization": utilization})
    if now.kv_cache_dtype == "auto":
        yield _Change("--kv-cache-dtype fp8 (check quality above 8k context)", {"kv_cache_dtype": "fp8"})
    for size in _SIZES:
        if size > now.tensor_parallel_size:
            yield _Change(f"--tensor-parallel-size {size} on {size} GPUs", {"tensor_parallel_size": size})


_HIGH_UTILIZATION = 0.95  # leaves 4 GiB of an 80 GB device to the CUDA context and graphs
_CPU_SPACES = (2, 4, 8, 16, 32, 64, 128, 256)  # GiB
_SIZES = (2, 4, 8)  # GPUs of one node
