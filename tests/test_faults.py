"""Faults through the whole Watch, with real sockets and a real store: each is said, the other servers go on, and what
was recorded stays. docs/reliability.md has the table.
"""

import ast
import re
import resource
import sqlite3
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from socket import socket
from typing import Any

import pytest

from monitor.config import MonitorConfig, Webhook
from monitor.health import verdict
from monitor.metrics import GENERATION_TOKENS
from monitor.snapshot import Snapshot
from monitor.sources import OWN, PROMETHEUS, Sources
from monitor.store import Store
from monitor.targets import Target
from monitor.thresholds import Thresholds
from monitor.watch import Watch
from monitor.window import window
from planner.verdict import Verdict
from tests.hooks import receiver
from tests.servers import Answer, drips, drips_the_header, hangs, says, serving
from tests.servers import eventually as within
from tests.test_bad_servers import series
from tests.test_watch import reported

ROOT = Path(__file__).resolve().parent.parent
SOON = Thresholds(down_for=0.1, window=2.0, stale_for=1e6)
"""Rules that say within a second that a server is gone."""


def eventually(is_true: Callable[[], object]) -> None:
    within(is_true, 120)


class Server:
    """Generates 50 tokens from page to page, until it is given another mood."""

    def __init__(self) -> None:
        self.mood: Answer | None = None
        self.turns = count(1)

    def answer(self, client: socket, request: str) -> None:
        (self.mood or self.well())(client, request)

    def well(self, more: bytes = b"") -> Answer:
        return says(reported(0.2, 50 * next(self.turns)).encode() + more)


class Scene:
    """A Watch of several servers, of which `good` is never told to be otherwise."""

    def __init__(self, watch: Watch, servers: dict[str, Server]) -> None:
        self.watch, self.servers = watch, servers

    def pages(self, name: str = "good") -> tuple[Snapshot, ...]:
        state = self.watch.state(name)
        return state.history if state else ()

    def goes_on(self, *names: str, pages: int = 3) -> None:
        """Return when each of these servers has been read so many times more."""
        had = {name: self.pages(name)[-1].at if self.pages(name) else 0.0 for name in names or ("good",)}
        eventually(lambda: all(sum(page.at > at for page in self.pages(name)) >= pages for name, at in had.items()))

    def verdict(self, name: str = "good") -> Verdict:
        state = self.watch.state(name)
        assert state is not None
        return verdict(state, SOON.window)

    def rules(self, name: str) -> list[str]:
        state = self.watch.state(name)
        return [finding.condition.rule for finding in state.findings] if state else []


@contextmanager
def watching(
    store: str,
    *others: str,
    tls: tuple[ssl.SSLContext, Path] | None = None,
    wall: Callable[[], float] = time.time,
    **changes: Any,
) -> Iterator[Scene]:
    """A Watch that has read servers which are all well. `tls` is what the one called TLS speaks, and who is trusted."""
    with ExitStack() as stack:
        servers = {name: Server() for name in ("good", *others)}
        targets = []
        for name, server in servers.items():
            context, trusted = tls if tls and name == "TLS" else (None, "")
            url = stack.enter_context(serving(server.answer, context))
            targets.append(Target(name=name, url=url, ca_file=str(trusted)))
        config = MonitorConfig(targets=tuple(targets), interval=0.2, timeout=2.0, store=store, thresholds=SOON)
        scene = Scene(Watch(replace(config, **changes), wall=wall), servers)
        stack.enter_context(scene.watch.running())
        scene.goes_on(*servers)
        yield scene


def tokens(pages: Iterable[Snapshot]) -> list[float | None]:
    return [page.engines[0].number(GENERATION_TOKENS) for page in pages]


def stored(path: Path, name: str = "good") -> Sequence[Snapshot]:
    """What another dashboard, started later, would find."""
    store = Store(f"sqlite:///{path}")
    now = time.time()
    pages = store.snapshots(name, now - 7200, now + 7200, points=10**7)
    store.close()
    return pages


def lost(recorded: Sequence[float | None], pages: Sequence[float | None]) -> set[float | None]:
    """Of the pages in view, those that are not in the store; the last may have come while the watch was stopped."""
    return set(pages[:-1]) - set(recorded)


def timeline(path: Path, name: str) -> list[tuple[str, str]]:
    store = Store(f"sqlite:///{path}")
    events = store.events(0, 4e9, name)
    store.close()
    return [(event.rule, event.change.value) for event in events]


# Servers


def flapping(server: Server) -> Answer:
    turns, trouble = count(), says(b"", "500 Internal Server Error")
    return lambda client, request: (server.well() if next(turns) % 2 else trouble)(client, request)


DOWN: dict[str, tuple[Answer, str]] = {
    "hanging": (hangs, "did not answer in time (timeout)."),
    "slow drip": (drips, "did not answer in time (timeout)."),
    "slow header": (drips_the_header, "did not answer in time (timeout)."),
    "500": (says(b"", "500 Internal Server Error"), "the server answered 500 Internal Server Error (http_status)."),
    "HTML": (
        says(b"<html>Sign in</html>", Content_Type="text/html"),
        "the server answered with a web page: is this the address of vLLM, and not of a proxy or login? (html).",
    ),
    "half a page": (
        says(reported(0.9, 1).encode()[:200], Content_Length="400"),
        "the server closed the connection in the middle of the page (truncated).",
    ),
    "50 MB": (says(b"a 1\n" * (50 * 10**6 // 4)), "the page is above 16 MiB (too_large)."),
    "redirect loop": (
        says(b"", "307 Temporary Redirect", Location="/metrics"),
        "the server redirects in a circle (redirect_loop).",
    ),
    "gone": (lambda client, request: None, "cannot be reached: RemoteDisconnected (unreachable)."),
}


@dataclass
class Aftermath:
    """What was seen while servers were in a bad mood, and what another dashboard finds later."""

    said: dict[str, Verdict]
    good: Verdict
    problem: str
    pages: dict[str, list[float | None]]
    recorded: dict[str, list[float | None]]
    events: dict[str, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One that is trusted and one that is not, each with its key."""
    folder = tmp_path_factory.mktemp("tls")
    made = []
    for name in ("trusted.pem", "other.pem"):
        key, certificate = folder / f"{name}.key", folder / name
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext"
        subprocess.run(
            [*command.split(), "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        certificate.write_text(certificate.read_text() + key.read_text())
        made.append(certificate)
    return made[0], made[1]


@pytest.fixture(scope="module")
def aftermath(certificates: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Aftermath:
    """All servers are well, then all but one are not, each in its way, and then all are well again."""
    path = tmp_path_factory.mktemp("faults") / "monitor.db"
    trusted, other = certificates
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted)
    names = [*DOWN, "flapping", "100,000 series", "TLS"]
    down = [*DOWN, "TLS"]
    with watching(f"sqlite:///{path}", *names, tls=(context, trusted)) as scene:
        servers = scene.servers
        for name, (mood, _) in DOWN.items():
            servers[name].mood = mood
        servers["flapping"].mood = flapping(servers["flapping"])
        huge = series(100_000)
        servers["100,000 series"].mood = lambda *it: servers["100,000 series"].well(huge)(*it)
        context.load_cert_chain(other)
        eventually(lambda: all(scene.rules(name) == ["down"] for name in down))
        scene.goes_on("good", "flapping", "100,000 series")
        said, good, problem = {name: scene.verdict(name) for name in names}, scene.verdict(), scene.watch.problem
        for server in servers.values():
            server.mood = None
        context.load_cert_chain(trusted)
        scene.goes_on(*servers)
        eventually(lambda: not any(scene.rules(name) for name in servers))
        pages = {name: tokens(scene.pages(name)) for name in servers}
    recorded = {name: tokens(stored(path, name)) for name in servers}
    return Aftermath(said, good, problem, pages, recorded, {name: timeline(path, name) for name in servers})


@pytest.mark.parametrize("name", [*DOWN, "TLS"])
def test_a_server_in_trouble_is_said_and_what_it_said_before_stays(aftermath: Aftermath, name: str) -> None:
    words = DOWN[name][1] if name in DOWN else "does not verify: self-signed certificate (tls)."
    verdict = aftermath.said[name]
    assert verdict.word.startswith("No data for ")
    assert f"{words} The numbers below are the last good ones." in verdict.reason
    assert lost(aftermath.recorded[name], aftermath.pages[name]) == set()
    assert aftermath.events[name] == [("down", "began"), ("down", "ended")]


def test_one_that_answers_every_other_time_is_not_down(aftermath: Aftermath) -> None:
    assert aftermath.said["flapping"].word == "Healthy"
    assert lost(aftermath.recorded["flapping"], aftermath.pages["flapping"]) == set()
    assert aftermath.events["flapping"] == []


def test_of_100_000_series_as_much_is_read_as_a_server_can_mean(aftermath: Aftermath) -> None:
    assert aftermath.said["100,000 series"].word == "Healthy"
    assert lost(aftermath.recorded["100,000 series"], aftermath.pages["100,000 series"]) == set()
    assert aftermath.events["100,000 series"] == []


def test_the_server_beside_them_loses_nothing(aftermath: Aftermath) -> None:
    assert aftermath.good.word == "Healthy"
    assert aftermath.problem == ""
    assert lost(aftermath.recorded["good"], aftermath.pages["good"]) == set()
    assert aftermath.events["good"] == []


# The store


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process is in the middle of a long write."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def full(path: Path) -> Iterator[None]:
    """The operating system lets no file grow beyond what the store has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in path.parent.glob("monitor.db*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("fault", "said"), [(locked, "database is locked"), (full, "d")])
def test_what_cannot_be_written_waits(fault: Callable[[Path], Any], said: str, path: Path) -> None:
    with watching(f"sqlite:///{path}") as scene:
        with fault(path):
            eventually(lambda: scene.watch.problem)
            assert re.fullmatch(rf"the store cannot be written: {said}.*; [1-9]\d* pages wait.*", scene.watch.problem)
            scene.goes_on()
            assert scene.verdict().word == "Healthy"
        eventually(lambda: scene.watch.problem == "")
        scene.goes_on()
        pages = tokens(scene.pages())
    assert lost(tokens(stored(path)), pages) == set()


def deleted(path: Path) -> str:
    path.unlink()
    return f"{path} was deleted: what was recorded before is gone, and a new one was begun."


def damaged(path: Path) -> str:
    with closing(sqlite3.connect(path)) as other:  # what is in the journal would mend it
        eventually(lambda: other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    return f"{path} was damaged: a new one was begun."


@pytest.mark.parametrize("fault", [deleted, damaged])
def test_a_lost_file_is_begun_anew_and_only_what_it_held_is_gone(fault: Callable[[Path], str], path: Path) -> None:
    with watching(f"sqlite:///{path}") as scene:
        eventually(lambda: stored(path))
        said = fault(path)
        eventually(lambda: said in [event.reason for event in scene.watch.events(0, 4e9)])
        scene.goes_on()
        eventually(lambda: scene.watch.problem == "")
        assert scene.verdict().word == "Healthy"
        pages = tokens(scene.pages())
    found = tokens(stored(path))
    assert pages[0] not in found
    assert lost(found, pages[pages.index(found[0]) :]) == set()


# Time


@pytest.mark.parametrize("back", [30.0, 3600.0])
def test_a_clock_that_steps_back(back: float, path: Path) -> None:
    shift = 0.0
    with watching(f"sqlite:///{path}", wall=lambda: time.time() + shift) as scene:
        shift = -back
        scene.goes_on(pages=5)
        state = scene.watch.state("good")
        assert state is not None
        assert state.age is not None
        assert 0 <= state.age < 60
        assert scene.verdict().word == "Healthy"
        assert scene.watch.problem == ""
        between = [window(*pair) for pair in pairwise(state.history)]
        assert [each.engines[0].increase(GENERATION_TOKENS) for each in between] == [50] * len(between)
        assert not any(each.has_restarted for each in between)
        pages = scene.pages()
    assert scene.watch.events(0, 4e9) == []
    with closing(sqlite3.connect(path)) as connection:
        ((rows,),) = connection.execute("SELECT count(*) FROM pages WHERE resolution = 0")
    assert rows >= len(pages) - 1


# Prometheus and webhooks


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "cannot be asked: Connection refused"),
        (says(b"upstream is away", "503 Service Unavailable", Connection="close"), "answered 503: upstream is away"),
        (
            says(b'{"error":"too many samples"}', "422 Unprocessable Entity", Connection="close"),
            "answered 422: too many samples",
        ),
    ],
    ids=["down", "503", "422"],
)
def test_prometheus_in_trouble_is_said_and_this_dashboard_goes_on(
    answer: Answer | None, said: str, tmp_path: Path
) -> None:
    server, path = Server(), tmp_path / "monitor.toml"
    with serving(server.answer) as url:
        with serving(answer or hangs) as prometheus:
            target = f'[[targets]]\nname = "good"\nurl = "{url}"\n'
            path.write_text(f'interval = 1\nstore = ""\n[prometheus]\nurl = "{prometheus}"\n{target}')
            sources = Sources(path)
            sources.start()
            if answer:
                assert sources.chosen(PROMETHEUS).targets() == ()
        try:
            assert sources.chosen(PROMETHEUS).targets() == ()
            assert sources.chosen(PROMETHEUS).problem.startswith("Prometheus: ")
            assert sources.chosen(PROMETHEUS).problem.endswith(said)
            scene = Scene(sources.watch, {})
            scene.goes_on()
            assert scene.verdict().word == "Healthy"
            assert sources.chosen(OWN).problem == ""
        finally:
            sources.stop()


def test_a_webhook_that_fails_is_said_and_told_later_in_order(path: Path) -> None:
    with receiver(500) as hook:
        webhooks = (Webhook(name="on call", url=hook.url),)
        with watching(f"sqlite:///{path}", "bad", webhooks=webhooks) as scene:
            scene.servers["bad"].mood = says(b"", "500 Internal Server Error")
            eventually(lambda: scene.watch.problem)
            assert scene.watch.problem.startswith("webhook on call: the server answered 500 Internal Server Error; 1")
            scene.goes_on()
            scene.servers["bad"].mood = None
            eventually(lambda: len(hook.bodies) == 3)
            eventually(lambda: scene.watch.problem == "")
    assert [(body["change"], body["answered"]) for body in hook.bodies] == [
        ("began", 500), ("began", 200), ("ended", 200),
    ]  # fmt: skip
    assert timeline(path, "bad") == [("down", "began"), ("down", "ended")]


# The table


def test_each_test_that_the_document_names_exists() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    named = set(re.findall(r"`(test_\w+)\.(test_\w+)", text))
    trees = {file: ast.parse((ROOT / "tests" / f"{file}.py").read_text()) for file, _ in named}
    there = {
        (file, node.name) for file, tree in trees.items() for node in tree.body if isinstance(node, ast.FunctionDef)
    }
    assert len(named) >= 20
    assert named - there == set()
