"""Why a quantity is off. No cause is guessed where one can be shown.

For capacity the plan is made again with what the server reports of its settings, one after the other: the setting under
which it comes nearest to what is there is named. Each cause ends with the numbers it rests on.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, log

from monitor import metrics
from monitor.snapshot import EngineSnapshot
from monitor.versions import VersionRange
from planner.deployment import Deployment
from planner.plan import Plan
from planner.units import GIB, memory, share

EXPLAINED = 0.05
"""A difference is explained when no more than this is left of it, as a logarithm  [ratio]."""
WORTH_NAMING = 0.7
"""A setting is named when it leaves no more than this of the difference  [ratio]."""


def of_capacity(
    made: Plan, engine: EngineSnapshot, quantity: str, actual: float, versions: VersionRange | None = None
) -> str:
    """Why the pool holds more or less than planned, by the field of Capacity that is off."""

    def ratio(other: Plan) -> float:
        planned = getattr(other.capacity[0], quantity) if other.capacity else 0
        return actual / planned if planned else inf

    def distance(other: Plan) -> float:
        return abs(log(ratio(other))) if 0 < ratio(other) < inf else inf

    explained, texts = made, []
    while distance(explained) > EXPLAINED:
        found = [(made.on(changed), text) for text, changed in settings(explained.deployment, engine, versions)]
        nearest, text = min(found, key=lambda each: distance(each[0]), default=(explained, ""))
        if distance(nearest) > distance(explained) * WORTH_NAMING:
            break
        explained = nearest
        texts.append(text)
    if texts:
        left = (
            ""
            if distance(explained) <= EXPLAINED
            else f" With that, it is still {share(ratio(explained))} of the plan."
        )
        return " ".join(texts) + left
    if ratio(made) < 1:
        return "less memory was left than planned: another process on the device, or larger activations or CUDA graphs."
    return "more memory was left than planned: a larger device, smaller activations, or another checkpoint."


def of_token_bytes(made: Plan, engine: EngineSnapshot) -> str:
    """Why a token takes other bytes than planned: the KV dtype where that explains it, else it is another model."""
    if engine.kv_cache_dtype != made.deployment.kv_cache_dtype and _dtype_explains(made, engine):
        return f"KV dtype: planned {made.deployment.kv_cache_dtype}, the server runs {engine.kv_cache_dtype}."
    served = engine.model_name or "another"
    return f"another model: planned {made.model.name}, the server serves {served}, whose tokens take other bytes."


def _dtype_explains(made: Plan, engine: EngineSnapshot) -> bool:
    """Whether a token of the planned model takes what the server's do, with the server's KV dtype."""
    pool, tokens = pool_bytes(engine), engine.capacity_tokens
    other = made.on(replace(made.deployment, kv_cache_dtype=engine.kv_cache_dtype or "auto"))
    if other.capacity is None or not pool or not tokens:
        return True  # nothing says otherwise
    each = other.pool_bytes / other.capacity[0].kv_cache_size_tokens
    return abs(pool / tokens / each - 1) <= EXPLAINED


def settings(
    planned: Deployment, engine: EngineSnapshot, versions: VersionRange | None = None
) -> Iterator[tuple[str, Deployment]]:
    """Each setting the server reports that is not the plan's: in words, and the deployment with it."""
    dtype = engine.kv_cache_dtype
    if dtype and dtype != planned.kv_cache_dtype:
        text = f"KV dtype: planned {planned.kv_cache_dtype}, the server runs {dtype}."
        yield text, replace(planned, kv_cache_dtype=dtype)
    override = engine.number(metrics.BLOCKS_OVERRIDE)
    if override and override != planned.num_gpu_blocks_override:
        text = f"block count: the server's is set by hand, --num-gpu-blocks-override {override:.0f}."
        yield text, replace(planned, num_gpu_blocks_override=int(override))
    pool = pool_bytes(engine)
    if pool and pool != _pool(planned):
        text = f"pool size: the server's KV cache is {memory(pool)}."
        yield text, replace(planned, kv_cache_memory_bytes=int(pool), cpu_kvcache_space=None)
    utilization = engine.number(metrics.UTILIZATION)
    if utilization and utilization != planned.utilization and not pool:
        text = f"--gpu-memory-utilization: planned {planned.utilization:g}, the server runs {utilization:g}."
        yield text, replace(planned, gpu_memory_utilization=utilization)
    block = engine.block_size
    if block and block != planned.block_size:
        asked = "" if planned.block_size is None else f"planned {planned.block_size}, "
        yield f"block size: {asked}the server runs {block}.", replace(planned, block_size=block)
    length = max_model_len(engine)
    if length and length != planned.max_model_len:
        text = f"--max-model-len: the server accepts {length:,} tokens."
        yield text, replace(planned, max_model_len=length)
    if versions is not None and not versions.low <= planned.version <= versions.high:
        text = f"version: planned vLLM {planned.vllm_version}, the server is {versions}."
        yield text, replace(planned, vllm_version=versions.newest)


def of_usage(actual: float, planned: float) -> str:
    """Why more or fewer blocks are held than the running requests need."""
    if actual < planned:
        return "running requests share a prefix, or are shorter than those that finished."
    return "running requests are longer than those that finished."


def of_speed(made: Plan, is_slower: bool, evidence: str) -> str:
    """Why a server is slower or faster than the plan at the batch that really ran."""
    if not is_slower:
        return (
            f"faster than planned at this batch ({evidence}): a faster device, speculation, or constants too cautious."
        )
    if made.calibration is not None:
        return f"slower than when it was calibrated, at the same batch ({evidence}): the device is throttled or shared."
    eager = "" if made.deployment.enforce_eager else "eager mode, "
    others = f"{eager}a throttled or shared device, or host time between steps"
    return f"slower than planned at this batch ({evidence}): {others}."


def of_arrivals(actual: float, planned: float, what: str) -> str:
    """Why the batch is not the planned one, when lengths, usage and speed are."""
    seen = f"{actual:.3g} {what}, planned {planned:.3g}"
    if actual < planned:
        return f"the batch is smaller because traffic is low, not because the server is slow: {seen}."
    return f"more traffic than planned: {seen}."


def pool_bytes(engine: EngineSnapshot) -> float | None:
    """The KV pool of a rank, where it was set in bytes and not overruled by a number of blocks  [bytes]."""
    return None if engine.number(metrics.BLOCKS_OVERRIDE) else engine.number(metrics.KV_MEMORY)


def max_model_len(engine: EngineSnapshot) -> int | None:
    """The longest request the server accepts: what its pool holds over how often, both as it reports them  [tokens]."""
    tokens, times = engine.kv_cache_size_tokens, engine.number(metrics.MAX_CONCURRENCY)
    return round(tokens / times) if tokens and times else None


def _pool(planned: Deployment) -> float | None:
    if planned.kv_cache_memory_bytes is not None:
        return planned.kv_cache_memory_bytes
    return None if planned.cpu_kvcache_space is None else planned.cpu_kvcache_space * GIB
