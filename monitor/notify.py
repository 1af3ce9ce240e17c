"""Notifier: tells webhooks when a finding begins or ends, each event once, without holding up who asks for it."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from monitor import scrape
from monitor.config import Webhook
from monitor.finding import Change, Event
from monitor.scrape import Scrape
from monitor.targets import Target, expanded
from planner.errors import InputError
from planner.verdict import Level

PAUSES = (1.0, 5.0, 30.0, 120.0)
"""Between the tries of one event: five in all, over two and a half minutes  [s]."""
MAX_WAITING = 500
"""Events kept for a receiver that does not take them; the oldest are dropped  [events]."""
TIMEOUT = 10.0
"""A receiver may take this long  [s]."""

Post = Callable[[str, bytes, Mapping[str, str], float], Scrape]


class Notifier:
    """Queues events and posts them in one thread of its own.

    A receiver gets its events in the order they happened. One that fails is tried again while the others go on.
    """

    def __init__(
        self, webhooks: Sequence[Webhook], post: Post = scrape.post, *, pauses: Sequence[float] = PAUSES
    ) -> None:
        self._receivers = tuple(_Receiver(webhook, post, pauses) for webhook in webhooks)
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
        if self._receivers:
            self._thread.start()

    @property
    def problem(self) -> str:
        """What is wrong with the receivers, one line; empty when nothing is."""
        with self._changed:
            return "; ".join(receiver.problem for receiver in self._receivers if receiver.problem)

    def tell(self, event: Event, target: Target) -> None:
        """Queue the event for each webhook that wants this target's group; returns at once and never raises."""
        with self._changed:
            for receiver in self._receivers:
                receiver.add(event, target)
            self._changed.notify()

    def close(self, patience: float = 2 * TIMEOUT) -> None:
        """Try what still waits once more, then end; after the patience [s] the thread is left to itself."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(patience)

    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                due = min(receiver.due for receiver in self._receivers)
                if not self._closing and due > (now := time.monotonic()):
                    self._changed.wait(min(due - now, threading.TIMEOUT_MAX))
            for receiver in self._receivers:
                if receiver.due <= time.monotonic():
                    receiver.try_first(self._changed)
        for receiver in self._receivers:
            while receiver.waiting and receiver.try_first(self._changed):
                pass


class _Receiver:
    """One webhook, and the bodies it has not taken yet. All but the post itself happens under the Notifier's lock."""

    def __init__(self, webhook: Webhook, post: Post, pauses: Sequence[float]) -> None:
        self._webhook, self._post, self._pauses = webhook, post, pauses
        self.waiting: deque[bytes] = deque()
        self._tries = self._lost = 0
        self._trouble = ""
        self.due = float("inf")

    @property
    def problem(self) -> str:
        if not self._trouble:
            return ""
        waiting = f"; {len(self.waiting)} waiting" if self.waiting else ""
        lost = f"; {self._lost} given up" if self._lost else ""
        return f"webhook {self._webhook.name}: {self._trouble}{waiting}{lost}"

    def add(self, event: Event, target: Target) -> None:
        if self._webhook.groups and target.group not in self._webhook.groups:
            return
        if len(self.waiting) == MAX_WAITING:
            self.waiting.popleft()
            self._lost += 1
        self.waiting.append(body(self._webhook.format, event, target))
        self.due = min(self.due, time.monotonic()) if len(self.waiting) == 1 else self.due

    def try_first(self, lock: threading.Condition) -> bool:
        """Post the oldest body once; whether it was taken."""
        with lock:
            first = self.waiting[0]
        trouble = self._posted(first)
        with lock:
            self._trouble = trouble
            self._tries += 1
            pause = self._pauses[min(self._tries, len(self._pauses)) - 1] if trouble else 0.0
            gives_up = bool(trouble) and self._tries > len(self._pauses)
            self._lost = self._lost + gives_up if trouble else 0
            if not trouble or gives_up:
                self._tries = 0
                if self.waiting and self.waiting[0] is first:  # else dropped meanwhile, as the oldest of too many
                    self.waiting.popleft()
            self.due = time.monotonic() + pause if self.waiting else float("inf")
        return not trouble

    def _posted(self, content: bytes) -> str:
        """What went wrong, in words that do not show the address: it may hold the receiver's secret."""
        try:
            url = expanded(f"webhooks.{self._webhook.name}.url", self._webhook.url)
        except InputError as error:
            return str(error)
        with suppress(InputError):
            return self._post(url, content, {"Content-Type": "application/json"}, TIMEOUT).message
        return "its url is no address like https://host/path"


_SIGNS = {Level.BAD: "🔴", Level.WARNING: "🟠", Level.UNKNOWN: "⚪", Level.GOOD: "🟢"}


def body(style: str, event: Event, target: Target) -> bytes:
    """The JSON a webhook gets: {"text": …} in the style slack, every field of the event in the style generic."""
    return json.dumps(_slack(event, target) if style == "slack" else _generic(event, target)).encode()


def _generic(event: Event, target: Target) -> dict[str, object]:
    return {
        "at": event.at,
        "target": event.target,
        "group": target.group,
        "labels": dict(target.labels),
        "engine": event.engine,
        "rule": event.rule,
        "change": event.change.value,
        "level": event.level.value,
        "word": event.word,
        "reason": event.reason,
        "action": event.action,
    }


def _slack(event: Event, target: Target) -> dict[str, str]:
    """One message. An end says so in words, for colours and signs are not read by everybody."""
    where = event.target + (f" (engine {event.engine})" if event.engine not in (None, "0") else "")
    where += f" of {target.group}" if target.group else ""
    if event.change is Change.ENDED:
        text = f"🟢 {where}: {event.word} has ended. It was: {event.reason}"
    else:
        text = f"{_SIGNS[event.level]} {where}: {event.word}. {event.reason} {event.action}"
    for sign, escape in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, escape)
    return {"text": text.strip()}
