"""Advice: ordered rules on a plan, each with the numbers it rests on and what to do.

A rule that promises a gain plans again with the change and says what came of it. Ids are the rows of the article's
advice (6.1 to 6.5), then the names of limits (planner.advice_limits).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from planner.advice_limits import LIMIT_RULES
from planner.compression import arithmetic, compressed, in_sixteen_bits
from planner.compression_methods import ends
from planner.finding import Finding, gain, held, is_bound_by_pool, kv_tokens
from planner.kv_dtype import kv_dtype
from planner.model import Attention
from planner.units import count, memory, share, usd
from planner.verdict import Level

if TYPE_CHECKING:
    from planner.plan import Plan

LONG_CONTEXT = 8_192  # tokens above which quantised keys and values need a check of quality (article, 6.2)
BLOCK_SIZES = (8, 16, 32, 64)  # tokens a block
WASTE = 0.05  # share of a request's blocks that may stay empty before a smaller block is advised
EIGHT_BIT = ("fp8", "int8_per_token_head")  # KV dtypes that need no training, in the order they are tried
LEAST_SAVING = 0.01  # share of the cache from which a saving is worth saying


def advice(plan: "Plan") -> tuple[Finding, ...]:
    """What to change, or to leave, in the order of the article and then of the limits; empty where nothing is held."""
    if plan.layout is None or plan.capacity is None:
        return ()
    return tuple(finding for rule in (*_RULES, *LIMIT_RULES) for finding in rule(plan))


class BlockWaste(NamedTuple):
    """What one block size leaves empty.

    block_size  tokens a block holds  [tokens]
    expected    share empty on average over lengths about this one: (block − 1) / 2 of the tokens  [ratio]
    exact       share empty in the last block of a request of exactly this length  [ratio]
    refusal     why this size is not to be had here, empty when it is
    """

    block_size: int
    expected: float
    exact: float
    refusal: str


def waste(tokens: int, block_size: int) -> tuple[float, float]:
    """Share of a request's blocks that is empty: on average over lengths about this one, and at exactly this length.

    expected = ((b − 1) / 2) / (L + (b − 1) / 2)      exact = 1 − L / (⌈L / b⌉ · b)

    >>> [round(part, 4) for part in waste(2_000, 64)], waste(2_048, 64)[1]
    ([0.0155, 0.0234], 0.0)
    """
    empty = (block_size - 1) / 2
    return empty / (tokens + empty), 1 - tokens / (math.ceil(tokens / block_size) * block_size)


def block_wastes(plan: "Plan") -> tuple[BlockWaste, ...]:
    """The waste of each usual block size at the load's length, and of the present one."""
    assert plan.layout is not None
    sizes = sorted({*BLOCK_SIZES, plan.layout.block_size})
    return tuple(BlockWaste(size, *waste(plan.workload.tokens, size), _block_refusal(plan, size)) for size in sizes)


def _block_refusal(plan: "Plan", size: int) -> str:
    """Why blocks of this size are not to be had; beside recurrent states their page decides."""
    assert plan.layout is not None
    if size == plan.layout.block_size:
        return ""
    made = plan.on(replace(plan.deployment, block_size=size))
    found = size if made.layout is None else made.layout.block_size
    return made.refusal or ("" if found == size else f"The engine makes it {found:,} tokens.")


def _device(plan: "Plan") -> Iterator[Finding]:
    """6.1: quantise the cache or not, on this device."""
    assert plan.layout is not None
    server, stored = plan.deployment, plan.layout.resolved_kv_cache_dtype
    if kv_dtype(stored).quantized:
        reason = f"The KV cache is stored as {stored}: {gain(in_sixteen_bits(plan), plan)}."
        yield _said("6.1", Level.GOOD, f"{reason} {arithmetic(server.gpu, stored)}",
                    "Keep it, and measure quality on your own prompts.")  # fmt: skip
        return
    for name in EIGHT_BIT:
        made = plan.on(replace(server, kv_cache_dtype=name))
        if made.refusal or made.capacity is None:
            continue
        computes = arithmetic(server.gpu, name)
        if is_bound_by_pool(plan):
            reason = f"The KV cache is in 16 bits; as {name}: {gain(plan, made)}. {computes}"
            yield _said("6.1", Level.WARNING, reason, f"Set --kv-cache-dtype {name}, and check quality.")
        else:
            reason = (f"The KV pool is not the limit: it holds {count(held(plan), 'requests')}, and no more than "
                      f"{count(plan.streams)} run. {computes}")  # fmt: skip
            yield _said("6.1", Level.GOOD, reason, f"Leave 16 bits; take --kv-cache-dtype {name} when the load grows.")
        return
    refusal = plan.on(replace(server, kv_cache_dtype=EIGHT_BIT[0])).refusal
    yield _said("6.1", Level.GOOD, f"No 8-bit KV cache here. {refusal}", "Keep 16 bits, or take Hopper or Blackwell.")


def _stacked(plan: "Plan") -> Iterator[Finding]:
    """6.2: fewer KV heads and fewer bits multiply."""
    own, eight = compressed(plan, []).saving_of_multihead, compressed(plan, ["fp8"])
    if own is None or own < LEAST_SAVING or eight.obstacles or eight.saving_of_multihead is None:
        return
    yield _said(
        "6.2", Level.GOOD,
        f"This model's attention saves {share(own)} of what a KV head for each query head would take; with 8 bits "
        f"{share(eight.saving_of_multihead)}.",
        f"Stack both, and check quality above {count(LONG_CONTEXT, 'tokens')} of context.",
    )  # fmt: skip


def _long_context(plan: "Plan") -> Iterator[Finding]:
    """6.2, 6.5: quantised keys and values at long context."""
    assert plan.layout is not None
    stored, longest = plan.layout.resolved_kv_cache_dtype, max(plan.workload.tokens, plan.max_model_len)
    if not kv_dtype(stored).quantized or longest <= LONG_CONTEXT:
        return
    reason = f"Requests up to {count(longest, 'tokens')} meet a {stored} KV cache."
    action = "Evaluate at that length, with calibrated scales."
    layers = ends(plan.model)
    mixed = plan.on(replace(plan.deployment, kv_cache_dtype_skip_layers=layers))
    if 0 < kv_tokens(mixed) < kv_tokens(plan):
        reason += f" With two layers at each end in 16 bits: {gain(plan, mixed)}."
        action += f" Where it falls short, add --kv-cache-dtype-skip-layers {' '.join(layers)}."
    yield _said("6.5", Level.WARNING, reason, action)


def _block_size(plan: "Plan") -> Iterator[Finding]:
    """6.3: what a block size wastes at the load's length."""
    assert plan.layout is not None
    size, tokens = plan.layout.block_size, plan.workload.tokens
    if not size:
        return
    found = block_wastes(plan)
    now = next(each for each in found if each.block_size == size)
    best = min((each for each in found if not each.refusal), key=lambda each: each.expected)
    shares = ", ".join(
        f"{share(each.expected)} at {each.block_size}{' (not taken here)' if each.refusal else ''}" for each in found
    )
    wasteful = now.expected > WASTE and best.block_size < size
    yield _said(
        "6.3", Level.WARNING if wasteful else Level.GOOD,
        f"Blocks of {count(size, 'tokens')} leave {share(now.expected)} of a request of about "
        f"{count(tokens, 'tokens')} empty on average, {share(now.exact)} at exactly that length. By size: {shares}.",
        f"Try --block-size {best.block_size}." if wasteful
        else f"Keep {size}: smaller blocks lengthen the block tables, larger ones waste more.",
    )  # fmt: skip


def _money(plan: "Plan") -> Iterator[Finding]:
    """6.4: the cache is the first lever on cost."""
    eight = compressed(plan, ["fp8"])
    if plan.cost is None or eight.plan.cost is None or eight.obstacles or not is_bound_by_pool(plan):
        return
    now, then = (made.usd_per_million_output_tokens.value for made in (plan.cost, eight.plan.cost))
    if then < now:
        yield _said(
            "6.4", Level.WARNING,
            f"A million output tokens cost {usd(now)}; with an FP8 KV cache {usd(then)}, {share(1 - then / now)} less.",
            "Change the KV cache before the device; host, network and power are priced with the hours.",
        )  # fmt: skip


def _shape(plan: "Plan") -> Iterator[Finding]:
    """6.5: a model whose every query head caches its own key and value."""
    heads = [(m.num_attention_heads, m.num_key_value_heads) for m in plan.model.mixers if isinstance(m, Attention)]
    grouped = compressed(plan, ["gqa8"])
    if not any(queries == own for queries, own in heads) or not grouped.saving or grouped.base.layout is None:
        return
    now = grouped.base.layout.request_bytes(plan.workload.tokens)
    yield _said(
        "6.5", Level.WARNING,
        f"Every query head caches its own keys and values: {memory(now)} a request in 16 bits, of which 8 KV heads "
        f"would save {share(grouped.saving)}.",
        "Quantise the KV cache of this model; choose GQA or MLA for a new one.",
    )  # fmt: skip


def _said(row: str, level: Level, reason: str, action: str) -> Finding:
    return Finding(id=row, level=level, reason=reason.rstrip(), action=action)


_RULES: tuple[Callable[["Plan"], Iterable[Finding]], ...] = (
    _device, _stacked, _block_size, _money, _shape, _long_context,
)  # fmt: skip
