"""Calibration: what a running server taught about one model on one device, in place of constants fitted elsewhere.

    step    = step_s + sequences × sequence_s + cached tokens × token_s     (never below the roofline's floor)
    prefill = computed prompt tokens × prompt_token_s

monitor.calibrate fits it from Windows of real traffic; a plan takes it on request, for its model and device only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.deployment import Deployment
from planner.errors import InputError
from planner.gpu import Gpu
from planner.latency_law import Constants
from planner.memory import MemoryBudget
from planner.model import ModelSpec
from planner.roofline import Work
from planner.step import StepLaw, StepParts
from planner.units import count
from planner.workload import Workload

TERMS = ("step_s", "sequence_s", "token_s", "prompt_token_s", "first_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One server's own constants.

    name            what people call it
    model           name of the model it was fitted on
    gpu             name of the device
    engine          the flags that decide speed, as `engine_of` spells them
    step_s          a step, whatever is in it                            [s]
    sequence_s      more for each running request                       [s]
    token_s         more for each token of theirs in the KV cache       [s]
    prompt_token_s  for each prompt token that is computed              [s]
    first_s         to the first token, beyond steps and prefill        [s]
    errors          standard error of each of these                     [s]
    bytes_per_token of the KV cache it was fitted with                  [bytes]
    other_bytes     memory of a rank that the plan did not foresee; None where the pool's bytes are unknown  [bytes]
    spread          by metric, the factors on a prediction between which 80 % of later windows lay  [ratio]
    windows         windows it rests on                                 [windows]
    seconds         of traffic in them                                  [s]
    fitted          when, as YYYY-MM-DD
    """

    name: str
    model: str
    gpu: str
    engine: str
    step_s: float
    sequence_s: float
    token_s: float
    prompt_token_s: float
    first_s: float
    errors: Mapping[str, float]
    bytes_per_token: float
    other_bytes: int | None
    spread: Mapping[str, tuple[float, float]]
    windows: int
    seconds: float
    fitted: str

    def __post_init__(self) -> None:
        for term in TERMS:
            value = getattr(self, term)
            if not (isinstance(value, int | float) and 0 <= value < math.inf):
                raise InputError(f"calibration.{term}", value, "seconds, 0 or more")
        for metric in ("tpot", "ttft", "output_tokens_per_s"):
            pair = self.spread.get(metric)
            if pair is None or len(pair) != 2 or not 0 < pair[0] <= pair[1] < math.inf:
                raise InputError(f"calibration.spread.{metric}", pair, "two factors above 0, the lower first")

    @property
    def kind(self) -> str:
        """Which range its predictions have, in words."""
        return f"calibrated, {self.name}"

    def check(self, model: ModelSpec, deployment: Deployment) -> None:
        """Raises InputError where the plan is of another model or device: constants do not travel."""
        if self.model != model.name:
            raise InputError("calibration", self.name, f"one of {model.name}; this one is of {self.model}")
        if self.gpu != deployment.gpu.name:
            raise InputError("calibration", self.name, f"one on {deployment.gpu.name}; this one is on {self.gpu}")

    def budget(self, planned: MemoryBudget) -> MemoryBudget:
        """The plan's memory, less what was measured beside it; the KV pool is then known, not estimated."""
        if self.other_bytes is None or planned.given:
            return planned
        left = max(0, planned.available_kv.value - self.other_bytes)
        return replace(planned, available_kv=planned.available_kv._replace(value=left, low=left, high=left))

    def assumption(self, deployment: Deployment) -> str:
        """What a plan that uses it rests on."""
        line = f"Speed is calibrated: “{self.name}”, {count(self.windows, 'windows')} of real traffic, {self.fitted}."
        engine = engine_of(deployment)
        return line if engine == self.engine else f"{line} It ran with {self.engine}; this plan has {engine}."


def engine_of(deployment: Deployment) -> str:
    """The flags that decide the speed of one model on one device.

    >>> from planner.gpu import gpu_named
    >>> engine_of(Deployment(gpu=gpu_named("H100-SXM"), tensor_parallel_size=2, enforce_eager=True))
    'vLLM 0.32.0, 2 ranks, KV dtype auto, eager'
    """
    ranks = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    eager = ", eager" if deployment.enforce_eager else ""
    return (
        f"vLLM {deployment.vllm_version}, {count(ranks, 'ranks' if ranks > 1 else 'rank')}, "
        f"KV dtype {deployment.kv_cache_dtype}{eager}"
    )


class CalibratedLaw(StepLaw):
    """The step law of one server, as measured on it."""

    __slots__ = ("calibration", "kv_scale")

    def __init__(
        self,
        deployment: Deployment,
        workload: Workload,
        work: Work,
        constants: Constants,
        calibration: Calibration,
        bytes_per_token: float,
    ) -> None:
        own = replace(constants, first=calibration.first_s, first_open=calibration.first_s)
        super().__init__(deployment, workload, work, own)
        self.calibration = calibration
        self.kv_scale = bytes_per_token / calibration.bytes_per_token if calibration.bytes_per_token else 1.0

    def step(self, streams: float) -> StepParts:
        """One decoding step, no prompts in it."""
        c, batch = self.calibration, max(1.0, streams / self.stages)
        kv = batch * self.context * c.token_s * self.kv_scale
        total = max(c.step_s + batch * c.sequence_s + kv, self.floor(streams) * self.tokens_a_step)
        weights = min(total - kv, self.work.weight_bytes(batch) / self.gpu.memory_bandwidth)
        return StepParts(weights=weights, compute=0.0, kv=kv, all_reduce=0.0, fixed=total - kv - weights, prefill=0.0)

    def prefill(self, streams: float) -> float:
        """What reading one prompt adds to the steps of a batch  [s]."""
        return max(self.computed * self.calibration.prompt_token_s, self.prompt_floor)


def without_floor(gpu: Gpu) -> Gpu:
    """A device of which no peak is known, so that nothing bounds what was measured on it."""
    unbounded = {"bfloat16": math.inf}
    return replace(gpu, memory_bandwidth=math.inf, measured_bandwidth=None, peak_flops=unbounded, measured_flops={})
