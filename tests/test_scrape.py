"""scrape.py against real local servers in every bad mood: each is a clear state, within the time limit."""

import gzip
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from monitor import scrape as module
from monitor.scrape import engine_version, metrics_url, post, scrape, trust
from planner.errors import InputError
from tests.servers import PAGE, Answer, drips, drips_the_header, floods, hangs, path_of, says, serving

STATES: dict[str, tuple[Answer, str]] = {
    "good": (says(PAGE), "ok"),
    "good, without a length": (lambda client, request: client.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE), "ok"),
    "good, packed without being asked": (says(gzip.compress(PAGE), Content_Encoding="gzip"), "ok"),
    "good, called text/html": (says(PAGE, Content_Type="text/html"), "html"),
    "hangs": (hangs, "timeout"),
    "a byte now and then": (drips, "timeout"),
    "a header without end": (drips_the_header, "timeout"),
    "a web page": (says(b"<!DOCTYPE html><html></html>"), "html"),
    "500": (says(b"oops", "500 Internal Server Error"), "http_status"),
    "404": (says(b'{"detail":"Not Found"}', "404 Not Found"), "http_status"),
    "503 with a page": (says(PAGE, "503 Service Unavailable"), "http_status"),
    "nothing": (says(b""), "empty"),
    "blank lines": (says(b"\n\n  \n"), "empty"),
    "no answer at all": (lambda client, request: None, "unreachable"),
    "garbage for HTTP": (lambda client, request: client.sendall(b"\x00\xff\xfe garbage\r\n\r\n"), "not_http"),
    "garbage for a page": (says(bytes(range(256)) * 100), "not_metrics"),
    "JSON": (says(b'{"object": "list"}', Content_Type="application/json"), "not_metrics"),
    "10 MB of garbage": (says(b"\x80" * 10**7), "not_metrics"),
    "10 MB of samples": (says(b'a{b="c"} 1\n' * 10**6), "ok"),
    "50 MB": (says(b'a{b="c"} 1\n' * 5 * 10**6), "too_large"),
    "without end": (floods, "too_large"),
    "a bomb": (says(gzip.compress(b"a 1\n" * 2**24, 1), Content_Encoding="gzip"), "too_large"),
    "packed badly": (says(PAGE, Content_Encoding="gzip"), "not_http"),
    "half a page": (says(PAGE, Content_Length="5000"), "truncated"),
    "redirect to itself": (says(b"", "307 Temporary Redirect", Location="/metrics"), "redirect_loop"),
    "redirect to nowhere": (says(b"", "302 Found", Location="ftp://elsewhere/"), "http_status"),
    "a redirect without address": (says(b"", "301 Moved Permanently"), "redirect_loop"),
}


@pytest.mark.parametrize("mood", STATES)
def test_every_mood_of_a_server_is_a_clear_state(mood: str) -> None:
    answer, state = STATES[mood]
    with serving(answer) as url:
        began = time.monotonic()
        found = scrape(url, timeout=0.6 if state == "timeout" else 20)
        assert time.monotonic() - began < 10
    assert found.state == state, found
    assert bool(found.text) == found.ok
    assert bool(found.message) != found.ok
    assert "\n" not in found.message


def test_the_page_arrives_whole() -> None:
    with serving(STATES["10 MB of samples"][0]) as url:
        found = scrape(url)
    assert len(found.text) == 11 * 10**6
    assert (found.status, found.url) == (200, f"{url}/metrics")


def test_vllms_redirect_is_followed() -> None:
    """Trap 9: 307 from /metrics to /metrics/."""

    def answer(client: socket.socket, request: str) -> None:
        (says(PAGE) if path_of(request) == "/metrics/" else says(b"", "307 Temporary Redirect", Location="/metrics/"))(
            client, request
        )

    with serving(answer) as url:
        assert [scrape(form).url for form in (url, f"{url}/", f"{url}/metrics", f"{url}/metrics/")] == [
            f"{url}/metrics/"
        ] * 4


def test_an_endless_chain_of_redirects() -> None:
    def answer(client: socket.socket, request: str) -> None:
        says(b"", "302 Found", Location=f"{path_of(request)}x")(client, request)

    with serving(answer) as url:
        assert scrape(url).state == "redirect_loop"


def test_credentials_go_along_but_are_not_shown_nor_handed_on() -> None:
    heads: list[str] = []

    def redirects(client: socket.socket, request: str) -> None:
        heads.append(request)
        says(b"", "302 Found", Location=f"{other}/metrics")(client, request)

    def records(client: socket.socket, request: str) -> None:
        heads.append(request)
        says(PAGE)(client, request)

    with serving(records) as other, serving(redirects) as url:
        found = scrape(url.replace("http://", "http://me:secret@"))
    assert found.ok
    assert "secret" not in repr(found)
    assert ["Authorization: Basic bWU6c2VjcmV0" in head for head in heads] == [True, False]


def test_no_header_is_handed_on_to_another_server() -> None:
    """Any of them may be a secret: X-Api-Key as much as Authorization."""
    heads: list[str] = []

    def records(client: socket.socket, request: str) -> None:
        heads.append(request)
        says(PAGE)(client, request)

    def redirects(client: socket.socket, request: str) -> None:
        heads.append(request)
        says(b"", "302 Found", Location=f"{other}/metrics")(client, request)

    with serving(records) as other, serving(redirects) as url:
        assert scrape(url, headers={"X-Api-Key": "secret"}).ok
    assert ["X-Api-Key: secret" in head for head in heads] == [True, False]


def test_a_body_is_posted_whole_and_what_the_receiver_said_is_kept() -> None:
    got: list[str] = []

    def takes(client: socket.socket, request: str) -> None:
        got.append(request if request.endswith("}") else request + client.recv(65536).decode())
        says(b"taken", "202 Accepted")(client, request)

    with serving(takes) as url:
        found = post(f"{url}/hook?key=1", b'{"text": "hello"}', {"Content-Type": "application/json"})
    assert (found.state, found.status, found.text, found.message) == ("ok", 202, "taken", "")
    assert got[0].startswith("POST /hook?key=1 HTTP/1.1\r\n")
    assert "Content-Type: application/json\r\n" in got[0]
    assert got[0].endswith('\r\n\r\n{"text": "hello"}')


@pytest.mark.parametrize(
    ("answer", "state", "message"),
    [
        (says(b"no_text", "400 Bad Request"), "http_status", "the server answered 400 Bad Request: no_text"),
        (says(b"", "503 Service Unavailable"), "http_status", "the server answered 503 Service Unavailable"),
        (says(b"", "301 Moved Permanently", Location="/"), "http_status", "the server answered 301 Moved Permanently"),
        (hangs, "timeout", "did not answer in time"),
        (drips, "timeout", "did not answer in time"),
    ],
)  # fmt: skip
def test_a_receiver_in_a_bad_mood(answer: Answer, state: str, message: str) -> None:
    with serving(answer) as url:
        found = post(url, b"{}", {}, timeout=0.5 if state == "timeout" else 20)
    assert found.state == state
    assert found.message.endswith(message)


def test_a_post_needs_an_address() -> None:
    with pytest.raises(InputError, match="url"):
        post("hooks.example/x", b"", {})


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert scrape(f"127.0.0.1:{port}").state == "refused"


def test_unknown_host() -> None:
    assert scrape("http://no-such-host.invalid:8000").state == "dns"


def test_tls_where_there_is_none() -> None:
    with serving(says(PAGE)) as url:
        assert scrape(url.replace("http:", "https:"), 3).state == "tls"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(path.with_suffix(".crt"))],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


def test_tls(certificate: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    with serving(says(PAGE), server) as url:
        assert scrape(url).state == "tls"
        assert "verify" in scrape(url).message
        assert scrape(url, context=trust(str(certificate.with_suffix(".crt")))).ok
        assert scrape(url, context=trust(verify=False)).ok


@pytest.mark.parametrize("text", [None, "", "no certificate"])
def test_a_file_without_certificates(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match="accepted: a readable file of PEM certificates"):
        trust(str(path))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "ftp://host/",
        "http://",
        "http://host:port/",
        "http://host:99999",
        "host:0",
        "http://ho\nst",
        "file:///etc",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InputError, match="url"):
        scrape(url)


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("gpu1:8000", "http://gpu1:8000/metrics"),
        (" http://gpu1:8000/ ", "http://gpu1:8000/metrics"),
        ("https://gpu1/vllm/", "https://gpu1/vllm/metrics"),
        ("http://gpu1:8000/v1", "http://gpu1:8000/metrics"),
        ("http://prom:9090/federate?match[]=x", "http://prom:9090/federate?match[]=x"),
        ("localhost", "http://localhost/metrics"),
    ],
)
def test_however_an_address_is_written(url: str, where: str) -> None:
    assert metrics_url(url) == where


@pytest.mark.parametrize(
    ("body", "version"),
    [(b'{"version": "0.32.0"}', "0.32.0"), (b"{}", None), (b"<html>", None), (b'{"version": 3}', None), (b"[]", None)],
)
def test_the_servers_own_version(body: bytes, version: str | None) -> None:
    with serving(lambda client, request: says(body if path_of(request) == "/version" else b"")(client, request)) as url:
        assert engine_version(url) == version


def test_a_server_without_version_takes_little_time() -> None:
    with serving(hangs) as url:
        began = time.monotonic()
        assert engine_version(url, timeout=0.3) is None
        assert time.monotonic() - began < 1


def test_the_limit_of_a_page_is_stated_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 2**20)
    with serving(STATES["10 MB of samples"][0]) as url:
        assert scrape(url).message == "the page is above 1 MiB"
