"""Slot sizes by hand from vLLM 0.32's packing rules (kv_cache_interface.py, triton_attn.py, turboquant/config.py)."""

from typing import Any

import pytest

from planner.errors import InputError
from planner.families import model_spec
from planner.kv_dtype import KV_DTYPES, declared_kv_dtype, kv_dtype

# vLLM 0.32 config/cache.py, CacheDType, without the one that only AMD's kernels read.
CACHE_DTYPES = (
    "auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 turboquant_4bit_nc "
    "turboquant_k3v4_nc turboquant_3bit_nc int4_per_token_head int8_per_token_head fp8_per_token_head nvfp4 "
    "nvfp4_4over6"
)
FP8 = {"num_bits": 8, "type": "float"}


def test_every_dtype_of_the_release_is_there() -> None:
    assert set(KV_DTYPES) == set(CACHE_DTYPES.split())


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("bfloat16", 2 * 256),
        ("fp8", 256),
        ("int8_per_token_head", 256 + 8),
        ("fp8_per_token_head", 256 + 8),
        ("int4_per_token_head", 128 + 8),
        ("nvfp4", 2 * (64 + 8)),
        ("turboquant_k8v4", 128 + 64 + 4),
        ("turboquant_4bit_nc", 64 + 2 + 64 + 4),
        ("turboquant_k3v4_nc", 48 + 2 + 64 + 4),
        ("turboquant_3bit_nc", 48 + 2 + 48 + 4),
    ],
)
def test_one_head_of_128(name: str, slot: int) -> None:
    assert kv_dtype(name).head_slot(128, 128) == slot


def test_packed_latents() -> None:
    assert kv_dtype("fp8_ds_mla").latent_slot == 512 + 4 * 4 + 64 * 2
    assert kv_dtype("nvfp4_ds_mla").latent_slot == 352


def test_an_unknown_dtype_lists_the_known() -> None:
    with pytest.raises(InputError, match="int8_per_token_head"):
        kv_dtype("int3")


@pytest.mark.parametrize(
    ("quantization", "declared"),
    [
        ({}, None),
        ({"quant_method": "fp8"}, None),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"dynamic": False, **FP8}}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": FP8}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, None),
    ],
)
def test_what_a_checkpoint_declares(quantization: dict[str, Any], declared: str | None) -> None:
    model = model_spec({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
                        "intermediate_size": 64, "vocab_size": 64, "quantization_config": quantization})  # fmt: skip
    assert declared_kv_dtype(model) == declared
