"""The article: printed figures come out of its own arithmetic, the right ones and the ceiling out of the planner."""

import json

import pytest

from planner.__main__ import main
from planner.article import claims, lines, tally, verdict
from planner.article_speed import CASES, rates
from planner.claim import Claim, Judgement


def one(id: str, case: str = "") -> Claim:
    return next(claim for claim in claims() if (claim.id, claim.case) == (id, case))


def test_every_row_of_the_article_is_there_in_its_order() -> None:
    rows = list(dict.fromkeys(claim.id for claim in claims()))
    sizes = {1: 6, 2: 5, 3: 2, 4: 7, 5: 6, 6: 5}
    assert rows == [f"{section}.{row}" for section, last in sizes.items() for row in range(1, last + 1)]
    assert len({(claim.id, claim.case) for claim in claims()}) == len(claims())
    assert all(claim.reason and claim.where for claim in claims())


@pytest.mark.parametrize(
    ("row", "case", "printed"),
    [
        ("1.2", "one sequence, one head, one layer", 2 * 2**20),
        ("1.2", "all", 16_384),
        ("1.2", "all, printed as MB", 16_777),
        ("1.3", "FP8", 8),
        ("1.4", "weights", 35),
        ("1.4", "KV cache", 40),
        ("2.1", "", 0.969),
        ("2.2", "", 0.75),
        ("2.3", "FP8, called four times", 4),
        ("2.5", "", 0.875),
        ("4.1", "left for KV", 64),
        ("4.2", "", 1.07e9),
        ("4.3", "FP16", 59),
        ("4.3", "FP8", 119),
        ("4.5", "FP16", 39_294),
        ("4.5", "FP8", 85_000),
        ("4.6", "FP16", 0.028),
        ("4.6", "FP8", 0.013),
        ("4.6", "saving", 0.54),
    ],
)
def test_printed_figures_are_reproduced_to_the_last_digit(row: str, case: str, printed: float) -> None:
    """What the article prints, from its own inputs with its own rounding."""
    claim = one(row, case)
    assert claim.claimed == pytest.approx(printed, abs=1e-12)
    assert claim.reproduced == pytest.approx(printed, abs=1e-9)


@pytest.mark.parametrize(
    ("row", "case", "right"),
    [
        ("1.2", "all", 16_384),  # 8 × 4,096 × 32 × 32 × 2 × 128 × 2 bytes = 17,179,869,184 = 16 GiB
        ("1.2", "all, printed as MB", 17_179.869184),
        ("1.4", "KV cache", 10),  # 8 × 4,096 × 80 layers × 8 heads × 2 × 128 × 2 bytes = 10 GiB
        ("2.1", "", 31 / 32),
        ("2.3", "FP8, called four times", 2),
        ("2.5", "", 7 / 8),
        ("3.1", "", 2),
        ("4.2", "", 268_435_456),  # 2,048 × 32 layers × 8 heads × 2 × 128 × 2 bytes
        ("6.2", "", 7 / 8),
    ],
)
def test_right_figures_by_hand(row: str, case: str, right: float) -> None:
    found = one(row, case).right
    assert found is not None
    assert found.value == pytest.approx(right, rel=1e-3)


def test_seventy_billion_parameters_at_16_bits_are_141_gb() -> None:
    """Llama-3-70B has 70,553,706,496 parameters (its safetensors index)."""
    right = one("1.4", "weights").right
    assert right is not None
    assert right.value == pytest.approx(141.107, abs=0.01)


def test_ceiling_by_hand() -> None:
    """39,294 / 59 steps a second × (16 GB + 59 × 1,073,741,824 or 268,435,456 bytes) / 2.039 TB/s = 25.9 and 10.4."""
    claim = one("4.5", "FP16")
    assert claim.factor == pytest.approx(666 * (16e9 + 59 * 1_073_741_824) / 2.039e12)
    assert claim.factor_real == pytest.approx(666 * (16e9 + 59 * 268_435_456) / 2.039e12)
    assert (round(claim.factor or 0), round(claim.factor_real or 0)) == (26, 10)
    assert claim.verdict is Judgement.NOT_PHYSICAL
    assert "26×" in verdict().reason
    assert "10×" in verdict().reason


@pytest.mark.parametrize("row", ["4.4", "4.5", "4.6"])
@pytest.mark.parametrize("case", ["FP16", "FP8"])
def test_speed_and_price_are_not_physical(row: str, case: str) -> None:
    claim = one(row, case)
    assert claim.verdict is Judgement.NOT_PHYSICAL
    assert claim.factor is not None
    assert claim.factor_real is not None
    assert claim.factor > claim.factor_real > 10


def test_what_the_real_model_does_on_that_card() -> None:
    """Public measurements of Llama-3-8B on A100-80GB: about 1,900 tokens/s at 32 streams, at most 6,500 at any."""
    rate, price = one("4.5", "FP16").right, one("4.6", "FP16").right
    assert rate is not None
    assert price is not None
    assert 2_000 < rate.value < 3_500
    assert 0.3 < price.value < 0.6
    assert rate.low < rate.value < rate.high


def test_no_planned_rate_is_over_the_ceiling() -> None:
    for rate in rates():
        assert (
            rate.planned.high <= rate.ceiling_real * 2048 / 1536
        )  # the mean context is three quarters of the full one
        assert rate.claimed > 10 * rate.ceiling_real


def test_real_heads_by_the_articles_own_division() -> None:
    """64 GB / 268,435,456 bytes = 238 and half of it 476."""
    for case, by_hand in zip(CASES, (238, 476), strict=True):
        assert f"division gives {by_hand};" in one("4.3", case.name).reason


def test_block_of_8_is_refused() -> None:
    assert "multiple of 16" in one("6.3").reason


def test_the_tally_counts_all() -> None:
    assert sum(tally().values()) == len(claims())


def test_command_prints_flat_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["article", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(claims())
    assert {
        "id",
        "section",
        "claim",
        "claimed",
        "reproduced",
        "right",
        "unit",
        "verdict",
        "factor",
        "reason",
        "where",
    } <= set(rows[0])
    assert {row["verdict"] for row in rows} == {"ok", "imprecise", "wrong", "not physical"}
    assert main(["article"]) == 0
    assert "39,294" in capsys.readouterr().out
    assert sum(line.startswith(("4.5", "4.6")) for line in lines()) == 5
