"""The shared inputs of the plan, in the sidebar of every page and in the URL: copying the address copies the plan."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from planner.catalog.models import knows, model_named, models
from planner.catalog.own import Own, present
from planner.catalog.uploads import PREFIX, Uploads
from planner.cost import Billing
from planner.deployment import LATEST, Deployment
from planner.errors import InputError
from planner.fields import meanings, scalars
from planner.gpu import gpu_named
from planner.hub import FoundModel, find_model, from_hub, model_from
from planner.kv_dtype import KV_DTYPES
from planner.plan import Plan, plan
from planner.price import KINDS
from planner.workload import Slo, Workload

_MODEL, _GPU = "meta-llama/Meta-Llama-3-8B", "A100-SXM-80GB"
_FIRST = ("tensor_parallel_size", "kv_cache_dtype", "max_model_len")
_MORE = (
    "vllm_version", "max_num_seqs", "max_num_batched_tokens", "block_size", "pipeline_parallel_size",
    "data_parallel_size", "enable_expert_parallel", "enforce_eager", "enable_prefix_caching",
    "kv_cache_memory_bytes", "num_gpu_blocks_override", "kv_offloading_size", "num_speculative_tokens",
)  # fmt: skip
_EMPTY = {"concurrency": "as many as fit", "request_rate": "none", "usd_per_gpu_hour": "median of quotes",
          "ttft_s": "none", "tpot_s": "none"}  # fmt: skip
_LOAD = ("input_tokens", "output_tokens", "concurrency", "request_rate", "prefix_hit_ratio")


def warm() -> None:
    """Reads the catalogs once, when the server starts."""
    plan(model_named(_MODEL), Deployment(gpu=gpu_named(_GPU)))
    models()


def sidebar(servers: Sequence[str] = ()) -> None:
    """Draws every input of the plan and the server to watch: one of those known by name, or any address."""
    with st.sidebar:
        st.selectbox(
            "Server to watch", servers, index=None, key="endpoint", bind="query-params", accept_new_options=True,
            placeholder="a name, or http://host:8000", help="One of monitor.toml, or the address of any vLLM server",
        )  # fmt: skip
        try:
            present()
        except InputError as error:
            st.error(f"Your own devices and prices are left out. {error}", icon=":material/cancel:")
        names = [*uploads().references(), *(known.checkpoints[0] for known in models())]
        st.selectbox(
            "Model", names, index=names.index(_MODEL), key="model", bind="query-params", accept_new_options=True,
            help="A model of the catalog, an uploaded config.json, or any Hugging Face id",
        )  # fmt: skip
        devices = [gpu.name for gpu in own().devices]
        st.selectbox("Device", devices, index=devices.index(_GPU), key="gpu", bind="query-params")
        is_cpu = own().gpu_named(st.session_state["gpu"]).is_cpu
        for name in (*_FIRST, "cpu_kvcache_space" if is_cpu else "gpu_memory_utilization"):
            _field(Deployment, name)
        with st.expander("Load", expanded=True):
            for name in _LOAD:
                _field(Workload, name)
        with st.expander("More engine flags"):
            for name in _MORE:
                _field(Deployment, name)
        with st.expander("Price"):
            _number(
                "usd_per_gpu_hour", float, None, "your own price of one device; empty takes the median of dated quotes"
            )
            for name in scalars(Billing):
                _field(Billing, name)
        with st.expander("Promises"):
            for name in ("ttft_s", "tpot_s"):
                _field(Slo, name)


def _field(cls: type, name: str) -> None:
    """One field of a domain type as a widget: its type decides which, its docstring is the help."""
    kind, default = scalars(cls)[name]
    meaning = meanings(cls)[name]
    if name == "kv_cache_dtype":
        st.selectbox(name, list(KV_DTYPES), key=name, bind="query-params", help=meaning)
    elif name == "price_kind":
        st.selectbox(name, KINDS, key=name, bind="query-params", help=meaning)
    elif kind is bool:
        st.checkbox(name, value=default, key=name, bind="query-params", help=meaning)
    elif kind is str:
        st.text_input(
            name, value=LATEST if name == "vllm_version" else default, key=name, bind="query-params", help=meaning
        )
    else:
        _number(name, kind, default, meaning)


def _number(name: str, kind: type, default: float | None, meaning: str) -> None:
    limits: dict[str, Any] = (
        {"min_value": 0 if default == 0 else 1, "step": 1}
        if kind is int
        else {"min_value": 0.0, "step": 0.01, "format": "%g"}
    )
    st.number_input(
        name,
        value=default,
        key=name,
        bind="query-params",
        help=meaning,
        placeholder=_EMPTY.get(name, "the engine's own"),
        **limits,
    )


def made() -> Plan:
    """The plan of the present inputs; wrong input is shown in place of the page."""
    try:
        gpu, usd = own().gpu_named(st.session_state["gpu"]), st.session_state["usd_per_gpu_hour"]
        return plan(
            found().spec,
            _of(Deployment, gpu=gpu),
            _of(Workload),
            _of(Slo),
            own().usd_per_gpu_hour(gpu) if usd is None else usd,
            _of(Billing),
        )
    except InputError as error:
        st.error(str(error), icon=":material/cancel:")
        st.stop()


def own() -> Own:
    """The team's devices and prices; none where their file is wrong, which the sidebar says."""
    try:
        return present()
    except InputError:
        return Own()


def found() -> FoundModel:
    """The model chosen: uploaded, of the catalog, or of the hub; never a path, which a visitor's URL could hold.

    Raises InputError in the words of wherever it was looked for.
    """
    reference = st.session_state["model"]
    if reference.startswith(PREFIX):
        return FoundModel(spec=uploads().named(reference), origin="upload")
    return find_model(reference) if knows(reference) else _from_hub(reference)


@st.cache_resource(ttl=3600, max_entries=100, show_spinner="Asking the Hugging Face hub …")
def _from_hub(reference: str) -> FoundModel:
    return from_hub(reference)


@st.cache_resource(show_spinner=False)
def uploads() -> Uploads:
    """What was uploaded since the server started, by anybody."""
    return Uploads(model_from)


def choose(key: str, value: str) -> None:
    """Sets one input from elsewhere on the page; a callback, since it must come before the sidebar is drawn."""
    st.session_state[key] = value


def _of(cls: type, **more: object) -> Any:
    """A domain type from the widgets named like its fields."""
    return cls(**{name: st.session_state[name] for name in scalars(cls) if name in st.session_state}, **more)
