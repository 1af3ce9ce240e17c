"""Predicted speed held against published measurements of vLLM: time per output token, throughput, time to first token.

A row states model, device, parallelism, weight dtype, lengths and the requests in flight; what its notes add (eager
mode, limits, true mean lengths) is read too. Nothing that was measured goes in but the requests in flight.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from planner.catalog.models import model_named, models
from planner.deployment import LATEST, Deployment
from planner.errors import InputError, Refusal
from planner.gpu import Gpu, gpu_named
from planner.kv_layout import KvLayout, kv_layout
from planner.latency import Latency, Range, latency, unknown
from planner.latency_law import CONSTANTS, Constants
from planner.memory import memory_budget
from planner.model import ModelSpec
from planner.validation import error_summary
from planner.weights import Weights, stage_weights
from planner.workload import Workload

Row = Mapping[str, Any]

METRICS = ("tpot", "output_tokens_per_s", "ttft")
# Runs whose prompts share system prompts say that the prefix cache may hit, not how often. Half of the prompt is what
# their times to first token say, most alike over seven models (BLIS, 2026-02).
_SHARED_PROMPTS, _SHARED = ("prefix caching may hit", "inference-sim/"), 0.5
_MEASURED = {"tpot": ("tpot_ms", 1e-3), "output_tokens_per_s": ("output_tok_s", 1.0), "ttft": ("ttft_ms", 1e-3)}
# Words of a row's weight dtype -> words that checkpoints of that dtype have in their names, and a recipe where the
# catalog has no such checkpoint of the model. Experts in NVFP4 leave attention as it was (NVIDIA's, 2026).
_NVFP4_EXPERTS = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                     "exclude_modules": ["lm_head", "*self_attn*", "*mlp.gate", "*shared_experts*"]},
}  # fmt: skip
_DTYPES: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (r"^fp8|float8|e4m3", r"fp8", {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    (r"^(nv|mx)?fp4", r"fp4", _NVFP4_EXPERTS),
    (r"awq", r"awq", {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}),
    (r"int4|w4a16|gptq", r"gptq-int4|w4a16|int4", {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}),
    (r"int8|w8a8", r"w8a8", {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {
        "0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
              "input_activations": {"num_bits": 8, "type": "int", "strategy": "token"}}}, "ignore": ["lm_head"]}),
)  # fmt: skip


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
    streams     requests in flight, mean  [requests]
    """

    row: Row
    model: ModelSpec
    deployment: Deployment
    workload: Workload
    layout: KvLayout
    stages: tuple[Weights, ...]
    blocks: int
    streams: float

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
    if row.get("spec_decode"):
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
    """The catalog's model in the row's weight dtype: as it is published, or else its nearest recipe."""
    model, words = model_named(str(row.get("model"))), str(row.get("weight_dtype") or "").lower()
    for pattern, name, recipe in _DTYPES:
        if re.search(pattern, words):
            if re.search(name, _own_dtype(model)):
                return model
            published = next((each for each in _checkpoints(model.name) if re.search(name, each.lower())), None)
            return model_named(published) if published else replace(model, quantization_config=recipe)
    return model


def _own_dtype(model: ModelSpec) -> str:
    """The dtype a checkpoint comes in, as a word of its config.

    >>> _own_dtype(model_named("openai/gpt-oss-120b")), _own_dtype(model_named("moonshotai/Kimi-K2.5"))
    ('mxfp4', 'int4')
    """
    config = str(dict(model.quantization_config)).lower()
    if "'num_bits': 4" in config or "'bits': 4" in config:
        return "awq" if "awq" in config else "int4"
    return next((word for word in ("mxfp4", "nvfp4", "fp8", "w8a8") if word in config), "")


@cache
def _checkpoints(name: str) -> tuple[str, ...]:
    """Every checkpoint of the shape that this one has."""
    return next((known.checkpoints for known in models() if name in known.checkpoints), ())


def deployment_of(row: Row, gpu: Gpu) -> Deployment:
    """Flags of the row and of its notes; what neither says is left to the release's defaults."""
    notes = str(row.get("notes") or "")
    version = re.match(r"v?\d+\.\d+(\.\d+)?", str(row.get("engine_version") or ""))
    seqs = re.search(r"max[-_]num[-_]seqs=(\w+)", notes)
    batched = re.search(r"max[-_]num[-_]batched[-_]tokens=(\d+)", notes)
    return Deployment(
        gpu=gpu,
        vllm_version=version[0] if version else LATEST,
        tensor_parallel_size=int(row.get("tp") or 1),
        pipeline_parallel_size=int(row.get("pp") or 1),
        data_parallel_size=int(row.get("dp") or 1),
        enable_expert_parallel=int(row.get("ep") or 1) > 1,
        kv_cache_dtype=_kv_cache_dtype(row, gpu),
        gpu_memory_utilization=0.9,
        max_num_seqs=int(seqs[1]) if seqs and seqs[1].isdigit() else None,
        max_num_batched_tokens=int(batched[1]) if batched else None,
        enforce_eager="eager" in notes.lower(),
    )


def _kv_cache_dtype(row: Row, gpu: Gpu) -> str:
    """The row's; InferenceX's launch scripts pass fp8 on Blackwell (github.com/SemiAnalysisAI/InferenceX, 2026-11)."""
    if row.get("kv_dtype"):
        return str(row["kv_dtype"])
    return "fp8" if "InferenceX" in str(row.get("source")) and gpu.architecture.startswith("blackwell") else "auto"


def workload_of(row: Row) -> tuple[Workload, float]:
    """Mean lengths, and the requests in flight: asked for, or where requests arrived at random, as they were.

    Raises InputError where the row lacks one of them.
    """
    scaled = re.search(r"mean lengths (0?\.\d+)x", str(row.get("notes")))
    share = float(scaled[1]) if scaled else 1.0
    for key in ("input_len", "output_len", "concurrency"):
        if not isinstance(row.get(key), int | float) or row[key] <= 0:
            raise InputError(key, row.get(key), "a number above 0")
    streams, output = float(row["concurrency"]), max(1, round(row["output_len"] * share))
    arrives, told = row.get("mode") == "rate", f"{row.get('notes')} {row.get('source')}"
    workload = Workload(
        input_tokens=max(1, round(row["input_len"] * share)),
        output_tokens=output,
        concurrency=None if arrives else max(1, round(streams)),
        request_rate=float(row.get("request_rate") or 1.0) if arrives else None,
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
        if measured:
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
