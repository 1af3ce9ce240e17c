"""Two Snapshots -> Window: rates and quantiles of what happened between them, for each engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan

from monitor import metrics
from monitor.histogram import Histogram, Quantile
from monitor.metrics import METRICS, Metric
from monitor.reading import REJECTED
from monitor.snapshot import EngineSnapshot, Snapshot, Value
from planner.errors import InputError

STALE_AFTER = 10.0
"""A busy engine counts tokens several times a second; the longest prefill step takes a few seconds  [s]."""

SIBLING_SPREAD = 30.0
"""API servers of one vLLM answer in turn and started some seconds apart; none is ready to be restarted so soon  [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWindow:
    """One engine between two moments. After a restart, what was counted since it counts, as in Prometheus.

    before, after  what it said at the two moments
    seconds        between them  [s]
    has_restarted  whether its counters began anew in between
    """

    before: EngineSnapshot
    after: EngineSnapshot
    seconds: float
    has_restarted: bool

    @property
    def engine(self) -> str | None:
        return self.after.engine

    @property
    def model_name(self) -> str | None:
        return self.after.model_name

    def increase(self, metric: Metric) -> float | None:
        """How much was counted between the two moments; never negative."""
        now, then = self.after.number(metric), self.before.number(metric)
        if now is None:
            return None
        if self.has_restarted or (then is None and _starts_at_zero(self.before, metric)):
            return now
        return None if then is None else now - then

    def increases(self, metric: Metric) -> Mapping[str, float]:
        """The same by label: finished reason, source, position."""
        if not self.has_restarted and metric.key not in self.before.values and not _starts_at_zero(self.before, metric):
            return {}
        then = {} if self.has_restarted else self.before.split(metric)
        return {label: now - then.get(label, 0) for label, now in self.after.split(metric).items()}

    def rate(self, metric: Metric) -> float | None:
        """Increase a second."""
        increase = self.increase(metric)
        return None if increase is None else increase / self.seconds

    def ratio(self, part: Metric, whole: Metric) -> float | None:
        """Increase of one counter over another's; None when the other stood still, or when it cannot be a share."""
        parts, wholes = self.increase(part), self.increase(whole)
        if parts is None or not wholes or parts > wholes:
            return None
        return parts / wholes

    def histogram(self, metric: Metric) -> Histogram | None:
        """What was observed between the two moments."""
        now, then = self.after.histogram(metric), self.before.histogram(metric)
        if now is None or self.has_restarted or (then is None and _starts_at_zero(self.before, metric)):
            return now
        return None if then is None else now.since(then)

    def quantile(self, metric: Metric, q: float) -> Quantile | None:
        observed = self.histogram(metric)
        return None if observed is None else observed.quantile(q)

    def mean(self, metric: Metric) -> float | None:
        observed = self.histogram(metric)
        return None if observed is None else observed.mean

    @property
    def output_tokens_per_s(self) -> float | None:
        """From the counter; versions up to 0.6 that lack it say an average of their own."""
        rate = self.rate(metrics.GENERATION_TOKENS)
        return self.after.number(metrics.AVG_OUTPUT_RATE) if rate is None else rate

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """All prompt tokens, those found in the prefix cache too."""
        rate = self.rate(metrics.PROMPT_TOKENS)
        return self.after.number(metrics.AVG_PROMPT_RATE) if rate is None else rate

    @property
    def preemptions_per_s(self) -> float | None:
        return self.rate(metrics.PREEMPTIONS)

    @property
    def requests_per_s(self) -> float | None:
        """Requests that ended, aborted ones too."""
        return self.rate(metrics.FINISHED)

    @property
    def prefix_hit_rate(self) -> float | None:
        """Of what was looked up in this window. 0 is right where no prefix is as long as a block."""
        return self.ratio(metrics.PREFIX_HITS, metrics.PREFIX_QUERIES)

    @property
    def spec_acceptance_rate(self) -> float | None:
        return self.ratio(metrics.SPEC_ACCEPTED, metrics.SPEC_DRAFT_TOKENS)

    @property
    def external_hit_rate(self) -> float | None:
        """Of what was looked up through a KV connector in this window."""
        return self.ratio(metrics.EXTERNAL_HITS, metrics.EXTERNAL_QUERIES)

    @property
    def tokens_per_draft(self) -> float | None:
        """Tokens that a step gives with speculative decoding: one of its own and those accepted of its draft."""
        accepted, drafts = self.increase(metrics.SPEC_ACCEPTED), self.increase(metrics.SPEC_DRAFTS)
        return None if accepted is None or not drafts else 1 + accepted / drafts

    @property
    def live_tokens(self) -> int | None:
        """Estimate: tokens of the requests running now, when the window begins idle and nothing was preempted.

        Tokens counted less those of finished requests: within 0.3 % of known requests on a live 0.32 server (November
        2026), but an aborted request is never taken off again, so each window must begin with no request.
        """
        began_idle = self.before.running == 0 and self.before.waiting == 0
        if not began_idle or self.has_restarted or self.increase(metrics.PREEMPTIONS) != 0:
            return None
        counted = [self.increase(metric) for metric in (metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS)]
        finished = [self.histogram(metric) for metric in (metrics.PROMPT_LENGTH, metrics.OUTPUT_LENGTH)]
        if None in counted or None in finished:
            return None
        return round(sum(filter(None, counted)) - sum(observed.total for observed in finished if observed))

    @property
    def has_stale_gauges(self) -> bool:
        """Gauges say requests run, unchanged, while nothing at all is counted: they froze, as after a mass abort."""
        gauges = (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE)
        unchanged = all(self.before.number(gauge) == self.after.number(gauge) for gauge in gauges)
        busy = bool(self.after.running or self.after.kv_usage)
        counts = (self.increase(counter) for counter in (metrics.GENERATION_TOKENS, metrics.PROMPT_TOKENS))
        steps = self.histogram(metrics.STEP_TOKENS)
        is_still = all(count == 0 for count in counts) and not (steps and steps.count)
        return self.seconds >= STALE_AFTER and busy and unchanged and is_still

    @property
    def is_livelocked(self) -> bool:
        """Requests wait and none runs, at both moments, and nothing comes out."""
        stuck = all(engine.waiting and engine.running == 0 for engine in (self.before, self.after))
        return bool(stuck) and self.increase(metrics.GENERATION_TOKENS) == 0

    def reason(self, metric: Metric) -> str:
        """Why a rate or quantile of this metric is None."""
        absent = self.after.missing.get(metric.key) or self.before.missing.get(metric.key)
        return absent or f"nothing observed in these {self.seconds:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A server between two moments; engines stay apart.

    before, after  the two pages
    seconds        between them  [s]
    engines        those that are on both pages
    """

    before: Snapshot
    after: Snapshot
    seconds: float
    engines: tuple[EngineWindow, ...]

    @property
    def has_restarted(self) -> bool:
        """Whether the process is another, which it says even without statistics, or an engine counted anew."""
        return _is_new_process(self.before, self.after) or any(engine.has_restarted for engine in self.engines)


def window(before: Snapshot, after: Snapshot, seconds: float | None = None) -> Window:
    """What happened between two snapshots of one server; `seconds` where their own clock does not say.

    Raises InputError when no time has passed.
    """
    seconds = after.at - before.at if seconds is None else seconds
    if not seconds > 0:
        raise InputError("seconds", seconds, "a time above 0 between the first page and the second")
    new_process = _is_new_process(before, after)
    pairs = tuple(
        EngineWindow(before=then, after=now, seconds=seconds, has_restarted=new_process or _began_anew(then, now))
        for then, now in _pairs(before, after)
    )
    return Window(before=before, after=after, seconds=seconds, engines=pairs)


def longest_run(pages: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """The longest part without a restart, which begins all counters anew."""
    cuts = [number for number in range(1, len(pages)) if window(pages[number - 1], pages[number]).has_restarted]
    parts = [pages[start:end] for start, end in pairwise((0, *cuts, len(pages)))]
    return max(parts, key=lambda part: part[-1].at - part[0].at if part else 0.0)


def _is_new_process(before: Snapshot, after: Snapshot) -> bool:
    return _started(after) - _started(before) > SIBLING_SPREAD


def _started(snapshot: Snapshot) -> float:
    """When the process started, in Unix time, or nan."""
    start = snapshot.server.get(metrics.START_TIME.key)
    return start if isinstance(start, float) else nan


def _pairs(before: Snapshot, after: Snapshot) -> Iterable[tuple[EngineSnapshot, EngineSnapshot]]:
    """The same engine on both pages. One alone is the same even if it was nameless before its first request (V0)."""
    if len(before.engines) == len(after.engines) == 1:
        return [(before.engines[0], after.engines[0])]
    earlier = {_place(engine): engine for engine in before.engines}
    return [(earlier[_place(now)], now) for now in after.engines if _place(now) in earlier]


def _place(engine: EngineSnapshot) -> tuple[object, ...]:
    return engine.engine, engine.model_name, tuple(sorted(engine.labels.items()))


def _began_anew(then: EngineSnapshot, now: EngineSnapshot) -> bool:
    """Whether a counter fell. `_created` is not asked: several API servers write it at random."""
    if None not in (then.model_name, now.model_name) and then.model_name != now.model_name:
        return True
    return any(
        _has_fallen(value, now.values[key])
        for key, value in then.values.items()
        if key in _COUNTS and key in now.values and value is not now.values[key]
    )


_COUNTS = {metric.key for metric in METRICS if metric.kind in ("counter", "histogram")}


def _has_fallen(then: Value, now: Value) -> bool:
    match then, now:
        case ((int() | float()), (int() | float())):
            return now < then
        case Histogram(), Histogram():
            return now.count < then.count or now.bounds != then.bounds
        case Mapping(), Mapping():
            return any(now.get(label, 0) < count for label, count in then.items())
    return False


def _starts_at_zero(before: EngineSnapshot, metric: Metric) -> bool:
    """Whether a counter that was not there stood at zero: V0 and Ray write a series only once it has counted."""
    is_lazy = before.engine is None or "ReplicaId" in before.labels or "WorkerId" in before.labels
    return is_lazy and not before.missing.get(metric.key, "").startswith(REJECTED)
