"""A real Prometheus scrapes servers: read through it, they are the same as read directly."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from socket import socket

import pytest
from conftest import cannot_run, free_port
from recorded import PAGES, page
from servers import says, serving

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


TOKENS = re.compile(rf"(?<=^{metrics.GENERATION_TOKENS.names[0]}).*$", re.MULTILINE)


class Engine:
    """A server whose page can be changed, or that counts its answers and notes when it gave each."""

    def __init__(self, text: str) -> None:
        self.text, self.is_up, self.is_counting = text, True, False
        self.told: dict[float, float] = {}

    def answer(self, client: socket, request: str) -> None:
        if not self.is_up:
            return
        text = self.text
        if self.is_counting:
            tokens = 1e6 + len(self.told)
            text = TOKENS.sub(lambda match: f"{match[0].rpartition(' ')[0]} {tokens}", text)
            self.told[tokens] = time.time()
        says(text.encode(), Content_Type="text/plain; version=0.0.4", Connection="close")(client, request)


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
    return state.latest if state else None


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


LOADED = page("0.32.0-load")


def test_what_happened_between_two_scrapes_is_what_happened(real_prometheus: Prometheus) -> None:
    """The same increase, rate and quantiles as between the two pages read directly."""
    with engines(counted(LOADED, 1)) as [(engine, address)]:
        source = PrometheusSource(PrometheusServer(url=real_prometheus(job("chat", address))), cycle=1)
        name = f"chat/{address}"
        eventually(lambda: newest(source, name))
        before = newest(source, name)
        engine.text = counted(LOADED, 2)
        eventually(lambda: number(newest(source, name), metrics.GENERATION_TOKENS) == 2 * 165_065)
        after = newest(source, name)
        assert before
        assert after
        (found,) = window(before, after).engines
        (direct,) = window(read(counted(LOADED, 1), at=before.at), read(counted(LOADED, 2), at=after.at)).engines
        assert found.increase(metrics.GENERATION_TOKENS) == 165_065
        assert found.output_tokens_per_s == direct.output_tokens_per_s == 165_065 / (after.at - before.at)
        for metric in (metrics.TTFT, metrics.ITL, metrics.E2E, metrics.QUEUE):
            assert found.quantile(metric, 0.99) == direct.quantile(metric, 0.99) is not None
        # Of 627 requests 0.99 x 627 = 620.73 were answered within the bucket that ends at 1 s and began at 0.75 s.
        ttft = found.quantile(metrics.TTFT, 0.99)
        assert ttft is not None
        assert (ttft.low, ttft.high) == (0.75, 1.0)
        assert ttft.value == pytest.approx(0.75 + 0.25 * (620.73 - 615) / (627 - 615))


def test_a_page_has_the_time_of_its_scrape_and_comes_once(real_prometheus: Prometheus) -> None:
    with engines(LOADED) as [(engine, address)]:
        engine.is_counting = True
        source = PrometheusSource(PrometheusServer(url=real_prometheus(job("chat", address))), cycle=1)
        name = f"chat/{address}"

        def history() -> tuple[Snapshot, ...]:
            state = source.state(name)
            return state.history if state else ()

        eventually(lambda: len(history()) >= 6)
        live = history()
        past = source.snapshots(name, live[0].at - 2, time.time(), points=1000)
        assert len(past) >= 5
        for pages in (live, past):
            times = [each.at for each in pages]
            assert times == sorted(set(times))
            for each in pages:
                tokens = number(each, metrics.GENERATION_TOKENS)
                assert tokens is not None
                # A scrape has the time at which it began, and here a second to end in.
                assert -0.01 <= engine.told[tokens] - each.at <= 1.01


def test_a_restart_and_a_server_that_is_down(real_prometheus: Prometheus) -> None:
    with engines(counted(LOADED, 2), LOADED) as [(engine, address), (_, other)]:
        thresholds = Thresholds(down_for=1)
        url, began = real_prometheus(job("chat", address, other)), time.time() - 1
        source = PrometheusSource(PrometheusServer(url=url), thresholds, cycle=1)
        name = f"chat/{address}"

        def state() -> TargetState:
            found = source.state(name)
            assert found is not None
            return found

        def happened(rule: str, change: Change = Change.BEGAN) -> bool:
            events = source.events(began, time.time(), name)
            return (rule, change) in {(event.rule, event.change) for event in events}

        eventually(lambda: newest(source, name) and newest(source, f"chat/{other}"))
        before = newest(source, name)
        engine.text = counted(LOADED, 0.5)
        eventually(lambda: number(newest(source, name), metrics.GENERATION_TOKENS) == 165_065 / 2)
        after = newest(source, name)
        assert before
        assert after
        assert window(before, after).has_restarted
        eventually(lambda: "restart" in {finding.condition.rule for finding in state().findings})
        eventually(lambda: happened("restart"))

        engine.is_up = False
        eventually(lambda: state().error)
        error, pages = state().error, state().history
        assert error is not None
        assert error.message == "Prometheus cannot scrape it"
        eventually(lambda: "down" in {finding.condition.rule for finding in state().findings})
        assert state().history[-1] is pages[-1]
        assert state().failures >= 1
        age = state().age
        assert age is not None
        assert age >= time.time() - pages[-1].at - 1
        whole = source.state(f"chat/{other}")
        assert whole is not None
        assert whole.error is None
        assert source.problem == ""

        engine.is_up = True
        eventually(lambda: state().error is None)
        eventually(lambda: happened("down"))
        eventually(lambda: happened("down", Change.ENDED))
        assert not any(event.target == f"chat/{other}" for event in source.events(began, time.time()))


# The past

DAY = 86400


@pytest.fixture
def a_month(real_prometheus: Prometheus, tmp_path: Path) -> tuple[str, float]:
    """A Prometheus that scraped a server every 5 minutes for 30 days, and when that ended. It puts out 10 tokens/s.

    It began anew after 10 days, and for 2 days from the 20th on it was not there.
    """
    promtool = shutil.which("promtool")
    if not promtool:
        cannot_run("no promtool: install Debian's package prometheus")
    assert promtool
    end = time.time() // 300 * 300 - 3600
    start = end - 30 * DAY
    name = metrics.GENERATION_TOKENS.names[0]
    labels = 'job="chat",instance="gpu1:8000",engine="0",model_name="m"'
    lines = [f"# TYPE {name.removesuffix('_total')} counter"]
    gauge = [f"# TYPE {metrics.RUNNING.names[0]} gauge"]
    for second in range(0, 30 * DAY + 1, 300):
        if not 20 * DAY < second < 22 * DAY:
            since = second if second < 10 * DAY else second - 10 * DAY
            lines.append(f"{name}{{{labels}}} {10 * since} {start + second:.0f}")
            gauge.append(f"{metrics.RUNNING.names[0]}{{{labels}}} 1 {start + second:.0f}")
    (text := tmp_path / "month.om").write_text("\n".join([*lines, *gauge, "# EOF\n"]))
    port = free_port()
    command = [promtool, "tsdb", "create-blocks-from", "--max-block-duration=1440h", "openmetrics"]
    subprocess.run([*command, str(text), str(tmp_path / str(port))], check=True, capture_output=True)
    return real_prometheus(port=port), end


def test_a_month_is_asked_for_within_the_limit_of_points(
    a_month: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, end = a_month
    source = PrometheusSource(PrometheusServer(url=url, timeout=30), wall=lambda: end + 2)
    eventually(lambda: source.state("chat/gpu1:8000"))
    start = end - 30 * DAY

    pages = source.snapshots("chat/gpu1:8000", start, end, points=100_000)
    assert source.problem == ""
    # Every page once, one each 5 minutes but for 2 days; the newest may be younger than the last step.
    whole = 30 * 288 + 1 - (2 * 288 - 1)
    assert whole - 1 <= len(pages) <= whole
    between = [window(before, after) for before, after in pairwise(pages)]
    assert sum(each.has_restarted for each in between) == 1
    rates = {each.engines[0].output_tokens_per_s for each in between if not each.has_restarted and each.seconds < DAY}
    assert rates == {10.0}

    few = source.snapshots("chat/gpu1:8000", start, end)
    assert 220 <= len(few) <= 240
    away = [each.at for each in few if start + 20 * DAY < each.at < start + 22 * DAY]
    assert away == []
    restart, down, back = source.events(start, end, "chat/gpu1:8000")
    assert (restart.rule, restart.change) == ("restart", Change.BEGAN)
    assert 0 <= restart.at - (start + 10 * DAY) <= 10_800
    # Three steps without a page and one more, so that it is seen twice.
    assert (down.rule, down.change, back.rule, back.change) == ("down", Change.BEGAN, "down", Change.ENDED)
    assert 3 * 10_800 <= down.at - (start + 20 * DAY) <= 6 * 10_800
    assert 0 <= back.at - (start + 22 * DAY) <= 2 * 10_800

    for limit in ("_MAX_POINTS", "_MAX_SAMPLES"):
        monkeypatch.setattr(f"monitor.prometheus.{limit}", 10**9)
    assert source.snapshots("chat/gpu1:8000", start, end, points=12_000) == ()
    assert "exceeded maximum resolution of 11,000 points per timeseries" in source.problem
