"""The same servers through a Prometheus-compatible one that scrapes them: also Thanos, Mimir or VictoriaMetrics.

A page is put together again from its series: those of one server at one step are what a scrape would have read, so all
that comes after it is the same code. Besides the series, their own times are asked for: a query repeats a sample for
five minutes, and with its time a repeat is left out, a pause is a gap and a rate is over the time between two scrapes.

Pages ask as often as they like: all of them together cause one look a cycle. Only the last minutes are kept, in memory.
"""

import json
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import cached_property
from math import ceil, floor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from requests.auth import AuthBase

from monitor.config import PrometheusServer
from monitor.finding import Event
from monitor.followed import Followed, timeline
from monitor.judge import Judge
from monitor.metrics import FRONT_END, engine_of
from monitor.places import Place, Said, among, page_names, said, scraped, selector, spoken
from monitor.snapshot import Snapshot
from monitor.source import TargetState
from monitor.targets import Target, expanded
from monitor.thresholds import Thresholds
from planner.errors import InputError

CYCLE = 5
"""Between two looks at the fleet, and between two pages of a server  [s]."""
KEPT = 900
"""How far back the pages of a server are kept  [s]."""
_PATIENCE = 2.0
"""A page waits so long for the look that is under way; then it shows what was known before  [s]."""
_SETTLED = 1.0
"""What is younger may still be on its way into the server  [s]."""
_FOUND_FOR = 60
"""Between two searches for new servers  [s]."""
_REMEMBERED = "1d"
"""A server that has said something within this time is still looked for."""
_MAX_POINTS = 10_000
"""Of a series in one query; Prometheus refuses more than 11,000  [points]."""
_MAX_SAMPLES = 200_000
"""In one answer, about 5 MB and 50 MB of memory; Prometheus itself reads up to 50 million  [samples]."""
_SERIES = 300
"""What one server's page is thought to have  [series]."""
_MAX_PAGES = 3000
"""Read in one look: a large fleet's last minutes are read at wider steps  [pages]."""
_MAX_BYTES = 64 * 2**20
_MAX_UNANSWERED = 4
"""Queries that may wait for an answer that does not come  [queries]."""
_MAX_ANSWERS = 16
"""Answers about the past that are kept  [answers]."""
_SHOWN_CHARACTERS = 300

T = TypeVar("T")


class Trouble(Exception):
    """Why the server could not be asked: one line, in its own words where it gave any."""

    def __init__(self, text: str) -> None:
        line = "".join(filter(str.isprintable, " ".join(text.split())))
        super().__init__(line[:_SHOWN_CHARACTERS])


# The server


class _Answer(NamedTuple):
    """What prometheus-api-client needs of a response."""

    status_code: int
    document: Mapping[str, Any]

    def json(self) -> Mapping[str, Any]:
        return self.document


class _Session:
    """What prometheus-api-client needs of a session, with one time limit for the whole exchange and one for its size.

    The limits of requests hold for each read alone. So the exchange has a thread of its own, which is left behind when
    it takes too long; a few of those at most.
    """

    cert = None

    def __init__(self, server: PrometheusServer) -> None:
        self.verify = server.ca_file if server.verify and server.ca_file else server.verify
        self.warning = ""
        self.host = urlsplit(server.url).netloc.rpartition("@")[2] or server.url
        self._requests = requests.Session()
        self._free = threading.BoundedSemaphore(_MAX_UNANSWERED)
        if not server.verify:
            urllib3.disable_warnings()  # it was chosen, and is no news at every query

    def mount(self, prefix: str, adapter: Any) -> None:
        self._requests.mount(prefix, adapter)

    def request(self, method: str, url: str, params: Mapping[str, Any], timeout: float, **options: Any) -> _Answer:
        """The parameters are the body of a POST: a query that names every metric is long for an address."""
        if not self._free.acquire(blocking=False):
            raise Trouble(f"{self.host} has not answered earlier queries yet")
        found: Future[_Answer] = Future()
        asked = (found, method, url, params, timeout, options)
        threading.Thread(target=self._exchange, args=asked, name="prometheus", daemon=True).start()
        try:
            return found.result(timeout)
        except TimeoutError:
            raise Trouble(f"{self.host} did not answer within {timeout:g} s") from None

    def _exchange(
        self,
        found: "Future[_Answer]",
        method: str,
        url: str,
        params: Mapping[str, Any],
        timeout: float,
        options: Mapping[str, Any],
    ) -> None:
        deadline = time.monotonic() + timeout
        body = bytearray()
        try:
            with self._requests.request(
                method, url, data=params, timeout=timeout, stream=True, allow_redirects=False, **options
            ) as response:
                for chunk in response.iter_content(8192):
                    body += chunk
                    if len(body) > _MAX_BYTES:
                        raise Trouble(f"the answer of {self.host} is above {_MAX_BYTES // 2**20} MiB")
                    if time.monotonic() > deadline:
                        raise Trouble(f"{self.host} did not answer within {timeout:g} s")
            found.set_result(self._answer(response, bytes(body)))
        except Trouble as trouble:
            found.set_exception(trouble)
        except requests.Timeout:
            found.set_exception(Trouble(f"{self.host} did not answer within {timeout:g} s"))
        except (requests.RequestException, OSError, ValueError) as error:
            found.set_exception(Trouble(f"{self.host} cannot be asked: {_cause(error)}"))
        finally:
            self._free.release()

    def _answer(self, response: requests.Response, body: bytes) -> _Answer:
        text = body.decode(errors="replace").strip()
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        status = response.status_code
        if status == requests.codes.ok and isinstance(document, dict) and document.get("status") == "success":
            self.warning = "; ".join(map(str, document.get("warnings") or ()))
            return _Answer(status, document)
        reason = document.get("error") if isinstance(document, dict) else None
        title = re.search(r"<title>([^<]*)", text, re.IGNORECASE)
        words = reason or (f"a web page, {title[1].strip()!r}" if title else text) or response.reason
        if where := response.headers.get("Location"):
            words = f"go to {where.partition('?')[0]}"
        raise Trouble(f"{self.host} answered {status}: {words}")


def _cause(error: BaseException) -> str:
    """What the system said first: the rest is the path it took through libraries, with the whole query in it."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)


class _Server:
    """One Prometheus-compatible server. Both queries raise Trouble and nothing else."""

    def __init__(self, server: PrometheusServer) -> None:
        self._server, self._session = server, _Session(server)

    @property
    def warning(self) -> str:
        """What it said besides its last answer, such as that one of its stores did not answer."""
        return self._session.warning

    def now(self, query: str, at: float) -> list[Mapping[str, Any]]:
        """A query's series at one moment."""
        return self._series(lambda client: client.custom_query(query, params={"time": at}))

    def over(self, query: str, steps: range) -> list[Mapping[str, Any]]:
        """A query's series at each of these Unix times."""
        first, last = (datetime.fromtimestamp(step, UTC) for step in (steps[0], steps[-1]))
        return self._series(lambda client: client.custom_query_range(query, first, last, str(steps.step)))

    def _series(self, ask: Callable[[Any], Any]) -> list[Mapping[str, Any]]:
        try:
            found = ask(self._client)
            if all(isinstance(series["metric"], dict) for series in found):
                return list(found)
        except InputError as error:
            raise Trouble(str(error)) from None
        except (LookupError, TypeError):
            pass
        raise Trouble(f"{self._session.host} does not answer as Prometheus does")

    @cached_property
    def _client(self) -> Any:
        """Without retries, which would multiply the time limit. Its secrets are looked up when it is first used."""
        server = self._server

        def said(name: str) -> str:
            return expanded(f"prometheus.{name}", getattr(server, name))

        headers = {name: expanded(f"prometheus.headers.{name}", text) for name, text in server.headers.items()}
        if server.tenant:
            headers["X-Scope-OrgID"] = said("tenant")
        auth: object = (said("username"), said("password")) if server.username else None
        if server.bearer:
            auth = _Bearer(said("bearer"))
        return PrometheusConnect(
            url=server.url.rstrip("/"),
            headers=headers,
            auth=auth,
            session=self._session,
            timeout=server.timeout,
            retry=0,
            method="POST",
        )


class _Bearer(AuthBase):
    """A token, given as requests wants it: a header alone would lose to a .netrc file."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


# The fleet


class PrometheusSource:
    """The fleet as a Prometheus-compatible server knows it. Every method may be called from any thread at any time.

    `cycle` is a whole number of seconds. `clock` never steps back; `wall` is what queries are asked for.
    """

    def __init__(
        self,
        server: PrometheusServer,
        thresholds: Thresholds = Thresholds(),
        *,
        cycle: int = CYCLE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._server, self._selector, self._timeout = _Server(server), server.selector, server.timeout
        self._thresholds, self._cycle, self._clock, self._wall = thresholds, cycle, clock, wall
        self._lock = threading.Lock()
        self._followed: dict[str, Followed] = {}
        self._known: frozenset[Place] = frozenset()
        self._looking: threading.Thread | None = None
        self._has_looked = threading.Event()
        self._find_at = self._look_at = self._looked_until = self._ask_at = 0.0
        self._trouble = self._trouble_of_past = ""
        self._asking = threading.Lock()
        self._answers: OrderedDict[tuple[object, ...], tuple[float, Sequence[Any]]] = OrderedDict()

    @property
    def problem(self) -> str:
        """One line on what is wrong with the server, in its own words where it gave any; empty when nothing is."""
        trouble = self._trouble or self._trouble_of_past
        if not trouble and self._server.warning:
            trouble = f"a part is missing: {self._server.warning}"
        if not trouble and self._has_looked.is_set() and not self._followed:
            trouble = f"no series of vLLM in the last {_REMEMBERED} match {selector(self._selector)}"
        return trouble and f"Prometheus: {trouble}"

    def targets(self) -> tuple[Target, ...]:
        """All servers that speak vLLM, or did within a day and are scraped still."""
        self._look()
        with self._lock:
            return tuple(self._followed[name].target for name in sorted(self._followed))

    def state(self, name: str) -> TargetState | None:
        """One server now, or None when it is not watched."""
        self._look()
        with self._lock:
            followed = self._followed.get(name)
            return followed.state(self._looked_until, self._wall(), self._trouble) if followed else None

    def snapshots(self, name: str, start: float, end: float, points: int = 240) -> Sequence[Snapshot]:
        """At most so many pages between two Unix times [s], oldest first; empty where there are none."""
        return self._answer(self._pages, name, start, end, points)

    def events(self, start: float, end: float, name: str | None = None) -> Sequence[Event]:
        """What the rules make of the pages between two Unix times [s], oldest first, of one server or of all."""
        self._look()
        points = 240 if name else max(15, min(240, _MAX_PAGES // (len(self._followed) or 1)))
        return self._answer(self._judged, name, start, end, points)

    # The last minutes

    def _look(self) -> None:
        """Begin a look when one is due. It is waited for a moment, but not while the server is in trouble."""
        with self._lock:
            is_over = self._looking is None or not self._looking.is_alive()
            if is_over and self._clock() >= self._look_at:
                self._looking = threading.Thread(target=self._look_around, name="fleet", daemon=True)
                self._looking.start()
            looking = self._looking
        self._has_looked.wait(self._timeout)
        if looking is not None and not self._trouble:
            looking.join(_PATIENCE)

    def _look_around(self) -> None:
        began = self._clock()
        try:
            self._take_in(self._wall())
            self._trouble = ""
            if self._clock() >= self._ask_at:
                self._trouble_of_past = ""
        except Trouble as trouble:
            self._trouble = str(trouble)
        finally:
            ended = self._clock()  # a slow server is asked less often: it has as long a pause as it took
            self._look_at = max(began + self._cycle, ended + (ended - began))
            self._has_looked.set()

    def _take_in(self, now: float) -> None:
        """Every server's pages since the last look, or at first those of the last minutes."""
        if now >= self._find_at:
            self._known = self._found(now)
            self._find_at = now + _FOUND_FOR if self._known else now
        end = floor((now - _SETTLED) / self._cycle) * self._cycle
        begin = min(max(floor(self._looked_until), end - KEPT), end - self._cycle)
        pages = (end - begin) // self._cycle * len(self._known)
        step = self._cycle * max(1, ceil(pages / _MAX_PAGES))
        for steps, told in self._told(range(end, begin, -step)[::-1], self._fleet, len(self._known)):
            with self._lock:
                for place in told.keys() - {each.place for each in self._followed.values()}:
                    if self._is_watched(place, told[place]):
                        self._followed[place.name] = self._follower(place)
                for each in self._followed.values():
                    deque(each.follow(told.get(each.place, Said()), steps), maxlen=0)
            self._looked_until = steps[-1]
        with self._lock:
            self._forget(end)

    def _found(self, now: float) -> frozenset[Place]:
        """Servers that spoke within a day, and those that are known and only scraped."""
        spoke = self._server.now(spoken(self._selector, _REMEMBERED), now)
        found = {Place.of(series["metric"]) for series in spoke}
        return frozenset(found | {each.place for each in self._followed.values() if each.is_up is not None})

    @property
    def _fleet(self) -> str | None:
        """Which series are the fleet's: those selected, else those of its jobs. None while none is known."""
        jobs = {place.job for place in self._known}
        return self._selector or (among("job", jobs) if jobs else None)

    def _is_watched(self, place: Place, told: Said) -> bool:
        """Servers that speak or spoke; where the fleet was selected, one that is down or silent from the start too."""
        names = {line.partition("{")[0] for lines in told.lines.values() for line in lines}
        if place in self._known or "vllm" in map(engine_of, names):
            return True
        return bool(self._selector) and (FRONT_END in names or 0 in told.up.values())

    def _follower(self, place: Place) -> Followed:
        target = place.target
        judge = Judge(target, self._thresholds, clock=self._wall, wall=self._wall)
        return Followed(place=place, target=target, judge=judge)

    def _forget(self, end: float) -> None:
        """Pages that are old, and servers that are scraped no longer: discovery has taken them away."""
        for name, each in list(self._followed.items()):
            while len(each.ring) > 1 and each.ring[0].at < end - KEPT:
                each.ring.popleft()
            if each.heard < end - _FOUND_FOR and (each.is_up is not None or each.place not in self._known):
                del self._followed[name]

    def _told(self, steps: range, matchers: str | None, servers: int) -> Iterator[tuple[range, dict[Place, Said]]]:
        """What the server says at these steps, in answers of bounded size, oldest first."""
        series = _SERIES * max(1, servers)
        points = min(_MAX_POINTS, max(1, _MAX_SAMPLES // series))
        parts = ceil(series / _MAX_SAMPLES)
        for begin in range(0, len(steps) if matchers is not None else 0, points):
            some = steps[begin : begin + points]
            times = self._server.over(scraped(matchers or ""), some)
            named = [selector(matchers or "", names=page_names(part, parts)) for part in range(parts)]
            try:
                told = said((series for query in named for series in self._server.over(query, some)), times)
            except (LookupError, TypeError, ValueError):
                raise Trouble("its series are not as Prometheus gives them") from None
            yield some, told

    # The past

    def _answer(
        self, ask: "Callable[[str | None, range], Iterable[T]]", name: str | None, start: float, end: float, points: int
    ) -> "Sequence[T]":
        """What was asked at steps that are the same for everybody, so that most find it answered already."""
        self._look()
        step = max(1, ceil((end - start) / max(1, min(points, _MAX_POINTS))))
        end = min(end, self._wall() - _SETTLED)
        steps = range(ceil(start / step) * step, floor(end / step) * step + 1, step)
        key = (ask.__name__, name, steps)
        with self._asking:
            until, answer = self._answers.get(key, (0.0, ()))
            if steps and self._clock() >= max(until, self._ask_at):
                try:
                    answer = tuple(ask(name, steps))
                    self._trouble_of_past = ""
                except Trouble as trouble:
                    self._trouble_of_past, self._ask_at = str(trouble), self._clock() + self._cycle
                else:
                    self._answers[key] = self._clock() + _FOUND_FOR, answer
                    self._answers.move_to_end(key)
                    while len(self._answers) > _MAX_ANSWERS:
                        self._answers.popitem(last=False)
            return answer

    def _pages(self, name: str | None, steps: range) -> Iterable[Snapshot]:
        followed = self._followed.get(name or "")
        if followed is None:
            return ()
        then = Followed(place=followed.place, target=followed.target, judge=None)
        for some, told in self._told(steps, followed.place.selector, 1):
            deque(then.follow(told[then.place], some), maxlen=0)
        return then.ring

    def _judged(self, name: str | None, steps: range) -> Iterable[Event]:
        with self._lock:
            places = [each.place for each in self._followed.values() if name in (None, each.target.name)]
        then = {place: self._follower(place) for place in places}
        matchers = places[0].selector if name and places else self._fleet
        return timeline(then, self._told(steps, matchers if places else None, len(places)))
