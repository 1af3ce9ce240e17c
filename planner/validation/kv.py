"""KV layouts and weights held against vLLM's own, row by row."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from planner.deployment import Deployment
from planner.errors import InputError, Refusal
from planner.families import model_spec, read_config
from planner.gpu import gpu_named
from planner.kv_layout import KvLayout, kv_layout
from planner.model import ModelSpec
from planner.units import GIB
from planner.weights import weight_bytes_per_rank

WEIGHT_TOLERANCE = 0.005
REFUSED = "refused"
_CELL = re.compile(r"avail(\d+)GiB_len(\d+)")


def validate(rows: Iterable[Mapping[str, Any]], configs: str | Path) -> dict[str, Any]:
    """Every row planned again from configs/MODEL/config.json, and what differs from vLLM's own figures.

    A row is equal when block size, stored dtype, bytes a token, and every capacity cell's blocks, tokens and
    concurrency are, or when both refuse. Weights are compared where the row has them.
    """
    models = _models(Path(configs))
    differences: list[dict[str, Any]] = []
    compared = equal = weights_compared = weights_close = 0
    for row in rows:
        compared += 1
        found = dict(_differences(models(row["model"]), row))
        weights = found.pop("weight_bytes_rank", None)
        if weights is not None:
            weights_compared += 1
            planned, observed = weights
            close = planned != REFUSED and abs(planned / observed - 1) <= WEIGHT_TOLERANCE
            weights_close += close
        equal += not found
        if weights is not None and not close:
            found["weight_bytes_rank"] = weights
        differences += [
            {"model": row["model"], "tp": row.get("tp", 1), "dtype": row.get("kv_cache_dtype", "auto"), "field": field,
             "planned": planned, "vllm": observed, "variant": row.get("variant", row.get("device"))}
            for field, (planned, observed) in found.items()
        ]  # fmt: skip
    return {
        "compared": compared,
        "equal": equal,
        "weights_compared": weights_compared,
        "weights_within_0_5_pct": weights_close,
        "differences": differences,
    }


def _models(configs: Path) -> Any:
    @cache
    def model(name: str) -> ModelSpec:
        return model_spec(read_config(configs / name), name)

    return model


def deployment_of(row: Mapping[str, Any]) -> Deployment:
    """The deployment a row was computed for; options stand in fields, or in the words of `variant`."""
    variant = str(row.get("variant") or row.get("device") or "h100")
    device = variant.split(",")[0].split()[0]
    tokens = re.search(r"max_num_batched_tokens (\d+)", variant)
    stated = row.get("max_num_batched_tokens")
    return Deployment(
        gpu=gpu_named(device),
        vllm_version=str(row.get("vllm") or "0.32.0"),
        tensor_parallel_size=row.get("tp", 1),
        kv_cache_dtype=row.get("kv_cache_dtype", "auto"),
        max_num_batched_tokens=int(tokens[1]) if tokens else stated,
        max_num_seqs=row.get("max_num_seqs"),
        enable_prefix_caching="prefix caching off" not in variant,
    )


def _differences(model: ModelSpec, row: Mapping[str, Any]) -> Iterable[tuple[str, tuple[Any, Any]]]:
    """Field -> (planned, observed) wherever they differ, and always for the weights a row states."""
    deployment = deployment_of(row)
    refused_by_vllm = row.get("method") == "error"
    try:
        layout = kv_layout(model, deployment)
    except Refusal as refusal:
        if not refused_by_vllm:
            yield "layout", (f"{REFUSED}: {refusal}", "starts")
        return
    if refused_by_vllm:
        yield "layout", ("starts", f"{REFUSED}: {row.get('error')}")
        return
    for field, planned in (
        ("block_size", layout.block_size),
        ("resolved_kv_cache_dtype", layout.resolved_kv_cache_dtype),
        ("kv_bytes_per_token_full", layout.bytes_per_token),
        ("kv_bytes_per_token_growing", layout.bytes_per_token_growing),
        ("mamba_state_bytes_per_seq", layout.state_bytes_per_seq),
    ):
        if field in row and planned != row[field]:
            yield field, (planned, row[field])
    for name, cell in row.get("capacity", {}).items():
        yield from _cell_differences(layout, name, cell)
    if row.get("weight_bytes_rank"):
        yield "weight_bytes_rank", (weight_bytes_per_rank(model, deployment), row["weight_bytes_rank"])


def _cell_differences(layout: KvLayout, name: str, cell: Mapping[str, Any]) -> Iterable[tuple[str, tuple[Any, Any]]]:
    match = _CELL.fullmatch(name)
    if match is None:
        raise InputError("capacity", name, "keys such as avail40GiB_len8192")
    available, length = int(match[1]) * GIB, int(match[2])
    fits = layout.fits(available, length)
    if "error" in cell or not fits:
        if ("error" in cell) == fits:
            yield name, ("fits" if fits else REFUSED, cell.get("error", "fits"))
        return
    blocks = layout.num_blocks(available)
    for field, planned in (
        ("bytes_per_block", layout.bytes_per_block),
        ("blocks_per_request", layout.blocks_per_request(length)),
        ("num_blocks", blocks),
        ("kv_tokens", layout.kv_cache_size_tokens(blocks, length)),
        ("max_concurrency", round(layout.max_concurrency(blocks, length), 6)),
    ):
        if field in cell and planned != cell[field]:
            yield f"{name}.{field}", (planned, cell[field])
