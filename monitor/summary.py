"""Summary: one server as a whole, its engines taken together. The signals above the fold, and a line of the fleet."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from monitor import metrics
from monitor.histogram import Histogram
from monitor.metrics import Metric
from monitor.source import TargetState
from monitor.window import Window

SPARK = 30
"""Points of a small line in a table  [points]."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One server now. What one of its engines does not report is None for the whole, never a smaller sum.

    state                what it was made from
    models               names served
    kv_usage             of the fullest engine                        [ratio]
    kv_usage_mean        over its engines                             [ratio]
    used_tokens          token slots in the blocks held               [tokens]
    capacity_tokens      what its pools hold                          [tokens]
    used_bytes           where the pools were set in bytes            [bytes]
    running              requests in the batch                        [requests]
    waiting              requests queued                              [requests]
    waiting_for          the same by reason, where it is reported     [requests]
    concurrency_left     estimate: more requests like these that fit  [requests]
    seconds              over which the rates are; None on one page   [s]
    output_tokens_per_s  generated                                    [tokens/s]
    prompt_tokens_per_s  read, cached ones too                        [tokens/s]
    preemptions_per_s    requests thrown back                         [1/s]
    prefix_hit_rate      of the prompt tokens looked up               [ratio]
    ttft                 time to first token in the window
    tpot                 time per output token, or between tokens where that is all there is
    started              when the process began, Unix time            [s]
    """

    state: TargetState
    models: tuple[str, ...] = ()
    kv_usage: float | None = None
    kv_usage_mean: float | None = None
    used_tokens: int | None = None
    capacity_tokens: int | None = None
    used_bytes: int | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_for: tuple[tuple[str, float], ...] = ()
    concurrency_left: float | None = None
    seconds: float | None = None
    output_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    preemptions_per_s: float | None = None
    prefix_hit_rate: float | None = None
    ttft: Histogram | None = None
    tpot: Histogram | None = None
    started: float | None = None

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def group(self) -> str:
        return self.state.target.group

    @property
    def uptime(self) -> float | None:
        """Between its start and its last page  [s]."""
        page = self.state.latest
        if page is None or page.wall is None or self.started is None:
            return None
        return max(0.0, page.wall - self.started)

    def reason(self, metric: Metric) -> str | None:
        """Why what rests on this metric is None."""
        return self.state.latest.missing.get(metric.key) if self.state.latest else None


def summary(state: TargetState, seconds: float) -> Summary:
    """The server as its last page says, with rates over the `seconds` before it."""
    page = state.latest
    if page is None:
        return Summary(state=state)
    engines = page.engines
    started = page.server.get(metrics.START_TIME.key)
    usage = _all(engine.kv_usage for engine in engines)
    reasons: dict[str, float] = {}
    for engine in engines:
        for reason, number in engine.split(metrics.WAITING_BY_REASON).items():
            reasons[reason] = reasons.get(reason, 0) + number
    past = state.window(seconds)
    hits, queries = (_increase(past, metric) for metric in (metrics.PREFIX_HITS, metrics.PREFIX_QUERIES))
    return Summary(
        state=state,
        models=tuple(dict.fromkeys(engine.model_name for engine in engines if engine.model_name)),
        kv_usage=max(usage) if usage else None,
        kv_usage_mean=sum(usage) / len(usage) if usage else None,
        used_tokens=_sum(engine.used_tokens for engine in engines),
        capacity_tokens=_sum(engine.capacity_tokens for engine in engines),
        used_bytes=_sum(engine.used_bytes for engine in engines),
        running=_sum(engine.running for engine in engines),
        waiting=_sum(engine.waiting for engine in engines),
        waiting_for=tuple((reason, number) for reason, number in reasons.items() if number),
        concurrency_left=_sum(engine.concurrency_left for engine in engines),
        seconds=past.seconds if past else None,
        output_tokens_per_s=_sum(engine.output_tokens_per_s for engine in past.engines) if past else None,
        prompt_tokens_per_s=_sum(engine.prompt_tokens_per_s for engine in past.engines) if past else None,
        preemptions_per_s=_sum(engine.preemptions_per_s for engine in past.engines) if past else None,
        prefix_hit_rate=hits / queries if hits is not None and queries and hits <= queries else None,
        ttft=_together(past, metrics.TTFT),
        tpot=_together(past, metrics.TPOT) or _together(past, metrics.ITL),
        started=started if isinstance(started, float) else None,
    )


def usage_over_time(state: TargetState, points: int = SPARK) -> list[float]:
    """KV usage of the fullest engine, evenly picked from the history and ending with the last page  [ratio]."""
    picked = state.history[:: -max(1, -(-len(state.history) // points))][::-1]
    found = ([engine.kv_usage for engine in page.engines if engine.kv_usage is not None] for page in picked)
    return [max(usages) for usages in found if usages]


def _all(values: Iterable[Number | None]) -> list[Number] | None:
    """All of them, or None where one is missing or there is none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return known if known and len(known) == len(found) else None


def _sum(values: Iterable[Number | None]) -> Number | None:
    known = _all(values)
    return None if known is None else sum(known[1:], known[0])


def _increase(past: Window | None, metric: Metric) -> float | None:
    return _sum(engine.increase(metric) for engine in past.engines) if past else None


def _together(past: Window | None, metric: Metric) -> Histogram | None:
    """What all engines observed; None where nothing was, or where their buckets differ."""
    observed = [h for e in (past.engines if past else ()) if (h := e.histogram(metric)) and h.count]
    if not observed or any(each.bounds != observed[0].bounds for each in observed):
        return None
    counts = array("d", map(sum, zip(*(each.counts for each in observed), strict=True)))
    return Histogram(bounds=observed[0].bounds, counts=counts, total=sum(each.total for each in observed))
