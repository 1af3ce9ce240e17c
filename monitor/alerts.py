"""The rules of `health.RULES` as Prometheus rules: the same thresholds, the same durations, the same advice.

Each is one expression, whose value is what is judged; its sides agree in every label, so that engines, models and
instances stay apart. Rates are over `Thresholds.window`. The band in which a finding stays although its value is back
below the threshold is a time here: `keep_firing_for` one window (Prometheus 2.42 and later).
"""

from collections.abc import Mapping

from monitor import health, metrics
from monitor.config import MonitorConfig
from monitor.pool_rules import SMALLEST_RISE
from monitor.promql import JOB, PLACE, PromQL, duration
from monitor.request_rules import FEWEST_OBSERVED
from monitor.rule import Rule
from monitor.window import SIBLING_SPREAD, STALE_AFTER
from planner.verdict import Level

DIFFERENCES: Mapping[str, str] = {
    "full": "the slope must reach the smallest rise worth a word, but its standard error is not looked at",
    "jitter": "p99 is interpolated inside its bucket, where the dashboard waits until the whole bucket is above",
    "retention": "every preemption counts as another request that was preempted: the least that it can be",
    "throughput": "in a busy server whatever the cause, where the dashboard says when traffic is low instead",
    "tpot": "p99 is interpolated inside its bucket, and the dashboard says so",
    "ttft": "p99 is interpolated inside its bucket, and the dashboard says so",
}
"""Where PromQL cannot do quite what the dashboard does; every rule has an expression."""

WASTE = "kv_monitor:block_waste:ratio"
HOURLY, BASELINE = "kv_monitor:output_tokens_per_s:1h", "kv_monitor:output_tokens_per_s:baseline"
"""What is recorded, as it would be too long or too dear to stand in an alert."""
BASELINE_DAYS, LEAST_DAYS = 14, 3
"""Earlier days whose same hour makes the baseline, and with fewer there is none  [days]."""
SEVERITY = {Level.BAD: "critical", Level.WARNING: "warning", Level.UNKNOWN: "info"}

SAYS = {
    "down": "Prometheus gets no page from it.",
    "unreadable": "It answers, without the metrics of a vLLM engine.",
    "restart": "It began anew: what it held is gone, and its counters start at 0.",
    "livelock": "{{ $value }} requests wait, none runs, and nothing comes out.",
    "stale": "{{ $value }} requests count as running, yet nothing at all is counted.",
    "saturated": "{{ $value | humanize }} requests wait for room, or are preempted for it.",
    "usage_alarm": "{{ $value | humanizePercentage }} of the KV blocks are in use.",
    "usage_act": "{{ $value | humanizePercentage }} of the KV blocks are in use.",
    "preempting": "{{ $value | humanize }} preemptions a second: what those requests held is computed again.",
    "retention": "{{ $value | humanizePercentage }} of the requests that finished were never preempted.",
    "waiting": "{{ $value }} requests wait.",
    "full": "The KV pool is full in {{ $value | humanizeDuration }} at the present trend.",
    "fragmentation": "An estimated {{ $value | humanizePercentage }} of the held token slots hold no token.",
    "block_size": "An estimated {{ $value | humanizePercentage }} of a request's blocks is empty: they are too large.",
    "jitter": "p99 between tokens is {{ $value | humanize }} times the mean.",
    "throughput": "{{ $value | humanize }} output tokens/s, less than usual.",
    "errors": "{{ $value | humanizePercentage }} of the requests that finished ended in an error.",
    "corrupted": "{{ $value | humanize }} requests had NaN in the logits.",
    "rejections": "{{ $value | humanize }} requests a second are refused.",
    "http_errors": "{{ $value | humanizePercentage }} of the answers are 5xx.",
    "ttft": "p99 of the time to first token is {{ $value | humanizeDuration }}.",
    "tpot": "p99 of the time per output token is {{ $value | humanizeDuration }}.",
    "prefix_hit_rate": "{{ $value | humanizePercentage }} of what is looked up in the prefix cache is found.",
}
"""What an alert says, by the rule's key."""


def rules(config: MonitorConfig) -> dict[str, object]:
    """A rule file: what is recorded, and one alert a rule; a promise that is not made has none."""
    query = _query(config)
    found = expressions(config)
    records = [{"record": WASTE, "expr": query.waste}]
    alerts = [_alert(rule, found[rule.key], config) for rule in health.RULES if rule.key in found]
    groups = [{"name": "kv-monitor", "interval": duration(config.interval), "rules": [*records, *alerts]}]
    if config.thresholds.baseline_output_tokens_per_s is None:
        groups.append({"name": "kv-monitor-baseline", "interval": "1m", "rules": _baseline(query)})
    return {"groups": groups}


def _query(config: MonitorConfig) -> PromQL:
    selector = config.prometheus.selector if config.prometheus else ""
    # What a server says of its process and its HTTP answers has names that any other exporter uses as well.
    return PromQL(engines=selector, servers=selector or f'job="{JOB}"', window=duration(config.thresholds.window))


def alert_name(key: str) -> str:
    """
    >>> alert_name("usage_alarm")
    'VllmUsageAlarm'
    """
    return "Vllm" + "".join(word.capitalize() for word in key.split("_"))


def _alert(rule: Rule, expression: str, config: MonitorConfig) -> dict[str, object]:
    place = "{{ or $labels.name $labels.instance }}{{ with $labels.engine }}, engine {{ . }}{{ end }}"
    return {
        "alert": alert_name(rule.key),
        "expr": expression,
        "for": duration(rule.seconds(config.thresholds)),
        "keep_firing_for": duration(config.thresholds.window),
        "labels": {"severity": SEVERITY[rule.level], "rule": rule.key},
        "annotations": {
            "summary": f"{rule.word}: {place}",
            "description": SAYS[rule.key],
            "action": rule.action,
        },
    }


def expressions(config: MonitorConfig) -> dict[str, str]:
    """What gives a value while a rule's condition holds, by the rule's key."""
    limits, q = config.thresholds, _query(config)
    # The shortest time in which standing still means something, and in which there surely are two scrapes.
    lately = duration(max(STALE_AFTER, 3 * config.interval))
    usage, running, waiting = q.now(metrics.KV_USAGE), q.now(metrics.RUNNING), q.now(metrics.WAITING)
    for_room = f"({q.now(metrics.WAITING_BY_REASON, q.matcher(metrics.WAITING_BY_REASON, 'capacity'))} or {waiting})"
    generated, prompted = (
        q.over("increase", counter, window=lately) for counter in (metrics.GENERATION_TOKENS, metrics.PROMPT_TOKENS)
    )
    steps = q.over("increase", metrics.STEP_TOKENS, window=lately, part="count")
    unchanged = " and ".join(
        f"{q.over('changes', gauge, window=lately)} == 0"
        for gauge in (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE)
    )
    preempted, finished = q.rate(metrics.PREEMPTIONS), q.rate(metrics.FINISHED)
    up = q.up or f'up{{job="{JOB}"}}'
    latest, earliest = (q.over(f"{which}_over_time", metrics.START_TIME) for which in ("max", "min"))
    trend = q.over("deriv", metrics.KV_USAGE, window=duration(limits.full_trend))
    slope = f"({trend} > {SMALLEST_RISE / limits.full_trend:g})"
    in_use = f"{usage} > {limits.fragmentation_usage:g}"
    ended_badly, failed = (q.matcher(*pair) for pair in ((metrics.FINISHED, "error"), (metrics.HTTP_REQUESTS, "5xx")))
    total, all_along = (
        f"sum without (engine, model_name) ({each})"
        for each in (q.rate(metrics.GENERATION_TOKENS), q.over("min_over_time", metrics.RUNNING))
    )
    usual = BASELINE if limits.baseline_output_tokens_per_s is None else f"{limits.baseline_output_tokens_per_s:g}"
    enough = {
        metric: f"{q.over('increase', metric, part='count')} >= {least}"
        for metric, least in ((metrics.ITL, FEWEST_OBSERVED), (metrics.PROMPT_LENGTH, limits.fragmentation_running))
    }
    found = {
        "down": f"{up} == 0",
        "unreadable": f"{up} == 1 unless on (job, instance) {running}",
        "restart": f"{q.over('resets', metrics.GENERATION_TOKENS)} > 0 "
        f"or on (job, instance) {latest} - {earliest} > {SIBLING_SPREAD:g}",
        "livelock": f"{waiting} > 0 and {running} == 0 and {generated} == 0",
        "stale": f"({running} > 0 or {usage} > 0) and {unchanged} and {generated} == 0 and {prompted} == 0 "
        f"unless {steps} > 0",
        "saturated": f"{for_room} > 0 and ({preempted} > 0 or {usage} > {limits.usage_alarm:g}) "
        f"or {waiting} and {preempted} > 0 and {usage} > {limits.usage_act:g}",
        "usage_alarm": f"{usage} > {limits.usage_alarm:g} unless on ({PLACE}) {q.offloading}",
        "usage_act": f"{usage} > {limits.usage_act:g} unless on ({PLACE}) {q.offloading}",
        "preempting": f"{preempted} > {limits.preemptions_per_s:g}",
        "retention": f"clamp_min(1 - {preempted} / ({finished} > 0), 0) < {limits.retention:g}",
        "waiting": f"{waiting} > 0",
        "full": f"(1 - {usage}) / {slope} < {limits.full_within:g} and {usage} > {limits.full_usage:g} "
        f"unless on ({PLACE}) {q.offloading}",
        "fragmentation": f"{WASTE} > {limits.fragmentation:g} and {in_use} "
        f"and {running} >= {limits.fragmentation_running}",
        "block_size": f"{q.waste_of_lengths} > {limits.fragmentation:g} "
        f"and {in_use} and {enough[metrics.PROMPT_LENGTH]}",
        "jitter": f"{q.quantile(metrics.ITL, 0.99)} / {q.mean(metrics.ITL)} > {limits.jitter:g} "
        f"and {enough[metrics.ITL]}",
        "throughput": f"{total} < {limits.throughput:g} * {usual} and {all_along} > 0",
        "errors": f"{q.ratio(metrics.FINISHED, metrics.FINISHED, ended_badly)} > {limits.errors:g}",
        "corrupted": f"{q.over('increase', metrics.CORRUPTED)} > 0",
        "rejections": f"{q.rate(metrics.REJECTED)} > {limits.rejections_per_s:g}",
        "http_errors": f"{q.ratio(metrics.HTTP_REQUESTS, metrics.HTTP_REQUESTS, failed)} > {limits.http_errors:g}",
    }
    promises = {"ttft": (metrics.TTFT, limits.ttft_p99), "tpot": (metrics.TPOT, limits.tpot_p99)}
    found |= {
        key: f"{q.quantile(metric, 0.99)} > {promised:g}"
        for key, (metric, promised) in promises.items()
        if promised is not None
    }
    if limits.prefix_hit_rate is not None:
        found["prefix_hit_rate"] = (
            f"{q.ratio(metrics.PREFIX_HITS, metrics.PREFIX_QUERIES)} < {limits.prefix_hit_rate:g}"
        )
    return found


def _baseline(query: PromQL) -> list[dict[str, object]]:
    """Output tokens/s of a server in this hour of the day: the median over the earlier days on which it had work."""
    total = f"sum without (engine, model_name) ({query.rate(metrics.GENERATION_TOKENS, window='1h')})"
    days = " or ".join(
        f'label_replace({HOURLY} offset {24 * 60 * day - 30}m > 0, "day", "{day}", "", "")'
        for day in range(1, BASELINE_DAYS + 1)
    )
    median = f"quantile without (day) (0.5, {days}) and count without (day) ({days}) >= {LEAST_DAYS}"
    return [{"record": HOURLY, "expr": total}, {"record": BASELINE, "expr": median}]
