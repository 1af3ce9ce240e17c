"""The whole product on one machine: a real vLLM with a tiny random model, a steady load, the dashboard on both.

python -m scripts.demo --port 8501 --engine-port 8111
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path
from urllib.parse import urlencode

from monitor.engine import Engine, serving
from monitor.tiny_model import write_tiny_model
from scripts import load

# 64 MiB are 32,768 tokens of this model: 24 requests of about 1,000 keep the cache busy without filling it.
FLAGS = {
    "served_model_name": "tiny",
    "load_format": "dummy",
    "enforce_eager": True,
    "max_model_len": 2048,
    "kv_cache_memory_bytes": 64 * 2**20,
}
LOAD = {"concurrency": 24, "prompt_tokens": 600, "output_tokens": 800}


def main() -> None:
    parser = argparse.ArgumentParser(description="A real vLLM under load, and the dashboard on it.")
    parser.add_argument("--port", type=int, default=8501, help="of the dashboard")
    parser.add_argument("--engine-port", type=int, default=8111, help="of the engine")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the engine is ended, too

    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(model=write_tiny_model(Path(folder) / "tiny"), port=given.engine_port, flags=FLAGS)
        print(f"Starting vLLM on {engine.url}: this takes about half a minute …", flush=True)
        with serving(engine) as url:
            load.start(url, **LOAD)
            watch(url, given.port)


def watch(engine: str, port: int) -> None:
    """Run the dashboard until it is stopped, opened on the live page of this engine."""
    page = f"http://localhost:{port}/live?{urlencode({'endpoint': engine})}"
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        "app.py",
        "--server.port",
        str(port),
        "--server.headless",
        "true",
    ]
    with subprocess.Popen(command) as dashboard:
        print(f"The dashboard: {page}\nCtrl-C ends everything.", flush=True)
        webbrowser.open(page)
        try:
            dashboard.wait()
        except KeyboardInterrupt:
            dashboard.wait()  # it got the same Ctrl-C
        finally:
            dashboard.terminate()


if __name__ == "__main__":
    main()
