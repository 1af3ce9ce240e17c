"""KV layouts of the catalog against vLLM's own code, asked in its interpreter: groups, pages, blocks and tokens.

One process answers for every model. The engine here is vLLM's CPU build, so both sides lay out for this machine's CPU.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from monitor import engine_check
from monitor.engine import EngineError
from monitor.engine_check import Check, checks
from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.gpu import gpu_named
from planner.model import ModelSpec
from planner.units import GIB
from planner.verdict import Level
from tests.conftest import cannot_run

POOL = 40 * GIB
CASES = {
    "llama-2-7b": {"tensor_parallel_size": 2},  # every head cached
    "llama-3-8b": {},  # 4 query heads a KV head
    "falcon-7b": {},  # one KV head
    "starcoder": {"tensor_parallel_size": 2},  # one KV head, kept by both ranks
    "qwen3-32b": {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8"},
    "mixtral-8x7b": {"tensor_parallel_size": 2},  # experts
    "mistral-7b-v0.1": {},  # a window in every layer
    "gemma-2-9b": {"tensor_parallel_size": 2},  # windows in every other layer
    "gemma-3-27b": {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},  # 5 windowed layers to one, padding
    "gemma-3n-e4b-text": {},  # layers that read another layer's cache
    "gemma-4-e4b": {},  # two head sizes
    "gpt-oss-20b": {},  # attention sinks
    "command-r7b": {"max_num_batched_tokens": 4096},  # 3 windowed layers to one
    "olmo-3-7b": {},  # windows by layer_types
    "llama-4-scout": {},  # chunks, and a wrapper around the text model
    "deepseek-v2-lite": {"tensor_parallel_size": 2},  # latent attention, whole on each rank
    "kimi-vl-a3b": {},  # latent attention in a wrapper
    "jamba-1.5-mini": {"tensor_parallel_size": 2},  # Mamba
    "granite-4.0-h-tiny": {},  # Mamba 2
    "nemotron-h-8b": {"enable_prefix_caching": False},  # Mamba 2, one state a request
    "qwen3-next-80b-a3b": {"tensor_parallel_size": 2},  # gated delta net
    "qwen3.5-9b": {"kv_cache_dtype": "fp8"},  # the same, dense and multimodal
    "whisper-large-v3": {},  # cross attention
    "gpt2": {},  # learned positions
    "qwen2.5-vl-7b": {},  # multimodal
}


REFUSED = {
    "qwen2.5-7b": ({"tensor_parallel_size": 8}, POOL),  # 28 heads over 8 ranks
    "llama-3.1-70b": ({"max_model_len": 131_072}, GIB),  # one request of 320 KiB a token
}


@pytest.fixture(scope="module")
def compared() -> dict[str, Check]:
    if not engine_check.installed():
        cannot_run("no engine: `make engine` installs one")
    cases = [case(name, flags, POOL) for name, flags in CASES.items()]
    cases += [case(name, flags, pool) for name, (flags, pool) in REFUSED.items()]
    return dict(zip([*CASES, *REFUSED], checks(cases), strict=True))


def case(name: str, flags: Mapping[str, Any], pool: int) -> tuple[ModelSpec, Deployment, int]:
    model = model_named(name)
    length = min(16_384, model.max_position_embeddings)
    return model, Deployment(gpu=gpu_named("H100"), **{"max_model_len": length, **flags}), pool


@pytest.mark.parametrize("name", CASES)
def test_the_layout_is_vllms_own(compared: dict[str, Check], name: str) -> None:
    found = compared[name]
    assert [line for line in found.lines if not line.is_equal] == []
    assert found.verdict.word == "Equal", found.verdict


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_planner_refuses_vllm_refuses(compared: dict[str, Check], name: str) -> None:
    assert compared[name].verdict.word == "Both refuse", compared[name].verdict


def answer(monkeypatch: pytest.MonkeyPatch, **changed: object) -> None:
    """What an engine is made to answer: Llama-3-8B in 40 GiB, 32 layers of 2 x 8 x 128 x 2 bytes a token."""
    group = {"kind": "full", "layers": 32, "block_size": 128, "page_size_bytes": 32 * 128 * 4096}
    found = {
        "device": "cpu",
        "vllm_version": "0.32.0",
        "groups": [group],
        "bytes_per_block": 2**24,
        "num_gpu_blocks": 2560,
        "kv_cache_size_tokens": 327_680,
        "max_concurrency": 40.0,
    }
    monkeypatch.setattr(engine_check, "_asked", lambda questions, patience: [found | changed])


def answered(monkeypatch: pytest.MonkeyPatch, **changed: object) -> Check:
    answer(monkeypatch, **changed)
    return checks([case("llama-3-8b", {}, POOL)])[0]


def test_a_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(monkeypatch).verdict.level is Level.GOOD
    verdict = answered(monkeypatch, num_gpu_blocks=2559).verdict
    assert (verdict.level, verdict.reason) == (Level.BAD, "vLLM's own code says otherwise: blocks.")


def test_what_the_build_cannot_do_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = answered(monkeypatch, refusal="NotImplementedError: not on CPU").verdict
    assert (verdict.level, verdict.word) == (Level.UNKNOWN, "Not compared")
    assert "not on CPU" in verdict.reason


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo no torch >&2; exit 3", "status 3:\nno torch"), ("exec sleep 60", "within 0 s"), (None, "make engine")],
)
def test_an_interpreter_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setattr(engine_check, "INTERPRETER", python)
    with pytest.raises(EngineError, match=words):
        checks([case("llama-3-8b", {}, POOL)], patience=0.4 if script and "sleep" in script else 30)


def screen() -> None:
    from pages import _engine_check
    from planner.catalog.models import model_named
    from planner.deployment import Deployment
    from planner.gpu import gpu_named
    from planner.plan import plan

    server = Deployment(gpu=gpu_named("H100"), num_gpu_blocks_override=2560)
    _engine_check.show(plan(model_named("llama-3-8b"), server))


def test_the_button_shows_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages._engine_check.installed", lambda: True)
    answer(monkeypatch, num_gpu_blocks=2559)
    page = AppTest.from_function(screen, default_timeout=60).run()
    assert not page.table
    page.button(key="check_with_vllm").click().run()
    assert not page.exception
    assert "Different" in page.error[0].value
    shown = {row["Quantity"]: row for row in page.table[0].value.to_dict("records")}
    assert (shown["blocks"]["Planned"], shown["blocks"]["vLLM"]) == ("2,560", "2,559")
    assert shown["bytes a block"]["Equal"] == "✓ equal"


def test_without_an_engine_the_page_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages._engine_check.installed", lambda: False)
    page = AppTest.from_function(screen, default_timeout=60).run()
    assert "make engine" in page.caption[0].value
    assert not page.button
