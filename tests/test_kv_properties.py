"""Whatever the config: no crash, bytes grow with what they should grow with, and the pool is never exceeded."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.deployment import Deployment
from planner.errors import InputError, Refusal
from planner.families import FAMILIES, model_spec
from planner.gpu import gpu_named
from planner.kv_dtype import KV_DTYPES
from planner.kv_layout import kv_layout

GPUS = tuple(gpu_named(name) for name in ("h100", "a100", "b200", "l4", "cpu"))
settings.register_profile("planner", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("planner")

small = st.integers(1, 8)
shapes = st.fixed_dictionaries({
    "hidden_size": st.sampled_from([64, 128, 1024, 4096]),
    "num_attention_heads": st.sampled_from([1, 4, 8, 32]),
    "num_key_value_heads": st.sampled_from([1, 2, 4, 8]),
    "num_hidden_layers": st.integers(1, 24),
    "intermediate_size": st.sampled_from([128, 11008]),
    "vocab_size": st.sampled_from([512, 128256]),
    "max_position_embeddings": st.sampled_from([2048, 131072]),
})  # fmt: skip
deployments = st.builds(
    Deployment,
    gpu=st.sampled_from(GPUS),
    tensor_parallel_size=st.sampled_from([1, 2, 4]),
    pipeline_parallel_size=st.sampled_from([1, 2]),
    kv_cache_dtype=st.sampled_from(sorted(KV_DTYPES)),
    enable_prefix_caching=st.booleans(),
    max_num_batched_tokens=st.sampled_from([None, 2048, 8192]),
    num_speculative_tokens=st.sampled_from([0, 0, 3]),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@given(shape=shapes, family=st.sampled_from(sorted(FAMILIES)), deployment=deployments, extra=st.booleans())
@settings(max_examples=2000)
def test_every_family_plans_or_says_why_not(
    shape: dict[str, Any], family: str, deployment: Deployment, extra: bool
) -> None:
    config = {**shape, "model_type": family, "architectures": ["Any"]}
    if extra:
        config |= {"sliding_window": 1024, "num_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 512,
                   "hybrid_override_pattern": "M*-E", "swa_num_key_value_heads": 2}  # fmt: skip
    try:
        layout = kv_layout(model_spec(config), deployment)
    except (InputError, Refusal):
        return
    available = 7 * 2**30
    blocks = layout.num_blocks(available)
    assert 0 <= blocks * layout.bytes_per_block <= available
    assert 0 <= layout.padding_waste < 1
    lengths = [1, 100, 2048, 8192, 100_000]
    needed = [layout.blocks_per_request(length) for length in lengths]
    assert needed == sorted(needed)
    longest = layout.longest_max_model_len(available)
    assert longest == 0 or layout.request_bytes(longest) + layout.bytes_per_block <= available
    tokens = layout.kv_cache_size_tokens(blocks, 2048)
    assert tokens <= layout.max_concurrency(blocks, 2048) * 2048 + 1 or not layout.groups


@given(
    key=st.sampled_from(["num_hidden_layers", "hidden_size", "layer_types", "sliding_window", "num_key_value_heads",
                         "model_type", "text_config", "rope_scaling", "block_configs", "linear_attn_config",
                         "quantization_config", "architectures", "attn_config", "mlp_only_layers"]),
    value=anything,
    family=st.sampled_from(sorted(FAMILIES)),
)  # fmt: skip
@settings(max_examples=200)
def test_a_malformed_config_raises_input_error_only(key: str, value: Any, family: str) -> None:
    config = {"model_type": family, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
              "intermediate_size": 64, "vocab_size": 64, key: value}  # fmt: skip
    try:
        model = model_spec(config)
        kv_layout(model, Deployment(gpu=GPUS[0]))
    except (InputError, Refusal):
        pass


@given(shape=shapes, more=small)
def test_bytes_grow_with_layers_and_heads(shape: dict[str, Any], more: int) -> None:
    config = {**shape, "num_attention_heads": 64, "head_dim": 64, "num_key_value_heads": 1, "model_type": "llama"}
    deployment = Deployment(gpu=GPUS[0])
    base = kv_layout(model_spec(config), deployment)
    deeper = kv_layout(model_spec({**config, "num_hidden_layers": shape["num_hidden_layers"] + more}), deployment)
    wider = kv_layout(model_spec({**config, "num_key_value_heads": 2 ** (more % 6 + 1)}), deployment)
    assert deeper.bytes_per_token > base.bytes_per_token
    assert wider.bytes_per_token > base.bytes_per_token
    assert deeper.num_blocks(2**33) <= base.num_blocks(2**33)
