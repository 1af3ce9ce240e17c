"""Deployment: the vLLM flags of one server, what a release makes of those left out, and the command that starts it."""

import re
import shlex
from dataclasses import dataclass, fields
from functools import cache

from planner.errors import InputError, whole_number
from planner.gpu import Gpu
from planner.units import GIB

LATEST = "0.32.0"
LARGEST_GIB = 1_000_000  # a petabyte: more is a typing error


@cache
def version_tuple(version: str) -> tuple[int, int, int]:
    """The numeric part of a vLLM version.

    >>> version_tuple("0.19.1rc1.dev16+g7a1eb8ac2"), version_tuple("v0.21")
    ((0, 19, 1), (0, 21, 0))
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if not match:
        raise InputError("vllm_version", version, "a release such as 0.32.0")
    return int(match[1]), int(match[2]), int(match[3] or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One vLLM server on one kind of device. A field named like a vLLM flag is that flag; None leaves it to the engine.

    gpu                           the device
    vllm_version                  release that will serve
    tensor_parallel_size          ranks that share each layer  [GPUs]
    pipeline_parallel_size        stages that share the layers  [stages]
    data_parallel_size            replicas behind one server  [replicas]
    enable_expert_parallel        experts are spread over the ranks instead of cut
    decode_context_parallel_size  ranks that share the tokens of a request  [GPUs]
    dtype                         of unquantised weights, auto for the config's
    kv_cache_dtype                auto, fp8, int8_per_token_head, …
    kv_cache_dtype_skip_layers    layers left unquantised: their numbers, or "sliding_window" for all windowed ones
    block_size                    tokens a KV block holds  [tokens]
    max_model_len                 longest request accepted  [tokens]
    gpu_memory_utilization        share of the device the engine may use  [ratio]
    max_num_seqs                  requests in one step at most  [requests]
    max_num_batched_tokens        tokens in one step at most  [tokens]
    enforce_eager                 no CUDA graphs
    enable_prefix_caching         keep blocks of finished requests for reuse
    kv_offloading_size            host memory for blocks that leave the GPU, all ranks together  [GiB]
    num_speculative_tokens        drafted a step, 0 for none  [tokens]
    kv_cache_memory_bytes         KV pool given outright, replaces the budget  [bytes]
    num_gpu_blocks_override       block count given outright  [blocks]
    cpu_kvcache_space             VLLM_CPU_KVCACHE_SPACE, on the CPU backend only  [GiB]
    other_memory                  held by other processes on each device  [bytes]
    """

    gpu: Gpu
    vllm_version: str = LATEST
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    decode_context_parallel_size: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    block_size: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    kv_offloading_size: float | None = None
    num_speculative_tokens: int = 0
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    cpu_kvcache_space: float | None = None
    other_memory: int = 0

    def __post_init__(self) -> None:
        version_tuple(self.vllm_version)
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
                     "decode_context_parallel_size", "block_size", "max_model_len", "max_num_seqs",
                     "max_num_batched_tokens", "num_gpu_blocks_override"):  # fmt: skip
            whole_number(name, getattr(self, name))
        whole_number("kv_cache_memory_bytes", self.kv_cache_memory_bytes, most=2**50)
        whole_number("num_speculative_tokens", self.num_speculative_tokens, least=0)
        utilization = self.gpu_memory_utilization
        if utilization is not None and not 0 < utilization <= 1:
            raise InputError("gpu_memory_utilization", utilization, "a ratio above 0 and at most 1")
        for name in ("cpu_kvcache_space", "kv_offloading_size"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= LARGEST_GIB:
                raise InputError(name, value, f"a number of GiB above 0 and at most {LARGEST_GIB:,}")

    @property
    def version(self) -> tuple[int, int, int]:
        """vllm_version as numbers."""
        return version_tuple(self.vllm_version)

    @property
    def gpus(self) -> int:
        """Devices in all  [GPUs]."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def utilization(self) -> float:
        """gpu_memory_utilization, or the version's default: 0.90 up to 0.19, 0.92 from 0.20 on  [ratio]."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        return 0.92 if self.version >= (0, 20, 0) else 0.90

    @property
    def step_tokens(self) -> int:
        """max_num_batched_tokens, or the API server's default for this device  [tokens].

        16,384 from 160 GiB, 8,192 from 70 GiB unless an A100, else 2,048 (vLLM 0.32 engine/arg_utils).
        """
        return self.max_num_batched_tokens or self._by_class(16_384, 8_192, 2_048)

    @property
    def step_seqs(self) -> int:
        """max_num_seqs, or the API server's default: 1,024 on large devices, else 256, at most the tokens  [requests].

        A request takes at least one token of a step (vLLM 0.32 engine/arg_utils).
        """
        return self.max_num_seqs or min(self._by_class(1_024, 1_024, 256), self.step_tokens)

    def _by_class(self, huge: int, large: int, other: int) -> int:
        if self.gpu.memory >= 160 * GIB:
            return huge
        return large if self.gpu.memory >= 70 * GIB and "A100" not in self.gpu.name else other

    def serve_command(self, model: str) -> str:
        """The command that starts this deployment: every flag that differs from the engine's default.

        Raises nothing; a value that vLLM would refuse is the plan's verdict, not this function's.
        """
        flags = []
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _NOT_FLAGS or value == item.default:
                continue
            flag = "--" + item.name.replace("_", "-")
            if isinstance(value, bool):
                flags.append(flag if value else flag.replace("--", "--no-", 1))
            elif isinstance(value, tuple):
                flags.append(" ".join([flag, *value]))
            else:
                flags.append(f"{flag} {shlex.quote(str(value))}")
        env = f"VLLM_CPU_KVCACHE_SPACE={self.cpu_kvcache_space:g} " if self.cpu_kvcache_space else ""
        return env + " ".join(["vllm serve", shlex.quote(model), *flags])


_NOT_FLAGS = frozenset({"gpu", "vllm_version", "num_speculative_tokens", "cpu_kvcache_space", "other_memory"})
