"""What is looked at of a server as a whole. What is not reported gives no condition, never one of 0."""

from collections.abc import Mapping

from monitor import metrics
from monitor.metrics import Metric
from monitor.rule import Seen, Sight, over, under
from monitor.scrape import Scrape
from monitor.snapshot import Snapshot
from monitor.window import Window
from planner.units import count, duration, share

PILING_UP = 1.25
"""Times as many requests running as a window ago, beyond which more come than leave  [ratio]."""

_ANSWERED = (
    "not_http", "http_status", "redirect_loop", "truncated", "empty", "html", "not_metrics", "too_large", "unreadable",
)  # fmt: skip
"""States in which something answered, but not with a page of metrics."""


def advice(error: Scrape) -> str:
    """What to do about a scrape that failed; empty where nothing answered, which the rule's own action is for."""
    if error.state == "misconfigured":
        return "Correct it in monitor.toml, or set the variable."
    if error.state == "tls":
        return "Something listens there: correct ca_file or verify, or is http:// meant, or another port?"
    if error.state in _ANSWERED:
        return "Something answers there: are address and port those of a vLLM server? If so, read the server's log."
    return ""


def down(sight: Sight) -> Seen | None:
    state = sight.state
    if state.error is None or not state.failures:
        return None
    last = "no page yet" if state.age is None else f"no page for {duration(state.age)}"
    reason = f"{last}: {state.error.message} ({state.error.state})."
    return Seen(reason, value=state.age, action=advice(state.error))


def unreadable(sight: Sight) -> Seen | None:
    page = sight.state.latest
    if page is None or any(engine.values for engine in page.engines):
        return None
    if page.kind != "vllm":
        return Seen(f"this is a page of {page.kind}; it is not judged.", action="Is this the address of a vLLM server?")
    return Seen(f"{page.missing.get(metrics.KV_USAGE.key) or 'the page names no engine'}.")


def restart(sight: Sight) -> Seen | None:
    window = sight.window
    if window is None or not window.has_restarted:
        return None
    started, now = window.after.server.get(metrics.START_TIME.key), window.after.wall
    when = f"in the last {duration(window.seconds)}"
    if isinstance(started, float) and now is not None and 0 <= now - started <= window.seconds:
        when = f"{duration(now - started)} ago"
    return Seen(f"it began anew {when}: what it held is gone, and its counters start at 0.")


def rejections(sight: Sight) -> Seen | None:
    window = sight.window
    if window is None:
        return None
    refused = [engine.increases(metrics.REJECTED) for engine in window.engines]
    reasons = [each for each in (*refused, _server_increases(window, metrics.REJECTED)) if each]
    rate = sum(sum(each.values()) for each in reasons) / window.seconds
    if not reasons or rate <= sight.thresholds.rejections_per_s:
        return None
    why = ", ".join(sorted({reason for each in reasons for reason, number in each.items() if number}))
    return Seen(
        f"{count(rate * window.seconds, 'requests')} refused in {duration(window.seconds)} ({why}).", value=rate
    )


def http_errors(sight: Sight) -> Seen | None:
    window = sight.window
    answers = window and _server_increases(window, metrics.HTTP_REQUESTS)
    if not window or not answers or not (whole := sum(answers.values())):
        return None
    ratio = answers.get("5xx", 0.0) / whole
    is_over = over(ratio, sight.thresholds.http_errors, sight.thresholds.band)
    reason = f"{share(ratio)} of {count(whole, 'answers')} in {duration(window.seconds)} are 5xx."
    return None if is_over is None else Seen(reason, is_over, ratio)


def throughput(sight: Sight) -> Seen | None:
    """By Little's law a server at which nothing piles up puts out just what is asked of it, however fast it is."""
    window, thresholds = sight.window, sight.thresholds
    by_hand = thresholds.baseline_output_tokens_per_s
    usual = sight.baseline if by_hand is None else by_hand
    if window is None or not usual or window.has_restarted:
        return None
    rates = [engine.output_tokens_per_s for engine in window.engines]
    then, now = (_running(page) for page in (window.before, window.after))
    if not rates or None in rates or not then or not now:
        return None
    ratio = sum(filter(None, rates)) / usual
    is_over = under(ratio, thresholds.throughput, thresholds.band)
    if is_over is None:
        return None
    rate = f"{count(ratio * usual)} output tokens/s over {duration(window.seconds)}"
    reason = f"{rate}, {share(ratio)} of the usual {count(usual)}"
    queued = any(engine.waiting for engine in (*window.before.engines, *window.after.engines))
    if queued or now > PILING_UP * then:
        return Seen(f"{reason}, while requests pile up.", is_over, ratio)
    action = "Nothing to mend here; if that is unexpected, see whether clients and router still send."
    return Seen(f"{reason}. Nothing waits: traffic is low, not the server slow.", is_over, ratio, action)


def _running(page: Snapshot) -> int | None:
    """Requests running, over all engines."""
    running = [engine.running for engine in page.engines]
    return None if None in running else sum(filter(None, running))


def _server_increases(window: Window, metric: Metric) -> Mapping[str, float] | None:
    """How much the server as a whole counted, by label; None where API servers with counts of their own take turns."""
    now, then = (page.server.get(metric.key) for page in (window.after, window.before))
    if not isinstance(now, Mapping):
        return None
    earlier = then if isinstance(then, Mapping) and not window.has_restarted else {}
    found = {label: number - earlier.get(label, 0.0) for label, number in now.items()}
    return None if any(number < 0 for number in found.values()) else found
