"""Telling webhooks, with real receivers on this machine: one that fails twice, one that is down, one that hangs."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from monitor import notify
from monitor.config import Webhook
from monitor.finding import Change, Event
from monitor.notify import Notifier
from monitor.scrape import Scrape
from monitor.targets import Target
from planner.verdict import Level
from tests.hooks import receiver
from tests.servers import eventually

TARGET = Target(
    name="chat-1", url="http://gpu1:8000", group="chat", labels={"region": "eu"}, headers={"Authorization": "secret"}
)
SATURATED = Event(
    at=1_800_000_000.0,
    target="chat-1",
    engine="1",
    rule="saturated",
    change=Change.BEGAN,
    level=Level.BAD,
    word="Saturated",
    reason="12 requests wait, KV cache 99 % in use & <full>.",
    action="Add a replica.",
)


@contextmanager
def telling(*webhooks: Webhook, pauses: tuple[float, ...] = (0.01, 0.02)) -> Iterator[Notifier]:
    notifier = Notifier(webhooks, pauses=pauses)
    try:
        yield notifier
    finally:
        notifier.close()


def numbered(number: int) -> Event:
    return Event(
        at=float(number),
        target="chat-1",
        engine=None,
        rule="down",
        change=Change.BEGAN,
        level=Level.BAD,
        word="Down",
        reason=f"number {number}",
    )


def test_a_generic_receiver_gets_every_field_and_no_secret() -> None:
    with receiver() as server, telling(Webhook(name="ops", url=server.url)) as notifier:
        notifier.tell(SATURATED, TARGET)
        eventually(lambda: server.bodies)
        assert server.bodies == [
            {
                "at": 1_800_000_000.0,
                "target": "chat-1",
                "group": "chat",
                "labels": {"region": "eu"},
                "engine": "1",
                "rule": "saturated",
                "change": "began",
                "level": "bad",
                "word": "Saturated",
                "reason": "12 requests wait, KV cache 99 % in use & <full>.",
                "action": "Add a replica.",
                "answered": 200,
            }
        ]
        assert server.headers[0]["Content-Type"] == "application/json"


def test_slack_gets_one_escaped_line() -> None:
    with receiver() as server, telling(Webhook(name="ops", url=server.url, format="slack")) as notifier:
        notifier.tell(SATURATED, TARGET)
        eventually(lambda: server.bodies)
        assert server.bodies[0]["text"] == (
            "🔴 chat-1 (engine 1) of chat: Saturated. "
            "12 requests wait, KV cache 99 % in use &amp; &lt;full&gt;. Add a replica."
        )


def test_a_receiver_that_fails_twice_gets_each_event_once_and_in_order() -> None:
    with receiver(500, 503) as server, telling(Webhook(name="ops", url=server.url)) as notifier:
        for number in range(3):
            notifier.tell(numbered(number), TARGET)
        eventually(lambda: len(server.bodies) == 5 and not notifier.problem)
        assert [(sent["reason"], sent["answered"]) for sent in server.bodies] == [
            ("number 0", 500),
            ("number 0", 503),
            ("number 0", 200),
            ("number 1", 200),
            ("number 2", 200),
        ]


def test_a_failing_receiver_is_shown_and_does_not_hold_up_another() -> None:
    with receiver(*[500] * 1000) as broken, receiver() as fine:
        webhooks = (Webhook(name="broken", url=broken.url), Webhook(name="fine", url=fine.url))
        with telling(*webhooks, pauses=(60.0,)) as notifier:
            notifier.tell(numbered(0), TARGET)
            notifier.tell(numbered(1), TARGET)
            eventually(lambda: len(fine.bodies) == 2 and notifier.problem)
            problem = "webhook broken: the server answered 500 Internal Server Error; 2 waiting"
            assert notifier.problem == problem
            assert "s3cret" not in notifier.problem


def test_after_the_last_try_an_event_is_given_up_and_the_next_gets_through() -> None:
    with receiver(500, 500, 500) as server, telling(Webhook(name="ops", url=server.url)) as notifier:
        notifier.tell(numbered(0), TARGET)
        eventually(lambda: notifier.problem.endswith("; 1 given up"))
        notifier.tell(numbered(1), TARGET)
        eventually(lambda: not notifier.problem)
        assert [sent["reason"] for sent in server.bodies] == ["number 0"] * 3 + ["number 1"]


def test_telling_never_waits_for_a_hanging_receiver_and_keeps_a_bounded_number_of_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "MAX_WAITING", 3)
    with receiver() as server:
        server.gate.clear()
        with telling(Webhook(name="ops", url=server.url)) as notifier:
            for number in range(10):
                notifier.tell(numbered(number), TARGET)
            server.gate.set()
            eventually(lambda: server.bodies and server.bodies[-1]["reason"] == "number 9")
            # The first may be on its way already; of the others the newest three are kept.
            assert [sent["reason"] for sent in server.bodies][-3:] == ["number 7", "number 8", "number 9"]
            assert len(server.bodies) <= 4


def test_only_the_groups_a_webhook_names() -> None:
    with receiver() as server, telling(Webhook(name="ops", url=server.url, groups=("batch",))) as notifier:
        notifier.tell(numbered(0), TARGET)
        notifier.tell(numbered(1), Target(name="b", url="http://gpu2:8000", group="batch"))
        eventually(lambda: server.bodies)
        assert [(sent["reason"], sent["group"]) for sent in server.bodies] == [("number 1", "batch")]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("${NOT_SET_ANYWHERE}", "webhooks.ops.url: found '${NOT_SET_ANYWHERE}', accepted: a variable that is set"),
        ("ftp://x/y", "its url is no address like https://host/path"),
        ("http://127.0.0.1:9/x", "127.0.0.1:9 refuses connections: nothing listens there"),
    ],
)
def test_an_address_that_cannot_be_reached_is_said(url: str, problem: str) -> None:
    with telling(Webhook(name="ops", url=url), pauses=(60.0,)) as notifier:
        notifier.tell(numbered(0), TARGET)
        eventually(lambda: notifier.problem)
        assert notifier.problem == f"webhook ops: {problem}; 1 waiting"


def test_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as server:
        monkeypatch.setenv("OPS_WEBHOOK", server.url)
        with telling(Webhook(name="ops", url="${OPS_WEBHOOK}")) as notifier:
            notifier.tell(numbered(0), TARGET)
            eventually(lambda: server.bodies)


def test_closing_tries_what_waits_once_more_and_ends_the_thread() -> None:
    answers = [Scrape(state="refused", url="", message="nothing listens there"), Scrape(state="ok", url="")]
    posted = []

    def post(url: str, content: bytes, headers: Mapping[str, str], timeout: float) -> Scrape:
        posted.append(json.loads(content)["reason"])
        return answers.pop(0)

    notifier = Notifier([Webhook(name="ops", url="https://ops/hook")], post, pauses=(3600.0,))
    notifier.tell(numbered(0), TARGET)
    eventually(lambda: notifier.problem)
    notifier.close()
    assert posted == ["number 0", "number 0"]
    assert notifier.problem == ""
    assert not [thread for thread in threading.enumerate() if thread.name == "notifier"]


def test_without_webhooks_nothing_runs() -> None:
    notifier = Notifier(())
    notifier.tell(SATURATED, TARGET)
    notifier.close()
    assert notifier.problem == ""
