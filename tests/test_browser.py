"""The dashboard as its users see it: a fresh server, Chromium, and a real vLLM.

`make screenshots` writes the pictures of docs/; otherwise they are taken and thrown away.
"""

import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import requests

from tests.conftest import ROOT

PAGES = {
    "": "Overview", "plan": "Plan capacity", "speed": "Speed", "compression": "Compression", "cost": "Cost",
    "catalog": "Models and devices", "live": "Live", "fleet": "Fleet", "history": "History", "alerts": "Alerts",
    "compare": "Planned vs actual", "plans": "Saved plans", "article": "The article, checked",
}  # fmt: skip
TINY = {"model": "demo/tiny-llama", "gpu": "cpu", "cpu_kvcache_space": 1, "max_model_len": 2048,
        "input_tokens": 600, "output_tokens": 300, "concurrency": 12}  # fmt: skip
PATIENCE = 120_000  # ms; these machines are shared


IS_FOR_DOCS = bool(os.environ.get("UPDATE_SCREENSHOTS"))


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    return ROOT / "docs" if IS_FOR_DOCS else tmp_path


@pytest.fixture
def visit(browser: Any, app_server: str) -> Iterator[Callable[..., Any]]:
    """visit("plan", model=…): a page opened from a deep link in a browser of its own; its console must stay silent."""
    complaints: list[str] = []

    def heard(message: Any) -> None:
        # At a deep link Streamlit's client first asks whether it is served from that folder: two 404s are its answer.
        is_probe = re.search(r"/_stcore/(health|host-config)$", message.location.get("url", ""))
        if message.type == "error" and not is_probe:
            complaints.append(message.text)

    contexts = []

    def opened(path: str, scheme: str = "light", height: int = 1400, **query: object) -> Any:
        context = browser.new_context(viewport={"width": 1400, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{app_server}/{path}?{urlencode(query)}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not complaints


def verdict(page: Any, word: str) -> str:
    """The text of the verdict with this word, once it is there."""
    box = page.get_by_test_id("stAlert").filter(has_text=word).first
    box.wait_for()
    text: str = box.inner_text()
    return text


def choose(page: Any, label: str, value: str) -> None:
    """Pick a value in a select box of the sidebar, as a person types it."""
    box = page.get_by_role("combobox", name=label, exact=True)
    box.click()
    box.fill(value)
    page.get_by_role("option", name=value, exact=True).first.click()


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_from_a_deep_link(visit: Callable[..., Any], path: str) -> None:
    """The first visitor of a fresh server comes by this very link; the second prefers the dark theme."""
    for scheme in ("light", "dark"):
        page = visit(path, scheme, kv_cache_dtype="fp8")
        page.get_by_role("heading", name=PAGES[path], exact=True).wait_for()
        page.get_by_role("combobox", name="kv_cache_dtype", exact=True).wait_for()
        assert "kv_cache_dtype=fp8" in page.url
        if path != "catalog":  # a list has no verdict
            page.get_by_test_id("stAlert").first.wait_for()
        page.get_by_test_id("stStatusWidget").wait_for(state="detached")
        assert page.get_by_test_id("stException").count() == 0


def test_a_changed_input_gives_a_new_verdict_and_a_new_address(visit: Callable[..., Any], shots: Path) -> None:
    page = visit("plan", gpu="A100-SXM-80GB", vllm_version="0.19.0", height=2600)
    assert "457,216 KV tokens" in verdict(page, "Fits.")
    choose(page, "kv_cache_dtype", "fp8")
    assert "914,432 KV tokens" in verdict(page, "914,432")
    choose(page, "Model", "meta-llama/Llama-3.1-70B")
    text = verdict(page, "Does not fit.")
    assert "the weights alone" in text
    assert "--tensor-parallel-size" in text
    assert "model=meta-llama" in page.url
    choose(page, "Model", "Qwen/Qwen3-32B")
    verdict(page, "Qwen/Qwen3-32B")
    page.get_by_text("The command").wait_for()
    colleague = visit("plan?" + page.url.partition("?")[2] + "&")
    assert "KV dtype fp8" in verdict(colleague, "Qwen/Qwen3-32B")
    page.wait_for_timeout(3000)  # charts are drawn after the text
    page.screenshot(path=shots / "plan.png")


def test_malformed_inputs_are_said(visit: Callable[..., Any]) -> None:
    page = visit("live", endpoint="ftp://somewhere")
    page.get_by_test_id("stAlert").filter(has_text="accepted").wait_for()
    page = visit("live", endpoint="http://127.0.0.1:9")
    assert "127.0.0.1:9" in verdict(page, "Down.")
    page = visit("plan", vllm_version="newest")
    page.get_by_test_id("stAlert").filter(has_text="vllm_version").wait_for()


@contextmanager
def load(engine: str, clients: int = 12) -> Iterator[None]:
    """Requests of 600 random tokens with answers of 300, so many at once, until the block ends."""
    stop = threading.Event()

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            prompt = [chance.randrange(2, 512) for _ in range(600)]
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 300, "ignore_eos": True}
            requests.post(f"{engine}/v1/completions", json=body, timeout=300).raise_for_status()

    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(ask, seed) for seed in range(clients)]
        try:
            yield
        finally:
            stop.set()
    for each in asked:
        each.result()


def test_a_real_engine_is_watched_and_compared(
    visit: Callable[..., Any], real_engine: Callable[..., str], shots: Path
) -> None:
    engine = real_engine()
    page = visit("live", **TINY, endpoint=engine, span="1 min", height=1500)
    verdict(page, "Idle.")
    assert re.search(r"\b0\b", page.get_by_test_id("stMetric").filter(has_text="Running").inner_text())
    with load(engine):
        assert "KV cache" in verdict(page, "Healthy.")
        page.wait_for_function(
            "[...document.querySelectorAll('[data-testid=stMetric]')].some("
            "each => /KV cache in use/.test(each.innerText) && /[1-9][\\d,]* of 524,288 tokens/.test(each.innerText))"
        )
        page.get_by_text("Latency", exact=True).click()
        page.get_by_role("row").filter(has_text="Arrival to first token").get_by_text(" to ").first.wait_for()
        page.get_by_text("KV cache", exact=True).click()
        fleet = visit("fleet", **TINY, height=900)
        assert "524,288 tokens" in fleet.get_by_role("row").filter(has_text="tiny").first.inner_text()
        fleet.get_by_test_id("stDataFrame").wait_for()
        past = visit("history", **TINY, endpoint=engine, back="15 min", height=1800)
        assert "tokens/s" in verdict(past, "KV cache at most")
        held = visit("compare", **TINY, endpoint=engine, span="1 min", height=1100)
        assert "524,288" in held.get_by_role("row").filter(has_text="kv cache size tokens").inner_text()
        assert "✓" in held.get_by_role("row").filter(has_text="num gpu blocks").inner_text()
        verdict(held, "As planned.")
        held.wait_for_timeout(40_000 if IS_FOR_DOCS else 1_000)  # some scrapes, for the lines of the pictures
        held.screenshot(path=shots / "compare.png")
        page.screenshot(path=shots / "live.png")
    for each in (held, page, fleet, past):
        each.context.close()
    wrong = visit("compare", **{**TINY, "kv_cache_dtype": "fp8"}, endpoint=engine)
    assert "KV dtype: planned fp8, the server runs auto" in verdict(wrong, "Not as planned.")
    both = visit("", **TINY, endpoint=engine, height=800)
    verdict(both, "Fits.")
    both.get_by_text("Live: what it does now").wait_for()
