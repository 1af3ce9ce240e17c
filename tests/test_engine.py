"""A real vLLM, planned for and watched. What it reports on /metrics, and what it was asked to do, are the truth here.

The pool is 1 GiB. A token of the tiny model takes 2 (K and V) x 2 heads x 64 x 4 layers = 1,024 numbers: 2,048 bytes in
bfloat16, 1,024 in fp8.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import requests

from monitor.metrics import PROMPT_TOKENS
from monitor.reading import read
from monitor.scrape import scrape
from monitor.snapshot import EngineSnapshot

BLOCK = 128  # tokens a block
PROMPTS = tuple(BLOCK * blocks + 2 for blocks in range(12))  # each reaches two tokens into its last block, and its
OUTPUT_TOKENS = 120  # answer does not leave that block: from its first step to its last it holds blocks + 1 blocks
TRUE_BLOCKS = sum(prompt // BLOCK + 1 for prompt in PROMPTS)  # 78


def engine_at(url: str) -> EngineSnapshot:
    page = scrape(url)
    assert page.ok, page.message
    (engine,) = read(page.text).engines
    return engine


def complete(url: str, prompt: list[int]) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    requests.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()


def watched_under_load(url: str) -> Iterator[EngineSnapshot]:
    """Send the 12 prompts at once, no two alike, and look at the engine until the last answer is there."""
    chance = random.Random(0)
    prompts = [[chance.randrange(2, 512) for _ in range(length)] for length in PROMPTS]
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers: list[Future[None]] = [clients.submit(complete, url, prompt) for prompt in prompts]
        while not all(answer.done() for answer in answers):
            yield engine_at(url)
        for answer in answers:
            answer.result()


@pytest.mark.parametrize(
    ("kv_cache_dtype", "blocks", "tokens", "requests_at_once"),
    [("auto", 4_096, 524_288, 256.0), ("fp8", 8_192, 1_048_576, 512.0)],
)
def test_the_pool_holds_what_it_must(
    real_engine: Callable[..., str], kv_cache_dtype: str, blocks: int, tokens: int, requests_at_once: float
) -> None:
    engine = engine_at(real_engine(kv_cache_dtype))
    assert (engine.num_gpu_blocks, engine.block_size) == (blocks, BLOCK)
    assert engine.kv_cache_size_tokens == tokens
    assert engine.values["kv_cache_max_concurrency"] == requests_at_once
    assert engine.kv_cache_dtype == kv_cache_dtype


def test_used_blocks_are_the_truth_under_known_requests(real_engine: Callable[..., str]) -> None:
    url = real_engine()
    before = engine_at(url)
    assert before.used_blocks == 0
    read_by_then = (before.number(PROMPT_TOKENS) or 0) + sum(PROMPTS)  # until then a prompt is read, and held, in part
    seen = [
        engine.used_blocks
        for engine in watched_under_load(url)
        if engine.running == len(PROMPTS) and engine.number(PROMPT_TOKENS) == read_by_then
    ]
    assert seen, "the 12 requests were never seen running together"
    assert all(used is not None and abs(used - TRUE_BLOCKS) <= 1 for used in seen), f"{seen}, and not {TRUE_BLOCKS}"
