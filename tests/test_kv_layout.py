"""The layout's arithmetic by hand, its refusals, and the published figures it must meet."""

from typing import Any

import pytest

from planner.__main__ import main
from planner.deployment import Deployment
from planner.errors import Refusal
from planner.families import model_spec
from planner.gpu import gpu_named
from planner.kv_layout import KvLayout, kv_layout, kv_report
from planner.model import ModelSpec
from planner.units import GIB

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
MLA_KEYS = {"model_type": "deepseek_v3", "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "num_hidden_layers": 61}  # fmt: skip
JAMBA = {"architectures": ["JambaForCausalLM"], "model_type": "jamba", "num_hidden_layers": 32, "mamba_d_state": 16,
         "mamba_d_conv": 4, "mamba_expand": 2}  # fmt: skip


def model(**changes: Any) -> ModelSpec:
    return model_spec({**BASE, **changes})


def layout(gpu: str = "h100", deploy: dict[str, Any] | None = None, **changes: Any) -> KvLayout:
    return kv_layout(model(**changes), Deployment(gpu=gpu_named(gpu), **(deploy or {})))


def test_llama_3_8b_caches_128_kib_a_token() -> None:
    """2 · 32 layers · 8 heads · 128 · 2 B."""
    found = layout()
    assert found.bytes_per_token == 131_072
    assert found.bytes_per_block == 16 * 131_072
    assert found.request_bytes(8192) == GIB
    assert found.num_blocks(10 * GIB) == 5120


def test_deepseek_v3_caches_70272_bytes_on_every_rank() -> None:
    """61 layers · (512 + 64) · 2 B, and tensor parallelism does not divide it."""
    assert layout(**MLA_KEYS).bytes_per_token == 70_272
    assert layout(deploy={"tensor_parallel_size": 8}, **MLA_KEYS).bytes_per_token == 70_272


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    assert layout(deploy={"tensor_parallel_size": 8}).bytes_per_token == 131_072 // 8
    assert layout(deploy={"tensor_parallel_size": 16}).bytes_per_token == 131_072 // 8


def test_a_window_costs_one_block_more_and_what_is_in_flight() -> None:
    """⌈min(4096 − 1 + 2 · 8192, L) / 16⌉ + 1."""
    found = layout(model_type="mistral", sliding_window=4096, max_position_embeddings=32768)
    assert found.blocks_per_request(8192) == 512 + 1
    assert found.blocks_per_request(32768) == 1280 + 1
    assert found.bytes_per_token_growing == 0


def test_gemma_3_27b_is_charged_for_eight_layers_it_has_not() -> None:
    """62 layers: 52 windowed and 10 full make 7 groups of 10 (vLLM's log: "Add 8 padding layers")."""
    found = layout(model_type="gemma3_text", num_hidden_layers=62, sliding_window=1024, num_key_value_heads=16,
                   head_dim=128)  # fmt: skip
    assert len(found.groups) == 7
    assert sum(group.padding_layers for group in found.groups) == 8
    assert found.padding_waste == pytest.approx(8 / 70)


def test_jamba_mini_pays_546_mb_for_a_32k_request() -> None:
    """424 blocks of 1,310,720 B: 410 of attention, 2 in each of 7 groups of states."""
    found = layout(max_position_embeddings=262144, **JAMBA)
    assert (found.block_size, found.bytes_per_block) == (80, 1_310_720)
    assert found.blocks_per_request(32768) == 424
    assert found.state_bytes_per_seq == 28 * (3 * 8192 + 8192 * 16) * 2


def test_prefix_caching_off_keeps_one_state() -> None:
    assert layout(deploy={"enable_prefix_caching": False}, **JAMBA).blocks_per_request(8192) == 103 + 7


def test_both_meanings_of_kv_cache_size() -> None:
    old = layout(deploy={"vllm_version": "0.19.0"}, model_type="gemma2", num_hidden_layers=46, sliding_window=4096,
                 num_key_value_heads=16, head_dim=128)  # fmt: skip
    new = layout(model_type="gemma2", num_hidden_layers=46, sliding_window=4096, num_key_value_heads=16, head_dim=128)
    assert old.kv_cache_size_tokens(7334, 8192) == 7334 // 2 * 16 == 58_672  # gemma-2-27b's log, vLLM 0.19.0
    assert old.max_concurrency(7334, 8192) == pytest.approx(7.16, abs=0.005)  # the same log
    assert new.kv_cache_size_tokens(7334, 8192) == int(7334 / 1025 * 8192)


def test_in_flight_tokens_count_once_before_0_26() -> None:
    """gemma-4-E4B's log, vLLM 0.22.1: 4.1 GiB, 2,048 tokens a step, 6.85 requests of 32,768."""
    found = layout(
        deploy={"vllm_version": "0.22.1", "max_num_batched_tokens": 2048}, model_type="gemma4_text",
        num_hidden_layers=42, num_kv_shared_layers=18, head_dim=256, num_attention_heads=8, num_key_value_heads=2,
        sliding_window=512, hidden_size=2560,
    )  # fmt: skip
    assert found.max_concurrency(found.num_blocks(int(4.1 * GIB)), 32768) == pytest.approx(6.85, abs=0.01)


def test_context_parallel_ranks_share_the_tokens() -> None:
    found = layout(deploy={"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, **MLA_KEYS)
    assert found.blocks_per_request(8192) == 8192 // 8 // 16


def test_the_widest_stage_of_a_pipeline_decides() -> None:
    """7 layers over 3 stages: 2, 3, 2 (vLLM distributed/utils.get_pp_indices)."""
    one = layout(num_hidden_layers=1).bytes_per_block
    assert layout(deploy={"pipeline_parallel_size": 3}, num_hidden_layers=7).bytes_per_block == 3 * one


def test_draft_layers_are_cached_too() -> None:
    drafted = layout(deploy={"num_speculative_tokens": 1}, num_nextn_predict_layers=1, **MLA_KEYS)
    assert drafted.bytes_per_token == 62 * 576 * 2


def test_turboquant_leaves_two_layers_at_each_end() -> None:
    """28 · 8 heads · 102 B and 4 · 8 · 512 B; blocks of 96 so that a packed page holds 16 full tokens."""
    found = layout(deploy={"kv_cache_dtype": "turboquant_3bit_nc"})
    assert found.bytes_per_token == 8 * (28 * 102 + 4 * 512)
    assert found.block_size == 96


def test_cpu_blocks_hold_128_tokens() -> None:
    assert layout(gpu="cpu").block_size == 128
    assert layout(gpu="cpu", deploy={"kv_cache_dtype": "fp8"}).bytes_per_token == 65_536


def test_block_size_follows_the_latent_kernels() -> None:
    assert layout(**MLA_KEYS).block_size == 16
    assert layout(deploy={"kv_cache_dtype": "fp8"}, **MLA_KEYS).block_size == 64
    assert layout(gpu="b200", **MLA_KEYS).block_size == 32


@pytest.mark.parametrize(
    ("gpu", "deploy", "changes", "reason"),
    [
        ("h100", {"tensor_parallel_size": 5}, {}, "32 attention heads"),
        ("h100", {"tensor_parallel_size": 4}, {"num_attention_heads": 36, "num_key_value_heads": 6}, "6 KV heads"),
        ("a100", {"kv_cache_dtype": "fp8"}, MLA_KEYS, "bfloat16"),
        ("a100", {"kv_cache_dtype": "fp8"}, {"head_dim": 96}, "native FP8"),
        ("a100", {}, {**MLA_KEYS, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}, "Hopper"),
        ("h100", {"kv_cache_dtype": "nvfp4"}, MLA_KEYS, "latent"),
        ("h100", {"kv_cache_dtype": "fp8_ds_mla"}, {}, "latent attention only"),
        ("h100", {"block_size": 24}, {}, "multiple of 16"),
        ("h100", {}, {"architectures": ["MPTForCausalLM"]}, r"0\.28\.0"),
        ("h100", {}, {"architectures": ["BartForConditionalGeneration"]}, "bart-plugin"),
        ("h100", {}, {"architectures": ["Nemotron3_5AsrForRNNT"]}, "nemotron-asr-plugin"),
        ("h100", {}, {"architectures": ["CodeGenForCausalLM"], "model_type": "codegen"}, "not served"),
        ("h100", {}, {"architectures": ["FireRedLIDForConditionalGeneration"]}, r"0\.28\.0"),
        ("h100", {}, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes"),
        ("h100", {}, {"quantization_config": {"quant_method": "hqq"}}, "hqq"),
        ("h100", {}, {"quantization_config": {"quant_method": "fbgemm_fp8"}}, "allow-deprecated-quantization"),
        ("h100", {}, {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
                                              "desc_act": True}}, "desc_act"),
        ("h100", {"max_model_len": 8193}, {}, "8,192 tokens, the longest"),
        ("h100", {"pipeline_parallel_size": 40}, {}, "stages"),
        ("h100", {"tensor_parallel_size": 8, "decode_context_parallel_size": 2}, {}, "replicas"),
        ("cpu", {"kv_cache_dtype": "nvfp4"}, {}, "CPU"),
    ],
)  # fmt: skip
def test_what_vllm_refuses(gpu: str, deploy: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        layout(gpu, deploy, **changes)


def test_an_architecture_that_left_is_served_by_its_last_release() -> None:
    assert layout(deploy={"vllm_version": "0.28.0"}, architectures=["MPTForCausalLM"]).block_size == 16


@pytest.mark.parametrize("name", ["Dots1ForCausalLM", "PersimmonForCausalLM", "ErnieForTokenClassification"])
def test_what_left_and_starts_by_transformers(name: str) -> None:
    """vLLM 0.32's ModelConfig resolves these to Transformers' own classes."""
    assert layout(architectures=[name]).bytes_per_token == 131_072


@pytest.mark.parametrize("method", [
    {"quant_method": "bitsandbytes", "load_in_4bit": True},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
])  # fmt: skip
def test_older_releases_take_what_0_32_refuses(method: dict[str, Any]) -> None:
    assert layout(deploy={"vllm_version": "0.31.0"}, quantization_config=method).bytes_per_token == 131_072


def test_gptq_in_one_group_has_no_order_to_refuse() -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True}
    assert layout(quantization_config=config).bytes_per_token == 131_072


def test_a_longer_request_than_the_model_is_refused_whatever_was_laid_out_before() -> None:
    one, gpu = model(), gpu_named("h100")
    assert kv_layout(one, Deployment(gpu=gpu, max_model_len=8192)).max_model_len == 8192
    with pytest.raises(Refusal, match="VLLM_ALLOW_LONG_MAX_MODEL_LEN"):
        kv_layout(one, Deployment(gpu=gpu, max_model_len=99_999_999))
    silent = model(max_position_embeddings=None)  # then vLLM takes any length
    assert kv_layout(silent, Deployment(gpu=gpu, max_model_len=32_768)).groups


@pytest.mark.parametrize(("more", "words"), [({}, "has no auto_map"), ({"auto_map": {}}, "which auto_map names")])
def test_a_type_of_its_own_code_needs_trust(more: dict[str, Any], words: str) -> None:
    notes = layout(architectures=["OrionForCausalLM"], model_type="orion", **more).assumptions
    assert any("--trust-remote-code" in note and words in note for note in notes)


@pytest.mark.parametrize("gib", ["nan", "1e300", "-1"])
def test_no_amount_of_memory(gib: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "llama-3-8b", "--available-kv-gib", gib]) == 2
    assert capsys.readouterr().err.startswith("planner: --available-kv-gib")


def test_the_longest_request_leaves_the_null_block_free() -> None:
    found = layout(max_position_embeddings=131072)
    longest = found.longest_max_model_len(10 * GIB)
    assert longest == (5120 - 1) * 16
    assert found.fits(10 * GIB, longest)
    assert not found.fits(10 * GIB, longest + 1)


def test_the_report_names_what_the_engine_logs() -> None:
    report = kv_report(model(), Deployment(gpu=gpu_named("h100")), 40 * GIB)
    assert (report["num_gpu_blocks"], report["kv_cache_size_tokens"]) == (20480, 327680)
    assert report["max_concurrency"] == 40.0
    assert report["resolved_kv_cache_dtype"] == "auto"
    with pytest.raises(Refusal, match="longest that fits is 4,080"):
        kv_report(model(), Deployment(gpu=gpu_named("h100")), GIB // 2)


def test_a_layout_is_remembered_and_never_mixed_up() -> None:
    one, deployment = model(), Deployment(gpu=gpu_named("h100"))
    assert kv_layout(one, deployment) is kv_layout(one, deployment)
    assert kv_layout(model(num_hidden_layers=16), deployment).bytes_per_token == 65_536
