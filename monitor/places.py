"""Prometheus series -> the pages they came from: whose each is, what a query must name, and the lines put together.

No network here: `prometheus` asks, and this says what to ask and reads what comes back.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from monitor import metrics
from monitor.metrics import METRICS, Metric
from monitor.targets import Target

PLACED_BY = ("cluster", "job", "namespace", "pod", "instance")
"""Labels that Prometheus and its discovery add to tell servers apart; the engine itself writes none of them."""
_TARGET_UP = "up"
_LABEL = re.compile(r"[a-zA-Z_]\w*", re.ASCII)


class Place(NamedTuple):
    """One server, as Prometheus' labels tell it apart. A pod stays the same server when its address changes."""

    cluster: str
    job: str
    namespace: str
    pod: str
    address: str

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> "Place":
        return _place(*(labels.get(label, "") for label in PLACED_BY))

    @property
    def name(self) -> str:
        """
        >>> Place.of({"job": "vllm", "instance": "gpu1:8000"}).name
        'vllm/gpu1:8000'
        >>> Place.of({"job": "vllm", "namespace": "prod", "pod": "chat-0", "instance": "10.0.0.7:8000"}).name
        'vllm/prod/chat-0:8000'
        """
        where = [self.pod + self.address] if self.address.startswith(":") else [self.pod, self.address]
        return "/".join(filter(None, (self.cluster, self.job, self.namespace, *where)))

    @property
    def target(self) -> Target:
        """Its group is the job: servers that are configured together."""
        labels = {label: text for label, text in zip(PLACED_BY, self, strict=True) if text}
        return Target(
            name=self.name,
            url=self.address if self.address[:1] != ":" else self.pod + self.address,
            group=self.job,
            labels=labels,
        )

    @property
    def selector(self) -> str:
        """PromQL that matches its series and no other server's."""
        exact = [f"{label}={_quoted(text)}" for label, text in zip(PLACED_BY[:-1], self[:-1], strict=True)]
        address = ".*" * self.address.startswith(":") + re.escape(self.address)
        return ",".join([*exact, f"instance=~{_quoted(address)}"])


@lru_cache(maxsize=4096)
def _place(cluster: str, job: str, namespace: str, pod: str, instance: str) -> Place:
    port = re.search(r":\d+$", instance) if pod else None
    return Place(cluster, job, namespace, pod, port[0] if port else instance)


def selector(*matchers: str, names: Sequence[str] = ()) -> str:
    """Series with one of these names (patterns), and of these labels.

    >>> selector('{job="vllm"}', "", names=["up"])
    '{__name__=~"up",job="vllm"}'
    """
    named = f"__name__=~{_quoted('|'.join(names))}" if names else ""
    return "{" + ",".join(filter(None, (named, *(matcher.strip("{}, ") for matcher in matchers)))) + "}"


def among(label: str, values: Iterable[str]) -> str:
    """A matcher for any of these values.

    >>> print(among("job", ["vllm", "a.b"]))
    job=~"a\\\\.b|vllm"
    """
    return f"{label}=~{_quoted('|'.join(map(re.escape, sorted(values))))}"


def _quoted(text: str) -> str:
    """As a PromQL string, which JSON's are too."""
    return json.dumps(text, ensure_ascii=False)


def _engine_names(chosen: Iterable[Metric]) -> str:
    """The names of these metrics under every prefix and ending that is read."""
    stems = dict.fromkeys(name.partition(":")[2].removesuffix("_total") for metric in chosen for name in metric.names)
    return rf"(?:ray_)?vllm[:_](?:{'|'.join(stems)})(?:_total)?(?:_bucket|_sum|_count)?"


_OF_SERVER = tuple(name for metric in METRICS if metric.scope == "server" for name in metric.names)
_OF_ENGINE = tuple(metric for metric in METRICS if metric.scope == "engine" and metric.kind != "config")
_CONFIG = metrics.CACHE_CONFIG.partition(":")[2]
_TIMED = tuple(f"{ray}{metrics.RUNNING.names[0].replace(':', colon)}" for ray in ("", "ray_") for colon in (":", "_"))
_BY_PLACE = f"by ({', '.join(PLACED_BY)})"


def spoken(matchers: str, within: str) -> str:
    """PromQL for the servers that have said something within this time: what every engine reports that has served."""
    now = f"count {_BY_PLACE} ({selector(matchers, names=[_engine_names([metrics.RUNNING, metrics.KV_USAGE])])})"
    return f"{now} or count_over_time(({now})[{within}:5m])"


def scraped(matchers: str) -> str:
    """PromQL for when each server was last scraped."""
    times = (f"timestamp({selector(matchers, names=[name])})" for name in (_TARGET_UP, *_TIMED))
    return f"max {_BY_PLACE} ({' or '.join(times)})"


def page_names(part: int = 0, parts: int = 1) -> tuple[str, ...]:
    """All that a page is read for, as patterns of names; of a large fleet, one part of it at a time."""
    if part:
        return (_engine_names(_OF_ENGINE[part::parts]),)
    info = rf"(?:ray_)?vllm[:_]{_CONFIG}"
    return (_engine_names(_OF_ENGINE[::parts]), info, metrics.FRONT_END, *_OF_SERVER, _TARGET_UP)


@dataclass(slots=True)
class Said:
    """What queries told of one server, by step.

    lines  of its page
    times  when it was scraped, Unix time          [s]
    up     1 where the scrape succeeded, else 0    [flag]
    """

    lines: dict[float, list[str]] = field(default_factory=lambda: defaultdict(list))
    times: dict[float, float] = field(default_factory=dict)
    up: dict[float, float] = field(default_factory=dict)


def said(pages: Iterable[Mapping[str, Any]], times: Iterable[Mapping[str, Any]]) -> dict[Place, Said]:
    """The series of both queries, sorted out by server and step. Lines are in one order at every step."""
    found: dict[Place, Said] = defaultdict(Said)
    for series in times:
        about = found[Place.of(series["metric"])]
        for step, text in series["values"]:
            about.times[step] = max(float(text), about.times.get(step, 0.0))
    for prefix, place, values in sorted(map(_placed, pages)):
        about = found[place]
        if prefix.startswith(f"{_TARGET_UP}{{"):
            about.up |= {step: max(float(text), about.up.get(step, 0.0)) for step, text in values}
        else:
            for step, text in values:
                about.lines[step].append(prefix + text)
    return found


def _placed(series: Mapping[str, Any]) -> tuple[str, Place, Any]:
    labels = series["metric"]
    own = tuple(label for label in labels.items() if label[0] not in PLACED_BY)
    return _prefix(own), Place.of(labels), series["values"]


@lru_cache(maxsize=16_384)
def _prefix(labels: tuple[tuple[str, str], ...]) -> str:
    """The line of a series up to its number, as the server wrote it. Cached: servers of one model write the same."""
    own = {name.removeprefix("exported_"): text for name, text in labels if _LABEL.fullmatch(name)}
    name = own.pop("__name__")
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in own.items())
    return f"{name}{{{inside}}} "


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
