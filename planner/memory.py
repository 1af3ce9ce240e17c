"""MemoryBudget: what one rank's memory is spent on before the first request, and what is left for the KV cache.

`gpu_memory_utilization` is a share of the device's TOTAL memory as the driver reports it to torch (79.2 GiB on an
H100 of 80 GB), not of the marketing size and not of what is free. What other processes hold lies in the share that was
not requested; the engine refuses to start when the free memory is less than the request.

    requested    = ceil(total × gpu_memory_utilization)
    available_kv = requested − weights − activation − non_torch − cuda_graph (from 0.21 on)

Constants are fitted by scripts/fit_memory.py on published start-up logs and live in memory_constants.json.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from planner.activation import CONSTANTS, activation_bytes
from planner.deployment import Deployment, version_tuple
from planner.gpu import Gpu
from planner.model import MLA, Attention, ModelSpec, Moe, Recurrent
from planner.units import GIB, memory

_GRAPHS_CHARGED = (0, 21, 0)  # the release from which the estimate is taken off the KV pool
_GRAPHS_CHARGED_ROCM = (0, 26, 0)
_INTEGRATED = ((8, 7), (11, 0), (12, 1))  # compute capabilities of Orin, Thor and GB10: memory shared with the host
_CONTEXT = 0.5  # GiB in use when the engine looks first: the CUDA context (H100, RTX 4090: logs of 0.10 to 0.19)
_NCCL = {"hopper": 1.1, "other": 0.6}  # GiB more where ranks talk to each other (H100, RTX 5090: logs of 0.19 to 0.27)
_FREE_CHECKED = (0, 8, 0)  # the V1 engine refuses to start when less is free than requested
_WEIGHTS_ERROR = 0.005  # beside the tensors: loaders' buffers, 0.00 to 0.12 GiB in logs of vLLM 0.19
_CPU_PROCESS = 0.62  # GiB a CPU worker holds besides the weights (vLLM 0.32 on a 4-layer model, 2026-11-29)
_CPU_SPACE_BEFORE = 4  # GiB, the CPU backend's default pool before utilisation applied to it


class Part(NamedTuple):
    """One term of the budget, with the range in which it was seen.

    name   weights, activation, non_torch, cuda_graph, other_processes, requested, total or available_kv
    value  the middle  [bytes]
    low    least  [bytes]
    high   most  [bytes]
    """

    name: str
    value: int
    low: int
    high: int

    @property
    def formula(self) -> str:
        """How it is worked out, in words."""
        return _EXPLAINED[self.name][0]

    @property
    def source(self) -> str:
        """Where the formula and its constants come from."""
        return _EXPLAINED[self.name][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """One rank's memory, on the stage that leaves least for the KV cache.

    utilization      share of the device's total that was requested  [ratio]
    total            what the driver reports
    requested        the share the engine may use
    weights          of the binding rank
    activation       the peak of the profiling pass beyond the weights
    non_torch        communication buffers and kernels' workspaces outside torch's allocator
    cuda_graph       what the captured graphs take
    graphs_charged   the graphs are taken off the KV pool (else they come from the share not requested)
    other_processes  held on the device by others
    at_start         in use when the engine looks first, others included
    available_kv     what is left for the KV cache
    given            the KV pool was given outright, so the other terms do not decide it
    free_checked     the engine refuses to start when less is free than requested
    """

    utilization: float
    total: Part
    requested: Part
    weights: Part
    activation: Part
    non_torch: Part
    cuda_graph: Part
    graphs_charged: bool
    other_processes: Part
    at_start: Part
    available_kv: Part
    given: bool
    free_checked: bool

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the request is spent on, the KV pool last."""
        graphs = (self.cuda_graph,) if self.graphs_charged else ()
        return (self.weights, self.activation, self.non_torch, *graphs, self.available_kv)

    @property
    def stacked(self) -> tuple[tuple[Part, int], ...]:
        """Each part with where it begins when they lie end to end  [bytes]."""
        starts = accumulate((part.value for part in self.parts), initial=0)
        return tuple(zip(self.parts, starts, strict=False))

    @property
    def spent(self) -> int:
        """All parts together  [bytes]."""
        return sum(part.value for part in self.parts)

    @property
    def unreserved(self) -> int:
        """What the engine leaves to others, its own CUDA context and, before 0.21, its graphs  [bytes]."""
        return max(0, self.total.value - self.spent)

    @property
    def free_at_start(self) -> int:
        """What the engine finds free when it looks first  [bytes]."""
        return max(0, self.total.value - self.at_start.value)

    @property
    def failure(self) -> str:
        """Why the engine would stop before it has a KV cache, empty when it has one."""
        requested = memory(self.requested.value)
        if self.free_checked and self.free_at_start < self.requested.value:
            free = memory(self.free_at_start)
            return f"only {free} is free at start, less than the {requested} requested."
        if self.given:
            if self.available_kv.value > self.free_at_start - self.weights.value - self.activation.value:
                return f"the KV cache of {memory(self.available_kv.value)} does not fit beside the weights."
        elif self.weights.value >= self.requested.value:
            return f"the weights alone, {memory(self.weights.value)} a rank, exceed the {requested} requested."
        elif self.available_kv.value <= 0:
            return f"nothing of the {requested} requested is left for the KV cache."
        return ""

    @property
    def highest_utilization(self) -> float:
        """The largest gpu_memory_utilization the free memory allows, to two digits  [ratio]."""
        return math.floor(self.free_at_start / self.total.value * 100) / 100


def memory_budget(model: ModelSpec, deployment: Deployment, weight_bytes: int | Sequence[int]) -> MemoryBudget:
    """The budget of the rank that leaves least for the KV cache.

    weight_bytes  of one rank, or of one rank of each pipeline stage in order  [bytes]
    """
    stages = (weight_bytes,) if isinstance(weight_bytes, int) else tuple(weight_bytes)
    budgets = [_stage(model, deployment, size, last=stage == len(stages) - 1) for stage, size in enumerate(stages)]
    return min(budgets, key=lambda budget: budget.available_kv.value)


def _stage(model: ModelSpec, deployment: Deployment, weight_bytes: int, last: bool) -> MemoryBudget:
    gpu, utilization = deployment.gpu, deployment.utilization
    total = Part("total", gpu.memory, gpu.memory_low, gpu.memory_high)
    requested = Part("requested", *(math.ceil(size * utilization) for size in total[1:]))
    weights = _around("weights", weight_bytes + rotary_bytes(model), _WEIGHTS_ERROR)
    activation = _activation(model, deployment, last)
    non_torch, graphs = _non_torch(deployment), _cuda_graph(model, deployment)
    spent = (weights, activation, non_torch, graphs) if _charged(deployment) else (weights, activation, non_torch)
    given = _given(deployment, requested.value - weights.value)
    return MemoryBudget(
        utilization=utilization,
        total=total,
        requested=requested,
        weights=weights,
        activation=activation,
        non_torch=non_torch,
        cuda_graph=graphs,
        graphs_charged=_charged(deployment),
        other_processes=_exactly("other_processes", deployment.other_memory),
        at_start=_exactly("at_start", deployment.other_memory + _context(deployment)),
        available_kv=_left(requested, spent) if given is None else _exactly("available_kv", given),
        given=given is not None,
        free_checked=given is None and deployment.version >= _FREE_CHECKED,
    )


def _activation(model: ModelSpec, deployment: Deployment, last: bool) -> Part:
    """A first start also keeps what compilation left behind: 0.33 to 0.51 GiB more in 8 of 33 logs of one server."""
    part = _around("activation", activation_bytes(model, deployment, last), CONSTANTS["activation_error"])
    return part if deployment.enforce_eager else part._replace(high=part.high + int(CONSTANTS["compilation_gib"] * GIB))


def _left(requested: Part, spent: Sequence[Part]) -> Part:
    """What is left, never below nothing; independent errors add as squares."""
    value = requested.value - sum(part.value for part in spent)
    worse = math.hypot(requested.value - requested.low, *(part.high - part.value for part in spent))
    better = math.hypot(requested.high - requested.value, *(part.value - part.low for part in spent))
    return Part("available_kv", *(max(0, size) for size in (value, value - int(worse), value + int(better))))


def _given(deployment: Deployment, without_weights: int) -> int | None:
    """A KV pool that was not worked out from the budget: --kv-cache-memory-bytes, or the CPU backend's  [bytes]."""
    if deployment.kv_cache_memory_bytes is not None:
        return deployment.kv_cache_memory_bytes
    if not deployment.gpu.is_cpu:
        return None
    if deployment.cpu_kvcache_space is not None:
        return int(deployment.cpu_kvcache_space * GIB)
    if deployment.version < _GRAPHS_CHARGED:
        return _CPU_SPACE_BEFORE * GIB
    return max(0, without_weights - int(_CPU_PROCESS * GIB))


def rotary_bytes(model: ModelSpec) -> int:
    """Tables of rotary embedding that every rank keeps beside the weights: cosine and sine a position  [bytes].

    positions · rotary dim · 2 bytes, for the full context whatever max_model_len is (vllm rotary_embedding); linear
    scaling has a row a stretched position, and a model with local and global rotation keeps both tables.
    """
    mixers = (mixer for layer in model.layers for mixer in layer.mixers)
    mixer = next((mixer for mixer in mixers if isinstance(mixer, Attention | MLA)), None)
    scaling = model.config.get("rope_parameters") or model.config.get("rope_scaling") or {}
    if mixer is None or not _rotates(model):
        return 0
    share = model.config.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1.0
    dim = mixer.qk_rope_head_dim if isinstance(mixer, MLA) else int(mixer.head_dim * share)
    stretched = scaling.get("factor", 1.0) if scaling.get("rope_type", scaling.get("type")) == "linear" else 1.0
    tables = stretched + bool(model.config.get("rope_local_base_freq"))
    return int(model.max_position_embeddings * dim * 2 * tables)


def _rotates(model: ModelSpec) -> bool:
    """Hybrids rotate only when their config says how, and Nemotron-H never does."""
    config = model.config
    if config.get("position_embedding_type", "rope") != "rope" or model.model_type == "nemotron_h":
        return False
    if "rope_theta" in config or "rope_parameters" in config or "rope_scaling" in config:
        return True
    return not any(isinstance(mixer, Recurrent) for layer in model.layers[:2] for mixer in layer.mixers)


@cache
def _non_torch_law(version: tuple[int, int, int], device: str, ranks: str) -> tuple[int, int, int]:
    laws = [
        law
        for law in CONSTANTS["non_torch_gib"]
        if law["device"] == device and law["ranks"] == ranks and version_tuple(law["from"]) <= version
    ]
    return tuple(int(laws[-1][key] * GIB) for key in ("middle", "low", "high"))  # type: ignore[return-value]


def _non_torch(deployment: Deployment) -> Part:
    if deployment.gpu.is_cpu:
        return _exactly("non_torch", 0)
    middle, low, high = _non_torch_law(deployment.version, device_class(deployment.gpu), ranks(deployment))
    return Part("non_torch", middle, low, high)


def device_class(gpu: Gpu) -> str:
    """What decides the memory outside torch: amd, unified (shared with the host), hopper (and later servers), other."""
    if gpu.vendor == "amd":
        return "amd"
    if gpu.compute_capability in _INTEGRATED:
        return "unified"
    return "hopper" if gpu.compute_capability in ((9, 0), (10, 0), (10, 3)) else "other"


def ranks(deployment: Deployment) -> str:
    """Whether the ranks of a replica talk to each other: many or one."""
    return "many" if deployment.tensor_parallel_size * deployment.pipeline_parallel_size > 1 else "one"


def _context(deployment: Deployment) -> int:
    """Held by the engine itself before it looks: it lies in the share not requested  [bytes]."""
    if deployment.gpu.is_cpu:
        return 0
    talking = _NCCL["hopper" if device_class(deployment.gpu) == "hopper" else "other"]
    return int((_CONTEXT + talking * (ranks(deployment) == "many")) * GIB)


def _charged(deployment: Deployment) -> bool:
    if deployment.enforce_eager or deployment.gpu.is_cpu:
        return False
    return deployment.version >= (_GRAPHS_CHARGED_ROCM if deployment.gpu.vendor == "amd" else _GRAPHS_CHARGED)


def graph_sizes(deployment: Deployment) -> int:
    """Batch sizes captured: 1, 2, 4, then steps of 8 below 256, steps of 16 up to min(2 · max_num_seqs, 512)  [sizes].

    The ceiling is 1,024 on Blackwell in 0.32 (vllm/config/vllm.py).
    """
    blackwell = (deployment.gpu.compute_capability or (0, 0))[0] in (10, 12) and deployment.version >= (0, 30, 0)
    widest = 2 * deployment.step_seqs * (1 + deployment.num_speculative_tokens)
    top = min(widest, 1_024 if blackwell else 512, deployment.step_tokens)
    return sum(size <= top for size in (1, 2, 4)) + min(top, 255) // 8 + max(0, top - 240) // 16


def _cuda_graph(model: ModelSpec, deployment: Deployment) -> Part:
    if deployment.enforce_eager or deployment.gpu.is_cpu:
        return _exactly("cuda_graph", 0)
    law = CONSTANTS["graphs"]
    layers = math.ceil(model.num_hidden_layers / deployment.pipeline_parallel_size)
    size = law["first_gib"] + law["layer_size_gib"] * layers * graph_sizes(deployment)
    if any(isinstance(layer.mlp, Moe) for layer in model.layers[-1:]):
        size += law["moe_gib"]
    return _around("cuda_graph", size * GIB, law["error"])


def _around(name: str, value: float, error: float) -> Part:
    return Part(name, math.ceil(value), int(value * (1 - error)), math.ceil(value * (1 + error)))


def _exactly(name: str, value: int) -> Part:
    return Part(name, value, value, value)


_FIT = f"fitted {CONSTANTS['fitted']} on published vLLM start-up logs (scripts/fit_memory.py)"
_EXPLAINED = {
    "total": ("what the driver reports to torch", "the device's entry in the catalog"),
    "requested": ("ceil(total × gpu_memory_utilization)", "vLLM 0.32 v1/worker/utils.py request_memory"),
    "weights": (
        "parameters of the rank × their bytes, quantisation and replicas included, and rotary tables",
        "config.json",
    ),
    "activation": (
        "max(a · S·V·4 + b · T·H·2 + c, T · 2 · (3·I/TP + h·H)), experts' workspace and image encoder added",
        _FIT,
    ),
    "non_torch": ("by release, device class and whether ranks talk to each other", _FIT),
    "cuda_graph": ("first graph + layers × captured sizes, experts added; charged from vLLM 0.21 on", _FIT),
    "other_processes": ("as stated; lies in the share not requested", "the deployment's other_memory"),
    "at_start": ("other processes + CUDA context + NCCL", "free memory at start in logs of vLLM 0.19 to 0.28"),
    "available_kv": (
        "requested − weights − activation − non_torch − cuda_graph, or as given",
        "vLLM 0.32 v1/worker/gpu_worker.py determine_available_memory",
    ),
}
