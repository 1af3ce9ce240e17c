"""What an hour of one GPU costs: dated quotes, and the range they span."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from planner.catalog import entries
from planner.errors import InputError
from planner.gpu import Gpu

OWN = "own"
KINDS = ("on demand", "reserved", "spot")
_STARTS = {"on demand": ("on-demand", "secure", "community", OWN), "reserved": ("reserved",), "spot": ("spot",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One quote.

    gpu           the device's name in the catalog
    provider      who rents it out
    kind          on-demand, secure, community, spot, market, … or own
    usd_per_hour  of one GPU  [dollars/hour]
    date          when it was quoted
    source        where it was read
    """

    gpu: str
    provider: str
    kind: str
    usd_per_hour: float
    date: str
    source: str

    @property
    def is_on_demand(self) -> bool:
        """Rented by the hour at a listed price, not by auction and not a statistic of other quotes."""
        return self.is_of("on demand")

    def is_of(self, kind: str) -> bool:
        """Whether this is a quote of one of KINDS."""
        return self.kind.startswith(_STARTS[kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRange:
    """What the quotes for one device and one way of renting span.

    low     cheapest  [dollars/hour]
    median  middle  [dollars/hour]
    high    dearest  [dollars/hour]
    quotes  the quotes behind them, cheapest first
    """

    low: float
    median: float
    high: float
    quotes: tuple[Price, ...]


def prices(gpu: Gpu, own: Sequence[Price] = (), kind: str = "on demand") -> PriceRange | None:
    """The dollars an hour of one such GPU; the user's own price, where there is one, is the whole range.

    kind  one of KINDS; where nobody rents the device on demand, that takes whatever is quoted

    None where nobody quotes the device so (always for the CPU of this machine): unknown is not free.
    Raises InputError for another kind.

    >>> from planner.gpu import gpu_named
    >>> found = prices(gpu_named("A10G"))
    >>> found.low, found.median, len(found.quotes)
    (1.006, 1.006, 1)
    """
    if kind not in KINDS:
        raise InputError("price_kind", kind, "one of " + ", ".join(KINDS))
    known = [quote for quote in own if quote.gpu == gpu.name]
    if not known:
        known = _quotes().get(gpu.name, [])
        of_kind = [quote for quote in known if quote.is_of(kind)]
        known = of_kind or (known if kind == "on demand" else [])
    if not known:
        return None
    quotes = sorted(known, key=lambda quote: quote.usd_per_hour)
    return PriceRange(
        low=quotes[0].usd_per_hour,
        median=median(quote.usd_per_hour for quote in quotes),
        high=quotes[-1].usd_per_hour,
        quotes=tuple(quotes),
    )


def own_price(gpu: Gpu, usd_per_hour: float, source: str = "the user's own") -> Price:
    """The user's own price for one device, as a quote.

    Raises InputError unless it is a number of dollars, 0 or more.
    """
    where = f"prices[{gpu.name}].usd_per_gpu_hour"
    if isinstance(usd_per_hour, bool) or not isinstance(usd_per_hour, int | float) or not 0 <= usd_per_hour < 1e6:
        raise InputError(where, usd_per_hour, "dollars an hour, 0 or more")
    return Price(gpu=gpu.name, provider=OWN, kind=OWN, usd_per_hour=float(usd_per_hour), date="", source=source)


@cache
def _quotes() -> dict[str, list[Price]]:
    by_gpu: dict[str, list[Price]] = {}
    for entry in entries("prices.jsonl"):
        by_gpu.setdefault(entry["gpu"], []).append(_quote(entry))
    return by_gpu


def _quote(entry: Mapping[str, Any]) -> Price:
    given = dict(entry)
    return Price(usd_per_hour=given.pop("usd_per_gpu_hour"), **given)
