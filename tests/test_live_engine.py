"""A real vLLM, watched while things happen to it: what is found begins and ends with its cause, and nothing else is.

The pool is 80 blocks of 32 tokens, of which requests can hold 79. The scheduler writes down what it holds after each
step (tests/engine_truth.py), clients stream and take the time; both are the truth here. All times of the rules are a
fifth of their defaults, as pages come every second and not every five.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import fmean

import pytest

from monitor.config import MonitorConfig
from monitor.engine import INTERPRETER
from monitor.finding import Change, Event
from monitor.metrics import GENERATION_TOKENS, START_TIME, TPOT
from monitor.snapshot import EngineSnapshot, Snapshot
from monitor.targets import Target
from monitor.thresholds import Thresholds
from monitor.tiny_model import SERVED
from monitor.watch import Watch
from monitor.window import SIBLING_SPREAD, window
from scripts import load
from scripts.load import Request
from tests.conftest import cannot_run, free_port
from tests.engines import Clients, EngineAt, Step, asking

BLOCK, BLOCKS = 32, 80
FLAGS = {
    **SERVED,
    "max_model_len": 2048,
    "block_size": BLOCK,
    "num_gpu_blocks_override": BLOCKS,
    "kv_cache_memory_bytes": 2**26,
}
TWO = {**FLAGS, "data_parallel_size": 2}
QUICK = {
    name: getattr(Thresholds(), name) / 5
    for name in (each.name for each in fields(Thresholds))
    if name.endswith("_for") or name in ("window", "full_within", "full_trend")
}
PRESSURE = {"saturated", "preempting", "waiting", "usage_alarm", "usage_act", "full", "retention", "jitter"}
"""All true where there are too few blocks. Which come beside the first depends on how many steps fit between pages."""
SOON = 300.0  # long enough for a machine that does much else  [s]


class Seen:
    """What a Watch says of the engine."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    @property
    def pages(self) -> tuple[Snapshot, ...]:
        state = self._watch.state("chat-1")
        assert state is not None
        return state.history

    @property
    def found(self) -> set[str]:
        state = self._watch.state("chat-1")
        assert state is not None
        return {finding.condition.rule for finding in state.findings}

    @property
    def events(self) -> Sequence[Event]:
        return self._watch.events(0.0, time.time() + 60)

    def begun(self) -> set[tuple[str, str | None]]:
        """Rules that became a finding so far, each with its engine."""
        return {(event.rule, event.engine) for event in self.events if event.change is Change.BEGAN}

    def comes_to(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SOON
        while not condition():
            said = [f"{event.rule} {event.change.value}: {event.reason}" for event in self.events]
            assert time.monotonic() < deadline, f"not within {SOON:.0f} s: {what}; found {self.found}, {said}"
            time.sleep(0.2)

    def finds(self, rule: str) -> None:
        self.comes_to(lambda: rule in self.found, f"{rule} is found")

    def finds_nothing(self) -> None:
        self.comes_to(lambda: not self.found, "all is well")

    def reads(self, pages: int = 1) -> Snapshot:
        """The latest page, when so many new ones have come."""
        last = self.pages[-1].at if self.pages else float("-inf")
        self.comes_to(lambda: sum(page.at > last for page in self.pages) >= pages, "a page")
        return self.pages[-1]

    def engine(self, name: str = "0") -> EngineSnapshot:
        return _of(self.pages[-1], name)

    @property
    def prefix_hit_rate(self) -> float | None:
        state = self._watch.state("chat-1")
        lately = state and state.window(QUICK["window"])
        return lately.engines[0].prefix_hit_rate if lately else None


def _of(page: Snapshot, name: str) -> EngineSnapshot:
    return next(engine for engine in page.engines if engine.engine == name)


@contextmanager
def watching(at: EngineAt, **thresholds: float) -> Iterator[Seen]:
    """It is watched for the length of a `with`, which begins with its first page."""
    target = Target(name="chat-1", url=at.url)
    judged = Thresholds(**(QUICK | thresholds))  # type: ignore[arg-type]
    config = MonitorConfig(targets=(target,), interval=1.0, timeout=30.0, thresholds=judged, store="")
    with Watch(config).running() as watch:
        (seen := Seen(watch)).reads()
        yield seen


@pytest.fixture(scope="module")
def at(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineAt]:
    """Where all engines are, one after the other. A start takes 20 to 60 s: tests that share one are neighbours."""
    if not INTERPRETER.exists():
        cannot_run("no engine: `make engine` installs one")
    place = EngineAt(tiny_model, free_port(), tmp_path_factory.mktemp("truth"))
    yield place
    place.end()


class Figures:
    """What was read of an engine under load, and what is true: begun when it idles, looked at when it idles again."""

    def __init__(self, at: EngineAt, seen: Seen, engine: str = "0") -> None:
        self._at, self._seen, self._engine = at, seen, engine
        seen.comes_to(lambda: seen.engine(engine).running == 0, "it idles")
        self._before = seen.reads()
        steps = at.steps(engine)
        self._offset = (steps[-1].put_out if steps else 0) - self._counted(self._before)

    def _counted(self, page: Snapshot) -> float:
        return _of(page, self._engine).number(GENERATION_TOKENS) or 0.0

    def pairs(self) -> list[tuple[EngineSnapshot, Step]]:
        """Each busy page with the step that it shows: the one after which as many tokens were out."""
        steps: dict[float, list[Step]] = {}
        for step in self._at.steps(self._engine):
            steps.setdefault(step.put_out, []).append(step)
        found = []
        for page in self._seen.pages:
            engine = _of(page, self._engine)
            if page.at > self._before.at and engine.running:
                shown = steps[self._counted(page) + self._offset]  # several where prompts were read in between
                found.append((engine, min(shown, key=lambda step: abs(step.used - (engine.used_blocks or 0)))))
        return found

    def are_true(self, clients: Clients, shares: bool) -> None:
        """`shares`: whether requests share blocks, so that they cannot be counted by hand."""
        pairs = self.pairs()
        assert len(pairs) >= 5
        for engine, step in pairs:
            assert engine.used_blocks is not None
            assert abs(engine.used_blocks - step.used) <= 1
            assert shares or abs(engine.used_blocks - step.by_hand(BLOCK)) <= 1
        estimate = fmean(engine.block_waste_share or 0.0 for engine, _ in pairs)
        assert estimate == pytest.approx(fmean(step.waste(BLOCK) for _, step in pairs), abs=0.03)
        self._rate_is_true(clients)

    def _rate_is_true(self, clients: Clients) -> None:
        busy = [page for page in self._seen.pages if page.at > self._before.at and _of(page, self._engine).running]
        long = window(busy[0], busy[-1])
        [engine] = (each for each in long.engines if each.engine == self._engine)
        true = clients.tokens_between(busy[0].at, busy[-1].at) / long.seconds
        assert engine.output_tokens_per_s == pytest.approx(true, rel=0.05)

    def latency_is_true(self, clients: Clients) -> None:
        """Each request's mean time between tokens, in the engine: what is in front of it may add a tenth."""
        whole = window(self._before, self._seen.reads())
        [engine] = (each for each in whole.engines if each.engine == self._engine)
        true = sorted(answer.seconds_per_token for answer in clients.whole)
        observed, p99 = engine.histogram(TPOT), engine.quantile(TPOT, 0.99)
        assert observed is not None
        assert p99 is not None
        assert observed.count == len(true)
        assert observed.mean == pytest.approx(fmean(true), rel=0.1)
        assert p99.low * 0.9 <= true[ceil(0.99 * len(true)) - 1] <= p99.high * 1.1


def test_more_requests_than_fit(at: EngineAt) -> None:
    """12 requests of 350 tokens at their end, where 79 blocks hold 2,528 tokens: some are preempted again and again."""
    at.serve(FLAGS)
    with watching(at) as seen:
        figures = Figures(at, seen)
        with asking(at.url, 12, Request(prompt_tokens=150, output_tokens=200, shared=0)) as clients:
            seen.finds("saturated")
            seen.comes_to(lambda: len(clients.whole) > 12, "the second dozen")
            seen.reads(10)
        assert ("saturated", "0") in seen.begun()
        seen.finds_nothing()
        assert {rule for rule, _ in seen.begun()} <= PRESSURE
        figures.are_true(clients, shares=False)
        figures.latency_is_true(clients)


def test_a_shared_prefix_lost_and_found(at: EngineAt) -> None:
    """256 of about 300 tokens of each prompt are the same, or none."""
    at.serve(FLAGS)
    with watching(at, prefix_hit_rate=0.5, prefix_hit_rate_for=3.0) as seen:
        with asking(at.url, 3, Request(prompt_tokens=300, output_tokens=24, shared=0, spread=0.1)):
            seen.finds("prefix_hit_rate")
        figures = Figures(at, seen)
        with asking(at.url, 3, Request(prompt_tokens=300, output_tokens=24, shared=1, spread=0.1)) as clients:
            seen.comes_to(lambda: (seen.prefix_hit_rate or 0.0) > 0.5 and not seen.found, "the prefix is found")
            seen.reads(5)
        assert not seen.found
        assert seen.begun() == {("prefix_hit_rate", "0")}
        figures.are_true(clients, shares=True)
        figures.latency_is_true(clients)


def test_all_clients_leave_at_once(at: EngineAt) -> None:
    """What they held is free again and the gauges of 0.32 say so: there is nothing to find."""
    at.serve(FLAGS)
    with watching(at) as seen:
        clients = Clients(at.url, 3, Request(prompt_tokens=100, output_tokens=700, shared=0, spread=0))
        seen.comes_to(lambda: seen.engine().running == 3, "three run")
        clients.leave()
        seen.comes_to(lambda: (seen.engine().running, seen.engine().used_blocks) == (0, 0), "all is free")
        left = seen.pages[-1].at
        seen.comes_to(
            lambda: seen.pages[-1].at > left + QUICK["window"] + QUICK["stale_for"], "a while without requests"
        )
        assert not seen.begun()


def test_an_engine_that_hangs_has_stale_gauges(at: EngineAt) -> None:
    """Its page comes as ever, and says that requests run."""
    at.serve(FLAGS)
    with watching(at) as seen, asking(at.url, 3, Request(prompt_tokens=100, output_tokens=100, shared=0)):
        seen.comes_to(lambda: seen.engine().running == 3, "three run")
        with at.hanging():
            seen.finds("stale")
            [reason] = {event.reason for event in seen.events if event.rule == "stale"}
            assert "counted as running, yet nothing at all came out in " in reason
        seen.finds_nothing()
        # Tokens held up by the hang may be said, too.
        assert seen.begun() - {("jitter", "0")} == {("stale", "0")}


def test_a_restart_in_the_middle(at: EngineAt) -> None:
    at.serve(FLAGS)
    with watching(at) as seen:
        stop = load.start(at.url, concurrency=4, request=Request(prompt_tokens=60, output_tokens=60))
        try:
            seen.comes_to(lambda: bool(seen.engine().number(GENERATION_TOKENS)), "tokens")
            at.end()
            seen.finds("down")
            at.serve(FLAGS)
            seen.finds("restart")
            seen.comes_to(lambda: bool(seen.engine().number(GENERATION_TOKENS)), "tokens again")
            seen.finds_nothing()
            pages = seen.pages
        finally:
            stop.set()
        assert seen.begun() == {("down", None), ("restart", None)}
        rates = [window(then, now).engines[0].output_tokens_per_s for then, now in pairwise(pages)]
        assert all(rate is not None and rate >= 0 for rate in rates)
        assert sum(window(then, now).has_restarted for then, now in pairwise(pages)) == 1


def test_killed_and_back_with_two_engines(at: EngineAt) -> None:
    at.serve(FLAGS)
    with watching(at) as seen:
        began = seen.pages[-1].server[START_TIME.key]
        assert isinstance(began, float)
        seen.comes_to(lambda: time.time() > began + SIBLING_SPREAD, "the next start is told from this one")
        at.kill()
        seen.finds("down")
        at.serve(TWO)
        seen.finds("restart")
        seen.finds_nothing()
        assert seen.begun() == {("down", None), ("restart", None)}


def test_one_of_two_engines_has_more_than_fits(at: EngineAt) -> None:
    """Data parallel: engine 1 gets all requests, as from a router that lost the other one."""
    at.serve(TWO)
    with watching(at) as seen:
        figures = Figures(at, seen, "1")
        assert [engine.engine for engine in seen.pages[-1].engines] == ["0", "1"]
        assert [engine.usable_blocks for engine in seen.pages[-1].engines] == [BLOCKS - 1] * 2
        second = {"X-data-parallel-rank": "1"}
        with asking(at.url, 12, Request(prompt_tokens=150, output_tokens=200, shared=0), second) as clients:
            seen.finds("saturated")
            assert seen.engine("0").used_blocks == 0
            seen.comes_to(lambda: len(clients.whole) > 12, "the second dozen")
            seen.reads(10)
        seen.finds_nothing()
        begun = seen.begun()
        assert ("saturated", "1") in begun
        assert begun <= {(rule, "1") for rule in PRESSURE}
        figures.are_true(clients, shares=False)  # not the latency: all this is more than two cores do in time
