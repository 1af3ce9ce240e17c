"""Forms for a team's own device or price: what is typed becomes text for the file, checked, shown, saved on demand."""

from pathlib import Path

import streamlit as st

from pages import _verdict
from planner.catalog.own import Own, as_toml, can_save, checked, own_path, save
from planner.errors import InputError


def show(own: Own) -> None:
    """Both forms, and where the file is."""
    path = own_path().absolute()
    added = f"devices: {len(own.gpus)}, prices: {len(own.prices)}" if path.exists() else "no such file yet"
    st.caption(f"Your own devices and prices: `{path}` ({added}). They win over the catalog's.")
    with st.expander("Add a device of your own", icon=":material/add:"):
        _device(path)
    with st.expander("Add a price of your own", icon=":material/add:"):
        _price(own, path)


def _device(path: Path) -> None:
    left, middle, right = st.columns(3)
    name = left.text_input("Name", key="own_name", placeholder="RTX 4090 48GB")
    memory = left.number_input("Memory that torch reports, GiB", min_value=0.0, value=None, key="own_memory")
    bandwidth = middle.number_input("Memory bandwidth, GB/s", min_value=0.0, value=None, key="own_bandwidth")
    link = middle.number_input("Link to other devices, GB/s", min_value=0.0, value=None, key="own_link")
    bfloat16 = right.number_input("Dense bfloat16 peak, TFLOP/s", min_value=0.0, value=None, key="own_bfloat16")
    fp8 = right.number_input("Dense FP8 peak, TFLOP/s", min_value=0.0, value=None, key="own_fp8")
    capability = left.text_input("CUDA compute capability", key="own_capability", placeholder="8.9")
    source = middle.text_input("Source", key="own_source", placeholder="datasheet, read today")
    usd = right.number_input("Dollars an hour of one", min_value=0.0, value=None, key="own_usd")
    if not name:
        return
    entry = {
        "name": name,
        "memory_gib": memory,
        "memory_bandwidth_gb_s": bandwidth,
        "peak_tflops": {"bfloat16": bfloat16, "fp8": fp8},
        "link_gb_s": link,
        "compute_capability": capability,
        "source": source,
    }
    price = "" if usd is None else as_toml("prices", {"gpu": name, "usd_per_gpu_hour": usd, "source": source})
    _offer("\n".join(filter(None, (as_toml("gpus", entry), price))), path, "own_name")


def _price(own: Own, path: Path) -> None:
    left, middle, right = st.columns(3)
    gpu = left.selectbox("Of", [gpu.name for gpu in own.devices], index=None, key="own_price_gpu")
    usd = middle.number_input("Dollars an hour of one device", min_value=0.0, value=None, key="own_price_usd")
    source = right.text_input("Where from", key="own_price_source", placeholder="our contract of 2026")
    if gpu is not None and usd is not None:
        _offer(as_toml("prices", {"gpu": gpu, "usd_per_gpu_hour": usd, "source": source}), path, "own_price_gpu")


def _offer(text: str, path: Path, key: str) -> None:
    """The text with what is wrong with it, or with a button that saves it; `key` is the field emptied then."""
    st.code(text, language="toml")
    try:
        checked(text, path)
    except InputError as error:
        st.error(_verdict.refused(error), icon=":material/cancel:")
        return
    writable = can_save(path)
    st.button(
        f"Save to {path.name}", key=f"{key}_save", icon=":material/save:", disabled=not writable,
        on_click=_save, args=(text, path, key), help=None if writable else f"{path} cannot be written: add it by hand",
    )  # fmt: skip


def _save(text: str, path: Path, key: str) -> None:
    try:
        save(text, path)
    except InputError as error:
        st.toast(_verdict.refused(error), icon=":material/cancel:")
    else:
        st.session_state[key] = None if key == "own_price_gpu" else ""
        st.toast(f"Saved to {path}", icon=":material/check_circle:")
