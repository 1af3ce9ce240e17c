"""The model that a row of measurements names, in the weight dtype that the row or the name states."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from planner.catalog.models import model_named, models
from planner.errors import InputError
from planner.model import ModelSpec

_Recipe = Mapping[str, Any]

# Experts in NVFP4 leave attention as it was (NVIDIA's checkpoints, 2026).
_NVFP4_EXPERTS: _Recipe = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                     "exclude_modules": ["lm_head", "*self_attn*", "*mlp.gate", "*shared_experts*"]},
}  # fmt: skip
_BNB: _Recipe = {"quant_method": "bitsandbytes", "load_in_4bit": True}
_MXFP4: _Recipe = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {"0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "group",
                                                               "group_size": 32}}},
    "ignore": ["lm_head"],
}  # fmt: skip
_INT8: _Recipe = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                            "input_activations": {"num_bits": 8, "type": "int", "strategy": "token"}}},
    "ignore": ["lm_head"],
}  # fmt: skip
# Words of a weight dtype, the first that match -> words that checkpoints of that dtype have in their names, and a
# recipe where the catalog has no such checkpoint of the model.
_DTYPES: tuple[tuple[str, str, _Recipe], ...] = (
    (r"bnb-?4|nf4|(bnb|bitsandbytes).*4-?bit", r"bnb-4bit|bitsandbytes", _BNB),
    (r"mxfp4", r"mxfp4", _MXFP4),
    (r"fp4", r"fp4", _NVFP4_EXPERTS),
    (r"awq", r"awq", {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}),
    (r"w8a16|gptq.*8", r"gptq-int8|w8a16", {"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True}),
    (r"int4|w4a16|gptq", r"gptq-int4|w4a16|int4", {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}),
    (r"fp8|float8|e4m3", r"fp8", {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    (r"int8|w8a8", r"w8a8", _INT8),
)
_UNKNOWN = re.compile(r"w4a(fp)?8|gguf|exl\d|(?<![a-z])q\d")  # formats with no recipe here, whatever else is said
_SIXTEEN = re.compile(r"(bf16|fp16|b?float16|half|auto|none|nan)\b")
_SUFFIX = re.compile(
    r"([-_. ]((nv|mx)?fp4|fp8|int[48]|awq|gptq|bnb|[48]bit|w[48]a\d+|dynamic|block|marlin|quantized|v\d))+$", re.I
)


def model_in(name: str, weight_dtype: str) -> ModelSpec:
    """The catalog's model in a weight dtype: as it is published, or else its nearest recipe.

    A name that is not in the catalog is taken for the model it was quantised from: the owner and the dtype at its end
    are dropped. Raises InputError for a model or a dtype that is not known.

    >>> model_in("TheBloke/Llama-2-70B-AWQ", "").name, model_in("nvidia/Qwen3-14B-FP4", "nvfp4").name
    ('TheBloke/Llama-2-70B-Chat-AWQ', 'nvidia/Qwen3-14B-NVFP4')
    """
    words = weight_dtype.strip().lower()
    try:
        model = model_named(name)
    except InputError as unknown:
        last = name.rpartition("/")[2]
        base = _SUFFIX.sub("", last)
        try:
            model = model_named(base)
        except InputError:
            raise unknown from None
        if not words or words in ("nan", "none", "auto"):
            words = last[len(base) :].lower()
    if not words:
        return model
    named = () if _UNKNOWN.search(words) else (row for row in _DTYPES if re.search(row[0], words))
    found = next(iter(named), None)
    if found is not None:
        return _in_dtype(model, found[1], found[2])
    if _SIXTEEN.match(words):
        return model
    raise InputError("weight_dtype", weight_dtype or words, "bf16, fp16, fp8, nvfp4, mxfp4, awq, gptq, int8, bnb-4bit")


def _in_dtype(model: ModelSpec, word: str, recipe: _Recipe) -> ModelSpec:
    if re.search(word, _own_dtype(model)):
        return model
    published = next((each for each in _checkpoints(model.name) if re.search(word, each.lower())), None)
    return model_named(published) if published else replace(model, quantization_config=recipe)


def _own_dtype(model: ModelSpec) -> str:
    """The dtype a checkpoint comes in, as a word of its config.

    >>> _own_dtype(model_named("openai/gpt-oss-120b")), _own_dtype(model_named("moonshotai/Kimi-K2.5"))
    ('mxfp4', 'int4')
    """
    config = str(dict(model.quantization_config)).lower()
    if "'num_bits': 4" in config or "'bits': 4" in config:
        return "awq" if "awq" in config else "int4"
    return next((word for word in ("mxfp4", "nvfp4", "fp8", "w8a8", "bitsandbytes") if word in config), "")


@cache
def _checkpoints(name: str) -> tuple[str, ...]:
    """Every checkpoint of the shape that this one has."""
    return next((known.checkpoints for known in models() if name in known.checkpoints), ())
