"""Claims of the article -> a table with icon and word for the verdict and the three figures, and a list of reasons."""

from collections.abc import Iterable

from planner.article import over, shown
from planner.claim import Claim, Judgement
from planner.latency import Range

Rows = list[dict[str, str]]
ICONS = {
    Judgement.OK: ":green[:material/check_circle:]",
    Judgement.IMPRECISE: ":orange[:material/warning:]",
    Judgement.WRONG: ":red[:material/cancel:]",
    Judgement.NOT_PHYSICAL: ":red[:material/block:]",
}
_MISSING = "–"


def claims(found: Iterable[Claim]) -> Rows:
    """One row a claim; dollars are escaped, for a table reads them as formulas."""
    return [{name: text.replace("$", r"\$") for name, text in _row(claim).items()} for claim in found]


def reasons(found: Iterable[Claim]) -> str:
    """The reason of each claim as a list, with the page that answers."""
    return "\n".join(
        f"- **{claim.id}**{f', {claim.case}' if claim.case else ''}: {claim.reason} :gray[→ {claim.where}]"
        for claim in found
    ).replace("$", r"\$")


def _row(claim: Claim) -> dict[str, str]:
    return {
        "Row": claim.id,
        "Claim": f"{claim.text} *{claim.case}*" if claim.case else claim.text,
        "Claimed": _figure(claim.claimed, claim.unit),
        "Reproduced": _figure(claim.reproduced, claim.unit),
        "Right": _range(claim.right, claim.unit),
        "Verdict": f"{ICONS[claim.verdict]} {claim.verdict.value}{over(claim)}",
    }


def _figure(value: float | None, unit: str) -> str:
    return _MISSING if value is None else shown(value, unit)


def _range(value: Range | None, unit: str) -> str:
    if value is None:
        return _MISSING
    middle = shown(value.value, unit)
    return middle if value.low == value.high else f"{middle} ({shown(value.low, unit)} to {shown(value.high, unit)})"
