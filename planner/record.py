"""A Plan as JSON and back: flat figures for scripts and the comparison, and the inputs to plan it again from."""

from collections.abc import Mapping
from dataclasses import asdict
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from planner.calibration import Calibration
from planner.cost import Billing
from planner.deployment import Deployment
from planner.errors import InputError
from planner.families import model_spec
from planner.gpu import Gpu
from planner.latency import Range
from planner.memory import Part
from planner.model import ModelSpec
from planner.plan import Plan, plan
from planner.units import finite
from planner.workload import Slo, Workload

FORMAT = 1
_T = TypeVar("_T")


def figures(made: Plan) -> dict[str, Any]:
    """What the plan says, one number a key: the page, the report and the comparison read these.

    A prediction has its range beside it in `…_low` and `…_high`; what could not be worked out is None.
    """
    layout, length = made.layout, made.workload.tokens
    found: dict[str, Any] = {
        "fits": made.fits,
        "limit": made.limit and str(made.limit),
        "limit_kind": made.limit and made.limit.kind,
        "weight_bytes_per_rank": max((stage.total for stage in made.weights), default=None),
        "request_bytes": None if layout is None else layout.request_bytes(length),
        "request_stored_bytes": None if layout is None else layout.stored_bytes(length),
        "longest_max_model_len": None if made.capacity is None else made.longest_max_model_len,
        "streams": made.streams,
    }
    found |= {key: getattr(layout, key, None) for key in _LAYOUT}
    for key, name in _MEMORY.items():
        found |= _ranged(key, getattr(made.budget, name, None))
    for key in _CAPACITY:
        spread = made.capacity and Range(*(getattr(held, key) for held in made.capacity))
        found |= _ranged(key, spread)
    found["floor_tpot_s"] = getattr(made.latency, "floor_tpot_s", None)
    found["usd_per_hour"] = getattr(made.cost, "usd_per_hour", None)
    for source, keys in ((made.latency, _SPEED), (made.cost, _MONEY)):
        for key in keys:
            found |= _ranged(key, getattr(source, key, None))
    return found


_LAYOUT = ("bytes_per_token", "block_size", "bytes_per_block", "resolved_kv_cache_dtype")
_MEMORY = {
    "activation_bytes": "activation",
    "non_torch_bytes": "non_torch",
    "cuda_graph_bytes": "cuda_graph",
    "available_kv_bytes": "available_kv",
}
_CAPACITY = ("num_gpu_blocks", "kv_cache_size_tokens", "max_concurrency")
_SPEED = ("tpot_s", "ttft_s", "output_tokens_per_s")
_MONEY = ("usd_per_million_output_tokens", "usd_per_million_input_tokens")


def _ranged(key: str, value: Range | Part | None) -> dict[str, float | None]:
    return {
        key: None if value is None else value.value,
        f"{key}_low": None if value is None else value.low,
        f"{key}_high": None if value is None else value.high,
    }


def to_json(made: Plan) -> dict[str, Any]:
    """The figures, the command, and everything needed to plan it again."""
    found = {
        **figures(made),
        "serve_command": made.deployment.serve_command(made.model.name),
        "assumptions": list(made.assumptions),
        "inputs": {
            "format": FORMAT,
            "model": {"name": made.model.name, "config": made.model.wrapper},
            "deployment": asdict(made.deployment),
            "workload": asdict(made.workload),
            "slo": asdict(made.slo),
            "usd_per_gpu_hour": made.usd_per_gpu_hour,
            "billing": asdict(made.billing),
            "calibration": made.calibration and asdict(made.calibration),
        },
    }
    return {key: finite(value) for key, value in found.items()}


def from_json(data: Mapping[str, Any]) -> Plan:
    """The plan of such a JSON, planned again from its inputs.

    Raises InputError naming the key that is missing or wrong.
    """
    inputs = _table(data, "inputs")
    if inputs.get("format") != FORMAT:
        raise InputError("inputs.format", inputs.get("format"), f"{FORMAT}, as `python -m planner plan --json` writes")
    model, server = _table(inputs, "model"), dict(_table(inputs, "deployment"))
    server["gpu"] = _built(Gpu, _table(server, "gpu"), "inputs.deployment.gpu")
    return plan(
        _spec(model),
        _built(Deployment, server, "inputs.deployment"),
        _built(Workload, _table(inputs, "workload"), "inputs.workload"),
        _built(Slo, _table(inputs, "slo"), "inputs.slo"),
        _typed(float | None, inputs.get("usd_per_gpu_hour"), "inputs.usd_per_gpu_hour"),
        _built(Billing, _table({"billing": {}, **inputs}, "billing"), "inputs.billing"),
        None if inputs.get("calibration") is None else calibration_from(_table(inputs, "calibration")),
    )


def calibration_from(data: Mapping[str, Any]) -> Calibration:
    """A calibration of a file or the store. Raises InputError naming the key that is missing or wrong."""
    return _built(Calibration, data, "calibration")


def _spec(model: Mapping[str, Any]) -> ModelSpec:
    return model_spec(_table(model, "config"), str(model.get("name", "")))


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, Mapping):
        raise InputError(key, value, "a table, as `python -m planner plan --json` writes")
    return value


def _built(cls: type[_T], values: Mapping[str, Any], where: str) -> _T:
    hints = get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise InputError(f"{where}.{key}", values[key], "one of " + ", ".join(sorted(hints)))
    try:
        return cls(**{key: _typed(hints[key], value, f"{where}.{key}") for key, value in values.items()})
    except TypeError as error:
        raise InputError(where, ", ".join(values), str(error)) from None


def _typed(hint: Any, value: Any, where: str) -> Any:
    """A value of JSON as its field holds it: lists become tuples, and what cannot stand there is an InputError."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        kind = get_origin(option) or option
        if kind is tuple and isinstance(value, list):
            inner = get_args(option)
            many = inner[:1] * len(value) if inner[1:] == (Ellipsis,) else inner
            if len(many) == len(value) and all(_is_a(each, one) for each, one in zip(many, value, strict=True)):
                return tuple(value)
        elif kind is Mapping and isinstance(value, dict):
            return {str(key): _typed(get_args(option)[1], one, f"{where}.{key}") for key, one in value.items()}
        elif _is_a(kind, value):
            return value
    raise InputError(where, value, str(getattr(hint, "__name__", hint)))


def _is_a(kind: Any, value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return kind is bool or (value is None and kind is type(None))
    return isinstance(value, int | float) if kind is float else isinstance(kind, type) and isinstance(value, kind)
