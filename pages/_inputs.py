"""The shared inputs of the plan, in the sidebar of every page and in the URL: copying the address copies the plan."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import streamlit as st

from pages import _verdict
from planner.calibration import Calibration
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
from planner.model import ModelSpec
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
_PROMISES = ("ttft_s", "tpot_s")
_CALIBRATIONS = "calibrations"  # where a session keeps what there is to choose from


def warm() -> None:
    """Reads the catalogs once, when the server starts."""
    plan(model_named(_MODEL), Deployment(gpu=gpu_named(_GPU)))
    models()


def sidebar(servers: Sequence[str] = (), calibrations: Mapping[str, Calibration] | None = None) -> None:
    """Draws every input of the plan and the server to watch: one of those known by name, or any address.

    calibrations  those that were saved, by what they are called
    """
    st.session_state[_CALIBRATIONS] = calibrations or {}
    with st.sidebar:
        st.selectbox(
            "Server to watch", servers, index=None, key="endpoint", bind="query-params", accept_new_options=True,
            placeholder="a name, or http://host:8000", help="One of monitor.toml, or the address of any vLLM server",
        )  # fmt: skip
        try:
            present()
        except InputError as error:
            st.error(f"Your own devices and prices are left out. {_verdict.refused(error)}", icon=":material/cancel:")
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
        _calibration()
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
            for name in _PROMISES:
                _field(Slo, name)


def _calibration() -> None:
    """The constants to plan with: those of the catalog, or those measured on a server of this model and device."""
    reference, gpu = st.session_state["model"], st.session_state["gpu"]
    name = model_named(reference).name if knows(reference) else reference
    saved: Mapping[str, Calibration] = st.session_state[_CALIBRATIONS]
    fitting = [label for label, each in saved.items() if (each.model, each.gpu) == (name, gpu)]
    st.selectbox(
        "Calibration", fitting, index=None, key="calibration", bind="query-params", placeholder="none",
        help="Speed and memory as measured on a running server of this model and device, where one was saved",
    )  # fmt: skip


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
            st.session_state[_CALIBRATIONS].get(st.session_state["calibration"]),
        )
    except InputError as error:
        st.error(_verdict.refused(error), icon=":material/cancel:")
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
    return named(st.session_state["model"])


def named(reference: str) -> FoundModel:
    """The model of that name, as `found` looks for it."""
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


def open_plan(made: Plan) -> list[str]:
    """Puts a plan into the inputs, from a callback; what they cannot hold, in words.

    Raises InputError for a device that is not known here.
    """
    gpu = own().gpu_named(made.deployment.gpu.name)
    lost = [] if gpu == made.deployment.gpu else [f"{gpu.name} is described otherwise today"]
    reference = _reference(made.model)
    if reference != made.model.name:
        lost.append(f"{made.model.name} is not known here with this config.json, which is opened as {reference}")
    saved: Mapping[str, Calibration] = st.session_state[_CALIBRATIONS]
    calibration = next((label for label, each in saved.items() if each == made.calibration), None)
    if made.calibration is not None and calibration is None:
        lost.append(f"the calibration “{made.calibration.name}” is no longer kept")
    without = plan(made.model, made.deployment, usd_per_gpu_hour=own().usd_per_gpu_hour(gpu), billing=made.billing)
    usd = None if without.usd_per_gpu_hour == made.usd_per_gpu_hour else made.usd_per_gpu_hour
    st.session_state.update(model=reference, gpu=gpu.name, calibration=calibration, usd_per_gpu_hour=usd)
    space = "cpu_kvcache_space" if gpu.is_cpu else "gpu_memory_utilization"
    if space not in st.session_state and (value := getattr(made.deployment, space)) is not None:
        st.query_params[space] = f"{value:g}"  # Streamlit itself writes only those of inputs that were already drawn
    drawn = {*_FIRST, *_MORE, *_LOAD, *_PROMISES, *scalars(Billing), space}
    for part in (made.deployment, made.workload, made.slo, made.billing):
        kinds = scalars(type(part))
        for item in fields(part):
            value = getattr(part, item.name)
            if item.name in drawn:
                kind = kinds[item.name][0]
                st.session_state[item.name] = None if value is None else kind(value)
            elif item.name != "gpu" and value != item.default:
                lost.append(f"{item.name} {value} has no field here")
    return lost


def _reference(model: ModelSpec) -> str:
    """What to call a plan's model here; an upload of its config.json where that name is unknown, or another config."""
    try:
        if named(model.name).spec == model:
            return model.name
    except InputError:
        pass
    name = model.name.removeprefix(PREFIX).rpartition("/")[2]
    return uploads().keep(f"{name}.json", json.dumps(model.wrapper).encode())


def _of(cls: type, **more: object) -> Any:
    """A domain type from the widgets named like its fields."""
    return cls(**{name: st.session_state[name] for name in scalars(cls) if name in st.session_state}, **more)
