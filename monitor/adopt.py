"""A running server -> the deployment and load that it really has: the plan to begin from when there is none."""

from collections.abc import Callable
from typing import Any

from monitor import metrics
from monitor.causes import max_model_len
from monitor.snapshot import EngineSnapshot
from monitor.traffic import Traffic
from monitor.versions import VersionRange
from planner.deployment import LATEST, Deployment, version_tuple
from planner.errors import InputError
from planner.gpu import Gpu
from planner.hub import model_from
from planner.model import ModelSpec
from planner.plan import Plan, plan
from planner.units import GIB
from planner.workload import Workload


def adopted(
    engine: EngineSnapshot,
    gpu: Gpu,
    *,
    versions: VersionRange | None = None,
    load: Traffic | None = None,
    model: str = "",
    tensor_parallel_size: int = 1,
    find: Callable[[str], ModelSpec] = model_from,
) -> Plan:
    """The plan of a server, from what it says of itself. A server says neither its device nor its ranks: give them.

    model  its name in the catalog, a folder or Hugging Face id, where it is not what the server calls it

    Raises InputError where the model is not known under that name.
    """
    name = model or engine.model_name or ""
    if not name:
        raise InputError("model", engine.model_name, "a name: this server does not say which model it serves")
    asked = load.workload if load else Workload()
    return plan(find(name), deployment(engine, gpu, versions, tensor_parallel_size), asked)


def deployment(
    engine: EngineSnapshot, gpu: Gpu, versions: VersionRange | None = None, tensor_parallel_size: int = 1
) -> Deployment:
    """The flags that a server reports; what it does not report is left to the engine's default.

    The block size is left out where the release chooses the same by itself.
    """
    flags: dict[str, Any] = {
        "gpu": gpu,
        "vllm_version": _version(versions),
        "tensor_parallel_size": tensor_parallel_size,
        "kv_cache_dtype": engine.kv_cache_dtype or "auto",
        "block_size": engine.block_size,
        "max_model_len": max_model_len(engine),
        "num_gpu_blocks_override": _whole(engine, metrics.BLOCKS_OVERRIDE),
        "enable_prefix_caching": engine.values.get(metrics.PREFIX_CACHING.key) is not False,
        "kv_offloading_size": engine.number(metrics.OFFLOADING_SIZE) or None,
    }
    pool = _whole(engine, metrics.KV_MEMORY)
    if gpu.is_cpu and pool:
        flags["cpu_kvcache_space"] = pool / GIB
    elif pool:
        flags["kv_cache_memory_bytes"] = pool
    else:
        flags["gpu_memory_utilization"] = engine.number(metrics.UTILIZATION)
    return Deployment(**flags)


def _version(versions: VersionRange | None) -> str:
    """The newest release it can be, as far as the planner knows releases."""
    if versions is None or version_tuple(versions.newest) > version_tuple(LATEST):
        return LATEST
    return versions.newest


def _whole(engine: EngineSnapshot, metric: metrics.Metric) -> int | None:
    value = engine.number(metric)
    return round(value) if value else None
