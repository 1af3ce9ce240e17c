"""The catalog as one reads it: what each model holds and caches, and what each device offers and costs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from planner.catalog.models import CatalogModel, models
from planner.catalog.own import Own
from planner.deployment import LATEST, Deployment
from planner.errors import Refusal
from planner.gpu import Gpu, gpu_named
from planner.kv_layout import KvLayout, kv_layout
from planner.model import MLA, Attention, Mixer, ModelSpec, Recurrent
from planner.price import PriceRange, prices
from planner.support import LAST_RELEASE
from planner.units import GB, GIB, TB
from planner.weights import Parameters, parameters

REFERENCE = "H100-SXM"  # the device that "a token" is laid out for, on one rank; others differ where their kernels do


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """What a model holds and caches.

    name         in the catalog, or its Hugging Face id
    spec         its config.json, read
    parameters   by part
    layers       by kind  [layers]
    kv_16_bit    KV cache of one token in bfloat16, None where the reference device cannot  [bytes/token]
    kv_fp8       the same in FP8  [bytes/token]
    state        recurrent state of a request, whatever its length  [bytes]
    published    as its publisher counts it, None where not known  [parameters]
    checkpoints  Hugging Face ids of this shape
    source       where the facts come from
    date         when they were written down
    """

    name: str
    spec: ModelSpec
    parameters: Parameters
    layers: Mapping[str, int]
    kv_16_bit: float | None
    kv_fp8: float | None
    state: int | None
    published: int | None
    checkpoints: tuple[str, ...] = ()
    source: str = ""
    date: str = ""

    @property
    def counted_over_published(self) -> float | None:
        """Our count over the publisher's, which has no padding of the vocabulary  [ratio]."""
        return self.parameters.total / self.published if self.published else None


@cache
def model_rows() -> tuple[ModelRow, ...]:
    """Every shape of the catalog."""
    return tuple(_catalog_row(known) for known in models())


def _catalog_row(known: CatalogModel) -> ModelRow:
    return model_row(
        known.spec, known.name, known.published_parameters, known.checkpoints, source=known.source, date=known.date
    )


def model_row(
    spec: ModelSpec,
    name: str,
    published: int | None = None,
    checkpoints: tuple[str, ...] = (),
    source: str = "",
    date: str = "",
) -> ModelRow:
    """One model, from the catalog or not."""
    wide, narrow = _laid_out(spec, "bfloat16"), _laid_out(spec, "fp8")
    return ModelRow(
        name=name,
        spec=spec,
        parameters=parameters(spec),
        layers=Counter(_kind(mixer) for mixer in spec.mixers),
        kv_16_bit=None if wide is None else wide.bytes_per_token,
        kv_fp8=None if narrow is None else narrow.bytes_per_token,
        state=None if wide is None else wide.state_bytes_per_seq,
        published=published,
        checkpoints=checkpoints,
        source=source,
        date=date,
    )


def _laid_out(spec: ModelSpec, kv_cache_dtype: str) -> KvLayout | None:
    """On the reference device, in the last release that serves the architecture; None where that refuses."""
    version = LAST_RELEASE.get(spec.architecture, LATEST)
    try:
        return kv_layout(
            spec, Deployment(gpu=gpu_named(REFERENCE), kv_cache_dtype=kv_cache_dtype, vllm_version=version)
        )
    except Refusal:
        return None


def _kind(mixer: Mixer) -> str:
    match mixer:
        case Recurrent():
            return mixer.kind
        case MLA():
            return "sparse latent" if mixer.indexer else "latent"
        case Attention():
            if mixer.cross:
                return "cross"
            if mixer.kv_shared:
                return "shared"
            return "windowed" if mixer.sliding_window else "chunked" if mixer.attention_chunk_size else "full"
        case _:
            return "compressed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """What a device offers and costs, in the units of datasheets.

    gpu    the device
    price  what the quotes span, None where nobody quotes it
    own    the team's own device
    """

    gpu: Gpu
    price: PriceRange | None
    own: bool

    @property
    def memory_gib(self) -> tuple[float, float, float]:
        """Least, middle and most  [GiB]."""
        low, middle, high = (
            round(size / GIB, 2) for size in (self.gpu.memory_low, self.gpu.memory, self.gpu.memory_high)
        )
        return low, middle, high

    @property
    def memory_bandwidth_gb_s(self) -> float | None:
        """Peak, None where unknown  [GB/s]."""
        return self.gpu.memory_bandwidth / GB or None

    @property
    def link_gb_s(self) -> float:
        """To another device of the node, one direction  [GB/s]."""
        return self.gpu.link_bandwidth / GB

    @property
    def peak_tflops(self) -> Mapping[str, float]:
        """Dense, by dtype  [TFLOP/s]."""
        return {dtype: peak / TB for dtype, peak in self.gpu.peak_flops.items()}


def device_rows(own: Own) -> tuple[DeviceRow, ...]:
    """Every device, the team's own first, each with its price."""
    return tuple(DeviceRow(gpu=gpu, price=prices(gpu, own.prices), own=gpu in own.gpus) for gpu in own.devices)
