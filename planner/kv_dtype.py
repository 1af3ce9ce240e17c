"""KV cache dtypes: how many bytes a token takes in each, and which device accepts it (vLLM 0.32, config/cache.py)."""

from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import InputError
from planner.model import ModelSpec

ITEM_SIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
SCALE = 4  # one float32 scale a side  [bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvDtype:
    """One value of --kv-cache-dtype.

    name               the flag's value
    head_slot          bytes one head stores for one token, from the sizes of key and value  [bytes]
    latent_slot        bytes of one token of latent attention, None where it is a byte an element  [bytes]
    latent             latent attention accepts it
    plain              ordinary attention accepts it
    quantized          stored in fewer bits than the model computes with
    least_capability   lowest CUDA compute capability as major × 10 + minor, 0 for any  [capability]
    boundary_layers    layers at each end that stay unquantised in models without recurrent layers  [layers]
    since              vLLM release that first took it (its release notes), empty where it always did
    meaning            packing and scales, in words
    """

    name: str
    head_slot: Callable[[int, int], int]
    meaning: str
    latent_slot: int | None = None
    latent: bool = False
    plain: bool = True
    quantized: bool = True
    least_capability: int = 0
    boundary_layers: int = 0
    since: str = ""


def _bytes(size: int) -> Callable[[int, int], int]:
    return lambda key, value: size * (key + value)


def _packed_bits(key_bits: int, value_bits: int) -> Callable[[int, int], int]:
    """TurboQuant: packed keys with a 2-byte norm (none when they are FP8), values with scale and zero, made even."""

    def slot(key: int, value: int) -> int:
        keys = key if key_bits == 8 else -(-key * key_bits // 8) + 2
        size = keys + -(-key * value_bits // 8) + 4
        return size + size % 2

    return slot


def _nvfp4(key: int, value: int) -> int:
    """Two 4-bit values a byte, and an FP8 scale for each 16."""
    return key // 2 + key // 16 + value // 2 + value // 16


def _fp8(name: str, latent: bool, meaning: str) -> KvDtype:
    return KvDtype(name=name, head_slot=_bytes(1), latent=latent, least_capability=80, meaning=meaning)


def _per_head(name: str, since: str, slot: Callable[[int, int], int], meaning: str) -> KvDtype:
    return KvDtype(name=name, head_slot=slot, since=since,
                   meaning=meaning + ", one float32 scale a token, head and side (Triton)")  # fmt: skip


def _turboquant(name: str, key_bits: int, value_bits: int) -> KvDtype:
    keys = "FP8 keys" if key_bits == 8 else f"{key_bits}-bit keys with a norm"
    return KvDtype(name=name, head_slot=_packed_bits(key_bits, value_bits), boundary_layers=2, since="0.20.0",
                   meaning=f"{keys}, {value_bits}-bit values with scale and zero, packed a head")  # fmt: skip


KV_DTYPES = {
    item.name: item
    for item in (
        KvDtype(name="auto", head_slot=_bytes(2), latent=True, quantized=False,
                meaning="the model's dtype, or what its checkpoint declares"),
        KvDtype(name="float16", head_slot=_bytes(2), latent=True, quantized=False, meaning="2 bytes an element"),
        KvDtype(name="bfloat16", head_slot=_bytes(2), latent=True, quantized=False, meaning="2 bytes an element"),
        _fp8("fp8", True, "1 byte an element (E4M3), scales a tensor"),
        _fp8("fp8_e4m3", True, "1 byte an element, scales a tensor"),
        _fp8("fp8_e5m2", False, "1 byte an element, no scales"),
        _fp8("fp8_inc", False, "1 byte an element, Intel Gaudi"),
        KvDtype(name="fp8_ds_mla", head_slot=_bytes(1), latent=True, plain=False, latent_slot=656,
                least_capability=90, meaning="512 FP8 latents, 4 float32 scales, 64 bfloat16 rotary elements"),
        KvDtype(name="nvfp4_ds_mla", head_slot=_bytes(1), latent=True, plain=False, latent_slot=352,
                least_capability=100, meaning="4-bit latents with FP8 scales, FP8 rotary elements"),
        _turboquant("turboquant_k8v4", 8, 4),
        _turboquant("turboquant_4bit_nc", 4, 4),
        _turboquant("turboquant_k3v4_nc", 3, 4),
        _turboquant("turboquant_3bit_nc", 3, 3),
        _per_head("int8_per_token_head", "0.20.0", lambda key, value: key + value + 2 * SCALE, "1 byte an element"),
        _per_head("fp8_per_token_head", "0.20.0", lambda key, value: key + value + 2 * SCALE, "1 byte an element"),
        _per_head("int4_per_token_head", "0.25.0", lambda key, value: key // 2 + value // 2 + 2 * SCALE,
                  "2 elements a byte"),
        KvDtype(name="nvfp4", head_slot=_nvfp4, least_capability=80, since="0.21.0",
                meaning="2 elements a byte and an FP8 scale for each 16"),
        KvDtype(name="nvfp4_4over6", head_slot=_nvfp4, least_capability=100, since="0.21.0",
                meaning="as nvfp4, the better of two scales for each 16"),
    )
}  # fmt: skip


def kv_dtype(name: str) -> KvDtype:
    """The dtype of this name; raises InputError naming all that exist.

    >>> kv_dtype("int8_per_token_head").head_slot(128, 128), kv_dtype("turboquant_3bit_nc").head_slot(128, 128)
    (264, 102)
    """
    found = KV_DTYPES.get(name)
    if found is None:
        raise InputError("kv_cache_dtype", name, "one of " + ", ".join(KV_DTYPES))
    return found


def declared_kv_dtype(model: ModelSpec) -> str | None:
    """The KV dtype that a quantised checkpoint asks for when the flag is auto, or None.

    ModelOpt states kv_cache_quant_algo or kv_cache_scheme (vLLM 0.32 torch_utils.get_kv_cache_quant_algo_string),
    llm-compressor kv_cache_scheme (attention.py).
    """
    quantization = model.quantization_config
    inner = quantization.get("quantization", quantization)
    inner = inner if isinstance(inner, dict) else quantization
    method = str(quantization.get("quant_method") or "").lower()
    producer = quantization.get("producer")
    by_modelopt = method.startswith("modelopt") or (isinstance(producer, dict) and producer.get("name") == "modelopt")
    scheme = inner.get("kv_cache_scheme") or quantization.get("kv_cache_scheme")
    if not by_modelopt:
        return "fp8" if scheme and "compressed" in method else None
    algorithm = scheme or inner.get("kv_cache_quant_algo") or quantization.get("kv_cache_quant_algo")
    if isinstance(algorithm, dict):
        bits = algorithm.get("num_bits") if algorithm.get("type") == "float" else None
        if bits == 8 and algorithm.get("dynamic") is False:
            return "fp8_e4m3"
        return "nvfp4" if bits == 4 else None
    return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(str(algorithm).lower())
