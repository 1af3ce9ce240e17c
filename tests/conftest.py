"""What tests share: real engines, a fresh dashboard, a browser.

Where one of them cannot run, its tests are skipped with the reason, or fail with it when REQUIRE_ALL is set.
"""

import functools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from monitor.engine import INTERPRETER, Engine, serving
from monitor.tiny_model import write_tiny_model
from scripts.demo import dashboard

ROOT = Path(__file__).resolve().parent.parent
GIB = 2**30
# Chromium calls home at every start unless told not to.
BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
BROWSER_FLAGS += ["--disable-background-networking", "--disable-component-update"]


def cannot_run(reason: str) -> None:
    """Skip the test, or fail it where everything is required."""
    (pytest.fail if os.environ.get("REQUIRE_ALL") else pytest.skip)(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny random model: 2,048 bytes of KV cache a token in bfloat16."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def real_engine(tiny_model: Path) -> Iterator[Callable[..., str]]:
    """real_engine(kv_cache_dtype="auto"): URL of a real vLLM (1 GiB pool, blocks of 128, requests of 2,048 tokens).

    An engine takes 20 to 60 s to start, so each kind is started once for all tests.
    """
    if not INTERPRETER.exists():
        cannot_run("no engine: `make engine` installs one")
    with ExitStack() as engines:

        @functools.cache
        def started(kv_cache_dtype: str) -> str:
            flags = {
                "served_model_name": "tiny",
                "load_format": "dummy",
                "enforce_eager": True,
                "max_model_len": 2048,
                "block_size": 128,
                "kv_cache_memory_bytes": GIB,
                "kv_cache_dtype": kv_cache_dtype,
            }
            return engines.enter_context(serving(Engine(model=tiny_model, port=free_port(), flags=flags)))

        yield lambda kv_cache_dtype="auto": started(kv_cache_dtype)


@pytest.fixture
def app_server(tmp_path: Path) -> Iterator[str]:
    """URL of a dashboard nobody has visited yet."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with (tmp_path / "app.log").open("w+") as log:
        server = subprocess.Popen(dashboard(port), cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 60
            while not healthy(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    pytest.fail(f"the dashboard did not start:\n{log.read()}")
                time.sleep(0.1)
            yield url
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=20)


def healthy(url: str) -> bool:
    try:
        return requests.get(f"{url}/_stcore/health", timeout=2).ok
    except requests.RequestException:
        return False


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """A headless Chromium, driven by Playwright."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        cannot_run("no browser: install Debian's package chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        yield running
        running.close()
