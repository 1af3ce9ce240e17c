"""Watch with a real store and the real rules; only servers, receivers and the time are the test's own."""

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor import watch as module
from monitor.config import MonitorConfig, Webhook
from monitor.finding import Change, Event
from monitor.scrape import Scrape
from monitor.targets import Target
from monitor.thresholds import Thresholds
from monitor.watch import Watch
from planner.errors import InputError
from tests.servers import eventually

CHAT = Target(name="chat-1", url="gpu1:8000", group="chat")
OTHER = Target(name="chat-2", url="gpu2:8000")
QUIET = Thresholds(usage_act=1.0, usage_alarm=1.0)
START = 1.8e9


def reported(usage: float, tokens: int) -> str:
    """A server that runs four requests and generates 50 tokens each 5 s; nothing waits and nothing is preempted."""
    names = {"num_requests_running": 4, "num_requests_waiting": 0, "kv_cache_usage_perc": usage}
    names |= {"generation_tokens_total": tokens, "prompt_tokens_total": tokens, "num_preemptions_total": 0}
    return "".join(f'vllm:{name}{{engine="0",model_name="m"}} {value}\n' for name, value in names.items())


class World:
    """Servers whose KV usage is set by hand, a receiver, and a clock moved by hand."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = f"sqlite:///{tmp_path}/monitor.db"
        self.now, self.boot = START, START - 1000
        self.usage: dict[str, float | None] = {}
        self.told: list[dict[str, Any]] = []
        self.tokens = 0
        self.watch = self.begun()

    def begun(self, **changes: Any) -> Watch:
        """A dashboard that has just been started."""
        config = MonitorConfig(
            targets=(CHAT, OTHER),
            store=self.store,
            webhooks=(Webhook(name="on call", url="http://hook"),),
            thresholds=Thresholds(usage_alarm_for=20.0),
        )
        self.watch = Watch(
            replace(config, **changes),
            scrape=self.scrape,
            post=self.post,
            clock=lambda: self.now - self.boot,
            wall=lambda: self.now,
        )
        return self.watch

    def scrape(self, url: str, timeout: float, headers: object = None, context: object = None) -> Scrape:
        usage = self.usage.get(url.split("/")[2].partition(":")[0], 0.2)
        if usage is None:
            return Scrape(state="refused", url=url, message="it refuses connections")
        return Scrape(state="ok", url=url, text=reported(usage, self.tokens))

    def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout: float) -> Scrape:
        self.told.append(json.loads(body))
        return Scrape(state="ok", url=url)

    def go_on(self, seconds: float) -> None:
        """What start() does in threads, each 5 s."""
        for _ in range(round(seconds / 5)):
            self.now, self.tokens = self.now + 5, self.tokens + 50
            for target in self.watch.targets():
                self.watch._collector.collect(target.name)
            self.watch._store.flush()

    def crash(self, off: float = 0.0) -> None:
        """End without a word, be away for so many seconds, and begin again."""
        self.now += off
        self.tokens += round(off * 10)
        self.begun()

    def words(self, name: str) -> list[str]:
        state = self.watch.state(name)
        return [] if state is None else [finding.condition.rule for finding in state.findings]

    def timeline(self) -> list[tuple[float, str, str]]:
        return _short(self.watch.events(START, self.now))


def _short(events: Sequence[Event]) -> list[tuple[float, str, str]]:
    return [(event.at - START, event.rule, event.change.value) for event in events]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def heard(world: World, count: int) -> list[tuple[str, str, str]]:
    """What the receiver was told, once there is so much of it."""
    eventually(lambda: len(world.told) >= count)
    return [(body["target"], body["rule"], body["change"]) for body in world.told]


def test_a_finding_is_seen_kept_and_told_once_when_it_begins_and_once_when_it_ends(world: World) -> None:
    world.go_on(60)
    assert world.words("chat-1") == []
    world.usage["gpu1"] = 0.97
    world.go_on(60)
    assert world.words("chat-1") == ["usage_alarm"]
    assert world.words("chat-2") == []
    state = world.watch.state("chat-1")
    assert state is not None
    assert state.findings[0].since - START == 65.0  # the first page that showed it
    world.usage["gpu1"] = 0.2
    world.go_on(60)
    assert world.words("chat-1") == []
    assert [(rule, change) for _, rule, change in world.timeline()] == [
        ("usage_alarm", "began"),
        ("usage_alarm", "ended"),
    ]
    assert heard(world, 2) == [("chat-1", "usage_alarm", "began"), ("chat-1", "usage_alarm", "ended")]
    stored = world.watch._store.events(START, world.now + 1)
    assert _short(stored) == world.timeline()


def test_a_restart_keeps_since_and_says_nothing_twice(world: World) -> None:
    world.usage["gpu1"] = 0.97
    world.go_on(120)
    before = world.watch.state("chat-1")
    world.crash(off=20)
    world.go_on(30)
    after = world.watch.state("chat-1")
    assert before is not None
    assert after is not None
    assert [finding.since for finding in after.findings] == [finding.since for finding in before.findings]
    assert world.timeline() == [(30.0, "usage_alarm", "began")]
    assert heard(world, 1) == [("chat-1", "usage_alarm", "began")]
    world.usage["gpu1"] = 0.2
    world.go_on(60)
    assert heard(world, 2)[1:] == [("chat-1", "usage_alarm", "ended")]


def test_since_is_kept_longer_than_the_pages_that_come_back(world: World) -> None:
    world.usage["gpu1"] = 0.97
    world.go_on(1500)
    world.crash()
    world.go_on(30)
    state = world.watch.state("chat-1")
    assert state is not None
    assert [finding.since - START for finding in state.findings] == [30.0]  # when it was said: 20 s after it began
    assert heard(world, 1) == [("chat-1", "usage_alarm", "began")]


def test_the_last_quarter_of_an_hour_comes_back_and_a_rate_goes_over_the_gap(world: World) -> None:
    world.go_on(60)
    world.crash(off=20)
    world.go_on(5)
    state = world.watch.state("chat-1")
    assert state is not None
    assert [round(page.wall - START) for page in state.history if page.wall] == [*range(5, 61, 5), 85]
    assert state.age == 0
    window = state.window(25)
    assert window is not None
    assert (window.seconds, window.engines[0].output_tokens_per_s) == (25.0, 10.0)


def test_what_ended_while_the_dashboard_was_off_is_said(world: World) -> None:
    """A server down before a restart and up after it: whoever was told of the one hears of the other."""
    world.go_on(30)
    world.usage["gpu1"] = None
    world.go_on(60)
    assert world.words("chat-1") == ["down"]
    world.usage["gpu1"] = 0.2
    world.crash(off=300)
    world.go_on(90)
    assert world.words("chat-1") == []
    assert [(rule, change) for _, rule, change in world.timeline()] == [("down", "began"), ("down", "ended")]
    assert heard(world, 2) == [("chat-1", "down", "began"), ("chat-1", "down", "ended")]


def test_what_goes_on_over_a_restart_is_not_said_again(world: World) -> None:
    world.go_on(30)
    world.usage["gpu1"] = None
    world.go_on(60)
    world.crash(off=60)
    world.go_on(300)
    assert world.words("chat-1") == ["down"]
    state = world.watch.state("chat-1")
    assert state is not None
    assert state.findings[0].since < START + 60
    world.usage["gpu1"] = 0.2
    world.go_on(60)
    assert [(rule, change) for _, rule, change in world.timeline()] == [("down", "began"), ("down", "ended")]


def test_history_of_store_and_ring_has_each_page_once(world: World) -> None:
    world.go_on(60)
    world.now, world.tokens = world.now + 5, world.tokens + 50
    world.watch._collector.collect("chat-1")  # the store has not written it yet
    found = world.watch.snapshots("chat-1", START, world.now)
    assert [page.at - START for page in found] == list(range(5, 66, 5))
    assert [page.wall for page in found] == [page.at for page in found]
    assert [page.at - START for page in world.watch.snapshots("chat-1", START + 20, START + 30)] == [20, 25, 30]
    assert world.watch.snapshots("nobody", START, world.now) == []


def test_without_a_store_the_ring_and_the_timeline_of_this_run_are_there(world: World) -> None:
    world.begun(store="")
    world.usage["gpu1"] = 0.97
    world.go_on(60)
    assert world.watch.problem == ""
    assert [page.at - START for page in world.watch.snapshots("chat-1", START, world.now)] == list(range(5, 61, 5))
    assert world.timeline() == [(30.0, "usage_alarm", "began")]
    assert world.watch.events(START, world.now, "chat-2") == []
    assert world.watch.events(START + 31, world.now) == []
    assert world.watch.baseline("chat-1", world.now) is None


def test_a_store_that_is_none_is_said_and_the_rest_goes_on(world: World) -> None:
    world.begun(store="monitor.db")
    world.go_on(10)
    assert "store: found 'monitor.db'" in world.watch.problem
    state = world.watch.state("chat-1")
    assert state is not None
    assert len(state.history) == 2


def test_a_locked_store_is_said_and_nothing_is_lost(world: World) -> None:
    world.go_on(10)
    lock = sqlite3.connect(world.store.removeprefix("sqlite:///"), isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    world.go_on(5)
    assert "locked" in world.watch.problem
    state = world.watch.state("chat-1")
    assert state is not None
    assert (len(state.history), state.error) == (3, None)
    lock.execute("ROLLBACK")
    lock.close()
    world.go_on(5)
    assert world.watch.problem == ""
    stored = world.watch._store.snapshots("chat-1", START, world.now + 1)
    assert [page.at - START for page in stored] == [5, 10, 15, 20]


def test_a_visitors_server_is_watched_and_recorded_but_nobody_is_told(world: World) -> None:
    world.watch.watch("gpu9:8000")
    world.usage["gpu9"] = 0.97
    world.go_on(60)
    assert world.words("gpu9:8000") == ["usage_alarm"]
    assert [(event.target, event.rule) for event in world.watch.events(START, world.now)] == [
        ("gpu9:8000", "usage_alarm")
    ]
    assert world.told == []
    with pytest.raises(InputError, match="url"):
        world.watch.watch("ftp://gpu9")
    with pytest.raises(InputError, match="or an address like"):
        world.watch.watch("chat-9")  # a mistyped name is no server of everybody's fleet


def test_a_server_is_found_by_its_address_too(world: World) -> None:
    world.go_on(5)
    world.watch.watch("http://gpu1:8000/metrics")
    assert [target.name for target in world.watch.targets()] == ["chat-1", "chat-2"]
    state = world.watch.state("http://gpu1:8000/")
    assert state is not None
    assert state.name == "chat-1"
    assert len(world.watch.snapshots("gpu1:8000", START, world.now)) == 1
    assert world.watch.state("gpu7:8000") is None
    assert world.watch.state("no address:x") is None


def test_addresses_of_visitors_do_not_pile_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VISITED", 3)
    for number in range(5):
        world.watch.watch(f"visited{number}:8000")
    assert [target.name for target in world.watch.targets()] == [
        "chat-1", "chat-2", "visited2:8000", "visited3:8000", "visited4:8000",
    ]  # fmt: skip


def test_another_file_changes_what_it_changes(world: World, tmp_path: Path) -> None:
    world.usage["gpu1"] = 0.97
    world.go_on(60)
    world.watch.watch("gpu9:8000")
    new = Target(name="chat-3", url="gpu3:8000")
    config = replace(world.watch.config, targets=(CHAT, new), interval=10.0, timeout=3.0, thresholds=QUIET)
    world.watch.reload(config)
    assert [target.name for target in world.watch.targets()] == ["chat-1", "chat-3", "gpu9:8000"]
    assert (world.watch._collector.interval, world.watch._collector.timeout) == (10.0, 3.0)
    assert world.watch.state("chat-2") is None
    state = world.watch.state("chat-1")
    assert state is not None
    assert len(state.history) == 12
    world.go_on(100)
    assert world.words("chat-1") == []
    assert [(rule, change) for _, rule, change in world.timeline()] == [
        ("usage_alarm", "began"),
        ("usage_alarm", "ended"),
    ]


def test_a_lower_threshold_finds_what_the_last_minutes_show(world: World) -> None:
    world.usage["gpu1"] = 0.85
    world.go_on(120)
    assert world.words("chat-1") == []
    world.watch.reload(replace(world.watch.config, thresholds=Thresholds(usage_act=0.8)))
    world.go_on(5)
    state = world.watch.state("chat-1")
    assert state is not None
    assert [(one.condition.rule, one.since - START) for one in state.findings] == [("usage_act", 10.0)]
    assert world.timeline() == [(125.0, "usage_act", "began")]


def test_a_name_that_moved_to_another_server_begins_anew(world: World) -> None:
    world.go_on(30)
    world.watch.reload(replace(world.watch.config, targets=(replace(CHAT, url="gpu5:8000"),)))
    world.go_on(5)
    state = world.watch.state("chat-1")
    assert state is not None
    assert len(state.history) == 1
    assert world.watch.state("gpu1:8000") is None


def test_a_server_that_is_no_longer_watched_has_no_finding_left_open(world: World) -> None:
    world.usage["gpu1"] = world.usage["gpu2"] = 0.97
    world.go_on(60)
    world.watch.reload(replace(world.watch.config, targets=(replace(CHAT, url="gpu5:8000"),)))
    assert heard(world, 3)[2:] == [("chat-2", "usage_alarm", "ended")]
    world.go_on(120)  # chat-1 is another server now, which is well
    assert heard(world, 4)[3:] == [("chat-1", "usage_alarm", "ended")]


def test_a_receiver_that_fails_is_said(world: World) -> None:
    world.begun(webhooks=(Webhook(name="on call", url="${NO_SUCH_VARIABLE}"),))
    world.usage["gpu1"] = 0.97
    world.go_on(60)
    eventually(lambda: world.watch.problem)
    assert world.watch.problem.startswith("webhook on call: webhooks.on call.url: found '${NO_SUCH_VARIABLE}'")


def test_it_runs_by_itself_and_leaves_no_thread(world: World) -> None:
    before = set(threading.enumerate())
    watch = Watch(MonitorConfig(targets=(CHAT,), store=world.store, interval=1.0), scrape=world.scrape, post=world.post)
    with watch.running():
        watch.wait_for_page("chat-1", 20)
        eventually(lambda: (state := watch.state("chat-1")) and state.latest)
    eventually(lambda: set(threading.enumerate()) <= before)
    again = Watch(MonitorConfig(targets=(CHAT,), store=world.store), scrape=world.scrape)
    page = again.snapshots("chat-1", 0, 4e9)
    assert len(page) >= 1
    assert page[0].engines[0].running == 4
    assert Change.BEGAN not in {event.change for event in again.events(0, 4e9)}


def test_a_long_address_has_a_name_that_can_be_shown(world: World) -> None:
    """Two of 3,000 characters that differ in the last one are two servers, each found by its address and its name."""
    start = "http://gpu9:8000/" + 2982 * "a"
    urls = [f"{start}{last}" for last in "bc"]
    for url in urls:
        world.watch.watch(url)
        world.watch.watch(url)
    names = [target.name for target in world.watch.targets()][2:]
    assert [len(name) for name in names] == [100, 100]
    assert len(set(names)) == 2
    for url, name in zip(urls, names, strict=True):
        assert name.startswith(start[:91] + "…")
        by_address, by_name = world.watch.state(url), world.watch.state(name)
        assert by_address is not None
        assert by_name is not None
        assert (by_address.name, by_address.target.url) == (by_name.name, by_name.target.url) == (name, url)
    for wrong in ("x" * 3000, "ftp://" + "x" * 3000):
        with pytest.raises(InputError) as refused:
            world.watch.watch(wrong)
        assert refused.value.found == f"{wrong[:100]}…"
