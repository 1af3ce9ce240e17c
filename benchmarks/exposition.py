"""How long a /metrics page takes, and what a Snapshot keeps.

python -m benchmarks.exposition
"""

import gzip
import re
import tracemalloc
from collections.abc import Callable
from itertools import count, cycle, pairwise
from pathlib import Path
from statistics import median
from time import process_time

from prometheus_client.parser import text_string_to_metric_families

from monitor.exposition import parse
from monitor.reading import Reader, read
from monitor.window import window

PAGE = Path(__file__).resolve().parent.parent / "tests" / "metrics" / "0.32.0-idle-whole.prom.gz"


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The median of so many runs, of processor time."""
    times = []
    for _ in range(repeats):
        began = process_time()
        work()
        times.append(process_time() - began)
    return median(times) * 1e3


def busy(text: str, page: int) -> str:
    """The same page of a busy server, later: every counter, every bucket and every gauge of the engine moved on."""

    def moved(match: re.Match[str]) -> str:
        return match[1] + (f"0.{page % 997:03}" if "_perc" in match[1] else str(page))

    return re.sub(r"^((?:vllm:(?!cache_config)|process_)\S+ )\S+$", moved, text, flags=re.MULTILINE)


def main() -> None:
    text = gzip.decompress(PAGE.read_bytes()).decode()
    pages = [busy(text, page) for page in range(1, 181)]
    turn, reader, kept = cycle(pages), Reader(), []
    ours = milliseconds(lambda: parse(text), 300)
    theirs = milliseconds(lambda: list(text_string_to_metric_families(text)), 60)
    first = milliseconds(lambda: read(text), 300)
    same = milliseconds(lambda: reader.read(text), 300)
    moved = milliseconds(lambda: reader.read(next(turn)), 300)
    print(f"a page of {text.count(chr(10)):,} lines, {len(parse(text).samples)} samples (medians of processor time)")
    print(f"parse                           {ours:6.2f} ms   (aim under 2.5 ms)")
    print(f"prometheus_client               {theirs:6.2f} ms   ({theirs / ours:.1f} times as long)")
    print(f"parse and read, the first       {first:6.2f} ms")
    print(f"parse and read, the next, idle  {same:6.2f} ms")
    print(f"parse and read, all has moved   {moved:6.2f} ms   (aim under 1.3 ms)")

    tracemalloc.start()
    clock, before = count(), tracemalloc.get_traced_memory()[0]
    kept = [reader.read(page, at=float(next(clock))) for page in pages]
    each = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    tracemalloc.stop()
    print(f"kept for a Snapshot             {each / 1024:6.1f} kB   (aim under 8 kB; all has moved)")

    pairs = cycle(pairwise(kept))
    spanned = milliseconds(lambda: window(*next(pairs)), 300)
    print(f"two Snapshots -> Window         {spanned:6.2f} ms   (aim under 0.3 ms)")


if __name__ == "__main__":
    main()
