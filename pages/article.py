"""The article, checked: each of its figures by its own arithmetic, the right one beside it, and the reason."""

import streamlit as st

from pages import _article_tables, _charts, _verdict
from planner.article import SECTIONS, of_section, tally, verdict
from planner.article_speed import rates

st.title("The article, checked")
_verdict.show(verdict())
with st.container(horizontal=True):
    for judgement, number in tally().items():
        st.metric(f"{_article_tables.ICONS[judgement]} {judgement.value}", number, border=True)

st.subheader("Throughput: claimed, possible, planned")
_charts.show(_charts.claimed_rates(rates()), key="claimed_rates")
st.caption(
    "Llama-3-8B on one A100-SXM-80GB, 1,024 in and 1,024 out: 59 streams at FP16, 119 at FP8. The ceiling is the "
    "memory bandwidth over what each step must read. A ratio is printed as percent where it is at most 1."
)

for section, title in SECTIONS.items():
    st.subheader(f"{section} {title}")
    st.table(_article_tables.claims(of_section(section)), border="horizontal", hide_index=True)
    st.markdown(_article_tables.reasons(of_section(section)))

st.subheader("The same as JSON")
st.code("python -m planner article --json", language="bash")
