"""How long a /metrics page takes: parsed by us, parsed by prometheus_client, and read into a Snapshot.

python -m benchmarks.exposition
"""

import gzip
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from prometheus_client.parser import text_string_to_metric_families

from monitor.exposition import parse
from monitor.reading import read

PAGE = Path(__file__).resolve().parent.parent / "tests" / "metrics" / "0.32.0-idle-whole.prom.gz"


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The median of so many runs."""
    times = []
    for _ in range(repeats):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return median(times) * 1e3


def main() -> None:
    text = gzip.decompress(PAGE.read_bytes()).decode()
    page = parse(text)
    ours = milliseconds(lambda: parse(text), 300)
    theirs = milliseconds(lambda: list(text_string_to_metric_families(text)), 60)
    snapshot = milliseconds(lambda: read(page), 300)
    print(f"a page of {text.count(chr(10)):,} lines, {len(page.samples)} samples (medians)")
    print(f"parse              {ours:6.2f} ms   (aim under 2.5 ms)")
    print(f"prometheus_client  {theirs:6.2f} ms   ({theirs / ours:.1f} times as long)")
    print(f"samples → Snapshot {snapshot:6.2f} ms")


if __name__ == "__main__":
    main()
