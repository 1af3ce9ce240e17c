"""The catalog's facts: every row reads, every name finds it, and shapes have what their publishers say."""

import subprocess
import sys

import pytest

from planner.catalog.models import CatalogModel, knows, model_named, models
from planner.errors import InputError
from planner.model import MLA, Attention, Moe, Recurrent
from planner.weights import parameters

IDS = [checkpoint for model in models() for checkpoint in model.checkpoints]


@pytest.mark.parametrize("name", [*(model.name for model in models()), *IDS])
def test_every_name_is_a_model(name: str) -> None:
    spec = model_named(name)
    assert spec.num_hidden_layers > 0
    assert spec.name in IDS
    assert not [line for line in spec.assumptions if "reader" in line]


def test_every_row_says_where_it_is_from() -> None:
    assert all(model.source and model.date for model in models())
    assert len({identifier.lower() for identifier in IDS}) == len(IDS) >= 100


def test_names_are_found_whatever_the_case_and_by_their_last_part() -> None:
    spec = model_named("meta-llama/Meta-Llama-3-8B")
    assert model_named("LLAMA-3-8B") is spec
    assert model_named(" meta-llama-3-8b ") is spec
    assert model_named("redhatai/Llama-3.3-70B-Instruct-fp8-dynamic").quantization_config["quant_method"] == (
        "compressed-tensors"
    )
    assert knows("qwen/qwen3-32b")
    assert not knows("qwen/qwen3-33b")


def test_a_repository_name_of_two_owners_is_the_publishers_or_one_config() -> None:
    same = model_named("Meta-Llama-3.1-8B-Instruct-quantized.w8a8")
    assert same.layers == model_named("llama-3.1-8b").layers
    assert model_named("Qwen3-8B-FP8").name == "Qwen/Qwen3-8B-FP8"
    assert model_named("nvidia/Qwen3-8B-FP8").name == "nvidia/Qwen3-8B-FP8"


def test_an_unknown_name_brings_the_nearest() -> None:
    with pytest.raises(InputError, match="llama-3-8b"):
        model_named("llama3-8b")
    with pytest.raises(InputError, match="Qwen/Qwen3-32B"):
        model_named("Qwen/Qwen3-32")


# The counts are those of the publishers' safetensors headers; vLLM pads the vocabulary to a multiple of 64.

COUNTED = [model for model in models() if model.published_parameters]
ENCODERS = ("vision_config", "audio_config", "encoder_layers")


@pytest.mark.parametrize("model", COUNTED, ids=lambda model: model.name)
def test_a_shape_has_the_parameters_its_publisher_counts(model: CatalogModel) -> None:
    assert model.published_parameters is not None
    spec = model.spec
    counted = parameters(spec)
    if any(part in spec.wrapper for part in ENCODERS):
        assert counted.total - counted.encoder < model.published_parameters
    else:
        padding = -spec.vocab_size % 64 * spec.hidden_size * (1 if spec.tie_word_embeddings else 2)
        assert counted.total - padding == pytest.approx(model.published_parameters, abs=spec.vocab_size)


# Heads, sizes and layers below are read off the publishers' model cards and technical reports.


def test_grouped_and_latent_attention_have_the_published_heads() -> None:
    llama = model_named("llama-3.1-70b").mixers
    assert llama == (Attention(num_attention_heads=64, num_key_value_heads=8, head_dim=128, v_head_dim=128),) * 80
    deepseek = model_named("deepseek-ai/DeepSeek-R1")
    latent = deepseek.mixers[0]
    assert isinstance(latent, MLA)
    assert (latent.kv_lora_rank, latent.qk_rope_head_dim, len(deepseek.layers)) == (512, 64, 61)
    experts = deepseek.layers[3].mlp
    assert isinstance(experts, Moe)
    assert (experts.num_experts, experts.num_experts_per_tok) == (256, 8)


def test_windows_and_hybrids_have_the_published_layers() -> None:
    windows = [mixer.sliding_window for mixer in model_named("gemma-3-27b").mixers if isinstance(mixer, Attention)]
    assert (windows.count(1024), windows.count(None)) == (52, 10)
    hybrid = model_named("Qwen/Qwen3.6-35B-A3B")
    assert sum(isinstance(mixer, Recurrent) for mixer in hybrid.mixers) == 30
    oss = model_named("openai/gpt-oss-120b")
    assert [mixer.sliding_window for mixer in oss.mixers[:2] if isinstance(mixer, Attention)] == [128, None]
    nemo, first = model_named("mistral-nemo-12b"), model_named("mistral-7b-v0.1")
    assert isinstance(nemo.mixers[0], Attention)
    assert isinstance(first.mixers[0], Attention)
    assert (nemo.mixers[0].sliding_window, first.mixers[0].sliding_window) == (None, 4096)


def test_a_checkpoint_has_its_own_quantisation_and_length() -> None:
    assert model_named("Qwen/Qwen3-32B").quantization_config == {}
    assert model_named("Qwen/Qwen3-32B-FP8").quantization_config["weight_block_size"] == [128, 128]
    skipped = model_named("Qwen/Qwen3-235B-A22B-FP8").quantization_config["modules_to_not_convert"]
    assert skipped[0] == "lm_head"
    assert skipped[-1] == "model.layers.93.mlp.gate"
    assert model_named("Qwen/Qwen3-235B-A22B-Instruct-2507").max_position_embeddings == 262_144
    assert model_named("moonshotai/Kimi-K2.5").quantization_config["quant_method"] == "compressed-tensors"


def test_one_model_is_found_in_15_ms_of_processor_time() -> None:
    code = (
        "import time, planner.catalog.models as c, planner.families\n"
        "start = time.process_time(); c.model_named('qwen3-32b'); print(time.process_time() - start)"
    )
    seconds = min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3))
    assert seconds < 0.015
