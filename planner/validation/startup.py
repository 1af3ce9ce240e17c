"""What a published vLLM start-up log says, as inputs of the planner: the model, the device and the flags."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from planner.catalog import FOLDER
from planner.catalog.models import model_named
from planner.deployment import LATEST, Deployment
from planner.errors import InputError
from planner.gpu import Gpu, gpu_named, gpus
from planner.model import ModelSpec
from planner.units import GIB

Row = Mapping[str, Any]

_V0_SEQS = 256  # max_num_seqs of the V0 engine on every device (vLLM 0.2 to 0.8, engine/arg_utils)
_LAST_V0 = "0.7.3"  # the last release whose default engine was V0; later ones keep its memory behaviour
_V0_LEAST_TOKENS = 2_048
_V0_CHUNKED_FROM = 32_768  # longer models ran with chunked prefill by default (0.5 to 0.8)
_SAME_DEVICE = 0.025  # a printed total names a device when it is this close to the device's own

# Release dates of vLLM, for a nightly build that is only dated (GitHub releases, read 2026-11-29).
_RELEASED = {
    "2026-01": "0.14",
    "2026-03": "0.17",
    "2026-04": "0.19",
    "2026-05": "0.21",
    "2026-06": "0.22",
    "2026-07": "0.24",
    "2026-08": "0.27",
    "2026-09": "0.29",
    "2026-10": "0.31",
    "2026-11": LATEST,
}

# Words of a checkpoint's name or of --quantization -> the recipe of the catalog that such checkpoints follow.
_RECIPES = (
    ("(nv)?fp4", "modelopt-nvfp4"),
    ("w8a8", "ct-w8a8"),
    ("fp8", "fp8-static"),
    ("gptq", "gptq"),
    ("awq", "awq"),
    ("auto_?round|int4|inc", "gptq"),
)
_QUANTIZED_NAME = re.compile(
    r"[-_ ]*\b(fp8(-dynamic)?|(nv)?fp4(-v\d)?|int4|int6|awq|gptq|auto_?round|mixed|w4a16|w8a8|bnb|4bit|unsloth|"
    r"resharded)\b",
    re.I,
)


def is_v0(row: Row) -> bool:
    """The log is of the engine before V1."""
    return row.get("engine") == "V0"


def version_of(row: Row) -> str:
    """The release a log comes from: as printed, as dated by its notes or its build; LATEST where nothing says.

    >>> version_of({"vllm_version": "0.24-era"}), version_of({"notes": "kv_cache_utils.py:1229 (0.11.x)"})
    ('0.24', '0.11')
    >>> version_of({"vllm_version": "nightly 1acd67a7 (2026-05-10)"})
    '0.21'
    """
    if is_v0(row):
        return _LAST_V0
    for text, pattern in (
        (row.get("vllm_version"), r"\b0\.(?!1\.dev)\d+(?:\.\d+)?"),
        (row.get("notes"), r"(?<=[(v])0\.\d{1,2}(?:\.\d+)?(?=[.x)-]|-era)|\b0\.\d{1,2}\.\d+(?=-era)"),
    ):
        if found := re.search(pattern, text or ""):
            return found[0]
    if dated := re.search(r"20\d\d-\d\d", f"{row.get('vllm_version')} {row.get('source')} {row.get('notes')}"):
        return next((version for month, version in reversed(_RELEASED.items()) if month <= dated[0]), "0.11")
    return LATEST


def model_of(row: Row) -> ModelSpec:
    """The catalog's model of the log, with the quantisation the log states.

    Raises InputError when the catalog has neither the checkpoint nor the model it was quantised from.
    """
    name = row.get("model")
    if not name:
        raise InputError("model", name, "a model of the catalog")
    name = re.split(r" [(+]|, ", name)[0].strip()
    try:
        model = model_named(name)
    except InputError:
        model = model_named(_QUANTIZED_NAME.sub("", name.rpartition("/")[2]).strip(" -"))
    else:
        if model.quantization_config:
            return model
    words = f"{row.get('quantization') or ''} {name}".lower()
    if "bitsandbytes" in words or "bnb" in words:
        return replace(model, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    recipe = next((recipe for word, recipe in _RECIPES if re.search(rf"(?<![a-z])({word})", words)), None)
    return replace(model, quantization_config=_recipes()[recipe]) if recipe else model


@cache
def _recipes() -> dict[str, dict[str, Any]]:
    """The catalog's recipes, without the KV dtype that only some checkpoints of the kind declare."""
    recipes = json.loads((FOLDER / "models.quantization.json").read_text(encoding="utf-8"))
    for recipe in recipes.values():
        recipe.get("quantization", {}).pop("kv_cache_quant_algo", None)
    return recipes


def gpu_of(row: Row) -> Gpu:
    """The device of the log, with the total the log printed where it printed one.

    Raises InputError when the log names neither a device of the catalog nor a total.
    """
    name, total = row.get("gpu_model"), row.get("gpu_mem_gib")
    device = _named(name) if name else None
    if device and total:
        return _with_total(device, total)
    if device:
        return device
    if not total:
        raise InputError("gpu_model", name, "a device of the catalog, or a printed total")
    near = min(gpus(), key=lambda gpu: (gpu.vendor != "nvidia", abs(gpu.memory / GIB - total)))
    if not name and total == int(total):
        return near  # a whole number of GiB is the marketing size
    if abs(near.memory / GIB / total - 1) < _SAME_DEVICE:
        return _with_total(near, total)
    return _with_total(gpu_named("RTX 3090"), total)


def _with_total(device: Gpu, gib: float) -> Gpu:
    size = int(gib * GIB)
    return replace(device, memory=size, memory_low=size, memory_high=size)


def _named(text: str) -> Gpu | None:
    """The catalog's device in a log's free words ("2x NVIDIA RTX 3090 (NVLink rig)")."""
    bare = re.sub(r"\(.*|^\d+x | x\d+.*| class$| MIG .*|~.*", "", text).strip()
    for words in (text.replace("(", "").replace(")", ""), bare, *(bare.rsplit(" ", cut)[0] for cut in (1, 2))):
        try:
            return gpu_named(words.replace("A100 80GB", "A100").replace("A100 40GB", "A100-40GB"))
        except InputError:
            continue
    return None


def deployment_of(row: Row) -> Deployment:
    """The flags of the log; what it does not state is left to the release's defaults.

    Raises InputError for a log without a device or without a utilisation.
    """
    utilization, note = row.get("gpu_memory_utilization"), row.get("gpu_memory_utilization_note") or ""
    if utilization is None and "default" not in note:
        raise InputError("gpu_memory_utilization", utilization, "a number, or a note that it was the default")
    tokens, seqs = row.get("max_num_batched_tokens"), row.get("max_num_seqs")
    if is_v0(row):
        length = row.get("max_model_len") or _V0_LEAST_TOKENS
        tokens = tokens or (_V0_LEAST_TOKENS if length > _V0_CHUNKED_FROM else max(length, _V0_LEAST_TOKENS))
        seqs = seqs or _V0_SEQS
    pooled = row.get("kv_bytes") if "kv_cache_memory_bytes" in (row.get("other_args") or "") else None
    return Deployment(
        gpu=gpu_of(row),
        vllm_version=version_of(row),
        tensor_parallel_size=row.get("tensor_parallel_size") or 1,
        pipeline_parallel_size=row.get("pipeline_parallel_size") or 1,
        data_parallel_size=row.get("data_parallel_size") or 1,
        enable_expert_parallel="enable_expert_parallel" in (row.get("other_args") or "").replace("-", "_"),
        kv_cache_dtype=(row.get("kv_cache_dtype") or "auto").split(" ")[0],
        block_size=row.get("block_size") if (row.get("block_size") or 999) <= 256 else None,
        max_model_len=row.get("max_model_len"),
        gpu_memory_utilization=utilization,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        enforce_eager=bool(row.get("enforce_eager")),
        enable_prefix_caching="'enable_prefix_caching': False" not in (row.get("other_args") or ""),
        num_speculative_tokens=_drafted(row.get("speculative_config")),
        kv_cache_memory_bytes=pooled,
    )


def is_stated(row: Row) -> bool:
    """The log leaves nothing open that decides memory: release, flags, checkpoint and device are all its own words."""
    printed = re.match(r"v?0\.\d+\.\d+(?!.*era)", row.get("vllm_version") or "")
    try:
        model_named(re.split(r" [(+]|, ", row.get("model") or "")[0].strip())
    except InputError:
        return False
    return bool(printed and row.get("max_model_len") and not row.get("speculative_config"))


def _drafted(config: str | None) -> int:
    """Tokens drafted a step; 0 without speculation, 1 where the number is not stated  [tokens].

    >>> _drafted('{"method":"mtp","num_speculative_tokens":3}'), _drafted("MTP n=4"), _drafted("mtp 1"), _drafted(None)
    (3, 4, 1, 0)
    """
    if not config:
        return 0
    found = re.search(r"num_speculative_tokens\D+(\d+)|n=(\d+)|\bmtp (\d+)", config)
    return int(next(filter(None, found.groups()))) if found else 1
