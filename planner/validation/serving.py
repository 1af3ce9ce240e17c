"""Predicted speed held against published measurements of vLLM: time per output token, throughput, time to first token.

A row states model, device, parallelism, weight dtype, lengths and the requests in flight; what its notes add (eager
mode, limits, true mean lengths) is read too. Nothing that was measured goes in but the requests in flight.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.deployment import LATEST, Deployment
from planner.errors import InputError, Refusal
from planner.gpu import Gpu, gpu_named
from planner.kv_layout import KvLayout, kv_layout
from planner.latency import Latency, Range, latency, unknown
from planner.latency_law import CONSTANTS, Constants
from planner.memory import memory_budget
from planner.model import ModelSpec
from planner.validation import error_summary
from planner.validation.checkpoint import model_in
from planner.weights import Weights, stage_weights
from planner.workload import Workload

Row = Mapping[str, Any]

METRICS = ("tpot", "output_tokens_per_s", "ttft")
# Runs whose prompts share system prompts say that the prefix cache may hit, not how often. Half of the prompt is what
# their times to first token say, most alike over seven models (BLIS, 2026-02).
_SHARED_PROMPTS, _SHARED = ("prefix caching may hit", "inference-sim/"), 0.5
_MEASURED = {"tpot": ("tpot_ms", 1e-3), "output_tokens_per_s": ("output_tok_s", 1.0), "ttft": ("ttft_ms", 1e-3)}
_COUNTS = ("tp", "pp", "dp", "ep", "n_gpus")
_NUMBERS = (*_COUNTS, "input_len", "output_len", "concurrency", "request_rate", "tpot_ms", "output_tok_s", "ttft_ms")
_NO = ("", "false", "no", "none", "off", "0", "nan")
_AUTO = ("", "auto", "none", "nan", "bf16", "fp16", "float16", "bfloat16")  # a KV cache in the model's own dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row as inputs of the planner.

    row         the row
    model       the model, in the row's weight dtype
    deployment  device and flags
    workload    lengths, and whether requests arrive at random
    layout      its KV cache
    stages      its weights
    blocks      in the KV pool of one replica  [blocks]
    streams     requests in flight, mean; None where only their arrivals were stated  [requests]
    """

    row: Row
    model: ModelSpec
    deployment: Deployment
    workload: Workload
    layout: KvLayout
    stages: tuple[Weights, ...]
    blocks: int
    streams: float | None

    def predicted(self, constants: Constants = CONSTANTS) -> Latency | None:
        """The planner's answer."""
        return latency(self.model, self.deployment, self.workload, self.layout, self.stages, self.blocks,
                       streams=self.streams, constants=constants)  # fmt: skip

    def measured(self, metric: str) -> float | None:
        """What the row observed, in base units; None where it did not."""
        key, unit = _MEASURED[metric]
        value = self.row.get(key)
        return value * unit if value else None


def case_of(row: Row) -> Case:
    """The row as inputs.

    Raises InputError for what the planner does not know or the row does not say, Refusal for what cannot have run.
    """
    for key in _NUMBERS:
        if isinstance(row.get(key), float) and not math.isfinite(row[key]):
            raise InputError(key, row[key], "a finite number")
    if str(row.get("spec_decode") or "").strip().lower() not in _NO:
        raise InputError("spec_decode", True, "rows that state how many drafted tokens were accepted")
    gpu = gpu_named(str(row.get("gpu")))
    if unknown(gpu):
        raise InputError("gpu", gpu.name, "a device whose bandwidth and arithmetic are known")
    model, deployment = model_of(row), deployment_of(row, gpu)
    layout, stages = kv_layout(model, deployment), stage_weights(model, deployment)
    budget = memory_budget(model, deployment, [stage.total for stage in stages])
    if budget.failure:
        raise Refusal(budget.failure)
    workload, streams = workload_of(row)
    blocks = layout.num_blocks(budget.available_kv.value)
    if blocks <= layout.blocks_per_request(workload.tokens):
        raise Refusal(f"The KV pool that is left does not hold one request of {workload.tokens:,} tokens.")
    return Case(row=row, model=model, deployment=deployment, workload=workload, layout=layout, stages=stages,
                blocks=blocks, streams=streams)  # fmt: skip


def model_of(row: Row) -> ModelSpec:
    """The catalog's model in the row's weight dtype."""
    return model_in(str(row.get("model")), str(row.get("weight_dtype") or ""))


def deployment_of(row: Row, gpu: Gpu) -> Deployment:
    """Flags of the row and of its notes; what neither says is left to the release's defaults."""
    notes = str(row.get("notes") or "")
    version = re.search(r"(?<![\d.])(?!0\.1\.dev)\d+\.\d+(\.\d+)?", str(row.get("engine_version") or ""))
    seqs = re.search(r"max[-_]num[-_]seqs=(\w+)", notes)
    batched = re.search(r"max[-_]num[-_]batched[-_]tokens=(\d+)", notes)
    counts = {key: _whole(row, key) for key in _COUNTS}
    pipeline, replicas = counts["pp"] or 1, counts["dp"] or 1
    return Deployment(
        gpu=gpu,
        vllm_version=version[0] if version else LATEST,
        tensor_parallel_size=counts["tp"] or _ranks(counts["n_gpus"] or pipeline * replicas, pipeline * replicas),
        pipeline_parallel_size=pipeline,
        data_parallel_size=replicas,
        enable_expert_parallel=(counts["ep"] or 1) > 1,
        kv_cache_dtype=_kv_cache_dtype(row, gpu),
        gpu_memory_utilization=0.9,
        max_num_seqs=int(seqs[1]) if seqs and seqs[1].isdigit() else None,
        max_num_batched_tokens=int(batched[1]) if batched else None,
        enforce_eager="eager" in notes.lower(),
    )


def _whole(row: Row, key: str) -> int | None:
    """A count of the row; None where it states none (or 0). Raises InputError for what is no whole number."""
    value = row.get(key)
    if not value:
        return None
    if isinstance(value, bool) or not re.fullmatch(r"\d+(\.0*)?", str(value)):
        raise InputError(key, value, "a whole number")
    return int(float(value))


def _ranks(gpus: int, taken: int) -> int:
    """Tensor ranks, where only the GPUs were stated: all that pipeline stages and replicas leave  [GPUs]."""
    if gpus % taken:
        raise InputError("n_gpus", gpus, f"a multiple of the {taken} GPUs that stages and replicas take, or tp")
    return gpus // taken


def _kv_cache_dtype(row: Row, gpu: Gpu) -> str:
    """The row's; InferenceX's launch scripts pass fp8 on Blackwell (github.com/SemiAnalysisAI/InferenceX, 2026-11)."""
    stated = str(row.get("kv_dtype") or "").strip().lower()
    if stated:
        return "auto" if stated in _AUTO else stated
    return "fp8" if "InferenceX" in str(row.get("source")) and gpu.architecture.startswith("blackwell") else "auto"


def workload_of(row: Row) -> tuple[Workload, float | None]:
    """Mean lengths, and the requests in flight: asked for, or where requests arrived at random, as they were.

    None in flight where a row states only its arrivals. Raises InputError where the row lacks one of them.
    """
    scaled = re.search(r"mean lengths (0?\.\d+)x", str(row.get("notes")))
    share = float(scaled[1]) if scaled else 1.0
    rate, told = row.get("request_rate"), f"{row.get('notes')} {row.get('source')}"
    alone = row.get("concurrency") is None and rate is not None
    for key in ("input_len", "output_len", "request_rate" if alone else "concurrency"):
        if not isinstance(row.get(key), int | float) or row[key] <= 0:
            raise InputError(key, row.get(key), "a number above 0")
    streams, arrives = None if alone else float(row["concurrency"]), alone or row.get("mode") == "rate"
    workload = Workload(
        input_tokens=max(1, round(row["input_len"] * share)),
        output_tokens=max(1, round(row["output_len"] * share)),
        concurrency=None if arrives or streams is None else max(1, round(streams)),
        request_rate=float(rate or 1.0) if arrives else None,
        prefix_hit_ratio=_SHARED if any(words in told for words in _SHARED_PROMPTS) else 0.0,
    )
    return workload, streams


def validate(rows: Iterable[Row]) -> dict[str, Any]:
    """How far predictions are off, by metric, model and device; rows that cannot be predicted are skipped with why."""
    found: list[tuple[Case, Latency]] = []
    skipped: list[dict[str, Any]] = []
    for row in rows:
        try:
            case = case_of(row)
            made = case.predicted()
            if made is None:
                raise Refusal("No request fits in the KV pool.")
            found.append((case, made))
        except (InputError, Refusal) as reason:
            skipped.append({"id": row.get("id"), "model": row.get("model"), "gpu": row.get("gpu"),
                            "reason": str(reason)})  # fmt: skip
    return {
        "n": len(found),
        **summary(found),
        "by_model": _by(found, lambda case, made: case.row["model"]),
        "by_gpu": _by(found, lambda case, made: case.deployment.gpu.name),
        "by_kind": _by(found, lambda case, made: made.kind),
        "skipped": skipped,
    }


def summary(found: Iterable[tuple[Case, Latency]]) -> dict[str, Any]:
    """Error and coverage of the stated range, by metric."""
    found = tuple(found)
    return {metric: _one(found, metric) for metric in METRICS}


def _one(found: tuple[tuple[Case, Latency], ...], metric: str) -> dict[str, Any]:
    pairs = [(range_of(made, metric), case.measured(metric)) for case, made in found]
    ratios, inside = [], 0
    for predicted, measured in pairs:
        if measured and math.isfinite(predicted.value):  # a queue that grows without end has no time to first token
            ratios.append(predicted.value / measured)
            inside += predicted.low <= measured <= predicted.high
    return {**error_summary(ratios), "range_coverage": round(inside / len(ratios), 4) if ratios else None}


def range_of(made: Latency, metric: str) -> Range:
    """The prediction of a metric."""
    found: Range = getattr(made, metric if metric == "output_tokens_per_s" else f"{metric}_s")
    return found


def _by(found: Iterable[tuple[Case, Latency]], key: Callable[[Case, Latency], str]) -> dict[str, Any]:
    groups: defaultdict[str, list[tuple[Case, Latency]]] = defaultdict(list)
    for case, made in found:
        groups[key(case, made)].append((case, made))
    return {name: summary(members) for name, members in sorted(groups.items())}
