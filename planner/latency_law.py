"""The fitted constants of planner.latency, and how far predictions were off on data they were not fitted on.

scripts/fit_latency.py fits them on public measurements of vLLM and writes latency_constants.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("latency_constants.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What a roofline does not say: how much of each peak is reached, and what a step costs whatever it does.

    read_sixteen       of memory bandwidth, reading dense 16-bit weights  [ratio]
    read_eight         8-bit  [ratio]
    read_four          4-bit that the device multiplies as they are  [ratio]
    read_packed        4-bit unpacked to 16 bits (AWQ, GPTQ)  [ratio]
    read_experts       routed experts of any dtype  [ratio]
    unpack_rate        ceiling of reading packed matrices, whatever the memory  [bytes/s]
    read_kv_sixteen    of memory bandwidth, reading a 16-bit KV cache  [ratio]
    read_kv_eight      8-bit where attention computes in it  [ratio]
    read_kv_packed     8-bit where it is converted first  [ratio]
    dense_sixteen      of the peak, dense products in 16 bits  [ratio]
    dense_eight        in 8 bits  [ratio]
    dense_four         in 4 bits  [ratio]
    expert_sixteen     of the peak, experts' products in 16 bits  [ratio]
    expert_eight       in 8 bits  [ratio]
    expert_four        in 4 bits  [ratio]
    unpack_flops       ceiling of products of packed experts, whatever the device  [FLOP/s]
    prefill_attention  of the 16-bit peak, attention of a prompt  [ratio]
    sharpness          exponent by which reading and arithmetic overlap: 1 adds them, ∞ takes the larger  [ratio]
    layer              kernels of a layer that do nothing but run  [s]
    moe_layer          more where it has experts: routing, sorting  [s]
    latent_layer       more where attention is multi-head latent  [s]
    rounding           more where a layer rounds its activations to 8 or 4 bits  [s]
    expert_rounding    more where its experts' are rounded to 8 bits  [s]
    aging              more of that for each release before 0.19, in which those kernels matured  [ratio]
    eager_layer        the host's time to launch a layer's kernels one by one (enforce_eager)  [s]
    prefill_layer      of a step that reads prompt tokens, beyond CUDA graphs  [s]
    step               scheduling and sampling of a step  [s]
    waiting            more where the next step is not scheduled while one runs (before 0.14)  [s]
    sequence           bookkeeping of a sequence and step  [s]
    message            start of one all-reduce on NVLink or the like  [s]
    message_pcie       on PCIe  [s]
    link               of the link's bandwidth, used by all-reduce  [ratio]
    link_pcie          on PCIe  [ratio]
    first              to the first token beyond steps and prefill, at constant concurrency  [s]
    first_open         the same for requests that arrive at random  [s]
    first_steps        steps to the first token beyond the prompt's own  [steps]
    queue              prompts ahead of one's own grow as queue × (streams − 1)^crowding  [ratio]
    crowding           the exponent of it  [ratio]
    """

    read_sixteen: float
    read_eight: float
    read_four: float
    read_packed: float
    read_experts: float
    unpack_rate: float
    read_kv_sixteen: float
    read_kv_eight: float
    read_kv_packed: float
    dense_sixteen: float
    dense_eight: float
    dense_four: float
    expert_sixteen: float
    expert_eight: float
    expert_four: float
    unpack_flops: float
    prefill_attention: float
    sharpness: float
    layer: float
    moe_layer: float
    latent_layer: float
    rounding: float
    expert_rounding: float
    aging: float
    eager_layer: float
    prefill_layer: float
    step: float
    waiting: float
    sequence: float
    message: float
    message_pcie: float
    link: float
    link_pcie: float
    first: float
    first_open: float
    first_steps: float
    queue: float
    crowding: float


def _read() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


_FITTED = _read()
FITTED_ON: str = _FITTED["fitted"]
CONSTANTS = Constants(**_FITTED["constants"])
# metric -> kind of case -> the factors on a prediction between which 80 % of observations lay, fitted without the case
SPREAD: Mapping[str, Mapping[str, tuple[float, float]]] = {
    metric: {kind: (low, high) for kind, (low, high) in kinds.items()} for metric, kinds in _FITTED["spread"].items()
}
SEEN_ARCHITECTURES = frozenset(_FITTED["seen_architectures"])
