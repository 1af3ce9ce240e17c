"""The fleet through a stub of Prometheus: what is sent to it, and what becomes of every trouble it can make."""

import json
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import parse_qs

import pytest
from servers import Answer, drips, drips_the_header, hangs, says, serving

from monitor import metrics
from monitor.config import PrometheusServer
from monitor.prometheus import PrometheusSource
from monitor.snapshot import Snapshot


def eventually(is_true: Callable[[], object], patience: float = 40.0) -> None:
    deadline = time.monotonic() + patience
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def newest(source: PrometheusSource, name: str) -> Snapshot | None:
    state = source.state(name)
    return state.latest if state else None


class Stub:
    """Answers as Prometheus does, of one engine that runs three requests; notes what it was asked, and how."""

    def __init__(self, labels: dict[str, str] | None = None) -> None:
        self.labels = {"job": "chat", "instance": "gpu1:8000"} if labels is None else labels
        self.mood: Answer | None = None
        self.extra: dict[str, object] = {}
        self.queries: list[dict[str, str]] = []
        self.head = ""

    def answer(self, client: socket, request: str) -> None:
        self.head, _, body = request.partition("\r\n\r\n")
        length = re.search(r"(?i)content-length: (\d+)", self.head)
        while len(body) < int(length[1] if length else 0):
            body += client.recv(65536).decode()
        self.queries.append(asked := {name: values[0] for name, values in parse_qs(body).items()})
        if self.mood:
            return self.mood(client, request)
        found = [{"metric": labels, "values": values, "value": values[-1]} for labels, values in self.series(asked)]
        document = {"status": "success", "data": {"resultType": "matrix", "result": found}, **self.extra}
        return says(json.dumps(document).encode(), Connection="close")(client, request)

    def series(self, asked: dict[str, str]) -> Iterator[tuple[dict[str, str], list[Any]]]:
        last = int(float(asked.get("end") or asked["time"]))
        steps = range(int(asked.get("start", last)), last + 1, int(asked.get("step", 1)))
        if "timestamp(" in asked["query"]:
            yield self.labels, [[step, str(step)] for step in steps]
        else:
            name = metrics.RUNNING.names[0]
            own = {"__name__": name, "engine": "0", "model_name": 'a "b" \\ c', "not.a.label": "x"}
            yield {**self.labels, **own}, [[step, "3"] for step in steps]


@pytest.fixture
def stub() -> Iterator[tuple[Stub, str]]:
    made = Stub()
    with serving(made.answer) as url:
        yield made, url


def test_secrets_tenant_and_headers_are_sent(stub: tuple[Stub, str], monkeypatch: pytest.MonkeyPatch) -> None:
    answering, url = stub
    monkeypatch.setenv("TOKEN", "s3cret")
    headers = {"X-Team": "${TOKEN}-team"}
    source = PrometheusSource(PrometheusServer(url=f"{url}/", bearer="${TOKEN}", tenant="fleet", headers=headers))
    assert source.state("chat/gpu1:8000")
    lines = answering.head.split("\r\n")
    assert lines[0].split(" ")[1] in ("/api/v1/query", "/api/v1/query_range")
    assert {"Authorization: Bearer s3cret", "X-Scope-OrgID: fleet", "X-Team: s3cret-team"} <= set(lines)

    source = PrometheusSource(PrometheusServer(url=url, username="me", password="${TOKEN}"))
    assert source.targets()
    assert "Authorization: Basic bWU6czNjcmV0" in answering.head  # me:s3cret


def test_a_variable_that_is_not_set_is_named(stub: tuple[Stub, str]) -> None:
    source = PrometheusSource(PrometheusServer(url=stub[1], bearer="${NOT_SET_ANYWHERE}"))
    assert source.targets() == ()
    assert (
        source.problem == "Prometheus: prometheus.bearer: found '${NOT_SET_ANYWHERE}', accepted: a variable that is set"
    )
    assert stub[0].queries == []


def test_a_server_with_its_own_certificates(tmp_path: Path) -> None:
    key, trusted = tmp_path / "key.pem", tmp_path / "trusted.crt"
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*made.split(), "-keyout", key, "-out", trusted], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, key)
    with serving(Stub().answer, context) as url:
        url = url.replace("127.0.0.1", "localhost")
        unknown = PrometheusSource(PrometheusServer(url=url))
        assert unknown.targets() == ()
        assert unknown.problem.endswith("cannot be asked: self-signed certificate")
        assert PrometheusSource(PrometheusServer(url=url, ca_file=str(trusted))).targets()
        assert PrometheusSource(PrometheusServer(url=url, verify=False)).targets()


TROUBLES: dict[str, tuple[Answer, str]] = {
    "503": (says(b"upstream is away", "503 Service Unavailable", Connection="close"), "answered 503: upstream is away"),
    "422": (
        says(b'{"status":"error","error":"too many samples"}', "422 Unprocessable Entity", Connection="close"),
        "answered 422: too many samples",
    ),
    "401": (says(b"", "401 Unauthorized", Connection="close"), "answered 401: Unauthorized"),
    "a login page": (
        says(b"<html><head><title>Sign in</title>", Connection="close"),
        "answered 200: a web page, 'Sign in'",
    ),
    "a redirect": (
        says(b"", "302 Found", Location="https://login/?next=x", Connection="close"),
        "answered 302: go to https://login/",
    ),
    "JSON of another kind": (says(b'{"object":"list"}', Connection="close"), 'answered 200: {"object":"list"}'),
    "success without data": (says(b'{"status":"success"}', Connection="close"), "does not answer as Prometheus does"),
    "a number for series": (
        says(b'{"status":"success","data":{"result":3}}', Connection="close"),
        "does not answer as Prometheus does",
    ),
    "series without values": (
        says(b'{"status":"success","data":{"result":[{"metric":{"__name__":"up"}}]}}', Connection="close"),
        "its series are not as Prometheus gives them",
    ),
    "no answer": (hangs, "did not answer within 1 s"),
    "a byte now and then": (drips, "did not answer within 1 s"),
    "a header without end": (drips_the_header, "did not answer within 1 s"),
    "garbage": (lambda client, request: client.sendall(b"\x00\xff\r\n\r\n"), "cannot be asked: "),
    "the line is cut": (lambda client, request: None, "cannot be asked: "),
}


@pytest.mark.parametrize("kind", TROUBLES)
def test_trouble_is_one_line_and_what_was_known_stays(kind: str, stub: tuple[Stub, str]) -> None:
    answering, url = stub
    clock = [0.0]
    began = time.time()
    source = PrometheusSource(
        PrometheusServer(url=url, timeout=1), cycle=1, clock=lambda: clock[0], wall=lambda: began + clock[0]
    )

    def is_well() -> bool:
        clock[0] += 1
        return source.state("chat/gpu1:8000") is not None and source.problem == ""

    eventually(is_well)
    before = source.state("chat/gpu1:8000")
    assert before is not None
    assert before.latest is not None

    answering.mood, said = TROUBLES[kind]
    clock[0] += 70
    eventually(lambda: source.state("chat/gpu1:8000") and source.problem)
    assert said in source.problem
    assert source.problem.startswith("Prometheus: ")
    assert "\n" not in source.problem
    after = source.state("chat/gpu1:8000")
    assert after is not None
    assert after.latest is before.latest
    assert after.age is not None
    assert after.age >= 70
    assert after.error is not None  # too old to be believed
    assert said in after.error.message
    assert source.snapshots("chat/gpu1:8000", began - 60, began) == ()
    assert source.problem

    answering.mood = None
    eventually(is_well)
    recovered = source.state("chat/gpu1:8000")
    assert recovered is not None
    assert recovered.error is None


def test_nobody_listens_and_nothing_is_there(stub: tuple[Stub, str]) -> None:
    with serving(hangs) as gone:
        pass
    source = PrometheusSource(PrometheusServer(url=gone))
    assert (source.targets(), source.state("a"), source.events(0, 1e9)) == ((), None, ())
    assert source.problem.endswith("cannot be asked: Connection refused")

    answering, url = stub
    answering.mood = says(b'{"status":"success","data":{"result":[]}}', Connection="close")
    source = PrometheusSource(PrometheusServer(url=url, selector='job="vllm"'))
    assert source.targets() == ()
    assert source.problem == 'Prometheus: no series of vLLM in the last 1d match {job="vllm"}'


def test_an_answer_in_parts_says_so(stub: tuple[Stub, str]) -> None:
    answering, url = stub
    answering.extra = {"warnings": ["store-2 did not answer"]}
    source = PrometheusSource(PrometheusServer(url=url))
    assert source.targets()
    assert source.problem == "Prometheus: a part is missing: store-2 did not answer"


def test_many_sessions_cause_one_look_a_cycle(stub: tuple[Stub, str]) -> None:
    answering, url = stub
    now = [time.time()]
    source = PrometheusSource(PrometheusServer(url=url), clock=lambda: now[0], wall=lambda: now[0])
    assert source.targets()
    first = len(answering.queries)
    assert first == 3  # who is there, when they were scraped, what they say

    def session() -> None:
        for _ in range(5):
            assert source.state("chat/gpu1:8000")
            assert source.snapshots("chat/gpu1:8000", now[0] - 3600, now[0])

    now[0] += 5
    sessions = [threading.Thread(target=session) for _ in range(8)]
    for each in sessions:
        each.start()
    for each in sessions:
        each.join()
    assert len(answering.queries) == first + 2 + 2  # one look, and the past once


def test_a_pod_stays_the_same_server_when_its_address_changes() -> None:
    pod = {"job": "chat", "namespace": "prod", "pod": "chat-0", "exported_instance": "own"}
    first, second = Stub({**pod, "instance": "10.0.0.1:8000"}), Stub({**pod, "instance": "10.0.0.2:8000"})
    with serving(first.answer) as url:
        source = PrometheusSource(PrometheusServer(url=url), cycle=1)
        name = "chat/prod/chat-0:8000"
        before = newest(source, name)
        first.labels = second.labels
        eventually(lambda: newest(source, name) is not before)
    (target,) = source.targets()
    assert (target.name, target.group, target.url) == (name, "chat", "chat-0:8000")
    after = newest(source, name)
    assert before
    assert after
    # What Prometheus added is not the engine's; a label of its own that Prometheus had to rename is.
    for each in (before, after):
        assert (each.engines[0].model_name, each.engines[0].labels) == ('a "b" \\ c', {"instance": "own"})
        assert each.engines[0].running == 3


def test_a_large_fleet_is_asked_in_parts(monkeypatch: pytest.MonkeyPatch, stub: tuple[Stub, str]) -> None:
    """Of bounded size: here four steps at a time, and each of the steps once."""
    answering, url = stub
    monkeypatch.setattr("monitor.prometheus._MAX_SAMPLES", 4 * 300)
    source = PrometheusSource(PrometheusServer(url=url), wall=lambda: 1.8e9 + 1)
    eventually(lambda: newest(source, "chat/gpu1:8000"))
    state = source.state("chat/gpu1:8000")
    assert state is not None
    assert [page.at for page in state.history] == [*range(1_800_000_000 - 895, 1_800_000_001, 5)]
    asked = [query for query in answering.queries if "timestamp(" in query.get("query", "") and "start" in query]
    assert len(asked) == 180 / 4
    assert {int(query["end"]) - int(query["start"]) for query in asked} == {15}
