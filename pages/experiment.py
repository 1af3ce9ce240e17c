"""The experiment: one model on a real vLLM with several KV dtypes, what held of the article, and others' benchmarks."""

import streamlit as st

from monitor.benchmark_check import check
from monitor.benchmark_results import ACCEPTED, measurements_in
from monitor.experiment_result import KIND, experiment_from
from monitor.times import moment
from pages import _bin, _compare_tables, _experiment_form, _experiment_tables, _inputs, _plan_shelf, _tables, _verdict
from planner.errors import InputError

plan = _inputs.made()
st.title("Experiment")
verdicts = st.container()
_experiment_form.show()

kept = _plan_shelf.kept(KIND)
shelf = None if kept is None else _plan_shelf.shelf()
ran = _experiment_form.background().progress
found = ran.found if ran is not None and (kept is None or ran.problem) else None  # what is kept may be deleted too
st.subheader("Results")
_plan_shelf.say_problem()
if shelf is not None:
    _bin.undo_bar(shelf, KIND)
if kept:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = _plan_shelf.select("Experiment", KIND, kept)
        if chosen is not None:
            _bin.delete_button(shelf, chosen)
    found = None if chosen is None else experiment_from(chosen.body)
if found is None:
    st.caption("None yet. `python -m monitor experiment --model DIR` runs the same from a shell and keeps it here.")
else:
    for statement in found.statements[:2]:
        with verdicts:
            _verdict.show(statement.verdict)
    st.caption(_verdict.literal(f"{moment(found.at)}: {found.setting}. {' '.join(found.notes)}"))
    _tables.show(_experiment_tables.statements(found))
    st.markdown("Measured, the median of the rounds with its range, beside the plan")
    _tables.show(_experiment_tables.medians(found))
    with st.expander("Every run"):
        _tables.show(_experiment_tables.runs(found))
if shelf is not None:
    _bin.bin_of(shelf, KIND)

st.subheader("Benchmarks of other tools, beside the plan of the sidebar")
st.caption(f"{ACCEPTED}. The plan is made for the load that the file says, on the model and device of the sidebar.")
file = st.file_uploader("A result", type=["json", "jsonl"], max_upload_size=20)
if file is not None:
    try:
        for measured in measurements_in(file.getvalue().decode("utf-8", errors="replace")):
            compared = check(plan, measured)
            _verdict.show(compared.verdict)
            _tables.show(_compare_tables.deviations(compared.deviations))
    except InputError as error:
        st.error(_verdict.refused(error), icon=":material/cancel:")
