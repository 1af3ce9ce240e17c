"""Verdicts on recorded pages of real servers in a known state, and on what a collector says when there is none."""

from monitor.health import verdict
from monitor.reading import read
from monitor.scrape import Scrape
from monitor.snapshot import Snapshot
from monitor.source import TargetState
from monitor.targets import Target
from planner.verdict import Level, Verdict
from tests.recorded import OTHERS, page


def judged(*pages: str, age: float = 1.0, error: Scrape | None = None, failures: int = 0) -> Verdict:
    history: tuple[Snapshot, ...] = tuple(read(text, at=10.0 * moment) for moment, text in enumerate(pages))
    state = TargetState(
        target=Target(name="t", url="http://t/metrics"),
        history=history,
        age=age if pages else None,
        error=error,
        failures=failures,
    )
    return verdict(state, state.window(300))


DOWN = Scrape(state="refused", url="http://t/metrics", message="nothing listens there")


def test_a_server_with_nothing_to_do() -> None:
    assert judged(page("0.32.0-idle-whole"), page("0.32.0-idle-whole")).word == "Idle"


def test_one_page_has_no_rates_yet() -> None:
    found = judged(page("0.32.0-load"))
    assert (found.level, found.word) == (Level.GOOD, "Reachable")


def test_a_preempting_server_is_saturated() -> None:
    """80 blocks of 32, more requests than fit: this server preempted while others waited."""
    found = judged(page("0.32.0-idle-whole"), page("0.32.0-preempt-blocks80-load"))
    assert (found.level, found.word) == (Level.BAD, "Saturated")
    assert "preemptions in 10 s" in found.reason
    assert "--max-num-seqs" in found.action


def test_frozen_gauges_are_not_believed() -> None:
    """Recorded after a mass abort: gauges say work, counters stand still."""
    found = judged(page("0.32.0-after-aborts"), page("0.32.0-after-aborts"))
    assert found.word in {"Stale gauges", "Idle"}
    assert found.level is not Level.BAD


def test_without_statistics_the_flag_is_named() -> None:
    found = judged(page("0.32.0-disablelogstats-load"))
    assert (found.level, found.word) == (Level.UNKNOWN, "No statistics")
    assert "--disable-log-stats" in found.reason


def test_another_engine_is_named_and_not_judged() -> None:
    for kind, text in OTHERS.items():
        found = judged(text)
        assert found.level is Level.UNKNOWN
        assert kind in found.reason


def test_a_dead_endpoint_says_the_error_and_the_age_of_its_last_page() -> None:
    assert judged(error=DOWN, failures=1).word == "Down"
    assert judged().word == "Connecting"
    once = judged(page("0.32.0-load"), error=DOWN, failures=1)
    assert once.word == "Reachable"  # one missed scrape is no outage
    twice = judged(page("0.32.0-load"), error=DOWN, failures=2, age=40.0)
    assert (twice.level, twice.word) == (Level.BAD, "No data for 40 s")
    assert "nothing listens there" in twice.reason
