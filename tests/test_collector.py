"""The collector with servers that come and go. Time is the test's own wherever it matters."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from monitor.collector import Collector
from monitor.scrape import Scrape
from monitor.targets import Target
from planner.errors import InputError

URL = "http://gpu1:8000/metrics"


def watched(name: str, url: str) -> Target:
    return Target(name=name, url=url)


class Servers:
    """Stands in for the network: what each URL answers, and how often it was asked."""

    def __init__(self) -> None:
        self.tokens = count(100, 50)
        self.down: set[str] = set()
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def scrape(self, url: str, timeout: float, headers: object = None) -> Scrape:
        self.asked.append(url)
        if "slow" in url:
            self.gate.wait(20)
        if url in self.down:
            return Scrape(state="refused", url=url, message="nothing listens there")
        return Scrape(state="ok", url=url, text=f'vllm:generation_tokens_total{{engine="0"}} {next(self.tokens)}\n')


def eventually(is_true: Callable[[], object], patience: float = 10.0) -> None:
    deadline = time.monotonic() + patience
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_a_target_that_fails_keeps_its_age_and_recovers_by_itself() -> None:
    servers, now = Servers(), [1000.0]
    collector = Collector(scrape=servers.scrape, clock=lambda: now[0], wall=lambda: 1.8e9)
    collector.add(watched("a", "gpu1:8000"))
    state = collector.state("a")
    assert state is not None
    assert (state.latest, state.age, state.error) == (None, None, None)

    collector.collect("a")
    servers.down.add(URL)
    now[0] += 5
    collector.collect("a")
    now[0] += 5
    collector.collect("a")
    state = collector.state("a")
    assert state is not None
    assert (state.age, state.failures, state.error and state.error.state) == (10.0, 2, "refused")
    assert state.latest is not None
    assert state.latest.wall == 1.8e9

    servers.down.clear()
    collector.collect("a")
    state = collector.state("a")
    assert state is not None
    assert (state.age, state.failures, state.error, len(state.history)) == (0.0, 0, None, 2)


def test_windows_use_the_steady_clock_and_not_the_wall() -> None:
    """The wall clock steps back an hour in between: 50 tokens in 5 s are still 10 a second."""
    servers, now, wall = Servers(), [0.0], iter([1.8e9, 1.8e9 - 3600, 1.8e9])
    collector = Collector(scrape=servers.scrape, clock=lambda: now[0], wall=lambda: next(wall))
    collector.add(watched("a", URL))
    for _ in range(3):
        collector.collect("a")
        now[0] += 5
    state = collector.state("a")
    assert state is not None
    short, long = state.window(5), state.window(3600)
    assert short is not None
    assert long is not None
    assert (short.seconds, short.engines[0].output_tokens_per_s) == (5.0, 10.0)
    assert (long.seconds, long.engines[0].output_tokens_per_s) == (10.0, 10.0)


def test_no_window_before_the_second_page() -> None:
    collector = Collector(scrape=Servers().scrape)
    collector.add(watched("a", URL))
    collector.collect("a")
    state = collector.state("a")
    assert state is not None
    assert state.window(60) is None


def test_the_ring_is_bounded() -> None:
    collector = Collector(scrape=Servers().scrape, kept=3)
    collector.add(watched("a", URL))
    for _ in range(10):
        collector.collect("a")
    state = collector.state("a")
    assert state is not None
    assert len(state.history) == 3


def test_one_that_hangs_does_not_hold_the_others() -> None:
    servers = Servers()
    servers.gate.clear()
    collector = Collector(interval=0.02, scrape=servers.scrape)
    collector.add(watched("slow", "http://slow:8000"))
    collector.add(watched("fast", URL))
    with collector.running():
        eventually(lambda: servers.asked.count(URL) >= 5)
        assert servers.asked.count("http://slow:8000/metrics") == 1  # one GET at a time
        servers.gate.set()
        eventually(lambda: (state := collector.state("slow")) and len(state.history) >= 2)
    assert not collector.is_running


def test_targets_come_and_go_while_it_runs() -> None:
    servers = Servers()
    with Collector(interval=0.02, scrape=servers.scrape).running() as collector:
        collector.add(watched("a", URL))
        eventually(lambda: (state := collector.state("a")) and state.latest)
        collector.remove("a")
        assert collector.state("a") is None
        assert collector.names == ()
        collector.remove("a")
        collector.add(watched("b", "gpu2:8000"))
        eventually(lambda: (state := collector.state("b")) and state.latest)


def test_the_same_name_again_keeps_its_history_unless_moved() -> None:
    collector = Collector(scrape=Servers().scrape)
    collector.add(watched("a", "gpu1:8000"))
    collector.collect("a")
    collector.add(watched("a", "http://gpu1:8000/metrics"))
    assert (state := collector.state("a")) is not None
    assert len(state.history) == 1
    collector.add(watched("a", "gpu2:8000"))
    assert (state := collector.state("a")) is not None
    assert state.history == ()


def test_start_twice_and_stop_twice_leave_no_thread() -> None:
    before = threading.active_count()
    collector = Collector(interval=0.01, scrape=Servers().scrape)
    collector.add(watched("a", URL))
    for _ in range(5):
        collector.start()
        collector.start()
        collector.stop()
        collector.stop()
    eventually(lambda: threading.active_count() <= before)


def test_many_threads_at_once() -> None:
    """No lost target, no deadlock, no exception."""
    failures: list[Exception] = []
    with Collector(interval=0.001, scrape=Servers().scrape).running() as collector:

        def use(name: str) -> None:
            try:
                for _ in range(50):
                    collector.add(watched(name, f"http://{name}:8000"))
                    collector.state(name)
                    collector.remove(name)
                collector.add(watched(name, f"http://{name}:8000"))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=use, args=(f"t{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(collector.names) == [f"t{number}" for number in range(8)]
        eventually(lambda: all((state := collector.state(name)) and state.latest for name in collector.names))
    assert not failures


def test_a_malformed_address_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="url"):
        Collector().add(watched("a", "ftp://gpu1"))


def test_a_step_that_fails_does_not_end_the_watch() -> None:
    """Whatever goes wrong inside one scrape, the target is asked again."""
    answers: Iterator[Scrape | Exception] = iter([RuntimeError("broken"), Scrape(state="ok", url=URL, text="up 1\n")])

    def scrape(url: str, timeout: float, headers: object = None) -> Scrape:
        answer = next(answers, None) or Scrape(state="ok", url=URL, text="up 1\n")
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Collector(interval=0.01, scrape=scrape).running() as collector:
        collector.add(watched("a", URL))
        eventually(lambda: (state := collector.state("a")) and state.latest)
