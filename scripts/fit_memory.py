"""Fits the constants of the memory budget on vLLM start-up logs: python scripts/fit_memory.py FILE.jsonl [--write]

FILE has one log a line, in the format of tests/startup/rows.jsonl. Prints each constant with the error it leaves, the
error on rows of logs it was not fitted on (left out a cluster at a time), and with --write updates
planner/memory_constants.json.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from planner import activation, memory  # noqa: E402
from planner.deployment import Deployment, version_tuple  # noqa: E402
from planner.errors import InputError  # noqa: E402
from planner.model import ModelSpec, Moe  # noqa: E402
from planner.units import GIB  # noqa: E402
from planner.validation.startup import Row, deployment_of, model_of  # noqa: E402

CONSTANTS_FILE = ROOT / "planner" / "memory_constants.json"
ENOUGH_ROWS = 5  # that a class of non-torch memory needs before its middle replaces the one that is there
ROUNDS = 50  # of reweighting
RESOLUTION = 0.005  # GiB, half of the last digit logs print


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One start-up log as the planner's inputs, beside the row it came from."""

    row: Row
    model: ModelSpec
    deployment: Deployment

    def printed(self, key: str) -> float:
        """A memory figure of the row  [GiB]."""
        return float(self.row[key])


def logs(path: Path) -> list[Log]:
    """The rows whose model and device are known."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        try:
            found.append(Log(row=row, model=model_of(row), deployment=deployment_of(row)))
        except InputError:
            continue
    return found


def fitted(name: str, terms: Callable[[Log], Sequence[float]], target: Callable[[Log], float],
           chosen: Sequence[Log]) -> np.ndarray:  # fmt: skip
    """The coefficients of target on terms, with the error they leave and the error on clusters left out  [GiB]."""
    matrix, wanted = np.array([terms(log) for log in chosen]), np.array([target(log) for log in chosen])
    clusters = np.array([log.row.get("cluster") or log.row["id"] for log in chosen])
    found = _solve(matrix, wanted)
    unseen = np.zeros(len(chosen))
    for cluster in set(clusters):
        kept = clusters != cluster
        if kept.sum() >= matrix.shape[1]:
            unseen[~kept] = matrix[~kept] @ _solve(matrix[kept], wanted[kept]) - wanted[~kept]
    left = np.abs(matrix @ found - wanted)
    print(
        f"{name:24} {np.round(found, 4)}  {len(chosen)} rows, {len(set(clusters))} clusters: "
        f"median |error| {np.median(left):.3f} GiB, worst {left.max():.3f}; unseen clusters "
        f"{np.median(np.abs(unseen)):.3f}, worst {np.abs(unseen).max():.3f}"
    )
    return found


def _solve(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Least absolute deviations, by reweighted least squares: a few logs are of another rank than they say."""
    weight = np.ones(len(wanted))
    for _ in range(ROUNDS):
        found = np.linalg.lstsq(matrix * weight[:, None], wanted * weight, rcond=None)[0]
        weight = 1 / np.sqrt(np.maximum(np.abs(matrix @ found - wanted), RESOLUTION))
    return found


def sampler_terms(log: Log) -> list[float]:
    """S·V·4, T·H·2 and one  [GiB]."""
    tokens = log.deployment.step_tokens
    logits = min(log.deployment.step_seqs, tokens) * log.model.vocab_size * 4 / GIB
    return [logits, tokens * log.model.hidden_size * 2 / GIB, 1.0]


def sampler_target(log: Log) -> float:
    """The printed activation without what experts and image encoders add  [GiB]."""
    _, experts = activation._widths(log.model, log.deployment)
    kept = experts * log.deployment.step_tokens * 2 / GIB if log.deployment.version >= (0, 17, 0) else 0.0
    return log.printed("activation_peak_gib") - kept


def binds_on_sampler(log: Log) -> bool:
    """Text models whose sampler clearly needs more than their forward pass."""
    if log.row.get("activation_peak_gib") is None or log.model.wrapper.get("vision_config"):
        return False
    if log.row.get("speculative_config") or log.model.model_type == "whisper":
        return False
    with_sampler = activation.activation_bytes(log.model, log.deployment)
    return with_sampler > 1.1 * activation.activation_bytes(log.model, log.deployment, last=False)


def fit_sampler(found: Sequence[Log], constants: dict[str, Any]) -> None:
    """One law before the Triton sampler and one from it on; FlashInfer's era shares the later one."""
    chosen = [log for log in found if binds_on_sampler(log)]
    old = [log for log in chosen if log.deployment.version < (0, 17, 0)]
    new = [log for log in chosen if log.deployment.version >= (0, 17, 0)]
    before = fitted("sampler to 0.16", lambda log: sampler_terms(log)[:2], sampler_target, old)
    after = fitted("sampler from 0.17", sampler_terms, sampler_target, new)
    for law in constants["sampler"]:
        logits, hidden, *rest = before if law["from"] in ("0.0", "0.10.2") else after
        law |= {"logits": round(logits, 3), "hidden": round(hidden, 3), "gib": round(rest[0], 4) if rest else 0.0}


def fit_forward(found: Sequence[Log], constants: dict[str, Any]) -> None:
    """h of T · 2 · (3·I + h·H), on logs whose sampler needs less and which leave only the activation unprinted."""

    def stream(log: Log) -> float:
        return log.deployment.step_tokens * log.model.hidden_size * 2 / GIB

    def target(log: Log) -> float:
        dense, _ = activation._widths(log.model, log.deployment)
        return unexplained(log) - log.deployment.step_tokens * 2 * dense / GIB

    chosen = [
        log
        for log in found
        if log.row.get("end_to_end")
        and log.row.get("available_kv_gib")
        and log.row.get("model_weights_gib")
        and not log.row.get("activation_peak_gib")
        and not log.model.wrapper.get("vision_config")
        and not any(isinstance(layer.mlp, Moe) for layer in log.model.layers)
        and log.deployment.step_tokens >= 8_192
        and activation.activation_bytes(log.model, log.deployment)
        == activation.activation_bytes(log.model, log.deployment, last=False)
    ]
    constants["forward_hidden"] = round(float(fitted("forward h", lambda log: [stream(log)], target, chosen)[0]), 2)


def unexplained(log: Log) -> float:
    """The request less weights, KV and non-torch memory: the activation peak of a log that does not print it  [GiB]."""
    tensors = int(log.printed("model_weights_gib") * GIB) - memory.rotary_bytes(log.model)  # printed together
    budget = memory.memory_budget(log.model, log.deployment, tensors)
    return (budget.requested.value - budget.weights.value - budget.non_torch.value) / GIB - log.printed(
        "available_kv_gib"
    )


def fit_vision(found: Sequence[Log], constants: dict[str, Any]) -> None:
    """What a fixed-size image encoder leaves beside the step: images and their embeddings."""
    now = constants["vision_gib"]
    chosen = [log for log in found if log.model.wrapper.get("vision_config") and log.row.get("activation_peak_gib")]
    chosen = [log for log in chosen if "spatial_merge_size" not in log.model.wrapper["vision_config"]]
    chosen = [log for log in chosen if log.deployment.version >= (0, 17, 0)]

    def target(log: Log) -> float:
        return log.printed("activation_peak_gib") - activation.activation_bytes(log.model, log.deployment) / GIB + now

    constants["vision_gib"] = round(float(fitted("vision", lambda _: [1.0], target, chosen)[0]), 3)


def fit_graphs(found: Sequence[Log], constants: dict[str, Any]) -> None:
    """The estimate that 0.19 and later print: a first graph, one more a layer and size, and experts."""
    chosen = [log for log in found if log.row.get("cuda_graph_estimate_gib") and not log.row.get("speculative_config")]
    chosen = [log for log in chosen if log.deployment.version >= (0, 19, 0) and log.row["cuda_graph_estimate_gib"] < 3]

    def terms(log: Log) -> list[float]:
        experts = any(isinstance(layer.mlp, Moe) for layer in log.model.layers[-1:])
        return [1.0, log.model.num_hidden_layers * memory.graph_sizes(log.deployment), float(experts)]

    first, each, experts = fitted("graphs", terms, lambda log: log.printed("cuda_graph_estimate_gib"), chosen)
    constants["graphs"] |= {
        "first_gib": round(first, 3),
        "layer_size_gib": round(each, 6),
        "moe_gib": round(experts, 3),
    }


def fit_non_torch(found: Sequence[Log], constants: dict[str, Any]) -> None:
    """Middle and range of what logs print, for the classes that enough logs show; the others keep what they have."""
    laws = constants["non_torch_gib"]
    for number, law in enumerate(laws):
        same = [late for late in laws[number + 1 :] if (late["device"], late["ranks"]) == (law["device"], law["ranks"])]
        until = version_tuple(same[0]["from"]) if same else (9, 0, 0)
        seen = sorted(
            log.printed("non_torch_gib")
            for log in found
            if log.row.get("non_torch_gib") is not None
            and memory.device_class(log.deployment.gpu) == law["device"]
            and memory.ranks(log.deployment) == law["ranks"]
            and version_tuple(law["from"]) <= log.deployment.version < until
        )
        print(f"non-torch {law['from']:>5} {law['device']:8} {law['ranks']:5} {len(seen)} rows {seen}")
        if len(seen) >= ENOUGH_ROWS:
            law["middle"] = round(float(np.median(seen)), 3)
            law["low"], law["high"] = min(law["low"], seen[0]), max(law["high"], seen[-1])


def _as_text(constants: dict[str, Any]) -> str:
    """JSON with one law a line."""
    lines = []
    for key, value in constants.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n    " + ",\n    ".join(json.dumps(law) for law in value) + "\n  ]"
        lines.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Fits, prints, and writes when asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true", help="update planner/memory_constants.json")
    parser.add_argument("--date", help="the day of the fit, kept in the file")
    chosen = parser.parse_args()
    constants = activation.CONSTANTS  # the laws' own copy: each fit sees the ones before it
    found = logs(chosen.file)
    print(f"{len(found)} logs with a known model and device")
    for fit in (fit_sampler, fit_vision, fit_graphs, fit_non_torch, fit_forward):
        fit(found, constants)
    if chosen.write:
        constants["fitted"] = chosen.date or constants["fitted"]
        CONSTANTS_FILE.write_text(_as_text(constants), encoding="utf-8")


if __name__ == "__main__":
    main()
