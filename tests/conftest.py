"""What tests share: a clock and a file for a store, real engines, a fresh dashboard, a browser.

Where one of them cannot run, its tests are skipped with the reason, or fail with it when REQUIRE_ALL is set.
"""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from monitor.engine import INTERPRETER, Engine, serving
from monitor.tiny_model import SERVED, write_tiny_model
from scripts.demo import dashboard
from tests.keeping import Clock

collect_ignore = ["engine_truth.py"]  # for the engine's interpreter: it needs vLLM
ROOT = Path(__file__).resolve().parent.parent
GIB = 2**30
# Chromium calls home at every start unless told not to.
BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
BROWSER_FLAGS += ["--disable-background-networking", "--disable-component-update"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests stay together where several workers run them: what is started is started once."""
    for item in items:
        has_shared = not {"real_engine", "browser"}.isdisjoint(getattr(item, "fixturenames", ()))
        item.add_marker(pytest.mark.xdist_group("real engine" if has_shared else item.path.stem))


def cannot_run(reason: str) -> None:
    """Skip the test, or fail it where everything is required."""
    (pytest.fail if os.environ.get("REQUIRE_ALL") else pytest.skip)(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def clock() -> Clock:
    """The wall clock of a store, at noon until it is set."""
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store begins."""
    return tmp_path / "monitor.db"


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
                **SERVED,
                "max_model_len": 2048,
                "block_size": 128,
                "kv_cache_memory_bytes": GIB,
                "kv_cache_dtype": kv_cache_dtype,
            }
            return engines.enter_context(serving(Engine(model=tiny_model, port=free_port(), flags=flags)))

        yield lambda kv_cache_dtype="auto": started(kv_cache_dtype)


@pytest.fixture
def real_prometheus(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """real_prometheus(scrape_configs, port=…): URL of a real Prometheus that scrapes every second."""
    program = shutil.which("prometheus")
    if not program:
        cannot_run("no Prometheus: install Debian's package prometheus")
    with ExitStack() as servers:

        def started(*scrape_configs: dict[str, object], port: int | None = None) -> str:
            port = port or free_port()
            config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": scrape_configs}
            (file := tmp_path / f"{port}.yml").write_text(json.dumps(config))
            listen = f"127.0.0.1:{port}"
            command = [program, f"--config.file={file}", f"--storage.tsdb.path={tmp_path / str(port)}"]
            command += ["--storage.tsdb.retention.time=90d"]
            log = servers.enter_context((tmp_path / f"{port}.log").open("a+"))
            server = subprocess.Popen([*command, f"--web.listen-address={listen}"], stdout=log, stderr=log)
            servers.callback(server.wait, 20)
            servers.callback(server.terminate)
            deadline = time.monotonic() + 60
            while not answers(f"http://{listen}/-/ready"):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    pytest.fail(f"Prometheus did not start:\n{log.read()}")
                time.sleep(0.1)
            return f"http://{listen}"

        yield started


class PostgreSQL:
    """A real PostgreSQL server with an empty folder of its own; `url()` makes a new database in it."""

    def __init__(self, programs: Path, folder: Path, owner: dict[str, object]) -> None:
        self._programs, self._folder, self._owner = programs, folder, owner
        self._port, self._made = free_port(), 0
        self._run("initdb", "--pgdata", str(folder / "data"), "--username", "team", "--auth", "trust", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, *arguments]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, **self._owner)
        assert done.returncode == 0, done.stdout + done.stderr

    def _control(self, action: str, *arguments: str) -> None:
        log = str(self._folder / "server.log")
        self._run("pg_ctl", action, "--pgdata", str(self._folder / "data"), "--log", log, "--wait", *arguments)

    def start(self) -> None:
        where = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -c fsync=off"
        self._control("start", "--options", where)

    def stop(self) -> None:
        self._control("stop", "--mode", "immediate")

    def url(self) -> str:
        self._made += 1
        where = ("--host", "127.0.0.1", "--port", str(self._port), "--username", "team")
        self._run("createdb", *where, f"kv{self._made}")
        return f"postgresql://team@127.0.0.1:{self._port}/kv{self._made}"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A running PostgreSQL. It refuses to be root's: it is then given to the user that Debian's package makes."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
    if programs is None:
        cannot_run("no PostgreSQL: install Debian's package postgresql")
    with tempfile.TemporaryDirectory(prefix="postgresql-") as name:
        owner: dict[str, object] = {}
        if os.geteuid() == 0:
            owner = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(name, "postgres", "postgres")
        server = PostgreSQL(programs, Path(name), owner)
        server.start()
        yield server
        server.stop()


@pytest.fixture
def app_server(tmp_path: Path) -> Iterator[str]:
    """URL of a dashboard nobody has visited yet, with monitor.toml in the test's folder, where nothing is recorded."""
    (tmp_path / "monitor.toml").write_text('store = ""\n')
    url = f"http://127.0.0.1:{(port := free_port())}"
    with (tmp_path / "app.log").open("w+") as log:
        surroundings = {**os.environ, "KV_MONITOR_CONFIG": str(tmp_path / "monitor.toml")}
        server = subprocess.Popen(
            dashboard(port), cwd=ROOT, env=surroundings, stdout=log, stderr=log, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 60
            while not answers(f"{url}/_stcore/health"):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    pytest.fail(f"the dashboard did not start:\n{log.read()}")
                time.sleep(0.1)
            yield url
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=20)


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).ok
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
