"""The page of the article: every claim with figures, verdict and reason, and no dollar becomes a formula."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

from planner.article import SECTIONS, claims

PAGE = Path(__file__).resolve().parent.parent / "pages" / "article.py"


def test_every_claim_with_verdict_and_reason() -> None:
    page = AppTest.from_file(str(PAGE), default_timeout=30).run()
    assert not page.exception
    assert [title.value for title in page.title] == ["The article, checked"]
    assert "26×" in page.warning[0].value
    assert len(page.table) == len(SECTIONS)
    rows = [row for table in page.table for row in table.value.to_dict("records")]
    assert [row["Row"] for row in rows] == [claim.id for claim in claims()]
    assert all(claim.verdict.value in row["Verdict"] for claim, row in zip(claims(), rows, strict=True))
    said = "\n".join(markdown.value for markdown in page.markdown)
    assert all(claim.reason.replace("$", r"\$") in said for claim in claims())
    figures = {row["Claimed"] for row in rows} & {row["Reproduced"] for row in rows}
    assert {"39,294 tokens/s", "85,000 tokens/s", r"\$0.028", r"\$0.013", "54 %", "59 requests"} <= figures
    chart = page.get("plotly_chart")[0].proto
    assert "ceiling 1,516 with 32 KV heads and 3,779 with 8" in chart.alt
