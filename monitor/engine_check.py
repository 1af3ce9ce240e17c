"""A plan's KV layout held against vLLM's own code, which lays out the same model in the engine's interpreter.

The installed engine decides the device: the CPU build lays out for CPUs, so both sides do. Model, parallel sizes, KV
dtype, length, batch and pool are the plan's; kernels and their block size are those of the device compared on.
"""

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from monitor.engine import INTERPRETER, EngineError
from planner.deployment import Deployment
from planner.errors import InputError, Refusal
from planner.gpu import gpu_named
from planner.kv_dtype import declared_kv_dtype
from planner.kv_layout import kv_report
from planner.model import ModelSpec
from planner.plan import Plan
from planner.units import GIB, memory
from planner.verdict import Level, Verdict

PATIENCE = 180.0
"""How long all questions together may take; importing vLLM alone takes 10 to 40  [s]."""
POOL = 40 * GIB
"""Laid out where a plan has no pool, because it does not fit  [bytes]."""
_FLAGS = (
    "dtype", "kv_cache_dtype", "kv_cache_dtype_skip_layers", "block_size", "max_model_len", "max_num_batched_tokens",
    "num_gpu_blocks_override",
)  # fmt: skip
_IRRELEVANT = ("quantization_config", "rope_scaling", "rope_parameters")  # weights and rotary tables, no caches
_ALONE = threading.Lock()  # an engine's interpreter takes a core and a gigabyte: one at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity on both sides.

    quantity  what it is, with its unit
    planned   the planner's
    engine    vLLM's
    """

    quantity: str
    planned: object
    engine: object

    @property
    def is_equal(self) -> bool:
        return self.planned == self.engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A plan's layout and vLLM's own, line by line.

    lines    what was compared; none where either side refuses
    planner  why the planner says that this would not start, empty when it would
    engine   why vLLM's code did not lay it out, empty when it did
    context  engine and device compared on
    """

    lines: tuple[Line, ...]
    planner: str
    engine: str
    context: str

    @property
    def verdict(self) -> Verdict:
        """Equal, different, or why there is nothing to compare."""
        off = [line.quantity for line in self.lines if not line.is_equal]
        if off:
            level, word, reason = Level.BAD, "Different", f"vLLM's own code says otherwise: {', '.join(off)}."
        elif self.lines:
            level, word = Level.GOOD, "Equal"
            reason = f"All {len(self.lines)} quantities are what vLLM's own code computes."
        elif self.planner and self.engine:
            level, word, reason = Level.GOOD, "Both refuse", f"{self.planner} vLLM: {self.engine}"
        elif self.planner:
            level, word, reason = Level.BAD, "Different", f"vLLM lays it out, the planner refuses: {self.planner}"
        else:
            level, word, reason = Level.UNKNOWN, "Not compared", f"vLLM's code does not lay it out here: {self.engine}"
        return Verdict(level=level, word=word, reason=reason, context=self.context)


def installed() -> bool:
    """Whether there is an engine to ask; `make engine` installs one."""
    return INTERPRETER.exists()


def check(plan: Plan) -> Check:
    """One plan's layout, compared. Raises EngineError where the engine's interpreter fails or takes too long."""
    return checks([(plan.model, plan.deployment, plan.pool_bytes or POOL)])[0]


def checks(cases: Sequence[tuple[ModelSpec, Deployment, int]], patience: float = PATIENCE) -> list[Check]:
    """Models and deployments, each with one rank's pool [bytes], all asked of one process within `patience` [s]."""
    cases = [(model, _comparable(model, deployment), pool) for model, deployment, pool in cases]
    answers = _asked([_question(*case) for case in cases], patience)
    return [_check(*case, answer) for case, answer in zip(cases, answers, strict=True)]


def _comparable(model: ModelSpec, deployment: Deployment) -> Deployment:
    """The deployment with what an engine would fill in by device or checkpoint written out, and without drafts."""
    dtype = deployment.kv_cache_dtype
    return replace(
        deployment,
        kv_cache_dtype=declared_kv_dtype(model) or dtype if dtype == "auto" else dtype,
        max_model_len=deployment.max_model_len or model.max_position_embeddings,
        max_num_batched_tokens=deployment.step_tokens,
        num_speculative_tokens=0,
    )


def _question(model: ModelSpec, deployment: Deployment, pool: int) -> dict[str, Any]:
    """See monitor.engine_side."""
    given = {name: value for name in _FLAGS if (value := getattr(deployment, name)) is not None}
    if not deployment.enable_prefix_caching:
        given["enable_prefix_caching"] = False
    return {
        "config": _bare(model.wrapper),
        "flags": given,
        "available": pool,
        "tp": deployment.tensor_parallel_size,
        "pp": deployment.pipeline_parallel_size,
        "dcp": deployment.decode_context_parallel_size,
    }


def _bare(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without what no cache depends on, and which vLLM's CPU build may refuse.

    >>> _bare({"hidden_size": 8, "text_config": {"rope_scaling": {"type": "linear"}}})
    {'hidden_size': 8, 'text_config': {}}
    """
    return {
        key: _bare(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _IRRELEVANT
    }


def _asked(questions: list[dict[str, Any]], patience: float) -> list[dict[str, Any]]:
    command = [str(INTERPRETER), "-m", "monitor.engine_side"]
    here = Path(__file__).resolve().parent.parent
    with _ALONE:
        try:
            done = subprocess.run(
                command, input=json.dumps(questions), capture_output=True, text=True, cwd=here, timeout=patience
            )
        except FileNotFoundError:
            raise EngineError("no engine: `make engine` installs one") from None
        except subprocess.TimeoutExpired:
            raise EngineError(f"vLLM did not answer within {patience:.0f} s") from None
    if done.returncode:
        raise EngineError(f"vLLM ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _check(model: ModelSpec, deployment: Deployment, pool: int, answer: Mapping[str, Any]) -> Check:
    device, version, refusal = answer["device"], answer["vllm_version"], answer.get("refusal", "")
    context = f"{model.name}, {deployment.kv_cache_dtype} KV cache of {memory(pool)} a rank, "
    context += f"as vLLM {version} lays it out where it is installed, on {device}"
    try:
        found = kv_report(model, replace(deployment, gpu=gpu_named(device), vllm_version=version), pool)
    except (Refusal, InputError) as reason:
        return Check(lines=(), planner=str(reason), engine=refusal, context=context)
    lines = () if refusal else tuple(_lines(found, answer))
    return Check(lines=lines, planner="", engine=refusal, context=context)


def _lines(found: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[Line]:
    """Groups in one order on both sides, each in words, then what follows from them."""
    planned, engine = (sorted(map(_in_words, side["groups"])) for side in (found, answer))
    for number, (mine, theirs) in enumerate(zip_longest(planned, engine, fillvalue="none"), start=1):
        yield Line(quantity=f"group {number}", planned=mine, engine=theirs)
    for key, quantity in _QUANTITIES.items():
        yield Line(quantity=quantity, planned=found[key], engine=round(answer[key], 6))


_QUANTITIES = {
    "bytes_per_block": "bytes a block",
    "num_gpu_blocks": "blocks",
    "kv_cache_size_tokens": "KV cache size, tokens",
    "max_concurrency": "requests of max_model_len at once",
}


def _in_words(group: Mapping[str, Any]) -> str:
    tokens = f"blocks of {group['block_size']:,} tokens" if group["block_size"] else "one state a block"
    return f"{group['layers']} {group['kind']} layers, {tokens}, {group['page_size_bytes']:,} bytes a block"
