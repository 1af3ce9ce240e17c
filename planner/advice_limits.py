"""The limits as advice: steps, sequences, utilisation, parallelism, windows, states, each with its change."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.finding import Finding, gain, held, is_bound_by_pool, kv_tokens
from planner.model import MLA, Attention, Recurrent
from planner.units import count, duration, memory, share
from planner.verdict import Level

if TYPE_CHECKING:
    from planner.deployment import Deployment
    from planner.plan import Plan

GAIN = 0.01  # share of the KV pool from which a change is worth saying
PADDING = 0.05  # share of the pool that may store nothing
ROOMY = 0.95  # gpu_memory_utilization that a server without other processes on its devices takes
LEAST_STEP = 2_048  # tokens a step is not advised to go below


def _step_tokens(plan: "Plan") -> Iterator[Finding]:
    """The activation peak grows with the tokens of a step."""
    half = plan.deployment.step_tokens // 2
    if half >= LEAST_STEP and is_bound_by_pool(plan):
        changed = replace(plan.deployment, max_num_batched_tokens=half)
        yield from _freed(plan, "activation", changed, f"--max-num-batched-tokens {half}")


def _step_seqs(plan: "Plan") -> Iterator[Finding]:
    """max_num_seqs reserves logits and graphs for requests that the pool cannot hold, or turns away those it can."""
    seqs, room = plan.deployment.step_seqs, held(plan)
    if seqs > 2 * room > 0:
        fewer = 2 ** math.ceil(math.log2(room))
        yield from _freed(plan, "max_num_seqs", replace(plan.deployment, max_num_seqs=fewer), f"--max-num-seqs {fewer}")
    elif seqs < room and plan.workload.concurrency is None and plan.latency is not None:
        made = plan.on(replace(plan.deployment, max_num_seqs=room))
        if made.latency is None:
            return
        now, then = (duration(each.tpot_s.value) for each in (plan.latency, made.latency))
        yield Finding(
            id="max_num_seqs", level=Level.WARNING,
            reason=f"max_num_seqs {count(seqs)} is below the {count(room, 'requests')} that the pool holds: "
            f"{gain(plan, made)}; the time per output token {now} becomes {then}.",
            action=f"Set --max-num-seqs {room} if that is within what was promised.",
        )  # fmt: skip


def _utilization(plan: "Plan") -> Iterator[Finding]:
    """What more of the device would hold."""
    server = plan.deployment
    given = server.kv_cache_memory_bytes or server.num_gpu_blocks_override or server.gpu.is_cpu
    if not given and server.utilization < ROOMY and is_bound_by_pool(plan):
        raised = replace(server, gpu_memory_utilization=ROOMY)
        yield from _freed(plan, "gpu_memory_utilization", raised, f"--gpu-memory-utilization {ROOMY:g}",
                          " where nothing else uses the device")  # fmt: skip


def _replicas(plan: "Plan") -> Iterator[Finding]:
    """Tensor parallelism beyond the KV heads copies them."""
    ranks = plan.deployment.tensor_parallel_size
    heads = min((m.num_key_value_heads for m in plan.model.mixers if isinstance(m, Attention)), default=ranks)
    if heads >= ranks or plan.deployment.decode_context_parallel_size > 1:
        return
    copies = ranks // heads
    reason = f"{ranks} ranks share {count(heads, 'KV heads')}: each head is stored {copies} times."
    made = plan.on(replace(plan.deployment, decode_context_parallel_size=copies))
    if kv_tokens(made) > kv_tokens(plan):
        reason += f" With its tokens spread over the copies: {gain(plan, made)}."
        action = f"Set --decode-context-parallel-size {copies}, or --tensor-parallel-size {heads} with more replicas."
    else:
        action = f"Set --tensor-parallel-size {heads} and run more replicas (--data-parallel-size)."
    yield Finding(id="tensor_parallel_size", level=Level.BAD, reason=reason, action=action)


def _latents(plan: "Plan") -> Iterator[Finding]:
    """Latent attention is not cut by tensor parallelism."""
    server = plan.deployment
    ranks = server.tensor_parallel_size
    if ranks == 1 or server.decode_context_parallel_size > 1 or not any(isinstance(m, MLA) for m in plan.model.mixers):
        return
    replicas = server.data_parallel_size * ranks
    spread = replace(server, tensor_parallel_size=1, data_parallel_size=replicas, enable_expert_parallel=True)
    reason = f"Latents are not cut by heads: each of {ranks} ranks stores every token."
    action = f"Spread tokens over the ranks: --decode-context-parallel-size {ranks}."
    now, then = held(plan) * server.data_parallel_size, held(plan.on(spread)) * replicas
    if then > now:
        reason += f" With data-parallel attention {count(then, 'requests')} fit at once, not {count(now)}."
        action = f"Use --tensor-parallel-size 1 --data-parallel-size {replicas} --enable-expert-parallel."
    yield Finding(id="mla", level=Level.WARNING, reason=reason, action=action)


def _windows(plan: "Plan") -> Iterator[Finding]:
    """A window saves nothing below its length and what steps in flight add to it."""
    layout, tokens = plan.layout, plan.workload.tokens
    assert layout is not None
    for window in sorted({group.sliding_window or 0 for group in layout.groups if group.kind.startswith("sliding")}):
        kept = window - 1 + layout.in_flight_tokens
        if kept >= tokens:
            yield Finding(
                id="sliding_window", level=Level.WARNING,
                reason=f"Windows of {count(window, 'tokens')} save nothing at {count(tokens, 'tokens')}: a request "
                f"keeps up to {count(kept, 'tokens')}, {count(layout.in_flight_tokens)} of them in flight, and a block "
                "more.",
                action="Lower --max-num-batched-tokens, or plan these layers as if they saw all.",
            )  # fmt: skip


def _states(plan: "Plan") -> Iterator[Finding]:
    """Recurrent layers keep a state of fixed size, several while a prefix is cached."""
    layout = plan.layout
    assert layout is not None
    if not any(isinstance(mixer, Recurrent) for mixer in plan.model.mixers) or not layout.prefix_caching:
        return
    made = plan.on(replace(plan.deployment, enable_prefix_caching=False))
    if held(made) > held(plan):
        yield Finding(
            id="state", level=Level.WARNING,
            reason=f"Recurrent layers keep {memory(layout.state_bytes_per_seq)} a sequence, several times over while "
            f"prefixes are cached: {count(held(plan), 'requests')} fit, {count(held(made))} without prefix caching.",
            action="Set --no-enable-prefix-caching where prompts share no beginning.",
        )  # fmt: skip


def _padding(plan: "Plan") -> Iterator[Finding]:
    """Groups of layers that do not come out even are charged as if full."""
    assert plan.layout is not None
    if plan.layout.padding_waste > PADDING:
        yield Finding(
            id="padding", level=Level.WARNING,
            reason=f"{share(plan.layout.padding_waste)} of the pool stores nothing: {len(plan.layout.groups)} groups "
            "of layers draw equal blocks, and short ones are padded.",
            action="Compare models by concurrency, not by bytes a token: no flag removes the padding.",
        )  # fmt: skip


def _freed(plan: "Plan", what: str, server: "Deployment", flags: str, where: str = "") -> Iterator[Finding]:
    """A change that leaves more to the pool, if it leaves enough."""
    made = plan.on(server)
    if plan.budget is None or made.budget is None or made.capacity is None:
        return
    more = made.budget.available_kv.value - plan.budget.available_kv.value
    if more < GAIN * plan.budget.available_kv.value:
        return
    prompt = ""
    if what == "activation" and plan.latency is not None and made.latency is not None:
        now, then = (duration(each.prefill_s) for each in (plan.latency, made.latency))
        prompt = f"; reading a prompt takes {then}, not {now}"
    reason = f"{flags} leaves {memory(more)} more to the KV cache: {gain(plan, made)}{prompt}."
    yield Finding(id=what, level=Level.WARNING, reason=reason, action=f"Set {flags}{where}.")


LIMIT_RULES: tuple[Callable[["Plan"], Iterable[Finding]], ...] = (
    _step_tokens, _step_seqs, _utilization, _replicas, _latents, _windows, _states, _padding,
)  # fmt: skip
