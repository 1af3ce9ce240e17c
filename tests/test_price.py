"""Prices: the quotes behind a range, the user's own, and the devices nobody quotes."""

import pytest

from planner.catalog import entries
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.price import own_price, prices


def test_every_quote_names_a_device_of_the_catalog_and_a_date() -> None:
    for entry in entries("prices.jsonl"):
        assert gpu_named(entry["gpu"]).name == entry["gpu"]
        assert entry["date"].startswith("2026")
        assert entry["source"]


def test_range_is_on_demand_only() -> None:
    """Auctions (2.40 on Vast.ai, 2.46 at CoreWeave) are not what a team pays on demand; 12.29 is Azure's ND96isr."""
    h100 = prices(gpu_named("H100"))
    assert h100 is not None
    assert (h100.low, h100.high) == (2.67, 12.29)
    assert h100.low <= h100.median <= h100.high
    assert all(quote.is_on_demand for quote in h100.quotes)


def test_a_market_price_where_there_is_nothing_else() -> None:
    found = prices(gpu_named("RTX 3090"))
    assert found is not None
    assert (found.median, found.quotes[0].kind) == (0.18, "market")


def test_own_price_wins() -> None:
    gpu = gpu_named("H100")
    found = prices(gpu, [own_price(gpu, 2.1, "our contract")])
    assert found is not None
    assert (found.low, found.median, found.high) == (2.1, 2.1, 2.1)


def test_unknown_is_not_free() -> None:
    assert prices(gpu_named("cpu")) is None
    assert prices(gpu_named("T4")) is None


@pytest.mark.parametrize("amount", [-1, float("nan"), "2", None, True])
def test_own_price_must_be_dollars(amount: object) -> None:
    with pytest.raises(InputError, match=r"prices\[H100-SXM\]"):
        own_price(gpu_named("H100"), amount)  # type: ignore[arg-type]
