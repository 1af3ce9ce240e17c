"""An article on KV-cache compression and its cost, checked: each figure found again, the right one beside it, and why.

The article (in Chinese) works its figures out on an A100-80GB with Llama models. Its arithmetic is repeated with
its own inputs and rounding, so that a reader finds the printed number; what is right comes from this planner.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache

from planner.article_memory import compression_claims, experiment_claims, memory_claims
from planner.article_practice import advice_claims, observing_claims
from planner.article_speed import cost_claims
from planner.claim import Claim, Judgement
from planner.units import count
from planner.verdict import Level, Verdict

SECTIONS = {
    1: "Memory model",
    2: "Compression methods",
    3: "The vLLM experiment",
    4: "Cost model",
    5: "Observability",
    6: "Advice",
}


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the article."""
    return (*memory_claims(), *compression_claims(), *experiment_claims(), *cost_claims(), *observing_claims(),
            *advice_claims())  # fmt: skip


def of_section(number: int) -> tuple[Claim, ...]:
    """The claims of one section."""
    return tuple(claim for claim in claims() if claim.section == number)


def tally() -> dict[Judgement, int]:
    """How many claims are ok, imprecise, wrong and not physical  [claims]."""
    found = Counter(claim.verdict for claim in claims())
    return {judgement: found[judgement] for judgement in Judgement}


def verdict() -> Verdict:
    """The article in one sentence: the claim that is furthest from what the device can do."""
    rate = next(claim for claim in claims() if claim.id == "4.5")
    assert rate.claimed is not None
    assert rate.right is not None
    reason = (
        f"{count(rate.claimed, 'tokens/s')} of Llama-3-8B on one A100-80GB is {rate.factor:.0f}× over what its memory "
        f"bandwidth allows with the 32 KV heads assumed there, {rate.factor_real:.0f}× with the 8 it has; planned is "
        f"{count(rate.right.value)}."
    )
    return Verdict(level=Level.WARNING, word="Not physical", reason=reason, context=summary(),
                   action="Use its methods, not its throughput and prices.")  # fmt: skip


def summary() -> str:
    """The tally in words."""
    return ", ".join(f"{number} {judgement.value}" for judgement, number in tally().items())


def lines() -> Iterator[str]:
    """Every claim for a terminal: the figures, then the reason."""
    yield str(verdict())
    for number, title in SECTIONS.items():
        yield f"\n{number} {title}"
        for claim in of_section(number):
            yield f"{claim.id} {claim.text} {f'({claim.case})' if claim.case else ''}".rstrip()
            yield f"    {claim.verdict.value}{over(claim)}. {figures(claim)}".rstrip()
            yield f"    {claim.reason}"


def over(claim: Claim) -> str:
    """By how much a claim is over the ceiling, empty where it is not."""
    if claim.factor is None:
        return ""
    real = "" if claim.factor_real is None else f" ({claim.factor_real:.0f}× with 8 KV heads)"
    return f", {claim.factor:.0f}× over the ceiling{real}"


def figures(claim: Claim) -> str:
    """The three figures of a claim in words, those that it has."""
    named = {"Claimed": claim.claimed, "reproduced": claim.reproduced, "right": claim.right and claim.right.value}
    return ", ".join(f"{name} {shown(value, claim.unit)}" for name, value in named.items() if value is not None)


def shown(value: float, unit: str) -> str:
    """A figure with its unit.

    >>> shown(0.875, "ratio"), shown(0.0283, "dollars/million tokens"), shown(268435456, "bytes"), shown(1.5, "ms")
    ('87.5 %', '$0.0283', '268,435,456 bytes', '1.5 ms')
    """
    if unit == "ratio" and abs(value) <= 1:
        return f"{value * 100:.3g} %"
    if unit in ("ratio", "times"):
        return f"{value:.3g}×"
    if unit.startswith("dollars"):
        return f"${value:.3g}" if value < 1 else f"${value:,.2f}"
    return f"{value:,.0f} {unit}" if value >= 1000 or value == int(value) else f"{value:,.3g} {unit}"
