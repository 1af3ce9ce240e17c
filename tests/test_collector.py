"""The collector with servers that come and go. Time is the test's own wherever it matters."""

import threading
from collections.abc import Iterator
from itertools import count, pairwise

import pytest

from monitor.collector import Collector
from monitor.reading import read
from monitor.scrape import Scrape
from monitor.source import TargetState
from monitor.targets import Target
from planner.errors import InputError
from tests.servers import eventually

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

    def scrape(self, url: str, timeout: float, headers: object = None, context: object = None) -> Scrape:
        self.asked.append(url)
        if "slow" in url:
            self.gate.wait(20)
        if url in self.down:
            return Scrape(state="refused", url=url, message="nothing listens there")
        return Scrape(state="ok", url=url, text=f'vllm:generation_tokens_total{{engine="0"}} {next(self.tokens)}\n')


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
        assert collector.targets == ()
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
        names = [f"t{number}" for number in range(8)]
        assert sorted(target.name for target in collector.targets) == names
        eventually(lambda: all((state := collector.state(name)) and state.latest for name in names))
    assert not failures


def test_a_malformed_address_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="url"):
        Collector().add(watched("a", "ftp://gpu1"))


def test_a_step_that_fails_does_not_end_the_watch() -> None:
    """Whatever goes wrong inside one scrape, the target is asked again."""
    answers: Iterator[Scrape | Exception] = iter([RuntimeError("broken"), Scrape(state="ok", url=URL, text="up 1\n")])

    def scrape(url: str, timeout: float, headers: object = None, context: object = None) -> Scrape:
        answer = next(answers, None) or Scrape(state="ok", url=URL, text="up 1\n")
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Collector(interval=0.01, scrape=scrape).running() as collector:
        collector.add(watched("a", URL))
        eventually(lambda: (state := collector.state("a")) and state.latest)


# When who is asked


class Clock:
    """A clock that stands still until it is told to go on, and a collector's scrapes on it, one after the other."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.scraped: list[tuple[float, str]] = []
        self.down: set[str] = set()

    def scrape(self, url: str, timeout: float, headers: object = None, context: object = None) -> Scrape:
        self.scraped.append((self.now, url))
        if url in self.down:
            return Scrape(state="timeout", url=url, message="it did not answer in time")
        return Scrape(state="ok", url=url, text="up 1\n")

    def run(self, collector: Collector, seconds: float, step: float = 0.01) -> None:
        """What the collector's thread does, without the thread."""
        for _ in range(round(seconds / step)):
            with collector._changed:
                due = list(collector._startable(self.now))
            for watched in due:
                collector._collect(watched)
            self.now += step

    def times(self, url: str) -> list[float]:
        return [at for at, asked in self.scraped if asked == url]


def address(number: int) -> str:
    return f"http://gpu{number}:8000/metrics"


def on(clock: Clock, **options: float) -> Collector:
    return Collector(interval=5.0, scrape=clock.scrape, clock=lambda: clock.now, **options)  # type: ignore[arg-type]


def test_each_target_is_asked_once_a_cycle_at_a_time_of_its_own() -> None:
    clock = Clock()
    collector = on(clock)
    collector.keep(Target(name=f"chat-{number}", url=address(number)) for number in range(200))
    clock.run(collector, 60.1)
    for number in range(200):
        times = clock.times(address(number))[:12]
        assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx([5.0] * 11, abs=0.011)
    # 200 targets in 5 s are 4 in each tenth; a herd would be 200 in one.
    in_tenths = [sum(1000 + n / 10 <= at < 1000 + (n + 1) / 10 for at, _ in clock.scraped) for n in range(600)]
    assert max(in_tenths) <= 13


def test_the_times_are_the_same_after_a_restart() -> None:
    clock = Clock()
    for _ in range(2):
        collector = on(clock)
        collector.keep([watched("a", URL)])
        clock.run(collector, 17.3)
    assert {round(at % 5, 1) for at in clock.times(URL)} == {round(clock.times(URL)[0] % 5, 1)}


def test_one_that_is_added_by_hand_is_asked_at_once_and_then_in_turn() -> None:
    clock = Clock()
    collector = on(clock)
    collector.add(watched("a", URL))
    clock.run(collector, 20)
    first, second, third, *_ = clock.times(URL)
    assert first == 1000
    assert 2.5 < second - first <= 7.5  # two pages close together would make a rate of nothing
    assert third - second == pytest.approx(5, abs=0.011)


def test_a_target_that_fails_on_and_on_is_asked_more_seldom_until_it_answers() -> None:
    clock = Clock()
    clock.down = {URL}
    collector = on(clock)
    collector.keep([watched("a", URL)])
    clock.run(collector, 600)
    gaps = [later - earlier for earlier, later in pairwise(clock.times(URL))]
    assert gaps[:2] == pytest.approx([5, 5], abs=0.011)  # flapping is seen as it is
    assert all(period / 2 <= gap <= period * 3 / 2 + 0.02 for gap, period in zip(gaps[3:6], (10, 20, 40), strict=False))
    assert gaps[-3:] == pytest.approx([60, 60, 60], abs=0.011)
    clock.down.clear()
    clock.run(collector, 100)
    assert [later - earlier for earlier, later in pairwise(clock.times(URL)[-5:])] == pytest.approx([5] * 4, abs=0.011)


def test_all_down_at_once_do_not_come_back_in_step() -> None:
    """A switch fails for ten minutes: after it the targets are asked spread over their minute, not all together."""
    clock = Clock()
    collector = on(clock)
    collector.keep(Target(name=f"chat-{number}", url=address(number)) for number in range(200))
    clock.run(collector, 10, step=0.1)
    clock.down = {address(number) for number in range(200)}
    clock.run(collector, 600, step=0.1)
    last_minute = [at for at, _ in clock.scraped if at >= clock.now - 60]
    in_seconds = [sum(clock.now - 60 + n <= at < clock.now - 59 + n for at in last_minute) for n in range(60)]
    assert len(last_minute) == pytest.approx(200, abs=2)
    assert max(in_seconds) <= 12


def test_a_slow_server_is_not_asked_again_at_once() -> None:
    """A page that takes 7 s of a 5 s cycle: the next turn comes after it, what was missed is not made up for."""
    clock = Clock()

    def slow(url: str, timeout: float, **_: object) -> Scrape:
        clock.scraped.append((clock.now, url))
        clock.now += 7
        return Scrape(state="ok", url=url, text="up 1\n")

    collector = Collector(interval=5.0, scrape=slow, clock=lambda: clock.now)
    collector.keep([watched("a", URL)])
    clock.run(collector, 60)
    assert {round(later - earlier) for earlier, later in pairwise(clock.times(URL))} == {10}


# Who hears of it


def test_each_scrape_is_followed_by_what_is_known_then() -> None:
    servers, heard = Servers(), list[TargetState]()
    collector = Collector(scrape=servers.scrape, follow=heard.append)
    collector.add(watched("a", URL))
    collector.collect("a")
    servers.down.add(URL)
    collector.collect("a")
    assert [(len(state.history), state.failures, state.error and state.error.state) for state in heard] == [
        (1, 0, None),
        (1, 1, "refused"),
    ]


def test_a_follower_that_fails_does_not_lose_the_scrape(caplog: pytest.LogCaptureFixture) -> None:
    def follow(state: TargetState) -> None:
        raise RuntimeError("the store is on fire")

    collector = Collector(scrape=Servers().scrape, follow=follow)
    collector.add(watched("a", URL))
    collector.collect("a")
    collector.collect("a")
    assert (state := collector.state("a")) is not None
    assert len(state.history) == 2
    assert caplog.text.count("RuntimeError: the store is on fire") == 2


def test_a_scrape_that_breaks_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(url: str, timeout: float, **_: object) -> Scrape:
        raise RuntimeError("unforeseen")

    collector = Collector(scrape=breaks)
    collector.add(watched("a", URL))
    collector.collect("a")
    assert (state := collector.state("a")) is not None
    assert state.error is not None
    assert (state.error.state, state.error.message) == (
        "unreadable",
        "the answer could not be read (RuntimeError)",
    )
    assert "unforeseen" in caplog.text


def test_nobody_hears_of_a_target_removed_meanwhile() -> None:
    servers, heard = Servers(), list[TargetState]()
    servers.gate.clear()
    collector = Collector(interval=0.02, scrape=servers.scrape, follow=heard.append)
    with collector.running():
        collector.add(watched("slow", "http://slow:8000"))
        eventually(lambda: servers.asked)
        collector.remove("slow")
        servers.gate.set()
        collector.add(watched("a", URL))
        eventually(lambda: heard)
    assert {state.name for state in heard} == {"a"}


def test_what_was_known_earlier_comes_before_the_first_page() -> None:
    now = [1000.0]
    earlier = [read("up 1\n", at=at) for at in (900.0, 905.0)]
    collector = Collector(scrape=Servers().scrape, clock=lambda: now[0], past=lambda target: earlier)
    collector.add(watched("a", URL))
    collector.collect("a")
    now[0] += 5
    collector.collect("a")
    assert (state := collector.state("a")) is not None
    assert [snapshot.at for snapshot in state.history] == [900.0, 905.0, 1000.0, 1005.0]


# The file changed


def test_keeping_other_targets_leaves_the_history_of_those_that_stay() -> None:
    collector = Collector(scrape=Servers().scrape)
    collector.keep([watched("a", "gpu1:8000"), watched("b", "gpu2:8000"), watched("c", "gpu3:8000")])
    for name in "abc":
        collector.collect(name)
    labelled = Target(name="a", url="gpu1:8000", group="chat", headers={"X-Key": "1"})
    collector.keep([watched("d", "gpu4:8000"), watched("c", "gpu9:8000"), labelled])
    states = {target.name: collector.state(target.name) for target in collector.targets}
    assert {name: state and len(state.history) for name, state in states.items()} == {"a": 1, "c": 0, "d": 0}
    assert (state := states["a"]) is not None
    assert state.target == labelled


def test_what_a_target_needs_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is not set is the trouble of that target alone."""
    sent: list[tuple[str, object]] = []

    def scrape(url: str, timeout: float, headers: object = None, context: object = None) -> Scrape:
        sent.append((url, headers))
        return Scrape(state="ok", url=url, text="up 1\n")

    monkeypatch.delenv("VLLM_TOKEN", raising=False)
    monkeypatch.setenv("GPU_HOST", "gpu7")
    collector = Collector(scrape=scrape)
    collector.add(
        Target(name="a", url="https://me:secret@${GPU_HOST}:8000", headers={"Authorization": "${VLLM_TOKEN}"})
    )
    collector.add(watched("b", "${GPU_HOST}:8000"))
    collector.collect("a")
    collector.collect("b")
    assert sent == [("http://gpu7:8000/metrics", {})]
    assert (state := collector.state("a")) is not None
    assert state.error is not None
    assert state.error.state == "misconfigured"
    assert state.error.message == "headers.Authorization: found '${VLLM_TOKEN}', accepted: a variable that is set"
    assert "secret" not in state.error.url
    monkeypatch.setenv("VLLM_TOKEN", "Bearer 1")
    collector.collect("a")
    assert sent[1:] == [("https://me:secret@gpu7:8000/metrics", {"Authorization": "Bearer 1"})]
    assert (state := collector.state("a")) is not None
    assert state.error is None


def test_a_stop_with_a_server_that_hangs_is_quick_and_a_start_goes_on() -> None:
    servers = Servers()
    servers.gate.clear()
    collector = Collector(interval=0.02, scrape=servers.scrape)
    collector.add(watched("slow", "http://slow:8000"))
    collector.start()
    eventually(lambda: servers.asked)
    collector.stop()
    servers.gate.set()
    with collector.running():
        eventually(lambda: (state := collector.state("slow")) and len(state.history) >= 2)
