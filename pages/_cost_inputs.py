"""What only the cost page asks for: the month's load, a second deployment, and an API's price; all in the URL."""

from dataclasses import replace

import streamlit as st

from pages import _verdict
from planner.errors import InputError
from planner.gpu import gpu_named, gpus
from planner.kv_dtype import KV_DTYPES
from planner.month import api_usd_per_request, requests_of
from planner.plan import Plan, plan
from planner.workload import Workload

_UNITS = ("requests", "million output tokens")
_OTHER_GPU = "H100-SXM"


def requests_per_month(workload: Workload) -> float:
    """The load of a month, asked for as requests or as tokens."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        unit = st.segmented_control("Load in", _UNITS, default=_UNITS[0], key="load_unit", bind="query-params",
                                    required=True)  # fmt: skip
        amount = st.number_input(f"A month, {unit}", min_value=1, value=1_000_000 if unit == _UNITS[0] else 1_000,
                                 key="load_requests" if unit == _UNITS[0] else "load_tokens", bind="query-params",
                                 width=240)  # fmt: skip
    return float(amount) if unit == _UNITS[0] else requests_of(amount, workload)


def other(first: Plan) -> Plan:
    """The same model and load on another deployment; wrong input is shown in place of the rest of the page."""
    names = [gpu.name for gpu in gpus()]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox("Other device", names, index=names.index(_OTHER_GPU), key="other_gpu", bind="query-params")
        ranks = st.number_input("Its tensor_parallel_size", min_value=1, value=1, key="other_tensor_parallel_size",
                                bind="query-params")  # fmt: skip
        dtype = st.selectbox("Its kv_cache_dtype", list(KV_DTYPES), key="other_kv_cache_dtype", bind="query-params")
        own = st.number_input("Its price a GPU hour", min_value=0.0, value=None, key="other_usd_per_gpu_hour",
                              bind="query-params", placeholder="median of quotes")  # fmt: skip
    gpu = gpu_named(name)
    same = first.usd_per_gpu_hour if gpu == first.deployment.gpu else None
    server = replace(first.deployment, gpu=gpu, tensor_parallel_size=ranks, kv_cache_dtype=dtype)
    try:
        return plan(first.model, server, first.workload, first.slo, same if own is None else own, first.billing)
    except InputError as error:
        st.error(_verdict.refused(error), icon=":material/cancel:")
        st.stop()


def api_usd(workload: Workload) -> float:
    """What an API takes for one request of this load, 0 where no price was given."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        prices = [
            st.number_input(f"API, a million {side} tokens", min_value=0.0, value=0.0, format="%g", key=f"api_{side}",
                            bind="query-params", help="dollars; 0 for no API")
            for side in ("input", "output")
        ]  # fmt: skip
    return api_usd_per_request(workload, *prices)
