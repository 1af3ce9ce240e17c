"""Which attention kernels serve a model on a device, as far as block sizes and refusals depend on it (vLLM 0.32)."""

from dataclasses import dataclass

from planner.deployment import Deployment
from planner.errors import Refusal
from planner.gpu import AMX
from planner.kv_dtype import kv_dtype
from planner.model import MLA, Attention, CompressedAttention, ModelSpec

FLASHINFER_HEADS = (64, 128, 256, 512)
PREFIX_LM = ("bagel", "gemma3", "molmo2", "moondream3", "paligemma")
WITH_SINKS = ("gpt_oss", "mimo_v2", "mimo_v2_flash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The attention kernels chosen.

    name              vLLM's name for them
    block_size        tokens a KV block holds unless the flag says otherwise  [tokens]
    block_multiple    what a block size must be a multiple of  [tokens]
    kv_cache_dtype    what the kernels make of the requested dtype
    """

    name: str
    block_size: int
    block_multiple: int
    kv_cache_dtype: str


def attention_backend(model: ModelSpec, deployment: Deployment, requested: str) -> Backend:
    """The kernels vLLM 0.32 picks, for a KV dtype that is no longer `auto` by checkpoint.

    Source: vllm/platforms/cuda.py (_get_backend_priorities) and each backend's own limits; platforms/cpu.py.
    Raises Refusal where none accepts the model, device and dtype together.
    """
    mixers = model.mixers
    sparse = any(isinstance(m, MLA) and m.indexer for m in mixers)
    compressed = any(isinstance(m, CompressedAttention) for m in mixers)
    latent = compressed or any(isinstance(m, MLA) for m in mixers)
    if deployment.gpu.is_cpu:
        return _cpu(requested, latent, compressed, deployment.gpu.architecture == AMX)
    major, minor = deployment.gpu.compute_capability or (9, 0)
    dtype = kv_dtype(requested)
    if latent and not dtype.latent:
        raise Refusal(f"No latent-attention kernel reads a {requested} KV cache; take auto or fp8.")
    if not latent and not dtype.plain and any(isinstance(m, Attention) for m in mixers):
        raise Refusal(f"{requested} is a format of latent attention only; this model caches ordinary keys and values.")
    if dtype.least_capability > major * 10 + minor:
        raise Refusal(
            f"{requested} needs compute capability {dtype.least_capability / 10:.1f}; {deployment.gpu.name} has "
            f"{major}.{minor}."
        )
    if compressed:
        return Backend(name="FLASHMLA_SPARSE_DSV4", block_size=256, block_multiple=256, kv_cache_dtype="fp8_ds_mla")
    if sparse:
        return _sparse_latent(model, deployment, requested, major)
    if latent:
        return _latent(model, deployment, requested, major, minor)
    return _plain(model, deployment, requested, major, minor)


def _cpu(requested: str, latent: bool, compressed: bool, amx: bool) -> Backend:
    """Blocks of 128 tokens, 16 for latent attention without AMX, 256 for DeepSeek-V4 (platforms/cpu.py)."""
    if requested not in ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head"):
        raise Refusal(f"The CPU backend does not store a {requested} KV cache; take auto, fp8 or fp8_e5m2.")
    if compressed:
        return Backend(name="CPU_DSV4", block_size=256, block_multiple=256, kv_cache_dtype="fp8_ds_mla")
    if latent and not amx:
        return Backend(name="CPU_MLA", block_size=16, block_multiple=16, kv_cache_dtype=requested)
    return Backend(name="CPU_ATTN", block_size=128, block_multiple=32, kv_cache_dtype=requested)


def _triton(name: str, deployment: Deployment, requested: str, major: int, minor: int) -> Backend:
    if requested.startswith("fp8") and (major, minor) < (8, 9):
        raise Refusal(
            f"An FP8 KV cache needs native FP8 (compute capability 8.9) in the {name} kernels that this model gets on "
            f"{deployment.gpu.name} ({major}.{minor}); take --kv-cache-dtype bfloat16."
        )
    return Backend(name=name, block_size=16, block_multiple=16, kv_cache_dtype=requested)


def _latent(model: ModelSpec, deployment: Deployment, requested: str, major: int, minor: int) -> Backend:
    """MLA: FlashAttention on Hopper (FlashMLA for FP8), FlashInfer on Blackwell, Triton elsewhere."""
    quantized = kv_dtype(requested).quantized
    wanted = deployment.block_size
    if major == 9 and not quantized:
        return Backend(name="FLASH_ATTN_MLA", block_size=16, block_multiple=16, kv_cache_dtype=requested)
    if major == 9 and (wanted is None or wanted % 64 == 0):
        return Backend(name="FLASHMLA", block_size=64, block_multiple=64, kv_cache_dtype=requested)
    if major == 10 and (wanted is None or wanted % 32 == 0):
        nope = next(m.qk_nope_head_dim for m in model.mixers if isinstance(m, MLA))
        if nope in (64, 128, 192):
            return Backend(name="FLASHINFER_MLA", block_size=32, block_multiple=32, kv_cache_dtype=requested)
        return Backend(name="CUTLASS_MLA", block_size=128, block_multiple=128, kv_cache_dtype=requested)
    return _triton("TRITON_MLA", deployment, requested, major, minor)


def _sparse_latent(model: ModelSpec, deployment: Deployment, requested: str, major: int) -> Backend:
    """MLA with an indexer: Hopper and Blackwell only, blocks of 64 tokens."""
    if major not in (9, 10, 12):
        raise Refusal(
            f"No kernel for sparse latent attention runs on {deployment.gpu.name}: {model.architecture} needs Hopper "
            "or Blackwell."
        )
    if model.architecture == "GlmMoeDsaForCausalLM" and requested == "auto" and major == 10:
        requested = "fp8_e4m3"
    quantized = kv_dtype(requested).quantized
    stored = requested
    nope = next(m.qk_nope_head_dim for m in model.mixers if isinstance(m, MLA) and m.indexer)
    name = "FLASH_ATTN_MLA_SPARSE"
    if major == 12:
        name, stored = "FLASHINFER_MLA_SPARSE_SM120", "fp8_ds_mla"
    elif major == 10 and nope in (128, 192) and requested != "fp8_ds_mla":
        name = "FLASHINFER_MLA_SPARSE"
    elif quantized:
        name, stored = "FLASHMLA_SPARSE", requested if requested == "nvfp4_ds_mla" else "fp8_ds_mla"
    elif major == 10:
        name = "FLASHMLA_SPARSE"
    if requested == "bfloat16":
        stored = "auto"
    return Backend(name=name, block_size=64, block_multiple=64, kv_cache_dtype=stored)


def _plain(model: ModelSpec, deployment: Deployment, requested: str, major: int, minor: int) -> Backend:
    """MHA, GQA and MQA: FlashAttention where it can, FlashInfer first on Blackwell, Triton where both refuse."""
    heads = {m.head_dim for m in model.mixers if isinstance(m, Attention)}
    sinks = model.model_type in WITH_SINKS
    prefix = prefix_lm(model)
    if requested.startswith("turboquant"):
        return Backend(name="TURBOQUANT", block_size=16, block_multiple=16, kv_cache_dtype=requested)
    if requested.endswith("_per_token_head"):
        return Backend(name="TRITON_ATTN", block_size=16, block_multiple=16, kv_cache_dtype=requested)
    if any(isinstance(m, Attention) and m.indexer for m in model.mixers):
        return Backend(name="MINIMAX_M3_SPARSE", block_size=128, block_multiple=128, kv_cache_dtype=requested)
    if prefix:
        if major == 10 and heads <= set(FLASHINFER_HEADS) and 256 in heads:
            return Backend(name="TRITON_FLASHINFER", block_size=64, block_multiple=64, kv_cache_dtype=requested)
        flash = {9: "TRITON_FLASH_ATTN" if heads <= {256, 512} else "TRITON_ATTN", 10: "FLASH_ATTN"}
        name = flash.get(major, "TRITON_ATTN")
        if name == "TRITON_FLASH_ATTN":
            block = _flash_block(heads, requested, major)
            return Backend(name=name, block_size=block, block_multiple=block, kv_cache_dtype=requested)
        return _triton(name, deployment, requested, major, minor)
    if max(heads, default=0) > 256 and len(heads) > 1 and major not in (9, 10, 11):
        return _triton("TRITON_ATTN", deployment, requested, major, minor)
    across = any(isinstance(m, Attention) and m.cross for m in model.mixers)
    flashinfer = heads <= set(FLASHINFER_HEADS) and (not sinks or major == 10) and not across
    if requested.startswith("nvfp4"):
        if not flashinfer or (major != 10 and 64 in heads):
            raise Refusal(f"An NVFP4 KV cache needs FlashInfer, which does not serve head sizes {sorted(heads)} here.")
        return Backend(name="FLASHINFER", block_size=16, block_multiple=16, kv_cache_dtype=requested)
    if major == 10 and flashinfer:
        return Backend(name="FLASHINFER", block_size=16, block_multiple=16, kv_cache_dtype=requested)
    divisible = all(size % 8 == 0 and size <= 512 for size in heads)
    by_flash = requested in ("fp8", "fp8_e4m3") and (major == 9 or (major == 10 and max(heads, default=0) <= 128))
    stored = by_flash or not kv_dtype(requested).quantized
    if divisible and stored and (major, minor) >= (8, 0) and not (sinks and major == 8):
        block = _flash_block(heads, requested, major)
        return Backend(name="FLASH_ATTN", block_size=block, block_multiple=block, kv_cache_dtype=requested)
    if flashinfer:
        return Backend(name="FLASHINFER", block_size=16, block_multiple=16, kv_cache_dtype=requested)
    return _triton("TRITON_ATTN", deployment, requested, major, minor)


def _flash_block(heads: set[int], requested: str, major: int) -> int:
    """16 tokens, but 64 where FlashAttention 4 reads an FP8 cache with heads of 512 on Hopper  [tokens]."""
    return 64 if major == 9 and requested in ("fp8", "fp8_e4m3") and max(heads, default=0) == 512 else 16


def prefix_lm(model: ModelSpec) -> bool:
    """Image tokens see each other in both directions, which only some kernels can do."""
    wrapper = str(model.wrapper.get("model_type"))
    if wrapper.startswith("gemma4"):
        return model.config.get("use_bidirectional_attention") == "vision"
    return bool(model.wrapper.get("is_mm_prefix_lm", wrapper in PREFIX_LM))
