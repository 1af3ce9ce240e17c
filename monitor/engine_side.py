"""vLLM's own answer to how it lays out a KV cache. Run by the engine's interpreter, never imported by the dashboard.

Questions come as one JSON list on stdin, answers leave as one JSON object a line on stdout, in the same order:
    {"config": {…}, "flags": {…}, "available": bytes, "tp": 1, "pp": 1, "dcp": 1}
Models are built without memory for their weights (torch's meta device), and this one process plays every rank.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

# Set before vLLM is imported. It asks nobody for anything and says only what is wrong; the CPU backend wants a pool;
# and a length is the question's business, not that of a config whose rotary scaling was left out.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
}


def main() -> None:
    """Answer every question; what vLLM refuses is an answer too."""
    questions, answers = json.load(sys.stdin), sys.stdout
    os.environ.update(ENVIRONMENT)
    with redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        _prepare(f"file://{folder}/ranks")
        engine = _engine()
        for question in questions:
            try:
                answer = _answer(question)
            except Exception as refusal:  # whatever vLLM raises is why it would not start
                answer = {"refusal": " ".join(f"{type(refusal).__name__}: {refusal}".split())[:600]}
            print(json.dumps(engine | answer), file=answers, flush=True)


class _StandIn:
    """Imports of image libraries that the CPU build goes without: no layout depends on them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("torchvision") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MagicMock(__spec__=spec, __path__=[], __name__=spec.name, __version__="0")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def _prepare(meeting: str) -> None:
    """A process group of this process alone; models are inspected here and not in a process each."""
    sys.meta_path.append(_StandIn())
    import torch
    import vllm.model_executor.models.registry as registry
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    registry._LazyRegisteredModel.inspect_model_cls = lambda lazy: registry._ModelInfo.from_model_cls(
        lazy.load_model_cls()
    )
    read = torch.Tensor.item
    torch.Tensor.item = lambda tensor: 1 if tensor.is_meta else read(tensor)  # a weight's value is never a size
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(
            world_size=1, rank=0, local_rank=0, distributed_init_method=meeting, backend="gloo"
        )
        ensure_model_parallel_initialized(1, 1)


def _engine() -> dict[str, str]:
    import vllm
    from vllm.platforms import current_platform

    device = "cpu" if current_platform.is_cpu() else current_platform.get_device_name()
    return {"vllm_version": vllm.__version__, "device": device}


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    flags = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, **question["flags"]}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(question["config"]))
        config = EngineArgs(model=folder, **flags).create_engine_config()
        config.parallel_config.tensor_parallel_size = question["tp"]
        config.parallel_config.pipeline_parallel_size = question["pp"]
        config.parallel_config.decode_context_parallel_size = question["dcp"]
        config.model_config.verify_with_parallel_config(config.parallel_config)
        with set_current_vllm_config(config):
            stages = []
            for stage in range(question["pp"]):
                with _playing(question, stage):
                    stages.append(_stage(config))
            return _layout(config, stages, question["available"])


@contextmanager
def _playing(question: Mapping[str, Any], stage: int) -> Iterator[None]:
    """This process as the first rank of a stage, as far as building a model asks."""
    from vllm.distributed.parallel_state import get_dcp_group, get_pp_group, get_tp_group

    ranks = list(range(question["pp"]))
    roles = (
        (get_tp_group(), {"world_size": question["tp"]}),
        (get_dcp_group(), {"world_size": question["dcp"]}),
        (get_pp_group(), {"world_size": len(ranks), "ranks": ranks, "rank": stage, "rank_in_group": stage}),
    )
    before = [{name: getattr(group, name) for name in role} for group, role in roles]
    try:
        for group, role in roles:
            vars(group).update(role)
        yield
    finally:
        for (group, _), role in zip(roles, before, strict=True):
            vars(group).update(role)


def _stage(config: Any) -> tuple[dict[str, Any], int]:
    """The cache of each layer of the stage being played, as a worker collects it, and the stage's parameters."""
    import torch
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.kv_cache_interface import AttentionSpec
    from vllm.v1.worker.utils import customize_attention_spec

    config.compilation_config.static_forward_context.clear()
    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
        model = initialize_model(vllm_config=config)
    current_platform.update_block_size_for_backend(config)
    layers = get_layers_from_vllm_config(config, AttentionLayerBase)
    specs = {}
    for name, layer in layers.items():
        is_owner = getattr(layer, "kv_sharing_target_layer_name", None) is None
        if is_owner and (spec := layer.get_kv_cache_spec(config)) is not None:
            is_attention = isinstance(spec, AttentionSpec)
            specs[name] = customize_attention_spec(layer.get_attn_backend(), spec) if is_attention else spec
    layouts = get_supported_kv_cache_layouts([layer.get_attn_backend() for layer in layers.values()])
    resolve_kv_cache_layout(config, [[layout.name for layout in layouts]], specs.values())
    return specs, sum(weight.numel() for weight in model.parameters())


def _layout(config: Any, stages: list[tuple[dict[str, Any], int]], available: int) -> dict[str, Any]:
    """What the scheduler makes of the stages' caches, with this much memory on every rank."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    register_all_kvcache_specs(config)
    specs = [dict(stage) for stage, _ in stages]
    caches = kv_cache_utils.get_kv_cache_configs(config, specs, [available] * len(stages))
    sizes = [kv_cache_utils._pool_bytes_per_block(config, cache.kv_cache_groups) for cache in caches]
    widest = caches[sizes.index(max(sizes))]
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(config, widest)
    members = zip(*(cache.kv_cache_groups for cache in caches), strict=True)
    return {
        "parameters": sum(parameters for _, parameters in stages),
        "groups": [
            _group(group, sum(len(share.layer_names) for share in shares))
            for group, shares in zip(widest.kv_cache_groups, members, strict=True)
        ],
        "bytes_per_block": max(sizes),
        "num_gpu_blocks": widest.num_blocks,
        "kv_cache_size_tokens": tokens,
        "max_concurrency": concurrency,
    }


_KINDS = {
    "FullAttentionSpec": "full",
    "SinkFullAttentionSpec": "full",
    "RSWASpec": "full",
    "MLAAttentionSpec": "latent",
    "SlidingWindowSpec": "sliding",
    "SlidingWindowMLASpec": "sliding_latent",
    "ChunkedLocalAttentionSpec": "chunked",
    "MambaSpec": "state",
    "CrossAttentionSpec": "cross",
}


def _group(group: Any, layers: int) -> dict[str, Any]:
    """A group in the words of planner.kv_layout.KvGroup; a state's block holds no tokens."""
    spec = group.kv_cache_spec
    each = getattr(spec, "kv_cache_specs", None)  # layers that differ in size but grow alike
    one = next(iter(each.values())) if each else spec
    kind = type(one).__name__
    return {
        "kind": _KINDS.get(kind, kind),
        "layers": layers,
        "block_size": 0 if kind == "MambaSpec" else one.block_size,
        "page_size_bytes": spec.page_size_bytes if each else spec.page_size_bytes * len(group.layer_names),
    }


if __name__ == "__main__":
    main()
