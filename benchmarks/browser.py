"""What a user waits for in Chromium: the first verdict of a warm server, and the one after a changed input. Medians.
And what a live page costs: processor time of the server and bytes on the wire a refresh.

PYTHONPATH=. python benchmarks/browser.py
"""

import gzip
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

from scripts.demo import dashboard

PORT, PAGE_PORT, ROUNDS = 8599, 8598, 9
RECORDED = Path(__file__).resolve().parent.parent / "tests" / "metrics" / "0.32.0-load.prom.gz"
COUNTED = re.compile(r"^(vllm:\S*(?:_total|_count|_sum|_bucket)\{.*\} )(\S+)$", re.MULTILINE)
CONFIG = f"""\
interval = 1
store = ""
[[targets]]
name = "recorded"
url = "http://127.0.0.1:{PAGE_PORT}"
"""
WATCHED, MEASURED = 65, 20
"""Until the window of a minute has 60 points, as many as one of 5 minutes at one in 5 s; then over so long  [s]."""
URL = f"http://127.0.0.1:{PORT}"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
# From the key that sends the input to the verdict that is drawn anew, on the browser's own clock.
CHANGE = """
() => new Promise(done => {
  const verdict = document.querySelector('[data-testid=stMain] [data-testid=stAlert]');
  const before = verdict.innerText;
  let sent = 0;
  document.addEventListener('keydown', () => { sent = performance.now(); }, {capture: true, once: true});
  new MutationObserver((_, observer) => {
    const now = document.querySelector('[data-testid=stMain] [data-testid=stAlert]');
    if (now && now.innerText !== before) { observer.disconnect(); done(performance.now() - sent); }
  }).observe(document.body, {subtree: true, childList: true, characterData: true});
})
"""


def main() -> None:
    server = subprocess.Popen(dashboard(PORT), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_health()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            first = [_first_verdict(browser.new_page()) for _ in range(ROUNDS)][1:]
            print(f"first verdict, warm     {statistics.median(first) * 1e3:8.0f} ms")
            for path in ("", "plan"):
                page = browser.new_page()
                page.goto(f"{URL}/{path}")
                page.get_by_test_id("stAlert").first.wait_for()
                page.wait_for_timeout(3000)
                changes = [_change(page, 900 + step) for step in range(ROUNDS)]
                print(f"input to verdict, /{path:<5} {statistics.median(changes):8.0f} ms")
    finally:
        server.terminate()
        server.wait()
    _print_refreshes()


def _print_refreshes() -> None:
    with _served_page(), tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "monitor.toml").write_text(CONFIG)
        surroundings = {**os.environ, "KV_MONITOR_CONFIG": f"{folder}/monitor.toml"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(dashboard(PORT), env=surroundings, **quiet)  # type: ignore[call-overload]
        try:
            _await_health()
            time.sleep(WATCHED)
            alone = _spent(server.pid, lambda: time.sleep(MEASURED))
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
                for topic in ("KV cache", "Requests", "Latency"):
                    spent, sent, frames = _refreshes(browser.new_page(), server.pid, topic)
                    milliseconds = (spent - alone) / frames * 1e3
                    print(f"refresh, {topic:<14} {milliseconds:8.1f} ms of CPU, {sent / frames / 1e3:.1f} kB")
        finally:
            server.terminate()
            server.wait()


def _refreshes(page: Page, pid: int, topic: str) -> tuple[float, int, int]:
    """Processor seconds and bytes while a live page stood open, and how often it was drawn anew."""
    sizes: list[int] = []

    def received(data: str | bytes) -> None:
        sizes.append(len(data))

    page.on("websocket", lambda socket: socket.on("framereceived", received))
    page.goto(f"{URL}/live?endpoint=recorded&span=1+min&topic={topic}")
    page.get_by_test_id("stPlotlyChart").first.wait_for()
    page.wait_for_timeout(5000)
    sizes.clear()
    spent = _spent(pid, lambda: page.wait_for_timeout(MEASURED * 1e3))
    sent = sum(sizes)
    page.close()
    return spent, sent, MEASURED


def _spent(pid: int, work: Callable[[], object]) -> float:
    """Processor time of that process meanwhile  [s]."""

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    work()
    return used() - before


@contextmanager
def _served_page() -> Iterator[None]:
    """A recorded page whose counters grow by a hundredth a second."""
    recorded, began = gzip.decompress(RECORDED.read_bytes()).decode(), time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            grown = 1 + (time.monotonic() - began) / 100
            text = COUNTED.sub(lambda found: f"{found[1]}{float(found[2]) * grown // 1}", recorded).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", PAGE_PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _await_health() -> None:
    for _ in range(300):
        try:
            with urlopen(f"{URL}/_stcore/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the dashboard did not start")


def _first_verdict(page: Page) -> float:
    start = time.perf_counter()
    page.goto(f"{URL}/plan", wait_until="commit")
    page.get_by_test_id("stAlert").first.wait_for()
    spent = time.perf_counter() - start
    page.close()
    return spent


def _change(page: Page, tokens: int) -> float:
    box = page.get_by_role("spinbutton", name="output_tokens")
    box.fill(str(tokens))
    page.evaluate(f"() => {{ window.changed = ({CHANGE})(); }}")
    box.press("Enter")
    spent: float = page.evaluate("() => window.changed")
    page.wait_for_timeout(1500)
    return spent


if __name__ == "__main__":
    main()
