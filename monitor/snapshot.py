"""What a server says of each of its engines at one moment, and why the rest is missing.

Missing is never zero: what is not on the page is None, and `missing` says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor import metrics
from monitor.histogram import Histogram
from monitor.metrics import Metric
from monitor.versions import VersionRange

Value = float | int | str | bool | Mapping[str, float] | Histogram


class Spread(NamedTuple):
    """A gauge over the minute or hour that a stored Snapshot stands for.

    low, mean, high  of what was scraped in it  [unit of the gauge]
    """

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """One engine at one moment.

    engine       its data-parallel index as the server labels it; None where there is no such label (V0)
    model_name   as served
    labels       what else tells it apart: Ray's replica, a pod
    values       by the metric table's keys
    missing      reason by key
    spread       of KV usage, running and waiting over a minute or an hour, where only its last page was kept
    """

    engine: str | None
    model_name: str | None
    labels: Mapping[str, str]
    values: Mapping[str, Value]
    missing: Mapping[str, str]
    spread: Mapping[str, Spread] = field(default_factory=dict)

    def number(self, metric: Metric) -> float | None:
        """A gauge, a counter or a configured number; a split one (by reason, by source) as its sum."""
        value = self.values.get(metric.key)
        if isinstance(value, Mapping):
            return sum(value.values())
        return value if isinstance(value, int | float) else None

    def split(self, metric: Metric) -> Mapping[str, float]:
        """A gauge or counter by its label: reason, source, stage, position."""
        value = self.values.get(metric.key)
        return value if isinstance(value, Mapping) else {}

    def histogram(self, metric: Metric) -> Histogram | None:
        value = self.values.get(metric.key)
        return value if isinstance(value, Histogram) else None

    def _whole(self, metric: Metric) -> int | None:
        value = self.number(metric)
        return None if value is None else round(value)

    @property
    def kv_usage(self) -> float | None:
        return self.number(metrics.KV_USAGE)

    @property
    def running(self) -> int | None:
        return self._whole(metrics.RUNNING)

    @property
    def waiting(self) -> int | None:
        return self._whole(metrics.WAITING)

    @property
    def num_gpu_blocks(self) -> int | None:
        """Of this engine alone, the null block among them."""
        return self._whole(metrics.NUM_GPU_BLOCKS)

    @property
    def block_size(self) -> int | None:
        return self._whole(metrics.BLOCK_SIZE)

    @property
    def kv_cache_dtype(self) -> str | None:
        value = self.values.get(metrics.KV_CACHE_DTYPE.key)
        return value if isinstance(value, str) else None

    @property
    def kv_cache_size_tokens(self) -> int | None:
        """What the pool holds, as reported (from 0.24)."""
        return self._whole(metrics.KV_CACHE_TOKENS)

    @property
    def capacity_tokens(self) -> int | None:
        """What the pool holds: as reported, else blocks x block size, which is exact for layers of one kind."""
        if self.kv_cache_size_tokens is None and self.num_gpu_blocks is not None and self.block_size is not None:
            return self.num_gpu_blocks * self.block_size
        return self.kv_cache_size_tokens

    @property
    def _null_blocks(self) -> int:
        """V1 keeps one, V0 none. V0 has neither the `engine` label nor counters of its prefix cache."""
        return int(self.engine is not None or metrics.PREFIX_QUERIES.key in self.values)

    @property
    def usable_blocks(self) -> int | None:
        """What requests can hold: V1 keeps one null block for itself, V0 none."""
        blocks = self.num_gpu_blocks
        return None if blocks is None else blocks - self._null_blocks

    @property
    def used_blocks(self) -> int | None:
        """Blocks held by requests: usage x (blocks - 1). Exact, for the gauge is such a fraction.

        V0 divided by all N blocks, and so did V1 at first, counting its null block as used: a gauge that is a whole
        number of blocks over N, but not over N - 1, is read so.
        """
        usage, blocks = self.kv_usage, self.num_gpu_blocks
        if usage is None or not blocks:
            return None
        over_usable, over_all = usage * (blocks - 1), usage * blocks
        if not _is_whole(over_usable) and _is_whole(over_all):
            return max(0, round(over_all) - self._null_blocks)
        return round(over_usable)

    @property
    def free_blocks(self) -> int | None:
        """Free, or cached and free for the taking."""
        if self.usable_blocks is None or self.used_blocks is None:
            return None
        return max(0, self.usable_blocks - self.used_blocks)

    @property
    def tokens_per_block(self) -> float | None:
        """What a block holds on average: the block size, or less where kinds of layers share the pool."""
        if self.capacity_tokens is None or not self.num_gpu_blocks:
            return None
        return self.capacity_tokens / self.num_gpu_blocks

    @property
    def used_tokens(self) -> int | None:
        """Token slots in the blocks held, filled or not."""
        if self.used_blocks is None or self.tokens_per_block is None:
            return None
        return round(self.used_blocks * self.tokens_per_block)

    @property
    def used_bytes(self) -> int | None:
        """Only where the pool's bytes are reported: set by hand, and not overruled by a number of blocks."""
        memory = self.number(metrics.KV_MEMORY)
        if (
            memory is None
            or self.number(metrics.BLOCKS_OVERRIDE)
            or self.used_blocks is None
            or not self.num_gpu_blocks
        ):
            return None
        return round(memory * self.used_blocks / self.num_gpu_blocks)

    @property
    def block_waste_share(self) -> float | None:
        """Estimate: the share of held slots that hold no token, when each request's last block is half full on average.

        running x (block_size - 1)/2 / (used blocks x block_size). Against known requests on a live 0.32 server
        (November 2026) off by half a point: unique prompts, a shared prefix, preempting. vLLM reports no such number.
        """
        if not self.used_blocks or not self.block_size or self.running is None:
            return None
        return min(1.0, self.running * (self.block_size - 1) / 2 / (self.used_blocks * self.block_size))

    @property
    def concurrency_left(self) -> float | None:
        """Estimate: how many more requests like those running fit in the free blocks  [requests]."""
        if not self.running or not self.used_blocks or self.free_blocks is None:
            return None
        return self.free_blocks / (self.used_blocks / self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One page, read.

    kind            vllm, another engine (sglang, tgi, …) or unknown; only vLLM's metrics are read
    versions        the vLLM releases that can have written it; None when unknown
    engines         one a data-parallel rank or replica, never added together
    server          what the process says once, and what a page does not assign to an engine
    missing         reason by key, over all engines
    notes           what else a reader should know
    at              when it was read, on a clock that never steps back   [s]
    wall            the same, as Unix time, for display                  [s]
    bad_line_count  lines that did not read                              [lines]
    bad_lines       the first of them
    """

    kind: str
    versions: VersionRange | None
    engines: tuple[EngineSnapshot, ...]
    server: Mapping[str, Value]
    missing: Mapping[str, str]
    notes: tuple[str, ...] = ()
    at: float = 0.0
    wall: float | None = None
    bad_line_count: int = 0
    bad_lines: tuple[str, ...] = ()

    @property
    def version_range(self) -> str | None:
        return None if self.versions is None else str(self.versions)


def _is_whole(blocks: float) -> bool:
    """Whether a product of a gauge with 17 digits and a count is a whole number."""
    return abs(blocks - round(blocks)) < 1e-6
