"""What a user waits for in Chromium: the first verdict of a warm server, and the one after a changed input. Medians.

PYTHONPATH=. python benchmarks/browser.py
"""

import shutil
import statistics
import subprocess
import time
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

from scripts.demo import dashboard

PORT, ROUNDS = 8599, 9
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
