"""Scrape after scrape: when a finding begins and ends. A page every 5 s; expected times by hand from the thresholds."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from monitor import metrics
from monitor.finding import Change, Event
from monitor.judge import Judge, replay
from monitor.snapshot import Snapshot
from monitor.thresholds import Thresholds
from planner.verdict import Level
from tests import recorded
from tests.judging import TARGET, WALL, engine, later, page, split, state

DEFAULTS = Thresholds()


class Watch:
    """A target read every 5 s, and its judge."""

    def __init__(self, thresholds: Thresholds = DEFAULTS) -> None:
        self.judge = Judge(TARGET, thresholds, clock=lambda: self.at, wall=lambda: WALL + self.at)
        self.at = -5.0
        self.pages: list[Snapshot] = []
        self.failures = 0
        self.events: list[Event] = []

    def reads(self, *texts: str) -> "Watch":
        for text in texts:
            self.at, self.failures = self.at + 5, 0
            self.pages.append(page(self.at, text))
            self.events += self.judge.update(state(self.pages))
        return self

    def fails(self, times: int, every: float = 5.0) -> "Watch":
        for _ in range(times):
            self.at, self.failures = self.at + every, self.failures + 1
            age = self.at - self.pages[-1].at if self.pages else 0.0
            self.events += self.judge.update(state(self.pages, failures=self.failures, age=age))
        return self

    @property
    def found(self) -> list[str]:
        return [finding.condition.rule for finding in self.judge.findings]

    def timeline(self, rule: str) -> list[tuple[float, Change]]:
        """When it began and ended, in seconds since the first page."""
        return [(event.at - WALL, event.change) for event in self.events if event.rule == rule]


def used(usage: float, tokens: float = 0.0) -> str:
    """An engine at work whose pool is so full; tokens keep it from looking frozen."""
    return engine(
        num_requests_running=4, num_requests_waiting=0, kv_cache_usage_perc=usage, generation_tokens_total=tokens
    )


def usages(values: Sequence[float]) -> list[str]:
    return [used(usage, tokens=place) for place, usage in enumerate(values)]


def test_a_finding_begins_when_its_condition_has_lasted() -> None:
    """Over 95 % from 5 s on; the alarm asks for 30 s. It says since when."""
    watch = Watch().reads(*usages([0.5] + [0.97] * 6))
    assert watch.found == []
    watch.reads(*usages([0.97]))
    assert watch.found == ["usage_alarm"]
    assert watch.timeline("usage_alarm") == [(35, Change.BEGAN)]
    [finding] = watch.judge.findings
    assert finding.since == WALL + 5
    [event] = watch.events
    assert (event.target, event.engine, event.level, event.word) == ("chat-1", "0", Level.BAD, "KV cache full")


def test_one_scrape_is_no_alert_however_short_the_rule() -> None:
    watch = Watch(replace(DEFAULTS, usage_alarm_for=0.1)).reads(*usages([0.5, 0.97]))
    assert watch.found == []
    assert watch.reads(*usages([0.97])).found == ["usage_alarm"]


def test_a_condition_that_breaks_off_begins_anew() -> None:
    watch = Watch().reads(*usages([0.97] * 7 + [0.5] + [0.97] * 7))
    assert watch.timeline("usage_alarm") == [(70, Change.BEGAN)]


def test_inside_the_band_a_finding_stays_and_none_begins() -> None:
    """0.93 lies between 0.95 x 0.97 and 0.95."""
    assert "usage_alarm" not in Watch().reads(*usages([0.93] * 40)).found
    watch = Watch().reads(*usages([0.97] * 8 + [0.93] * 40))
    assert watch.timeline("usage_alarm") == [(35, Change.BEGAN)]
    watch.reads(used(0.91, 100), used(0.91, 101))
    assert watch.timeline("usage_alarm")[1:] == [(5 * 49, Change.ENDED)]


def test_a_finding_ends_with_the_second_page_without_it() -> None:
    watch = Watch().reads(*usages([0.97] * 8 + [0.5, 0.97, 0.5, 0.97, 0.5]))
    assert watch.found == ["usage_alarm"]
    assert watch.reads(used(0.5, 20)).found == []
    assert watch.timeline("usage_alarm") == [(35, Change.BEGAN), (65, Change.ENDED)]


def test_what_explains_it_covers_the_rest() -> None:
    """Saturated after 15 s: that the pool is full and requests wait says no more, then and later."""
    saturated = [
        engine(
            num_requests_running=4, num_requests_waiting=2, kv_cache_usage_perc=0.99, generation_tokens_total=place,
            num_preemptions_total=place,
        )
        for place in range(60)
    ]  # fmt: skip
    watch = Watch().reads(*saturated)
    assert watch.found == ["saturated"]
    assert [event.rule for event in watch.events] == ["saturated"]


def test_saturated_as_recorded() -> None:
    """The page of a server with 80 blocks, one preemption more on each: from the second on it counts."""
    text = recorded.page("0.32.0-preempt-blocks80-load")
    pages = [later(text, num_preemptions_total=n, generation_tokens_total=40 * n) for n in range(6)]
    watch = Watch().reads(*pages)
    assert watch.timeline("saturated") == [(20, Change.BEGAN)]
    done = [later(recorded.page("0.32.0-preempt-blocks80-after"), generation_tokens_total=n) for n in range(14)]
    assert watch.reads(*done).found == []
    assert [change for _, change in watch.timeline("saturated")] == [Change.BEGAN, Change.ENDED]


@pytest.mark.parametrize("name", recorded.PAGES)
def test_ten_minutes_of_a_server_at_work_or_idle_are_no_alarm(name: str) -> None:
    """The recorded page every 5 s, with 50 tokens more on each."""
    first = page(0.0, recorded.page(name))
    judge = replay(TARGET, DEFAULTS, (at_work(first, place) for place in range(120)))
    silent, queueing = "disablelogstats" in name, name == "0.32.0-preempt-blocks80-load"
    found = [finding.condition.rule for finding in judge.findings]
    assert found == (["unreadable"] if silent else ["waiting"] if queueing else [])


def at_work(first: Snapshot, place: int) -> Snapshot:
    engines = (
        replace(each, values={**each.values, metrics.GENERATION_TOKENS.key: tokens + 50 * place})
        for each in first.engines
        if (tokens := each.number(metrics.GENERATION_TOKENS)) is not None
    )
    return replace(first, at=5.0 * place, wall=WALL + 5 * place, engines=tuple(engines) or first.engines)


def test_usage_that_comes_and_goes_is_no_alarm() -> None:
    """A busy server of many short requests: usage all over, one request waiting in a third of the pages."""
    chance = random.Random(5)
    watch = Watch()
    for tokens in range(150):
        text = engine(
            num_requests_running=20, num_requests_waiting=chance.choice((0, 0, 1)), generation_tokens_total=tokens,
            kv_cache_usage_perc=chance.uniform(0.3, 0.99),
        )  # fmt: skip
        watch.reads(text)
    assert watch.events == []


def test_a_restart_is_said_at_once_and_soon_forgotten() -> None:
    """On the pages from 15 to 70 s, whose minute reaches back to before it; the second without it is that of 80 s."""
    watch = Watch().reads(*(used(0.2, tokens=100 + place) for place in range(3)), *usages([0.2] * 20))
    began, ended = watch.timeline("restart")
    assert (began, ended) == ((15, Change.BEGAN), (80, Change.ENDED))


def test_a_restart_that_took_minutes_is_seen_too() -> None:
    """The model loads for five minutes: only one window reaches back to before."""
    watch = Watch().reads(used(0.2, tokens=100)).fails(60).reads(used(0.0, tokens=0), used(0.0, tokens=0))
    assert [change for _, change in watch.timeline("restart")] == [Change.BEGAN]


def test_down_after_two_failures_and_its_time() -> None:
    """Failures at 5, 10, 15 and 20 s: 15 s after the first it is down; two good pages end it."""
    watch = Watch().reads(used(0.2)).fails(3)
    assert watch.found == []
    assert watch.fails(1).found == ["down"]
    assert watch.judge.findings[0].since == WALL + 5
    assert "no page for 20 s: nothing listens there" in watch.judge.findings[0].condition.reason
    assert watch.reads(used(0.2, 1)).found == ["down"]
    assert watch.reads(used(0.2, 2)).found == []
    assert watch.timeline("down") == [(20, Change.BEGAN), (30, Change.ENDED)]


def test_a_server_that_never_answered_is_down_too() -> None:
    watch = Watch().fails(4)
    assert watch.found == ["down"]
    assert watch.judge.findings[0].condition.reason.startswith("no page yet")


def test_a_server_that_answers_every_other_time_is_not_down() -> None:
    watch = Watch().reads(used(0.2))
    for place in range(40):
        watch.fails(1).reads(used(0.2, tokens=place))
    assert watch.timeline("down") == []


def test_without_pages_findings_are_neither_ended_nor_believed() -> None:
    watch = Watch().reads(*usages([0.97] * 8)).fails(60)
    down, full = watch.judge.findings
    assert (down.condition.rule, down.condition.level) == ("down", Level.BAD)
    assert (full.condition.rule, full.condition.level) == ("usage_alarm", Level.UNKNOWN)
    assert full.condition.reason.startswith("No data now; last seen: 97 %")
    watch.reads(*(used(0.97, tokens=100 + place) for place in range(2)))
    assert [finding.condition.rule for finding in watch.judge.findings] == ["usage_alarm"]
    assert watch.judge.findings[0].condition.level is Level.BAD
    assert watch.judge.findings[0].since == WALL + 5
    assert watch.timeline("usage_alarm") == [(35, Change.BEGAN)]


def test_what_nobody_saw_does_not_count() -> None:
    """Over 95 % before an outage of five minutes and after it."""
    watch = Watch().reads(*usages([0.97] * 2)).fails(60)
    assert "usage_alarm" not in watch.reads(*usages([0.97] * 3)).found


def test_the_clock_on_the_wall_may_step_back() -> None:
    judge = Judge(TARGET, DEFAULTS)
    pages = [replace(page(5.0 * place, used(0.97, place)), wall=WALL - 3600 * place) for place in range(8)]
    begun = [bool(judge.update(state(pages[: number + 1]))) for number in range(8)]
    assert begun == [False] * 7 + [True]
    assert judge.findings[0].since == WALL - 3600


def test_engines_are_judged_apart() -> None:
    """Data parallel: rank 1 alone preempts, one request more on each page."""
    text = recorded.page("0.32.0-dp2-load")
    series = 'vllm:num_preemptions_total{engine="1",model_name="./tiny"} 0.0'
    assert series in text
    watch = Watch()
    for place in range(1, 14):
        counted = later(text, generation_tokens_total=10 * place)
        watch.reads(counted.replace(series, series.replace(" 0.0", f" {place}.0")))
    assert [(finding.condition.rule, finding.condition.engine) for finding in watch.judge.findings] == [
        ("preempting", "1")
    ]


def test_replicas_of_one_name_are_told_apart() -> None:
    full = recorded.RAY.replace("} 0.5\n", "} 0.97\n")
    watch = Watch()
    for place in range(8):
        watch.reads(full.replace("} 100.0\n", f"}} {100 + place}.0\n"))
    assert [finding.condition.engine for finding in watch.judge.findings] == ["0 m a w1"]


def test_the_same_page_again_changes_nothing() -> None:
    watch = Watch().reads(*usages([0.97] * 6))
    for _ in range(10):
        assert watch.judge.update(state(watch.pages)) == ()
    assert watch.found == []


# After the dashboard's own restart


def stored(pages: Sequence[Snapshot]) -> list[Snapshot]:
    """As the store gives them back: on the wall's clock."""
    return [replace(each, at=each.wall or 0.0) for each in pages]


def preempting(place: int) -> str:
    return engine(
        num_requests_running=9, num_requests_waiting=0, kv_cache_usage_perc=0.6, generation_tokens_total=place,
        num_preemptions_total=place // 6,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "made"), [("usage_alarm", lambda place: used(0.97, place)), ("preempting", preempting)]
)
def test_since_survives_a_restart_of_the_dashboard(rule: str, made: Callable[[int], str]) -> None:
    """The live pages are on another clock, and their window is short at first: too short to end anything."""
    watch = Watch().reads(*map(made, range(24)))
    before = {finding.condition.rule: finding.since for finding in watch.judge.findings}
    judge = replay(TARGET, DEFAULTS, stored(watch.pages))
    assert {finding.condition.rule: finding.since for finding in judge.findings} == before
    live: list[Snapshot] = []
    for place in range(24, 40):
        live.append(replace(page(5.0 * place, made(place)), at=5.0 * place - 100))
        assert judge.update(state(live)) == ()
    assert {finding.condition.rule: finding.since for finding in judge.findings} == before
    assert rule in before


def test_what_ended_while_the_dashboard_was_off_ends_with_the_first_full_half_of_a_window() -> None:
    judge = replay(TARGET, DEFAULTS, stored(Watch().reads(*usages([0.97] * 10)).pages))
    events: list[Event] = []
    live: list[Snapshot] = []
    for place in range(12):
        live.append(page(5.0 * place, used(0.3, tokens=place)))
        events += judge.update(state(live))
    assert [(event.rule, event.change, event.at - WALL) for event in events] == [("usage_alarm", Change.ENDED, 35)]


def test_refusals_begin_and_end() -> None:
    """Refused in the first half minute; the last minute forgets it 60 s later."""

    def text(place: int) -> str:
        door = split("admission_rejections_total", "reason", max_num_queued_reqs=min(place, 6))
        return door + engine(num_requests_running=1, generation_tokens_total=place)

    watch = Watch().reads(*map(text, range(24)))
    assert watch.timeline("rejections") == [(35, Change.BEGAN), (95, Change.ENDED)]
