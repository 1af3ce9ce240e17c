"""config.json -> ModelSpec: published configs, abridged to the keys that matter."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.families import model_spec, read_config
from planner.model import MLA, Attention, Mlp, Moe, Recurrent

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def spec(**changes: Any) -> Any:
    return model_spec({**LLAMA, **changes})


def windows(**changes: Any) -> list[int | None]:
    return [mixer.sliding_window for mixer in spec(**changes).mixers]


def test_llama_3_8b_as_published() -> None:
    model = spec()
    assert model.architecture == "LlamaForCausalLM"
    assert model.dtype == "bfloat16"
    assert model.mixers == (
        Attention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128),
    ) * 32  # fmt: skip
    assert model.layers[0].mlp == Mlp(intermediate_size=14336)
    assert model.max_position_embeddings == 8192
    assert model.assumptions == ()


def test_gpt_2_names_and_widths() -> None:
    model = model_spec({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 12, "n_head": 12,
                        "n_embd": 768, "n_positions": 1024, "vocab_size": 50257})  # fmt: skip
    assert model.num_hidden_layers == 12
    assert model.mixers[0].head_dim == 64  # type: ignore[union-attr]
    assert model.layers[0].mlp == Mlp(intermediate_size=3072, gated=False)
    assert model.tie_word_embeddings
    assert model.max_position_embeddings == 1024


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"model_type": "falcon", "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True}, 1),  # 7B
        ({"model_type": "falcon", "num_attention_heads": 128, "hidden_size": 8192, "num_kv_heads": 8,
          "new_decoder_architecture": True}, 8),  # 40B
        ({"model_type": "gpt_bigcode", "num_attention_heads": 48, "hidden_size": 6144, "multi_query": True}, 1),
        ({"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128}, 2),
    ],
)  # fmt: skip
def test_shared_kv_heads(config: dict[str, Any], heads: int) -> None:
    base = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert model_spec({**base, **config}).mixers[0].num_key_value_heads == heads  # type: ignore[union-attr]


def test_patterns_of_windows() -> None:
    assert windows(model_type="gemma2", num_hidden_layers=4, sliding_window=4096) == [4096, None, 4096, None]
    assert windows(model_type="gemma3_text", num_hidden_layers=7, sliding_window=512)[4:] == [512, None, 512]
    assert windows(model_type="cohere2", num_hidden_layers=4, sliding_window=4096) == [4097, 4097, 4097, None]
    assert windows(model_type="gpt_oss", num_hidden_layers=2, sliding_window=128, num_local_experts=4) == [128, None]
    assert windows(model_type="exaone4", num_hidden_layers=4, sliding_window_pattern="LLG", sliding_window=64) == [
        64, 64, None, 64]  # fmt: skip
    assert windows(model_type="mistral", num_hidden_layers=2) == [4096, 4096]  # its config class's default
    assert windows(model_type="mistral", num_hidden_layers=2, sliding_window=None) == [None, None]


def test_layer_types_decide_where_they_are_given() -> None:
    types = ["full_attention", "sliding_attention"]
    assert windows(num_hidden_layers=2, layer_types=types, sliding_window=64) == [None, 64]
    assert windows(model_type="qwen2", num_hidden_layers=2, sliding_window=64) == [None, None]  # not switched on


def test_gemma_3n_shares_the_last_caches() -> None:
    model = spec(model_type="gemma3n_text", num_hidden_layers=35, sliding_window=512, num_kv_shared_layers=15)
    assert sum(mixer.kv_shared for mixer in model.mixers) == 15


def test_deepseek_v3_latents_and_experts() -> None:
    model = spec(model_type="deepseek_v3", num_attention_heads=128, num_hidden_layers=4, q_lora_rank=1536,
                 kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=256,
                 n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048,
                 first_k_dense_replace=3)  # fmt: skip
    assert model.mixers[0] == MLA(num_attention_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
                                  qk_rope_head_dim=64, v_head_dim=128)  # fmt: skip
    assert [type(layer.mlp) for layer in model.layers] == [Mlp, Mlp, Mlp, Moe]
    assert model.layers[3].mlp == Moe(num_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048,
                                      shared_intermediate_size=2048)  # fmt: skip


def test_youtu_is_latent() -> None:
    """vLLM 0.32 serves it by Transformers' class and caches latents wherever kv_lora_rank is there (use_mla)."""
    model = spec(model_type="youtu", num_key_value_heads=32, kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128,
                 qk_rope_head_dim=64, v_head_dim=128)  # fmt: skip
    assert all(isinstance(mixer, MLA) for mixer in model.mixers)
    assert model.assumptions == ()


def test_indexers_shared_between_layers() -> None:
    """max(i − 2 + 1, 0) mod 4 ≠ 0 reuses an earlier choice (vLLM 0.32 models/deepseek_v32/attention.py)."""
    model = spec(model_type="glm_moe_dsa", num_hidden_layers=10, kv_lora_rank=512, index_topk=2048, index_n_heads=32,
                 index_head_dim=128, index_topk_freq=4)  # fmt: skip
    assert [mixer.indexer is not None for mixer in model.mixers] == [
        True, True, False, False, False, True, False, False, False, True]  # fmt: skip


def test_hybrids_place_their_attention() -> None:
    nemotron = spec(model_type="nemotron_h", hybrid_override_pattern="M-M*E", num_hidden_layers=5, n_routed_experts=8,
                    num_experts_per_tok=2, moe_intermediate_size=64)  # fmt: skip
    assert [[type(mixer) for mixer in layer.mixers] for layer in nemotron.layers] == [
        [Recurrent], [], [Recurrent], [Attention], []]  # fmt: skip
    listed = spec(model_type="nemotron_h", layers_block_type=["mamba", "attention"], num_hidden_layers=2)
    assert [type(mixer) for mixer in listed.mixers] == [Recurrent, Attention]
    jamba = spec(model_type="jamba", num_hidden_layers=8)
    assert [isinstance(mixer, Attention) for mixer in jamba.mixers].index(True) == 4
    falcon = spec(model_type="falcon_h1", num_hidden_layers=1)
    assert [type(mixer) for mixer in falcon.mixers] == [Recurrent, Attention]


def test_a_wrapper_is_read_through() -> None:
    model = model_spec({"architectures": ["Some"], "model_type": "wrapper", "dtype": "float16", "text_config": LLAMA})
    assert (model.model_type, model.dtype, model.architecture) == ("llama", "float16", "Some")


def test_lengths_follow_vllm() -> None:
    """vLLM 0.32 config/model.py: linear and dynamic factors multiply, YaRN, LongRoPE and Llama 3 do not."""
    assert spec(rope_scaling={"type": "linear", "factor": 2.0}).max_position_embeddings == 16384
    assert spec(rope_scaling={"type": "yarn", "factor": 4.0}).max_position_embeddings == 8192
    assert spec(rope_scaling={"rope_type": "llama3", "factor": 8.0}).max_position_embeddings == 8192
    assert spec(model_max_length=131072).max_position_embeddings == 131072
    assert spec(max_position_embeddings=None).max_position_embeddings == 2048


def test_an_unknown_family_says_what_was_assumed() -> None:
    model = spec(model_type="brand_new")
    assert "brand_new" in model.assumptions[0]
    assert "vLLM may not serve LlamaForCausalLM" in model.assumptions[0]
    assert model.mixers == spec().mixers


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": "32"}, "num_attention_heads"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers"),
        ({"hidden_size": float("inf")}, "hidden_size"),
        ({"intermediate_size": []}, "intermediate_size"),
        ({"intermediate_size": [0] * 32}, "intermediate_size"),
        ({"model_type": []}, "model_type"),
        ({"text_config": [1]}, "text_config"),
        ({"rope_scaling": "x"}, "rope_scaling"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
    ],
)
def test_what_is_malformed_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        spec(**changes)
    assert error.value.field == field


def test_a_folder_a_file_and_modelopt_beside(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_config(tmp_path) == read_config(str(tmp_path / "config.json")) == LLAMA
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert read_config(tmp_path)["quantization_config"]["quantization"]["quant_algo"] == "FP8"


@pytest.mark.parametrize("text", [None, "no json", "[]", b"\xff\xfe", "[" * 200_000])
def test_an_unreadable_config_names_its_path(tmp_path: Path, text: str | bytes | None) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_config(file)
