"""The memory budget held against published start-up logs, end to end: from a model's config and the flags to KV tokens.

The components a log prints (weights, activations, graphs) are never inputs; how each did is reported on its own.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from planner.errors import InputError, Refusal
from planner.kv_layout import kv_layout
from planner.memory import MemoryBudget, memory_budget
from planner.units import GIB
from planner.validation import error_summary
from planner.validation.startup import Row, deployment_of, is_stated, is_v0, model_of
from planner.weights import stage_weights

_PARTS = {
    "weights": "model_weights_gib",
    "activation": "activation_peak_gib",
    "non_torch": "non_torch_gib",
    "cuda_graph": "cuda_graph_estimate_gib",
}


def validate(rows: Iterable[Row]) -> dict[str, Any]:
    """Predicted against observed for every row that can be predicted from its inputs alone.

    A row is compared by the KV tokens it printed, else by its available GiB, and skipped, with the reason, when it
    lacks a model, a device, a utilisation or an observation, or says itself that it is not end to end. What it leaves
    open takes the defaults of its release. `all_inputs_stated` sums up the rows that leave nothing open.
    """
    results: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for row in rows:
        try:
            results.append(_compared(row))
        except (InputError, Refusal) as reason:
            skipped.append({"id": row.get("id"), "model": row.get("model"), "reason": str(reason)})
    groups: defaultdict[str, list[float]] = defaultdict(list)
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for result in results:
        groups[result["source_group"]].append(result["ratio"])
        for name, (predicted, observed) in result["parts_gib"].items():
            parts[name].append(abs(predicted - observed))
    ratios = [result["ratio"] for result in results]
    return {
        **error_summary(ratios),
        "all_inputs_stated": error_summary([result["ratio"] for result in results if result["all_inputs_stated"]]),
        "by_source_group": {name: error_summary(found) for name, found in sorted(groups.items())},
        "parts_abs_error_gib": {name: _median_and_worst(found) for name, found in parts.items()},
        "rows": results,
        "skipped": skipped,
    }


def _compared(row: Row) -> dict[str, Any]:
    tokens, gib = row.get("kv_tokens"), row.get("available_kv_gib")
    if not tokens and not gib:
        raise InputError("kv_tokens", None, "KV tokens or available GiB as printed")
    if row.get("end_to_end") is False:
        raise InputError(
            "end_to_end", False, f"a row whose inputs decide its result ({row.get('notes') or 'no notes'})"
        )
    model, deployment = model_of(row), deployment_of(row)
    if is_v0(row) and any(getattr(mixer, "cross", False) for mixer in model.mixers):
        raise InputError("engine", "V0", "V1 for encoder-decoder models: V0 kept self and cross attention in one pool")
    layout = kv_layout(model, deployment)
    stages = [stage.resident for stage in stage_weights(model, deployment)]
    budget = memory_budget(model, deployment, stages)
    sizes = budget.available_kv[1:]
    predicted: list[float]
    if tokens:
        unit, observed, length = "tokens", tokens, deployment.max_model_len or layout.max_model_len
        predicted = [layout.kv_cache_size_tokens(layout.num_blocks(size), length) for size in sizes]
    else:
        unit, observed, predicted = "GiB", gib, [round(size / GIB, 3) for size in sizes]
    ratio = predicted[0] / observed
    return {
        "id": row.get("id"),
        "model": model.name,
        "gpu": deployment.gpu.name,
        "vllm_version": deployment.vllm_version,
        "source_group": row.get("source_group") or "other",
        "unit": unit,
        "predicted": predicted[0],
        "predicted_low": predicted[1],
        "predicted_high": predicted[2],
        "observed": observed,
        "error_pct": round((ratio - 1) * 100, 3),
        "ratio": ratio,
        "predicted_available_gib": round(sizes[0] / GIB, 3),
        "observed_available_gib": gib,
        "parts_gib": _parts(budget, row),
        "all_inputs_stated": is_stated(row),
    }


def _parts(budget: MemoryBudget, row: Row) -> Mapping[str, tuple[float, float]]:
    """Predicted and printed, for each part the log prints  [GiB]."""
    return {
        name: (round(getattr(budget, name).value / GIB, 3), row[key])
        for name, key in _PARTS.items()
        if row.get(key) is not None
    }


def _median_and_worst(errors: list[float]) -> dict[str, float]:
    ordered = sorted(errors)
    return {"n": len(ordered), "median": round(ordered[len(ordered) // 2], 3), "worst": round(ordered[-1], 3)}
