"""The whole product on one machine: a real vLLM with a tiny random model, a steady load, the dashboard on both.

python -m scripts.demo --port 8501 --engine-port 8111
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from monitor.engine import Engine, serving
from monitor.tiny_model import SERVED, write_tiny_model
from scripts import load

# 64 MiB are 32,768 tokens of this model: 24 requests of about 1,000 keep the cache busy without filling it.
FLAGS = {**SERVED, "max_model_len": 2048, "kv_cache_memory_bytes": 64 * 2**20}
# The plan of the same server, as the dashboard's address holds it.
PLAN = {
    "model": "demo/tiny-llama", "gpu": "cpu", "cpu_kvcache_space": 0.0625, "max_model_len": 2048,
    "input_tokens": 600, "output_tokens": 800, "concurrency": 24,
}  # fmt: skip
CONFIG = """\
store = "sqlite:///{store}"
[[targets]]
name = "tiny"
url = "{url}"
"""
LOAD = load.Request(prompt_tokens=600, output_tokens=800)


def main() -> None:
    parser = argparse.ArgumentParser(description="A real vLLM under load, and the dashboard on it.")
    parser.add_argument("--port", type=int, default=8501, help="of the dashboard")
    parser.add_argument("--engine-port", type=int, default=8111, help="of the engine")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the engine is ended, too

    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as folder:
        engine = Engine(model=write_tiny_model(Path(folder) / "tiny"), port=given.engine_port, flags=FLAGS)
        print(f"Starting vLLM on {engine.url}: this takes about half a minute …", flush=True)
        with serving(engine) as url:
            stop = load.start(url, concurrency=24, request=LOAD)
            try:
                watch(url, given.port, Path(folder))
            finally:
                stop.set()


def dashboard(port: int) -> list[str]:
    """The command that serves the dashboard there and opens nothing by itself."""
    options = ["--server.port", str(port), "--server.headless", "true"]
    return [sys.executable, "-m", "streamlit", "run", "app.py", *options]


def watch(engine: str, port: int, folder: Path) -> None:
    """Run the dashboard until it is stopped, and open it on the live page of this engine where there is a screen.

    It records in the folder, which goes with the demo.
    """
    config = folder / "monitor.toml"
    config.write_text(CONFIG.format(store=folder / "monitor.db", url=engine))
    page = f"http://localhost:{port}/live?{urlencode({**PLAN, 'endpoint': 'tiny'})}"
    print(f"The dashboard: {page}\nCtrl-C ends everything.", flush=True)
    running = subprocess.Popen(dashboard(port), env={**os.environ, "KV_MONITOR_CONFIG": str(config)})
    try:
        if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            time.sleep(3)
            webbrowser.open(page)
        running.wait()
    finally:
        running.terminate()
        running.wait()


if __name__ == "__main__":
    main()
