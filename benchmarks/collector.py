"""What watching 200 servers every 5 s costs: the share of one core, and how many scrapes were missed.

python -m benchmarks.collector [--targets 200] [--seconds 60] [--interval 5]

The servers are another process on this machine; they answer with recorded pages whose counters move. The first line is
scraping and reading alone, the second everything: rules, the store (SQLite) and the timeline too.
"""

import argparse
import multiprocessing
import re
import resource
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count

from monitor.collector import Collector
from monitor.config import MonitorConfig
from monitor.source import TargetState
from monitor.targets import Target
from monitor.watch import Watch
from tests.recorded import page

PAGES = ("0.32.0-load", "0.32.0-preempt-blocks80-load", "0.32.0-shared-prefix", "0.31.0-load")
COUNTED = re.compile(r"^(\S+_(?:total|bucket|count|sum)(?:\{.*\})? )([0-9.e+]+)$")


def moving(text: str) -> Callable[[int], bytes]:
    """The page with all its counters, of histograms too, further by a thousandth each time it is asked for."""
    lines = [COUNTED.match(line) or line for line in text.splitlines()]

    def at(turn: int) -> bytes:
        said = (
            line if isinstance(line, str) else f"{line[1]}{float(line[2]) * (1000 + turn) // 1000}" for line in lines
        )
        return "\n".join(said).encode() + b"\n"

    return at


class Handler(socketserver.StreamRequestHandler):
    """One GET, answered with the page of the target that its path names."""

    pages = tuple(moving(page(name)) for name in PAGES)
    turns = count()

    def handle(self) -> None:
        asked = self.rfile.readline().split(b"/")
        while self.rfile.readline().strip():
            pass
        body = self.pages[int(asked[1]) % len(self.pages)](next(self.turns) // 100)
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )


class Servers(socketserver.ThreadingTCPServer):
    """Any number of them under one port: the first part of the path is the number of one."""

    request_queue_size = 256
    daemon_threads = True


def serve(port: "multiprocessing.Queue[int]", servers: Callable[..., Servers], *arguments: object) -> None:
    with servers(*arguments) as server:
        port.put(server.server_address[1])
        server.serve_forever()


@contextmanager
def serving(servers: Callable[..., Servers], *arguments: object) -> Iterator[int]:
    """The port of the servers that are made of these arguments, in another process."""
    context = multiprocessing.get_context("spawn")
    port: multiprocessing.Queue[int] = context.Queue()
    process = context.Process(target=serve, args=(port, servers, *arguments), daemon=True)
    process.start()
    try:
        yield port.get(timeout=60)
    finally:
        process.terminate()
        process.join()


def used() -> float:
    """CPU of this process, user and system  [s]."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def report(
    what: str, run: AbstractContextManager[object], pages: Callable[[], int], wanted: float, seconds: float
) -> None:
    with run:
        time.sleep(10)  # the first pages, which are read as a whole
        before, cpu = pages(), used()
        began = time.monotonic()
        time.sleep(seconds)
        passed, done, cpu = time.monotonic() - began, pages() - before, used() - cpu
    missed = max(0, round(wanted * passed) - done)
    print(
        f"{what}: {cpu / passed:.1%} of one core, {1000 * cpu / max(1, done):.2f} ms a scrape; "
        f"{done} scrapes done, {missed} missed in {passed:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--interval", type=float, default=5.0)
    options = parser.parse_args()
    wanted = options.targets / options.interval
    with serving(Servers, ("127.0.0.1", 0), Handler) as port, tempfile.TemporaryDirectory() as folder:
        targets = tuple(
            Target(name=f"gpu-{n}", url=f"http://127.0.0.1:{port}/{n}/metrics") for n in range(options.targets)
        )
        good = Counted()
        collector = Collector(interval=options.interval, follow=good)
        collector.keep(targets)
        report("scraping and reading", collector.running(), good.read, wanted, options.seconds)
        config = MonitorConfig(targets=targets, interval=options.interval, store=f"sqlite:///{folder}/monitor.db")
        watch = Watch(config)
        report("with rules and store", watch.running(), lambda: kept(watch), wanted, options.seconds)


class Counted:
    """Good pages, counted as they are followed."""

    def __init__(self) -> None:
        self._lock, self._pages = threading.Lock(), 0

    def __call__(self, state: TargetState) -> None:
        with self._lock:
            self._pages += not state.failures

    def read(self) -> int:
        return self._pages


def kept(watch: Watch) -> int:
    """Pages in the rings."""
    return sum(len(state.history) for target in watch.targets() if (state := watch.state(target.name)))


if __name__ == "__main__":
    main()
