"""Cost: what an hour of a deployment costs, and from its speed what tokens, requests and months do.

An hour buys the tokens the deployment makes in it. Prompts and outputs share the devices: the share of time spent
reading prompts is charged to input tokens and the rest to output tokens, so that both together are the whole bill.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import InputError
from planner.latency import Latency, Range
from planner.workload import Workload

HOURS_A_MONTH = 730.0  # 365 × 24 / 12
SECONDS_AN_HOUR = 3600.0
MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What is paid beside the devices.

    usd_per_hour          CPU, memory, network and storage of the servers, all together  [dollars/hour]
    watts_per_gpu         drawn at the plug, cooling included, 0 where the price covers power  [W]
    usd_per_kwh           price of electricity  [dollars/kWh]
    utilization           share of paid hours in which the deployment is loaded as planned  [ratio]
    redundancy            deployments paid for each one in use: 1 alone, 2 with a hot spare  [ratio]
    """

    usd_per_hour: float = 0.0
    watts_per_gpu: float = 0.0
    usd_per_kwh: float = 0.0
    utilization: float = 1.0
    redundancy: float = 1.0

    def __post_init__(self) -> None:
        for name in ("usd_per_hour", "watts_per_gpu", "usd_per_kwh"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(name, getattr(self, name), "a number, 0 or more")
        if not 0 < self.utilization <= 1:
            raise InputError("utilization", self.utilization, "a ratio above 0 and at most 1")
        if not 1 <= self.redundancy < math.inf:
            raise InputError("redundancy", self.redundancy, "a ratio of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a deployment costs under a load.

    usd_per_hour                   everything paid for  [dollars/hour]
    usd_per_million_output_tokens  the decode share of the bill  [dollars/million tokens]
    usd_per_million_input_tokens   the prefill share of the bill  [dollars/million tokens]
    usd_per_request                the whole bill  [dollars/request]
    usd_per_month                  paid for all hours, busy or not  [dollars/month]
    tokens_per_month               output tokens made in that  [tokens/month]
    prefill_share                  of the bill charged to input tokens: the share of time  [ratio]
    """

    usd_per_hour: float
    usd_per_million_output_tokens: Range
    usd_per_million_input_tokens: Range
    usd_per_request: Range
    usd_per_month: float
    tokens_per_month: float
    prefill_share: float


def cost(
    latency: Latency,
    workload: Workload,
    gpus: int,
    usd_per_gpu_hour: float,
    overheads: Overheads = Overheads(),
) -> Cost:
    """Dollars for the load at the predicted speed; the ranges are those of the speed.

    gpus              devices of one deployment  [GPUs]
    usd_per_gpu_hour  price of one  [dollars/hour]

    Raises InputError for a price that is not a number of dollars.
    """
    if not 0 <= usd_per_gpu_hour < math.inf:
        raise InputError("usd_per_gpu_hour", usd_per_gpu_hour, "dollars an hour, 0 or more")
    power = overheads.watts_per_gpu / 1000 * overheads.usd_per_kwh
    hour = overheads.redundancy * (gpus * (usd_per_gpu_hour + power) + overheads.usd_per_hour)
    second = hour / SECONDS_AN_HOUR / overheads.utilization
    rate, share = latency.output_tokens_per_s, latency.prefill_share
    token = Range(second / rate.value, second / rate.high, second / rate.low)
    return Cost(
        usd_per_hour=hour,
        usd_per_million_output_tokens=token.times(MILLION * (1 - share)),
        usd_per_million_input_tokens=token.times(MILLION * share * workload.output_tokens / workload.input_tokens),
        usd_per_request=token.times(workload.output_tokens),
        usd_per_month=hour * HOURS_A_MONTH,
        tokens_per_month=rate.value * overheads.utilization * SECONDS_AN_HOUR * HOURS_A_MONTH,
        prefill_share=share,
    )


def break_even_rate(one: Cost, other: Cost) -> float | None:
    """Output tokens a month from which the dearer of two deployments is worth it, None where it never is.

    A deployment is paid by the month and holds tokens_per_month; more load needs more of them. Below one month of the
    cheaper one, the cheaper wins; from there on the one with the lower price a token does.
    """
    cheap, dear = sorted((one, other), key=lambda each: each.usd_per_month)
    if dear.usd_per_month / dear.tokens_per_month >= cheap.usd_per_month / cheap.tokens_per_month:
        return None
    return cheap.tokens_per_month * dear.usd_per_month / cheap.usd_per_month


def self_hosting_break_even(own: Cost, usd_per_million_tokens: float) -> float | None:
    """Output tokens a month from which the deployment is cheaper than a price a token, None where it cannot be.

    >>> flat = Range(1.0, 1.0, 1.0)
    >>> own = Cost(usd_per_hour=4, usd_per_million_output_tokens=flat, usd_per_million_input_tokens=flat,
    ...            usd_per_request=flat, usd_per_month=2920, tokens_per_month=6e9, prefill_share=0.2)
    >>> self_hosting_break_even(own, 1.0), self_hosting_break_even(own, 0.4)
    (2920000000.0, None)
    """
    tokens = own.usd_per_month / usd_per_million_tokens * MILLION if usd_per_million_tokens > 0 else math.inf
    return tokens if tokens <= own.tokens_per_month else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How far one input moves the price of a million output tokens.

    name  the input
    low   with the input at its lower value  [dollars/million tokens]
    high  with the input at its upper value  [dollars/million tokens]
    """

    name: str
    low: float
    high: float

    @property
    def swing(self) -> float:
        """Distance between the two  [dollars/million tokens]."""
        return abs(self.high - self.low)


def sensitivities(prices: Mapping[str, tuple[Callable[[], Cost | None], Callable[[], Cost | None]]]
                  ) -> tuple[Sensitivity, ...]:  # fmt: skip
    """The largest swing first, of inputs given as two ways to price each (its lower and its upper value)."""
    found = []
    for name, ways in prices.items():
        low, high = (way() for way in ways)
        if low is not None and high is not None:
            found.append(Sensitivity(name=name, low=low.usd_per_million_output_tokens.value,
                                     high=high.usd_per_million_output_tokens.value))  # fmt: skip
    return tuple(sorted(found, key=lambda each: -each.swing))


def deployments_for(tokens_per_month: float, one: Cost) -> int:
    """Deployments that hold a load  [deployments]."""
    return max(1, math.ceil(tokens_per_month / one.tokens_per_month))


def utilizations(base: Overheads, shares: Sequence[float]) -> tuple[Overheads, ...]:
    """The same overheads at other utilisations."""
    return tuple(replace(base, utilization=share) for share in shares)
