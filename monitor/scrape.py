"""One GET of a /metrics page, or one POST to a webhook: the answer, or a clear reason why not, never an exception.

The time limit covers the whole exchange, redirects too: a server that drips a byte a second does not hold the caller.
That is why this speaks through http.client: the limits of requests hold for each read alone, headers included.
"""

import http.client
import io
import json
import socket
import ssl
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from monitor.exposition import has_samples
from monitor.targets import shortened, without_user
from planner.errors import InputError

State = Literal[
    "ok", "refused", "unreachable", "timeout", "dns", "tls", "not_http", "http_status", "redirect_loop", "truncated",
    "empty", "html", "not_metrics", "too_large", "misconfigured", "unreadable",
]  # fmt: skip

TIMEOUT = 10.0
"""A busy vLLM has been seen to take many seconds over /metrics; under 5 s live servers would look dead  [s]."""
MAX_BYTES = 16 * 2**20
"""A page of 100,000 series is about 15 MB; a server's own is under 0.2 MB  [bytes]."""
MAX_REDIRECTS = 5
_CHUNK = 64 * 2**10
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What one GET or POST came to.

    state     "ok", or what went wrong; "misconfigured" where it could not even be asked
    url       where the answer came from, after redirects; without credentials
    text      the page, or what the receiver answered; empty unless ok
    message   one line for a person; empty when ok
    status    HTTP status, when there was one  [status code]
    duration  from the call to the last byte   [s]
    """

    state: State
    url: str
    text: str = ""
    message: str = ""
    status: int | None = None
    duration: float = 0.0

    @property
    def ok(self) -> bool:
        return self.state == "ok"


def metrics_url(url: str) -> str:
    """Where the metrics of a server are, from however it was written down.

    Raises InputError when it is no http or https address.

    >>> [metrics_url(url) for url in ("gpu1:8000", "https://gpu1/", "http://gpu1:8000/v1", "http://[::1]:8000/metrics/")]
    ['http://gpu1:8000/metrics', 'https://gpu1/metrics', 'http://gpu1:8000/metrics', 'http://[::1]:8000/metrics']
    """
    stripped = url.strip()
    parts = _address(stripped if "://" in stripped else f"http://{stripped}")
    path = parts.path.rstrip("/").removesuffix("/v1")
    if not path.endswith(("/metrics", "/federate")) and not parts.query:
        path += "/metrics"
    return parts._replace(path=path, fragment="").geturl()


def _address(url: str) -> SplitResult:
    """The parts of an http or https address. Raises InputError when it is none."""
    accepted = "an address like http://host:8000, with or without /metrics"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except (ValueError, UnicodeError):
        raise InputError("url", shortened(without_user(url)), accepted) from None
    is_printable = all(" " < character != "\x7f" for character in url)
    if parts.scheme not in ("http", "https") or not host or port == 0 or not is_printable:
        raise InputError("url", shortened(without_user(url)), accepted)
    return parts


def scrape(
    url: str,
    timeout: float = TIMEOUT,
    *,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Scrape:
    """The metrics page of a server, within `timeout` seconds in all. Raises InputError for a malformed URL only."""
    target = metrics_url(url)
    began = time.monotonic()
    return _scrape(_request(target, began + timeout, headers or {}, context), began, _judged)


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout: float = TIMEOUT,
    *,
    context: ssl.SSLContext | None = None,
) -> Scrape:
    """What a receiver answered to this body, within `timeout` seconds in all; ok is any 2xx.

    A redirect is not followed, as the body might go to a stranger. Raises InputError for a malformed URL only.
    """
    _address(url)
    began = time.monotonic()
    return _scrape(_request(url, began + timeout, headers, context, body), began, _taken)


def _scrape(
    answer: "_Answer | _Failure", began: float, judged: Callable[[str, "_Answer"], tuple[State, str]]
) -> Scrape:
    """The answer as its reader judges it."""
    duration = time.monotonic() - began
    if isinstance(answer, _Failure):
        return Scrape(
            state=answer.state, url=answer.url, message=answer.message, status=answer.status, duration=duration
        )
    text = answer.body.decode("utf-8", errors="replace")
    state, message = judged(text, answer)
    return Scrape(
        state=state,
        url=answer.url,
        text=text if state == "ok" else "",
        message=message,
        status=answer.status,
        duration=duration,
    )


def engine_version(url: str, timeout: float = 2.0) -> str | None:
    """The release a vLLM server says it is, or None when it does not say so in time."""
    target = metrics_url(url).partition("?")[0].removesuffix("/metrics") + "/version"
    answer = _request(target, time.monotonic() + timeout, {}, None)
    if isinstance(answer, _Failure) or answer.status != http.HTTPStatus.OK:
        return None
    try:
        version = json.loads(answer.body)["version"]
    except (ValueError, LookupError, TypeError):
        return None
    return version if isinstance(version, str) and version[:1].isdecimal() else None


def _taken(text: str, answer: "_Answer") -> tuple[State, str]:
    """Whether this answer says that the body was taken."""
    if answer.status // 100 == 2:
        return "ok", ""
    said = " ".join(text[:_SHOWN_CHARACTERS].split())
    return "http_status", _status(answer) + (f": {said}" if said else "")


def _status(answer: "_Answer") -> str:
    return f"the server answered {answer.status} {http.client.responses.get(answer.status, '')}".rstrip()


def _judged(text: str, answer: "_Answer") -> tuple[State, str]:
    """Whether this answer is a metrics page."""
    start = text[:1000].lstrip("\ufeff \t\r\n")
    if answer.status != http.HTTPStatus.OK:
        return "http_status", _status(answer)
    if not start and not text.strip():
        return "empty", "the server answered with nothing"
    if (
        start[:14].lower().startswith(("<!doctype html", "<html", "<head", "<body"))
        or "text/html" in answer.content_type
    ):
        return "html", "the server answered with a web page: is this the address of vLLM, and not of a proxy or login?"
    if not has_samples(text):
        return "not_metrics", f"the answer is no metrics page; it begins: {start[:_SHOWN_CHARACTERS]!r}"
    return "ok", ""


@dataclass(frozen=True, slots=True)
class _Answer:
    url: str
    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class _Failure:
    state: State
    url: str
    message: str
    status: int | None = None


def _request(
    url: str, deadline: float, headers: Mapping[str, str], context: ssl.SSLContext | None, body: bytes | None = None
) -> _Answer | _Failure:
    """GET, following redirects, or POST, until the deadline. Credentials in the URL become a header, not shown."""
    visited: set[str] = set()
    parts = urlsplit(url)
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers = {**headers, "Authorization": f"Basic {b64encode(secret).decode()}"}
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    while True:
        shown = parts.geturl()
        if shown in visited or len(visited) > MAX_REDIRECTS:
            return _Failure("redirect_loop", shown, "the server redirects in a circle")
        visited.add(shown)
        try:
            answer = _exchange(parts, deadline, headers, context, body)
        except OSError as error:
            return _network_failure(error, shown, deadline)
        except http.client.IncompleteRead:
            return _Failure("truncated", shown, "the server closed the connection in the middle of the page")
        except (http.client.HTTPException, ValueError) as error:
            return _Failure("not_http", shown, f"the server does not speak HTTP ({type(error).__name__})")
        if not isinstance(answer, SplitResult):
            return answer
        if (answer.scheme, answer.netloc) != (parts.scheme, parts.netloc):
            headers = {}  # any of them may be a secret, and another server asks
        parts = answer


def _exchange(
    parts: SplitResult,
    deadline: float,
    headers: Mapping[str, str],
    context: ssl.SSLContext | None,
    sent: bytes | None,
) -> _Answer | _Failure | SplitResult:
    """One request and its answer, or where a GET is redirected to."""
    url = parts.geturl()
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=remaining, context=context or trust()
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=remaining)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    accept = {"Accept": "text/plain;version=0.0.4, */*;q=0.1", "Accept-Encoding": "identity", "Connection": "close"}
    with closing(connection):
        connection.connect()
        with closing(connection.sock) as connected:
            connection.sock = _Deadline(connected, deadline)
            connection.request("GET" if sent is None else "POST", path, sent, {**accept, **headers})
            response = connection.getresponse()
            if sent is None and response.status in (301, 302, 303, 307, 308):
                where = urlsplit(urljoin(url, response.getheader("Location") or ""))
                if where.scheme in ("http", "https") and where.hostname:
                    return where._replace(fragment="")
            body = _body(response)
    if body is None:
        return _Failure("too_large", url, f"the page is above {MAX_BYTES // 2**20} MiB", response.status)
    return _Answer(url, response.status, response.getheader("Content-Type") or "", body)


def trust(ca_file: str = "", verify: bool = True) -> ssl.SSLContext:
    """Whose certificates are believed: the system's, those of a file instead, or anybody's.

    Raises InputError where the file has no certificates. It is read again when it changes.
    """
    try:
        return _trusted(ca_file, verify, Path(ca_file).stat().st_mtime_ns if ca_file else 0)
    except OSError as problem:
        raise InputError("ca_file", ca_file, "a readable file of PEM certificates") from problem


@lru_cache(maxsize=64)
def _trusted(ca_file: str, verify: bool, changed: int) -> ssl.SSLContext:
    """As `trust`, once for each state of the file: the system's take 50 ms to load."""
    context = ssl.create_default_context(cafile=ca_file or None)
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _body(response: http.client.HTTPResponse) -> bytes | None:
    """The body, unpacked, or None when it is larger than we keep."""
    is_packed = (response.getheader("Content-Encoding") or "").lower() in ("gzip", "deflate")
    unpack = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, whichever it is
    body = bytearray()
    expected = response.length
    received = 0
    while chunk := response.read(_CHUNK):
        received += len(chunk)
        try:
            body += unpack.decompress(chunk, MAX_BYTES + 1 - len(body)) if is_packed else chunk
        except zlib.error as error:
            raise ValueError("packed badly") from error
        if len(body) > MAX_BYTES:
            return None
    if expected is not None and received < expected:
        raise http.client.IncompleteRead(b"", expected - received)
    return bytes(body)


class _Deadline(io.RawIOBase):
    """A connected socket each of whose reads and writes ends at one common deadline, as http.client uses it."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = connected, deadline

    def _limit(self) -> None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        self._limit()
        return self._socket.recv_into(buffer)

    def sendall(self, data: bytes) -> None:
        self._limit()
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """Leave it open: http.client closes it before the body is read. Who connected it closes it."""


def _network_failure(error: OSError, url: str, deadline: float) -> _Failure:
    """
    >>> _network_failure(ConnectionRefusedError(), "http://gpu1:8000/metrics", 0).state
    'refused'
    """
    host = shortened(urlsplit(url).netloc)
    if isinstance(error, TimeoutError):
        return _Failure("timeout", url, f"{host} did not answer in time")
    if isinstance(error, ConnectionRefusedError):
        return _Failure("refused", url, f"{host} refuses connections: nothing listens there")
    if isinstance(error, socket.gaierror):
        return _Failure("dns", url, f"the name {host} is not known")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _Failure("tls", url, f"the certificate of {host} does not verify: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return _Failure("tls", url, f"{host} does not speak TLS as expected: {error.reason or 'no handshake'}")
    return _Failure("unreachable", url, f"{host} cannot be reached: {error.strerror or type(error).__name__}")
