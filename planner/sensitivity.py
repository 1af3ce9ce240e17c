"""What moves the price: each input to its lower and its upper value, planned again, the largest swing first."""

from dataclasses import dataclass, replace

from planner.cost import Billing, Cost, cost
from planner.latency import unknown
from planner.plan import Plan
from planner.price import prices
from planner.units import count, share, usd
from planner.verdict import Level, Verdict

_BUSY = (0.3, 1.0)  # share of hours at full load: office hours of one region, and a load that never sleeps  [ratio]
_LENGTHS = (0.5, 2.0)  # times the planned length  [ratio]
_KV_DTYPES = ("fp8", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How far one input moves the price of a million output tokens.

    name        the input, with the two values tried
    low_input   its lower value, in words
    high_input  its upper value, in words
    low         with the lower value  [dollars/million tokens]
    high        with the upper value  [dollars/million tokens]
    """

    name: str
    low_input: str
    high_input: str
    low: float
    high: float

    @property
    def swing(self) -> float:
        """Distance between the two  [dollars/million tokens]."""
        return abs(self.high - self.low)


def price_spread(made: Plan) -> tuple[Cost, Cost] | None:
    """The plan's cost at the lowest and at the highest quote, its speed taken as predicted.

    None where nothing is quoted, or where the plan's price is not the quotes' median: the user's own has no spread.
    """
    quoted = prices(made.deployment.gpu, kind=made.billing.price_kind)
    if quoted is None or made.cost is None or made.usd_per_gpu_hour != quoted.median:
        return None
    low, high = (_priced(made, each) for each in (quoted.low, quoted.high))
    return None if low is None or high is None else (low, high)


def sensitivities(made: Plan) -> tuple[Sensitivity, ...]:
    """Price, busy share, lengths, KV dtype and the speed's own range, each alone, the largest swing first."""
    if made.cost is None:
        return ()
    rows = [*_from_price(made), *_from_busy_share(made), *_from_lengths(made), *_from_kv_dtype(made)]
    token = made.cost.usd_per_million_output_tokens
    rows.append(Sensitivity(name="Speed, range of the prediction", low_input="fastest", high_input="slowest",
                            low=token.low, high=token.high))  # fmt: skip
    return tuple(sorted(rows, key=lambda each: -each.swing))


def verdict(made: Plan) -> Verdict:
    """What the load costs and what moves it most; why not, where no price can be given."""
    if made.latency is None and made.limit is not None:
        return made.verdict
    if made.latency is None:
        return Verdict(level=Level.UNKNOWN, word="No price", reason=unknown(made.deployment.gpu), context=made.inputs,
                       action="Measure it: python -m planner measure-device.")  # fmt: skip
    if made.cost is None:
        missing = f"No {made.billing.price_kind} price of {made.deployment.gpu.name} is known; unknown is not free."
        return Verdict(level=Level.UNKNOWN, word="No price", reason=missing, context=made.inputs,
                       action="Enter your own price a GPU hour.")  # fmt: skip
    money, largest = made.cost, sensitivities(made)[0]
    reason = (
        f"{usd(money.usd_per_million_output_tokens.value)} a million output tokens at "
        f"{usd(money.usd_per_hour)} an hour, {count(made.latency.output_tokens_per_s.value, 'tokens/s')} and "
        f"{share(made.billing.busy_share)} of the hours busy."
    )
    action = (
        f"What moves it most: {largest.name}, from {usd(min(largest.low, largest.high))} "
        f"to {usd(max(largest.low, largest.high))}."
    )
    if made.limit is not None:
        return Verdict(level=Level.WARNING, word="Does not fit", reason=f"{made.limit.reason} What runs costs {reason}",
                       action=made.limit.fix, context=made.inputs)  # fmt: skip
    return Verdict(level=Level.GOOD, word="Priced", reason=reason, action=action, context=made.inputs)


def _from_price(made: Plan) -> list[Sensitivity]:
    quoted = prices(made.deployment.gpu, kind=made.billing.price_kind)
    if quoted is None:
        return []
    ends = [(f"{usd(quote.usd_per_hour)}, {quote.provider}", _priced(made, quote.usd_per_hour))
            for quote in (quoted.quotes[0], quoted.quotes[-1])]  # fmt: skip
    return _between(f"Price of a GPU hour, {made.billing.price_kind} quotes", *ends)


def _from_busy_share(made: Plan) -> list[Sensitivity]:
    bills = [(share(each), replace(made.billing, busy_share=each)) for each in reversed(_BUSY)]
    low, high = ((words, _priced(made, made.usd_per_gpu_hour, billing)) for words, billing in bills)
    return _between("Busy share of paid hours", low, high)


def _from_lengths(made: Plan) -> list[Sensitivity]:
    found = []
    for name, words in (("input_tokens", "Prompt length"), ("output_tokens", "Output length")):
        now = getattr(made.workload, name)
        loads = [replace(made.workload, **{name: max(1, int(now * times))}) for times in _LENGTHS]
        ends = [(count(getattr(load, name), "tokens"), made.on(workload=load).cost) for load in loads]
        found += _between(words, *ends)
    return found


def _from_kv_dtype(made: Plan) -> list[Sensitivity]:
    ends = [(name, made.on(replace(made.deployment, kv_cache_dtype=name)).cost) for name in _KV_DTYPES]
    return _between("KV dtype", *ends)


def _between(name: str, low: tuple[str, Cost | None], high: tuple[str, Cost | None]) -> list[Sensitivity]:
    """One row, or none where one of the two could not be planned."""
    if low[1] is None or high[1] is None:
        return []
    return [Sensitivity(name=name, low_input=low[0], high_input=high[0],
                        low=low[1].usd_per_million_output_tokens.value,
                        high=high[1].usd_per_million_output_tokens.value)]  # fmt: skip


def _priced(made: Plan, usd_per_gpu_hour: float | None, billing: Billing | None = None) -> Cost | None:
    if made.latency is None or usd_per_gpu_hour is None:
        return None
    return cost(made.latency, made.workload, made.deployment.gpus, usd_per_gpu_hour, billing or made.billing)
