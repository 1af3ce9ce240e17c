"""One verdict on one server: ordered rules, the first that holds explains it.

A full pool alone is no fault (a saturated server shows it in under half of its scrapes, offloading tiers always do), so
what is judged is usage, waiting and preemption together.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from monitor import metrics
from monitor.source import TargetState
from monitor.window import EngineWindow, Window
from planner.units import count, duration, share
from planner.verdict import Level, Verdict

USAGE_ACT = 0.90
"""Share of KV blocks in use at which to act before it is full (the alert thresholds most published rules use)."""
USAGE_ALARM = 0.95
"""Share of KV blocks in use that leaves no room for a burst."""
STALE_SCRAPES = 2
"""Scrapes missed before the numbers count as old  [scrapes]."""


def verdict(state: TargetState, window: Window | None) -> Verdict:
    """The verdict on one target; `window` is what happened lately, None while there is one page or none."""
    first_page = Verdict(level=Level.GOOD, word="Reachable", reason="One page read; rates follow with the next one.")
    found = _without_page(state) or _page(state) or _engines(window) or first_page
    return replace(found, context=_context(state, window))


def _without_page(state: TargetState) -> Verdict | None:
    error = state.error and f"{state.error.message} ({state.error.state})"
    if state.latest is None:
        if error is None:
            return Verdict(level=Level.UNKNOWN, word="Connecting", reason="the first scrape is under way.")
        return Verdict(
            level=Level.BAD, word="Down", reason=f"no page yet: {error}.", action="It is asked again every cycle."
        )
    if state.age is not None and error is not None and state.failures >= STALE_SCRAPES:
        return Verdict(
            level=Level.BAD,
            word=f"No data for {duration(state.age)}",
            reason=f"{error}. The numbers below are the last good ones.",
            action="It is asked again every cycle.",
        )
    return None


def _page(state: TargetState) -> Verdict | None:
    page = state.latest
    assert page is not None
    if page.kind != "vllm":
        return Verdict(level=Level.UNKNOWN, word="Not vLLM", reason=f"this is a page of {page.kind}; it is not judged.")
    if not page.engines:
        reason = " ".join(page.notes) or "the page names no engine."
        return Verdict(level=Level.UNKNOWN, word="No engine", reason=reason)
    if not any(engine.values for engine in page.engines):
        reason = f"{page.engines[0].missing.get(metrics.KV_USAGE.key, 'the page has none')}."
        return Verdict(level=Level.UNKNOWN, word="No statistics", reason=reason)
    return None


def _engines(window: Window | None) -> Verdict | None:
    """The worst engine decides; the others are below it."""
    order = (Level.BAD, Level.WARNING, Level.UNKNOWN, Level.GOOD)
    found = [verdict for engine in (window.engines if window else ()) if (verdict := _first(engine, _RULES))]
    return min(found, key=lambda verdict: order.index(verdict.level), default=None)


Rule = Callable[[EngineWindow], Verdict | None]


def _first(engine: EngineWindow, rules: Iterable[Rule]) -> Verdict | None:
    return next((found for rule in rules if (found := rule(engine))), None)


def _livelock(engine: EngineWindow) -> Verdict | None:
    if not engine.is_livelocked:
        return None
    return Verdict(
        level=Level.BAD,
        word="Stuck",
        reason=f"{count(engine.after.waiting or 0, 'requests')} wait and none runs for {duration(engine.seconds)}.",
        action="Restart the engine; a request longer than the pool, or a stopped engine core, blocks the queue.",
    )


def _frozen(engine: EngineWindow) -> Verdict | None:
    if not engine.has_stale_gauges:
        return None
    return Verdict(
        level=Level.UNKNOWN,
        word="Stale gauges",
        reason=f"requests count as running, yet nothing came out in {duration(engine.seconds)}.",
        action="Send one request: the gauges then catch up.",
    )


def _saturated(engine: EngineWindow) -> Verdict | None:
    usage, waiting, preempted = engine.after.kv_usage, engine.after.waiting, engine.increase(metrics.PREEMPTIONS)
    if not preempted and not (waiting and usage is not None and usage > USAGE_ALARM):
        return None
    if not waiting and not (usage is not None and usage > USAGE_ACT):
        return None
    return Verdict(
        level=Level.BAD,
        word="Saturated",
        reason=f"{count(waiting or 0, 'requests')} wait, KV cache {share(usage or 0)} in use, "
        f"{count(preempted or 0, 'preemptions')} in {duration(engine.seconds)}.",
        action="Add a replica, lower --max-num-seqs, or hold more tokens with --kv-cache-dtype fp8.",
    )


def _preempting(engine: EngineWindow) -> Verdict | None:
    preempted = engine.increase(metrics.PREEMPTIONS)
    if not preempted:
        return None
    return Verdict(
        level=Level.WARNING,
        word="Preempting",
        reason=f"{count(preempted, 'preemptions')} in {duration(engine.seconds)}: their tokens are computed twice.",
        action="Lower --max-num-seqs or hold more tokens with --kv-cache-dtype fp8.",
    )


def _nearly_full(engine: EngineWindow) -> Verdict | None:
    usage = engine.after.kv_usage
    if usage is None or usage <= USAGE_ACT:
        return None
    return Verdict(
        level=Level.WARNING,
        word="KV cache nearly full",
        reason=f"{share(usage)} of the blocks are in use, above {share(USAGE_ACT)}.",
        action="Scale out or cap concurrency before requests are preempted.",
    )


def _queueing(engine: EngineWindow) -> Verdict | None:
    if not engine.after.waiting:
        return None
    return Verdict(
        level=Level.WARNING,
        word="Queueing",
        reason=f"{count(engine.after.waiting, 'requests')} wait while {count(engine.after.running or 0)} run.",
        action="If it lasts, raise --max-num-seqs while KV blocks are free, else add a replica.",
    )


def _healthy(engine: EngineWindow) -> Verdict | None:
    usage, running = engine.after.kv_usage, engine.after.running
    if usage is None or running is None:
        return Verdict(level=Level.UNKNOWN, word="Partly read", reason="KV usage or running requests are not reported.")
    rate = engine.output_tokens_per_s
    speed = "" if rate is None else f", {count(rate)} tokens/s"
    word = "Healthy" if running else "Idle"
    return Verdict(
        level=Level.GOOD, word=word, reason=f"{count(running)} running, KV cache {share(usage)} in use{speed}."
    )


_RULES: tuple[Rule, ...] = (_livelock, _frozen, _saturated, _preempting, _nearly_full, _queueing, _healthy)


def _context(state: TargetState, window: Window | None) -> str:
    parts = [state.target.url]
    if state.latest is not None and state.latest.version_range:
        parts.append(f"vLLM {state.latest.version_range}")
    if state.age is not None:
        parts.append(f"measured {duration(state.age)} ago")
    if window is not None:
        parts.append(f"rates over {duration(window.seconds)}")
    return ", ".join(parts)
