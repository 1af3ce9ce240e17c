"""The collector and servers in every bad mood, over real sockets: each is said, and the others go on."""

import ssl
import subprocess
import threading
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from monitor import collector as module
from monitor import metrics
from monitor.collector import Collector
from monitor.layout import MAX_PIECES
from monitor.reading import read
from monitor.scrape import MAX_BYTES, Scrape
from monitor.targets import Target
from tests.recorded import page
from tests.servers import Answer, drips, eventually, hangs, says, serving

URL = "http://gpu1:8000/metrics"


def watched(name: str, url: str) -> Target:
    return Target(name=name, url=url)


def series(number: int) -> bytes:
    name = "vllm:request_success_total"
    return "".join(f'{name}{{engine="0",model_name="m",finished_reason="r{n}"}} 1\n' for n in range(number)).encode()


def flapping() -> Answer:
    turns = count()
    page, trouble = says(b"vllm:num_requests_running 1\n"), says(b"", "500 Internal Server Error")
    return lambda client, request: (page if next(turns) % 2 else trouble)(client, request)


BAD: dict[str, tuple[Answer, str]] = {
    "hanging": (hangs, "did not answer in time"),
    "slow drip": (drips, "did not answer in time"),
    "500": (says(b"", "500 Internal Server Error"), "the server answered 500 Internal Server Error"),
    "redirect loop": (says(b"", "307 Temporary Redirect", Location="/metrics"), "the server redirects in a circle"),
    "HTML": (says(b"<html>Sign in</html>", Content_Type="text/html"), "the server answered with a web page"),
    "50 MB": (says(b"a 1\n" * (50 * 10**6 // 4)), "the page is above 16 MiB"),
    "half a page": (says(series(100)[:3000], Content_Length="7000"), "closed the connection in the middle of the page"),
    "gone": (lambda client, request: None, "cannot be reached"),
}


def test_bad_servers_are_said_and_the_others_go_on() -> None:
    good = says(page("0.32.0-load").encode())
    with ExitStack() as servers:
        collector = Collector(interval=0.2, timeout=0.6)
        collector.add(watched("good", servers.enter_context(serving(good))))
        collector.add(watched("flapping", servers.enter_context(serving(flapping()))))
        for mood, (answer, _) in BAD.items():
            collector.add(watched(mood, servers.enter_context(serving(answer))))
        servers.enter_context(collector.running())
        # Until the good one has had six pages after all the others have failed.
        eventually(lambda: all((state := collector.state(mood)) and state.failures for mood in BAD), 60)
        had = len(collector.state("good").history)  # type: ignore[union-attr]
        eventually(lambda: len(collector.state("good").history) >= had + 6, 60)  # type: ignore[union-attr]
        eventually(lambda: len(collector.state("flapping").history) >= 3, 60)  # type: ignore[union-attr]
        said = {mood: collector.state(mood).error.message for mood in BAD}  # type: ignore[union-attr]
        history = collector.state("good").history  # type: ignore[union-attr]
    assert {mood: words in said[mood] for mood, (_, words) in BAD.items()} == dict.fromkeys(BAD, True), said
    assert history[-1].engines[0].values == read(page("0.32.0-load")).engines[0].values


def test_a_certificate_that_nobody_signed(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "crt.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    with serving(says(b"up 1\n"), server) as url:
        collector = Collector()
        collector.add(watched("plain", url))
        collector.add(Target(name="trusted", url=url, ca_file=str(certificate)))
        collector.add(Target(name="unverified", url=url, verify=False))
        for name in ("plain", "trusted", "unverified"):
            collector.collect(name)
    errors = {target.name: state.error for target in collector.targets if (state := collector.state(target.name))}
    assert errors["plain"] is not None
    assert "does not verify: self-signed certificate" in errors["plain"].message
    assert (errors["trusted"], errors["unverified"]) == (None, None)


def test_many_that_hang_leave_workers_for_the_others() -> None:
    """A hundred fill a quarter of an hour of one worker each; half of all workers is kept for those that answer."""
    gate = threading.Event()
    asked: list[str] = []

    def scrape(url: str, timeout: float, headers: object = None, context: object = None) -> Scrape:
        asked.append(url)
        if url == URL:
            return Scrape(state="ok", url=url, text="up 1\n")
        if asked.count(url) > 1:
            gate.wait(30)
        return Scrape(state="timeout", url=url, message="it did not answer in time")

    collector = Collector(interval=0.05, scrape=scrape)
    for number in range(100):
        collector.add(watched(f"hung-{number}", f"http://hung{number}:8000"))
    collector.add(watched("good", URL))
    with collector.running():
        eventually(lambda: sum(asked.count(f"http://hung{n}:8000/metrics") > 1 for n in range(100)) >= 16)
        before = asked.count(URL)
        eventually(lambda: asked.count(URL) >= before + 10)
        assert sum(asked.count(f"http://hung{n}:8000/metrics") > 1 for n in range(100)) == module.WORKERS // 2
        gate.set()


def test_of_a_page_of_100_000_series_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a target is bounded by the size of its pages as they came, not by their number alone."""
    huge = series(100_000)
    assert 7 * 2**20 < len(huge) < MAX_BYTES
    answers = {"huge": huge.decode(), "normal": page("0.32.0-load")}

    def scrape(url: str, timeout: float, headers: object = None, context: object = None) -> Scrape:
        return Scrape(state="ok", url=url, text=answers[url.split("/")[2]])

    monkeypatch.setattr(module, "KEPT_BYTES", 2 * len(huge))
    collector = Collector(scrape=scrape)
    for name in answers:
        collector.add(watched(name, name))
        for _ in range(4):
            collector.collect(name)
    assert {name: len(state.history) for name in answers if (state := collector.state(name))} == {
        "huge": 2,
        "normal": 4,
    }
    state = collector.state("huge")
    assert state is not None
    assert state.latest is not None
    assert len(state.latest.engines[0].split(metrics.FINISHED)) == MAX_PIECES
    assert state.latest.notes == ("more than 256 labels of one metric on the page: the first are read",)


def test_a_certificate_file_that_is_not_there_is_said() -> None:
    collector = Collector()
    collector.add(Target(name="a", url="https://gpu1:8000", ca_file="no/such.pem"))
    collector.collect("a")
    assert (state := collector.state("a")) is not None
    assert state.error is not None
    assert state.error.message == "ca_file: found 'no/such.pem', accepted: a readable file of PEM certificates"
