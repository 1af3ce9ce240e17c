"""A Plan as JSON and back: flat figures for scripts and for the comparison, and the inputs from which it is planned again."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from math import isfinite
from typing import Any, TypeVar, get_type_hints

from planner.deployment import Deployment
from planner.errors import InputError
from planner.families import model_spec
from planner.gpu import Gpu
from planner.memory import Part
from planner.model import ModelSpec
from planner.plan import Plan, plan
from planner.ranges import Range
from planner.workload import Slo, Workload

FORMAT = 1
_T = TypeVar("_T")


def figures(made: Plan) -> dict[str, Any]:
    """What the plan says, one number a key: the page, the report and the comparison read these.

    A prediction has its range beside it in `…_low` and `…_high`; what could not be worked out is None.
    """
    layout, budget, capacity, latency, cost = made.layout, made.budget, made.capacity, made.latency, made.cost
    middle, low, high = capacity or (None, None, None)
    found: dict[str, Any] = {
        "fits": made.fits,
        "limit": made.limit and str(made.limit),
        "limit_kind": made.limit and made.limit.kind,
        "weight_bytes_per_rank": budget and budget.weights.value,
        **_part("activation_bytes", budget and budget.activation),
        **_part("non_torch_bytes", budget and budget.non_torch),
        **_part("cuda_graph_bytes", budget and budget.cuda_graph),
        **_part("available_kv_bytes", budget and budget.available_kv),
        "bytes_per_token": layout and layout.bytes_per_token,
        "block_size": layout and layout.block_size,
        "bytes_per_block": layout and layout.bytes_per_block,
        "resolved_kv_cache_dtype": layout and layout.resolved_kv_cache_dtype,
        "request_bytes": layout and layout.request_bytes(made.workload.tokens),
    }
    for key in ("num_gpu_blocks", "kv_cache_size_tokens", "max_concurrency"):
        values = (getattr(held, key, None) for held in (middle, low, high))
        found |= dict(zip((key, f"{key}_low", f"{key}_high"), values, strict=True))
    found |= {
        "longest_max_model_len": middle and made.longest_max_model_len,
        "streams": made.streams,
        **_range("tpot_s", latency and latency.tpot_s),
        **_range("ttft_s", latency and latency.ttft_s),
        **_range("output_tokens_per_s", latency and latency.output_tokens_per_s),
        "floor_tpot_s": latency and latency.floor_tpot_s,
        "usd_per_hour": cost and cost.usd_per_hour,
        **_range("usd_per_million_output_tokens", cost and cost.usd_per_million_output_tokens),
        **_range("usd_per_million_input_tokens", cost and cost.usd_per_million_input_tokens),
    }
    return found


def _part(key: str, part: Part | None) -> dict[str, int | None]:
    return {key: part and part.value, f"{key}_low": part and part.low, f"{key}_high": part and part.high}


def _range(key: str, value: Range | None) -> dict[str, float | None]:
    return {key: value and value.value, f"{key}_low": value and value.low, f"{key}_high": value and value.high}


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
        },
    }
    return {key: finite(value) for key, value in found.items()}


def finite(value: Any) -> Any:
    """A value that JSON can hold: plain containers, and None where a number is infinite or not a number.

    >>> finite({"time_step_limit": (0.0, float("inf"))})
    {'time_step_limit': [0.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


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
        inputs.get("usd_per_gpu_hour"),
    )


def _spec(model: Mapping[str, Any]) -> ModelSpec:
    return model_spec(_table(model, "config"), str(model.get("name", "")))


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, Mapping):
        raise InputError(key, value, "a table, as `python -m planner plan --json` writes")
    return value


def _built(cls: type[_T], values: Mapping[str, Any], where: str) -> _T:
    known = {item.name for item in fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise InputError(f"{where}.{key}", values[key], "one of " + ", ".join(sorted(known)))
    hints = get_type_hints(cls)
    tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list) and "tuple" in str(hints[key])}
    try:
        return cls(**{**values, **tuples})
    except TypeError as error:
        raise InputError(where, ", ".join(values), str(error)) from None
