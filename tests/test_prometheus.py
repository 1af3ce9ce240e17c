"""The fleet through Prometheus, held against the same servers read directly: a real Prometheus scrapes them."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import parse_qs

import pytest
from recorded import PAGES, page
from servers import Answer, hangs, says, serving

from monitor import metrics
from monitor.config import PrometheusServer
from monitor.finding import Change
from monitor.prometheus import PrometheusSource
from monitor.reading import read
from monitor.snapshot import Snapshot
from monitor.source import Source, TargetState
from monitor.thresholds import Thresholds
from monitor.window import window

Prometheus = Callable[..., str]


def eventually(is_true: Callable[[], object], patience: float = 40.0) -> None:
    deadline = time.monotonic() + patience
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


# A real Prometheus


class Engine:
    """A server whose page can be changed, and that notes when each count of tokens was first shown."""

    def __init__(self, text: str) -> None:
        self.text, self.shown = text, {float(): 0.0}
        self.is_up, self.tokens_per_s, self.began = True, 0.0, time.time()

    def answer(self, client: socket, request: str) -> None:
        if self.is_up:
            says(self.text.encode(), Content_Type="text/plain; version=0.0.4", Connection="close")(client, request)


def counted(text: str, times: float) -> str:
    """The page with everything it has counted multiplied, as if as much had happened again."""
    line = re.compile(r"^(\S+(?:_total|_bucket|_sum|_count)(?:\{.*\})?) (\S+)$", re.MULTILINE)
    return line.sub(lambda match: f"{match[1]} {float(match[2]) * times}", text)


@contextmanager
def engines(*texts: str) -> Iterator[list[tuple[Engine, str]]]:
    """A server for each page, and its address."""
    with ExitStack() as stack:
        made = [Engine(text) for text in texts]
        yield [(each, stack.enter_context(serving(each.answer)).removeprefix("http://")) for each in made]


def job(name: str, *addresses: str, **labels: str) -> dict[str, object]:
    return {"job_name": name, "static_configs": [{"targets": list(addresses), "labels": labels}]}


def newest(source: Source, name: str) -> Snapshot | None:
    state = source.state(name)
    return state and state.latest


def number(snapshot: Snapshot | None, metric: metrics.Metric) -> float | None:
    return snapshot.engines[0].number(metric) if snapshot else None


def test_every_page_read_through_prometheus_is_the_page_read_directly(real_prometheus: Prometheus) -> None:
    with engines(*map(page, PAGES), "process_start_time_seconds 1\nnode_load1 0.5\n") as running:
        addresses = [address for _, address in running]
        url = real_prometheus(job("chat", *addresses))
        source = PrometheusSource(PrometheusServer(url=url, selector='{job="chat"}'), cycle=1)
        names = [f"chat/{address}" for address in addresses[:-1]]
        eventually(lambda: all(newest(source, name) for name in names))

        assert source.problem == ""
        assert sorted(target.name for target in source.targets()) == sorted(names)
        for name, recorded in zip(names, PAGES, strict=True):
            found, direct = newest(source, name), read(page(recorded))
            assert found is not None
            assert found.engines == direct.engines, recorded
            assert (found.kind, found.server, found.missing) == (direct.kind, direct.server, direct.missing), recorded
            assert found.version_range == direct.version_range, recorded
