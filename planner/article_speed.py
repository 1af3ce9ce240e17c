"""What the article says of throughput and price (section 4): its arithmetic, and the roofline it runs into."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from planner.article_memory import COST, PLAN, USD_PER_HOUR, planned
from planner.claim import Claim, Judgement, exactly, figure
from planner.gpu import gpu_named
from planner.latency import Range
from planner.plan import Plan
from planner.roofline import times_over_ceiling
from planner.units import GB, count, duration, share, usd

_SPEED = "Speed"
_TOKENS = 2048  # 1,024 in and 1,024 out
_HEADS, _REAL_HEADS = 32, 8  # KV heads taken there, and those of Llama-3-8B
_PAIR = 2 * 32 * 128  # elements of one head's keys and values in 32 layers, a token
_LEFT = 80 - 16  # GB: card less weights
_SEQUENCE_GB = round(_TOKENS * _HEADS * _PAIR * 2 / GB, 2)


class Case(NamedTuple):
    """One column of the article's table.

    name        KV dtype
    flag        the same for vLLM
    bytes       of an element  [bytes]
    step_ms     taken for a token of every sequence  [ms]
    per_second  tokens a second of one sequence, as the article rounds it  [tokens/s]
    printed     sequences at once, tokens a second, dollars a million tokens  [see text]
    """

    name: str
    flag: str
    bytes: int
    step_ms: float
    per_second: float
    printed: tuple[float, float, float]

    @property
    def streams(self) -> int:
        """Whole sequences of 1.07 GB, or half of it, in 64 GB  [requests]."""
        return math.floor(_LEFT / (_SEQUENCE_GB * self.bytes / 2))

    @property
    def tokens_per_s(self) -> float:
        """Sequences × tokens a second of each  [tokens/s]."""
        return round(self.streams * self.per_second)

    @property
    def usd_per_million(self) -> float:
        """An hour's price over an hour's tokens, to a tenth of a cent  [dollars/million tokens]."""
        return round(USD_PER_HOUR / (self.tokens_per_s * 3600) * 1e6, 3)

    def kv_bytes(self, heads: int) -> int:
        """KV cache of one full sequence  [bytes]."""
        return _TOKENS * heads * _PAIR * self.bytes

    def read_bytes(self, heads: int) -> float:
        """What each step must read: 16 GB of weights and every sequence's KV cache  [bytes]."""
        return 16 * GB + self.streams * self.kv_bytes(heads)

    def factor(self, heads: int) -> float:
        """The rate over what reading that at peak bandwidth allows  [ratio]."""
        return times_over_ceiling(self.tokens_per_s, self.streams, self.read_bytes(heads), gpu_named("A100-SXM-80GB"))

    def plan(self) -> Plan:
        """As many streams of the real model, planned."""
        return planned(kv_cache_dtype=self.flag, concurrency=self.streams)


# 1 / 1.5 ms is cut to 666 a second there, which makes 59 × 666 = 39,294; 1 / 1.4 ms is not cut
CASES = (
    Case("FP16", "auto", 2, 1.5, math.floor(1000 / 1.5), printed=(59, 39_294, 0.028)),
    Case("FP8", "fp8", 1, 1.4, 1000 / 1.4, printed=(119, 85_000, 0.013)),
)


def cost_claims() -> Iterator[Claim]:
    """Section 4."""
    yield from _memory()
    for case in CASES:
        yield _streams(case)
    for case in CASES:
        yield _step(case)
    for case in CASES:
        yield _rate(case)
    for case in CASES:
        yield _price(case)
    yield _saving()
    yield Claim(
        id="4.7", where=COST, verdict=Judgement.OK,
        text="Real cost also has CPU, memory and network; the KV cache decides how well the GPU is used.",
        reason="All are inputs of the price here, with storage, power, spare deployments and the share of busy hours.",
    )  # fmt: skip


def _memory() -> Iterator[Claim]:
    made = planned()
    assert made.budget is not None
    weights, pool = made.budget.weights, made.budget.available_kv
    text = "One A100-80GB at $4 an hour: 16 GB of weights of Llama-3-8B leave 64 GB for the KV cache."
    yield figure("4.1", text, "GB", 16, None, exactly(weights.value / GB),
                 "8.03 billion parameters of 2 bytes.", PLAN, "weights")  # fmt: skip
    yield figure(
        "4.1", text, "GB", 64, _LEFT, Range(pool.value / GB, pool.low / GB, pool.high / GB),
        f"The engine takes {share(made.deployment.utilization)} of what the driver reports, and activations, CUDA "
        "graphs and the CUDA context come off as well.", PLAN, "left for KV",
    )  # fmt: skip
    real = CASES[0].kv_bytes(_REAL_HEADS)
    assert made.layout is not None
    yield figure(
        "4.2", "One sequence of 2,048 tokens takes 1.07 GB.", "bytes", 1_070_000_000, round(_SEQUENCE_GB * GB),
        exactly(made.layout.request_bytes(_TOKENS)),
        f"That is 32 KV heads ({CASES[0].kv_bytes(_HEADS):,} bytes). Llama-3-8B has 8: {real:,} bytes.", PLAN,
    )  # fmt: skip


def _streams(case: Case) -> Claim:
    made = case.plan()
    assert made.capacity is not None
    held = [float(each.streams) for each in made.capacity]
    by_hand = _LEFT * GB // case.kv_bytes(_REAL_HEADS)
    return figure(
        "4.3", "Most sequences at once", "requests", case.printed[0], case.streams, Range(*held),
        f"{_LEFT} / {_SEQUENCE_GB * case.bytes / 2:.3g} GB. With the real 8 KV heads the same division gives "
        f"{by_hand}; what the engine really has left holds {count(held[0])}, of which max_num_seqs runs "
        f"{count(made.streams)} by default.", PLAN, case.name,
    )  # fmt: skip


def _step(case: Case) -> Claim:
    made = case.plan()
    assert made.latency is not None
    tpot = made.latency.tpot_s
    least = case.read_bytes(_HEADS) / made.deployment.gpu.memory_bandwidth
    return figure(
        "4.4", "Time per token, whatever the batch", "ms", case.step_ms, None, tpot.times(1000),
        f"An input there. Each step reads {case.read_bytes(_HEADS) / GB:.0f} GB of weights and KV cache, at 2.04 TB/s "
        f"{duration(least)} at least; with 8 KV heads {case.read_bytes(_REAL_HEADS) / GB:.0f} GB. It grows with the "
        "batch.", _SPEED, case.name, case.factor(_HEADS), case.factor(_REAL_HEADS),
    )  # fmt: skip


def _rate(case: Case) -> Claim:
    made = case.plan()
    assert made.latency is not None
    ceilings = [count(case.tokens_per_s / case.factor(heads)) for heads in (_HEADS, _REAL_HEADS)]
    rounding = "1 / 1.5 ms cut to 666 a second" if case.name == "FP16" else "1 / 1.4 ms"
    return figure(
        "4.5", "Throughput = batch / time per token", "tokens/s", case.printed[1], case.tokens_per_s,
        made.latency.output_tokens_per_s,
        f"{case.streams} × {rounding}. Reading alone allows {ceilings[0]} tokens/s with 32 KV heads, {ceilings[1]} "
        "with the real 8.", _SPEED, case.name, case.factor(_HEADS), case.factor(_REAL_HEADS),
    )  # fmt: skip


def _price(case: Case) -> Claim:
    made = case.plan()
    assert made.latency is not None
    assert made.cost is not None
    whole = USD_PER_HOUR / made.latency.output_tokens_per_s.value / 3600 * 1e6
    return figure(
        "4.6", "Dollars a million tokens", "dollars/million tokens", case.printed[2],
        case.usd_per_million, made.cost.usd_per_million_output_tokens,
        f"$4 / ({count(case.tokens_per_s)} × 3,600 tokens). At the planned speed, prefill charged to input tokens; the "
        f"whole bill on output tokens is {usd(whole)}.", COST, case.name, case.factor(_HEADS),
        case.factor(_REAL_HEADS),
    )  # fmt: skip


def _saving() -> Claim:
    before, after = (case.usd_per_million for case in CASES)
    full = [planned(kv_cache_dtype=case.flag, max_num_seqs=1024) for case in CASES]
    costs = [made.cost.usd_per_million_output_tokens.value for made in full if made.cost is not None]
    real = 1 - costs[1] / costs[0]
    return figure(
        "4.6", "FP8 KV makes a token 54 % cheaper.", "ratio", 0.54, round(1 - after / before, 2), exactly(real),
        f"Both prices it compares are below the floor. With each pool full ({full[0].streams} and "
        f"{full[1].streams} requests) a million output tokens cost {usd(costs[0])} and {usd(costs[1])}, {share(real)} "
        "less: the larger batch also takes longer a step.", COST, "saving", verdict=Judgement.NOT_PHYSICAL,
    )  # fmt: skip


class Rates(NamedTuple):
    """Tokens a second of one KV dtype: what is claimed, what the bandwidth allows, what is planned.

    name          KV dtype
    claimed       by the article  [tokens/s]
    ceiling       with the article's 32 KV heads  [tokens/s]
    ceiling_real  with the model's 8  [tokens/s]
    planned       of the real model at as many streams
    """

    name: str
    claimed: float
    ceiling: float
    ceiling_real: float
    planned: Range


def rates() -> tuple[Rates, ...]:
    """The claim of row 4.5 against the roofline."""
    found = []
    for case in CASES:
        made = case.plan()
        assert made.latency is not None
        claimed = case.tokens_per_s
        found.append(Rates(case.name, claimed, claimed / case.factor(_HEADS), claimed / case.factor(_REAL_HEADS),
                           made.latency.output_tokens_per_s))  # fmt: skip
    return tuple(found)
