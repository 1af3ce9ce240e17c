"""Gpu: one accelerator as its datasheet describes it, and the catalog of them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator (dense peaks, no sparsity).

    name                the datasheet's product name
    vendor              nvidia, amd, intel, google, huawei or cpu
    architecture        ampere, hopper, blackwell, cdna3, …
    memory              what the driver reports as total, the middle of what was seen  [bytes]
    memory_low          the least that was seen  [bytes]
    memory_high         the most that was seen  [bytes]
    memory_bandwidth    peak  [bytes/s]
    peak_flops          matrix peak by dtype: bfloat16, fp8, int8, fp4  [FLOP/s]
    link_bandwidth      to the other GPUs of a node, one direction, a GPU  [bytes/s]
    link                NVLink4, PCIe4, …
    compute_capability  CUDA's (major, minor), None where there is none
    tdp                 board power  [W]
    source              where the numbers come from, and when read
    """

    name: str
    vendor: str
    architecture: str
    memory: int
    memory_low: int
    memory_high: int
    memory_bandwidth: float
    peak_flops: Mapping[str, float]
    link_bandwidth: float
    link: str
    compute_capability: tuple[int, int] | None
    tdp: float | None
    source: str

    @property
    def is_cpu(self) -> bool:
        """Runs vLLM's CPU backend, whose KV pool is VLLM_CPU_KVCACHE_SPACE and not a share of memory."""
        return self.vendor == "cpu"
