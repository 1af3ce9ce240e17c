"""A span of time in one verdict."""

from monitor.finding import Change, Event
from monitor.reading import read
from monitor.review import review
from monitor.snapshot import Snapshot
from planner.verdict import Level
from tests.recorded import page


def at(time: float, usage: float, generated: int) -> Snapshot:
    return read(
        f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}\nvllm:generation_tokens_total{{engine="0"}} {generated}\n',
        at=time, wall=time,
    )  # fmt: skip


def event(level: Level, change: Change = Change.BEGAN) -> Event:
    return Event(at=1, target="t", engine=None, rule="down", change=change, level=level, word="Down", reason="")


PAGES = [at(0, 0.2, 0), at(10, 0.75, 2000), at(40, 0.5, 2300)]


def test_a_quiet_span_says_how_full_and_how_fast() -> None:
    """2,000 tokens in the first 10 s; 40 s in two steps."""
    found = review("chat-1", PAGES, [], 0, 60)
    assert (found.level, found.word) == (Level.GOOD, "Quiet")
    assert found.reason == "nothing was found wrong, KV cache at most 75 % in use, output at most 200 tokens/s."
    assert found.context == (
        "chat-1, 1970-01-01 00:00:00 UTC to 1970-01-01 00:01:00 UTC, 3 pages, one every 20 s, longest pause 30 s"
    )


def test_the_worst_event_decides_and_what_ended_is_not_counted_again() -> None:
    events = [event(Level.WARNING), event(Level.BAD), event(Level.BAD, Change.ENDED)]
    found = review("chat-1", PAGES, events, 0, 60)
    assert (found.level, found.word) == (Level.BAD, "Trouble")
    assert found.reason.startswith("1 bad and 1 warning findings began")
    assert review("chat-1", PAGES, events[:1], 0, 60).word == "Warnings"


def test_one_page_is_no_history() -> None:
    found = review("chat-1", PAGES[:1], [], 0, 60)
    assert (found.level, found.word) == (Level.UNKNOWN, "Nothing recorded")


def test_a_server_that_reports_nothing_is_not_quiet() -> None:
    silent = [read(page("0.32.0-disablelogstats-load"), at=time, wall=time) for time in (0.0, 10.0)]
    found = review("chat-1", silent, [], 0, 60)
    assert (found.level, found.word) == (Level.UNKNOWN, "Nothing reported")
    assert found.reason == "the engine reports nothing: remove --disable-log-stats from the server's flags."
    assert review("chat-1", silent, [event(Level.BAD)], 0, 60).word == "Trouble"


def test_what_cannot_be_read_is_not_quiet() -> None:
    found = review("chat-1", PAGES, [], 0, 60, "the store cannot be read: disk I/O error")
    assert (found.level, found.word) == (Level.UNKNOWN, "Partly known")
    assert found.reason.startswith("what was found cannot be read")
