"""A server adopted as plan: planned from what the recorded servers said of themselves, and equal to what they held."""

import pytest

from monitor.adopt import adopted
from monitor.compare import compare
from monitor.reading import read
from monitor.snapshot import EngineSnapshot
from monitor.versions import VersionRange
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.verdict import Level
from tests.recorded import page


def served(text: str) -> EngineSnapshot:
    return read(text).engines[0]


@pytest.mark.parametrize("name", ["0.32.0-idle-whole", "0.32.0-load", "0.32.0-preempt-blocks80-load", "0.31.0-load"])
def test_an_adopted_plan_is_as_the_server(name: str) -> None:
    seen = read(page(name))
    made = adopted(seen.engines[0], gpu_named("cpu"), versions=seen.versions, model="demo/tiny-llama")
    assert made.capacity is not None
    assert made.capacity[0].num_gpu_blocks == seen.engines[0].num_gpu_blocks
    assert compare(made, seen.engines[0]).verdict.level is Level.GOOD


def test_the_flags_are_those_reported() -> None:
    """The server was started with 80 blocks of 32 and requests of at most 2,048 tokens."""
    found = adopted(served(page("0.32.0-preempt-blocks80-load")), gpu_named("cpu"), model="demo/tiny-llama").deployment
    assert (found.num_gpu_blocks_override, found.block_size) == (80, 32)
    assert found.kv_cache_dtype == "auto"


def test_the_release_is_the_newest_it_can_be() -> None:
    engine, gpu = served(page("0.32.0-load")), gpu_named("cpu")
    exact = adopted(engine, gpu, versions=VersionRange.exactly("0.28.1"), model="demo/tiny-llama")
    assert exact.deployment.vllm_version == "0.28.1"


def test_a_model_that_is_not_known_is_named() -> None:
    with pytest.raises(InputError, match="model"):
        adopted(served(page("0.32.0-load")), gpu_named("cpu"), model="no-such-model-anywhere")
