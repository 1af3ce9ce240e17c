"""Models and devices: what the catalog knows and from where, and what a team adds to it."""

import streamlit as st

from pages import _catalog_tables, _inputs, _own_form, _tables, _verdict
from planner.catalog.browse import REFERENCE, device_rows, model_row, model_rows
from planner.errors import InputError

st.title("Models and devices")
own = _inputs.own()
try:
    found = _inputs.found()
except InputError as error:
    st.error(_verdict.refused(error), icon=":material/cancel:")
else:
    st.subheader("The model chosen")
    row = model_row(found.spec, found.spec.name, found.published_parameters)
    _tables.show(_catalog_tables.chosen(found, row))
    if found.spec.assumptions:
        st.info("Assumed: " + " ".join(found.spec.assumptions), icon=":material/info:")

with st.container(horizontal=True, vertical_alignment="bottom"):
    view = st.segmented_control(
        "Browse", ["Models", "Devices and prices"], default="Models", key="browse", bind="query-params", required=True
    )
    text = st.text_input("Find", key="find", bind="query-params", placeholder="words that a row must hold")

if view == "Models":
    models = _catalog_tables.models(model_rows(), text)
    st.caption(
        f"{len(models)} of {len(model_rows())} shapes. KV bytes a token are laid out for one {REFERENCE}, all paged "
        "layers counted as if none forgot. Any Hugging Face id can be typed into Model on the left, too."
    )
    picked = st.dataframe(
        models, hide_index=True, column_config=_catalog_tables.MODEL_COLUMNS, key="models", placeholder="–",
        on_select="rerun", selection_mode="single-row", alt="Models of the catalog, one shape a row",
    )  # fmt: skip
    for index in picked.selection.rows[:1]:
        name = models[index]["Model"]
        st.button(
            f"Plan with {_verdict.literal(name)}",
            icon=":material/memory:",
            on_click=_inputs.choose,
            args=("model", name),
        )
    st.subheader("A model of your own")
    file = st.file_uploader("Its config.json, kept until this server stops", type="json", max_upload_size=4)
    if file is not None:
        try:
            reference = _inputs.uploads().keep(file.name, file.getvalue())
        except InputError as error:
            st.error(_verdict.refused(error), icon=":material/cancel:")
        else:
            st.success(f"Known as `{reference}` to everyone who uses this server.", icon=":material/check_circle:")
            st.button("Plan with it", icon=":material/memory:", on_click=_inputs.choose, args=("model", reference))
else:
    rows = device_rows(own)
    devices = _catalog_tables.devices(rows, text)
    st.caption(f"{len(devices)} of {len(rows)} devices. Peaks are dense; memory is what drivers report, not the label.")
    picked = st.dataframe(
        devices, hide_index=True, column_config=_catalog_tables.DEVICE_COLUMNS, key="devices", placeholder="–",
        on_select="rerun", selection_mode="single-row", alt="Devices, the team's own first",
    )  # fmt: skip
    for index in picked.selection.rows[:1]:
        name = devices[index]["Device"]
        st.button(
            f"Plan with {_verdict.literal(name)}", icon=":material/memory:", on_click=_inputs.choose, args=("gpu", name)
        )
    _own_form.show(own)
    st.subheader("Quotes behind the prices")
    st.dataframe(
        _catalog_tables.quotes(rows, text), hide_index=True, column_config=_catalog_tables.QUOTE_COLUMNS,
        alt="Quotes by device, with provider, kind, date and source",
    )  # fmt: skip
