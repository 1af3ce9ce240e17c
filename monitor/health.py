"""How well a server is: the ordered table of rules, what they see now, and one verdict on a target, a group, the fleet.

`monitor.judge` turns what is seen again and again into findings; a verdict is the worst of them. The table is also what
the generated Prometheus alerts are made from.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from monitor import pool_rules, request_rules, server_rules
from monitor.finding import Condition
from monitor.rule import Rule, Seen, Sight
from monitor.snapshot import EngineSnapshot
from monitor.source import TargetState
from monitor.targets import shortened
from monitor.thresholds import Thresholds
from monitor.window import EngineWindow, Window
from planner.units import count, duration, share
from planner.verdict import Level, Verdict

MISSED_SCRAPES = 2
"""Scrapes missed before the numbers count as old  [scrapes]."""
NAMED = 3
"""Servers named in the verdict on a group  [servers]."""
WORST_FIRST = (Level.BAD, Level.WARNING, Level.UNKNOWN, Level.GOOD)

DOWN = Rule(
    key="down", level=Level.BAD, word="Down", server=server_rules.down,
    action="It is asked again every cycle. Does the process run, and is the address reachable from here?",
)  # fmt: skip
UNREADABLE = Rule(
    key="unreadable", level=Level.UNKNOWN, word="Not read", server=server_rules.unreadable,
    action="Remove --disable-log-stats from the server's flags, or correct the address.",
)  # fmt: skip
RULES: tuple[Rule, ...] = (
    DOWN,
    UNREADABLE,
    Rule(
        key="livelock", level=Level.BAD, word="Stuck", engine=request_rules.livelock, covers=("waiting", "throughput"),
        action="Restart the engine; a request longer than the pool, or a stopped engine core, blocks the queue.",
    ),
    Rule(
        key="corrupted", level=Level.BAD, word="Corrupted answers", engine=request_rules.corrupted,
        action="Take the server out of the router; check weights, KV dtype and the GPU's memory errors.",
    ),
    Rule(
        key="errors", level=Level.BAD, word="Failing requests", uses=("errors",), engine=request_rules.errors,
        action="Read the engine's log for the first error; restart it if they go on.",
    ),
    Rule(
        key="http_errors", level=Level.BAD, word="HTTP errors", uses=("http_errors",), server=server_rules.http_errors,
        action="Read the API server's log; take the server out of the router while it lasts.",
    ),
    Rule(
        key="saturated", level=Level.BAD, word="Saturated", uses=("usage_act", "usage_alarm"),
        covers=("usage_alarm", "usage_act", "full", "preempting", "waiting"), engine=pool_rules.saturated,
        action="Add a replica, lower --max-num-seqs, or hold more tokens with --kv-cache-dtype fp8.",
    ),
    Rule(
        key="usage_alarm", level=Level.BAD, word="KV cache full", uses=("usage_alarm",), covers=("usage_act", "full"),
        engine=pool_rules.usage_alarm,
        action="Scale out now, or cap concurrency with --max-num-seqs: the next burst is preempted.",
    ),
    Rule(
        key="ttft", level=Level.WARNING, word="Slow first token", uses=("ttft_p99",), lasts="slo_for",
        engine=request_rules.ttft,
        action="If requests wait, add a replica; if prefill is slow, see --max-num-batched-tokens and prompt lengths.",
    ),
    Rule(
        key="tpot", level=Level.WARNING, word="Slow tokens", uses=("tpot_p99",), lasts="slo_for",
        engine=request_rules.tpot,
        action="Lower --max-num-seqs or add a replica: fewer requests share each step.",
    ),
    Rule(
        key="stale", level=Level.WARNING, word="Stale gauges", engine=request_rules.stale,
        covers=("saturated", "usage_alarm", "usage_act", "waiting", "fragmentation", "block_size", "throughput"),
        action="Send one request: either the gauges catch up (they freeze after a mass abort), or the engine hangs: "
        "restart it.",
    ),
    Rule(
        key="restart", level=Level.WARNING, word="Restarted", server=server_rules.restart,
        action="If nobody restarted it, read the end of its log: out of memory, or a crash of the engine core?",
    ),
    Rule(
        key="preempting", level=Level.WARNING, word="Preempting", uses=("preemptions_per_s",),
        engine=pool_rules.preempting,
        action="Lower --max-num-seqs or hold more tokens with --kv-cache-dtype fp8.",
    ),
    Rule(
        key="usage_act", level=Level.WARNING, word="KV cache nearly full", uses=("usage_act",), covers=("full",),
        engine=pool_rules.usage_act,
        action="Scale out or cap concurrency before requests are preempted.",
    ),
    Rule(
        key="full", level=Level.WARNING, word="Filling up", uses=("full_within", "full_usage", "full_trend"),
        engine=pool_rules.full,
        action="Have a replica ready, or cap concurrency before the pool is full.",
    ),
    Rule(
        key="rejections", level=Level.WARNING, word="Refusing requests", uses=("rejections_per_s",),
        server=server_rules.rejections,
        action="Add a replica, or raise the limit on queued requests if clients can wait.",
    ),
    Rule(
        key="waiting", level=Level.WARNING, word="Queueing", engine=request_rules.waiting,
        action="Raise --max-num-seqs while KV blocks are free, else add a replica.",
    ),
    Rule(
        key="retention", level=Level.WARNING, word="Recomputing", uses=("retention",), engine=pool_rules.retention,
        action="Their tokens were computed twice: lower --max-num-seqs or enlarge the KV cache.",
    ),
    Rule(
        key="throughput", level=Level.WARNING, word="Throughput low",
        uses=("throughput", "baseline_output_tokens_per_s"), server=server_rules.throughput,
        action="Look for a throttled GPU, other load on the machine, and longer prompts than usual.",
    ),
    Rule(
        key="jitter", level=Level.WARNING, word="Jitter", uses=("jitter",), engine=request_rules.jitter,
        action="Long prompts hold up running requests: lower --max-num-batched-tokens; preemption does it too.",
    ),
    Rule(
        key="block_size", level=Level.WARNING, word="Blocks too large", lasts="fragmentation_for",
        uses=("fragmentation", "fragmentation_usage", "fragmentation_running"), covers=("fragmentation",),
        engine=pool_rules.block_size,
        action="Set a smaller --block-size.",
    ),
    Rule(
        key="fragmentation", level=Level.WARNING, word="Fragmented",
        uses=("fragmentation", "fragmentation_usage", "fragmentation_running"), engine=pool_rules.fragmentation,
        action="Try a smaller --block-size: half of each request's last block is empty on average.",
    ),
    Rule(
        key="prefix_hit_rate", level=Level.WARNING, word="Few prefix hits", uses=("prefix_hit_rate",),
        engine=request_rules.prefix_hit_rate,
        action="Has the prompt's beginning changed, or does the router no longer send a conversation to one server?",
    ),
)  # fmt: skip
"""Which comes first decides the verdict among findings that are equally bad."""


def sight(state: TargetState, thresholds: Thresholds, baseline: float | None = None) -> Sight:
    """What there is to look at now. `baseline` is in output tokens/s."""
    return Sight(state=state, thresholds=thresholds, window=state.window(thresholds.window), baseline=baseline)


def conditions(sight: Sight, rules: Sequence[Rule] = RULES) -> Iterator[Condition]:
    """What the rules see."""
    engines = _named(sight.window.engines) if sight.window else ()
    for rule in rules:
        if rule.server and (seen := rule.server(sight)):
            yield _condition(rule, None, seen)
        for name, engine in engines if rule.engine else ():
            if rule.engine and (seen := rule.engine(engine, sight)):
                yield _condition(rule, name, seen)


def _named(engines: Sequence[EngineWindow]) -> Sequence[tuple[str | None, EngineWindow]]:
    """Each with its index, and with all that tells it apart where several models or replicas have the same."""
    names = [engine.engine for engine in engines]
    if len(set(names)) < len(names):
        labels = ((each.engine, each.model_name, *each.after.labels.values()) for each in engines)
        names = [" ".join(filter(None, parts)) for parts in labels]
    return list(zip(names, engines, strict=True))


def _condition(rule: Rule, engine: str | None, seen: Seen) -> Condition:
    return Condition(
        rule=rule.key, engine=engine, level=rule.level, word=rule.word, reason=seen.reason,
        action=seen.action or rule.action, is_over=seen.is_over, value=seen.value,
    )  # fmt: skip


# Verdicts


def verdict(state: TargetState, seconds: float = Thresholds().window) -> Verdict:
    """The verdict on one target: its worst finding; without one, what it does, over the last `seconds`."""
    window = None if state.findings else state.window(seconds)
    return replace(_judged(state, window), context=_context(state, window))


def group_verdict(states: Sequence[TargetState]) -> Verdict:
    """The verdict on several targets: how many are as bad as the worst, what it is, and which they are."""
    judged = [(state.name, _judged(state, None)) for state in states]
    if not judged:
        return Verdict(level=Level.UNKNOWN, word="No servers", reason="none is watched.")
    level = min((found.level for _, found in judged), key=WORST_FIRST.index)
    worst = [(name, found) for name, found in judged if found.level is level]
    if level is Level.GOOD:
        running = [engine.running for state in states if state.latest for engine in state.latest.engines]
        busy = f", {count(sum(filter(None, running)), 'requests')} run" if None not in running else ""
        return Verdict(level=level, word="Healthy", reason=f"{_servers(len(judged))}{busy}.")
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, found in worst:
        names[found.word].append(name)
    reason = ", ".join(f"{word} ({_listed(those)})" for word, those in names.items())
    word = f"{count(len(worst))} of {_servers(len(judged))}"
    return Verdict(level=level, word=word, reason=f"{reason}.", action=worst[0][1].action)


def _servers(number: int) -> str:
    return count(number, "server" if number == 1 else "servers")


def _listed(names: Sequence[str]) -> str:
    more = f" and {count(len(names) - NAMED)} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _judged(state: TargetState, window: Window | None) -> Verdict:
    return _without_page(state) or _finding(state) or _page(state) or _well(state, window)


def _without_page(state: TargetState) -> Verdict | None:
    error = state.error and f"{state.error.message} ({state.error.state})"
    action = (state.error and server_rules.advice(state.error)) or DOWN.action
    if state.latest is None and error is None:
        return Verdict(level=Level.UNKNOWN, word="Connecting", reason="the first scrape is under way.")
    if state.latest is None:
        return Verdict(level=DOWN.level, word=DOWN.word, reason=f"no page yet: {error}.", action=action)
    if state.age is None or error is None or state.failures < MISSED_SCRAPES:
        return None
    reason = f"{error}. The numbers below are the last good ones."
    return Verdict(level=DOWN.level, word=f"No data for {duration(state.age)}", reason=reason, action=action)


def _finding(state: TargetState) -> Verdict | None:
    if not state.findings:
        return None
    worst = state.findings[0].condition
    others = len(state.findings) - 1
    more = f" {count(others)} more below." if others else ""
    engine = "" if worst.engine is None or len(_engines(state)) < 2 else f"engine {worst.engine}: "
    return Verdict(level=worst.level, word=worst.word, reason=f"{engine}{worst.reason}{more}", action=worst.action)


def _page(state: TargetState) -> Verdict | None:
    """Known from one page alone, before it is a finding."""
    page = state.latest
    assert page is not None
    seen = next(conditions(Sight(state=state, thresholds=Thresholds()), (UNREADABLE,)), None)
    if seen is None:
        return None
    word = "Not vLLM" if page.kind != "vllm" else "No statistics" if page.engines else "No engine"
    return Verdict(level=Level.UNKNOWN, word=word, reason=seen.reason, action=seen.action)


def _well(state: TargetState, window: Window | None) -> Verdict:
    """No finding: what it does, over all its engines."""
    engines = _engines(state)
    usage, running = [each.kv_usage for each in engines], [each.running for each in engines]
    if None in usage or None in running:
        return Verdict(level=Level.UNKNOWN, word="Partly read", reason="KV usage or running requests are not reported.")
    if len(state.history) < 2:
        reason = "One page read; rates follow with the next one."
        return Verdict(level=Level.GOOD, word="Reachable", reason=reason)
    busy, waiting = sum(filter(None, running)), sum(each.waiting or 0 for each in engines)
    fullest = max(filter(None, usage), default=0.0)
    rates = [engine.output_tokens_per_s for engine in window.engines] if window else [None]
    parts = [f"{count(busy)} running" + (f" on {count(len(engines))} engines" if len(engines) > 1 else "")]
    parts += [f"{count(waiting)} waiting"] if waiting else []
    parts += [f"KV cache {'at most ' if len(engines) > 1 else ''}{share(fullest)} in use"]
    parts += [] if None in rates else [f"{count(sum(filter(None, rates)))} tokens/s"]
    tiers = any(map(pool_rules.is_offloading, engines))
    note = " Its pool may be full: KV moves on to another tier." if tiers else ""
    word = "Healthy" if busy or waiting else "Idle"
    return Verdict(level=Level.GOOD, word=word, reason=f"{', '.join(parts)}.{note}")


def _engines(state: TargetState) -> Sequence[EngineSnapshot]:
    return state.latest.engines if state.latest else ()


def _context(state: TargetState, window: Window | None) -> str:
    parts = [shortened(state.target.shown_url)]
    if state.latest is not None and state.latest.version_range:
        parts.append(f"vLLM {state.latest.version_range}")
    if state.age is not None:
        parts.append(f"measured {duration(state.age)} ago")
    if window is not None:
        parts.append(f"rates over {duration(window.seconds)}")
    return ", ".join(parts)
