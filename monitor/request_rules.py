"""What is looked at of an engine's requests. What is not reported gives no condition, never one of 0."""

from dataclasses import replace

from monitor import metrics
from monitor.histogram import Quantile
from monitor.metrics import Metric
from monitor.pool_rules import waiting_for_room
from monitor.rule import Seen, Sight, over, requests, same_engine, under
from monitor.window import STALE_AFTER, EngineWindow
from planner.units import count, duration, share

FEWEST_OBSERVED = 100
"""With fewer observations the p99 is simply the worst of them  [observations]."""


def livelock(engine: EngineWindow, sight: Sight) -> Seen | None:
    if not engine.after.waiting or engine.after.running != 0:
        return None
    lately = _lately(engine, sight)
    if lately is None or not lately.is_livelocked:
        return None
    return Seen(
        f"{requests(engine.after.waiting)} waiting, none running, and nothing came out in {duration(lately.seconds)}.",
        value=engine.after.waiting,
    )


def stale(engine: EngineWindow, sight: Sight) -> Seen | None:
    lately = _lately(engine, sight) if engine.after.running or engine.after.kv_usage else None
    if lately is None or not lately.has_stale_gauges:
        return None
    said = (
        "KV blocks count as held"
        if not engine.after.running
        else f"{requests(engine.after.running)} counted as running"
    )
    return Seen(f"{said}, yet nothing at all came out in {duration(lately.seconds)}.")


def _lately(engine: EngineWindow, sight: Sight) -> EngineWindow | None:
    """The engine over the shortest time after which standing still means something."""
    *earlier, newest = sight.state.history
    page = next((page for page in reversed(earlier) if newest.at - page.at >= STALE_AFTER), earlier[0])
    then = same_engine(engine.after, page)
    if then is None:
        return None
    return replace(engine, before=then, seconds=newest.at - page.at, has_restarted=False)


def corrupted(engine: EngineWindow, sight: Sight) -> Seen | None:
    if not (found := engine.increase(metrics.CORRUPTED)):
        return None
    return Seen(f"{requests(found)} with NaN in the logits in {duration(engine.seconds)}.", value=found)


def errors(engine: EngineWindow, sight: Sight) -> Seen | None:
    ended = engine.increases(metrics.FINISHED)
    whole = sum(ended.values())
    ratio = ended.get("error", 0.0) / whole if whole else 0.0
    is_over = over(ratio, sight.thresholds.errors, sight.thresholds.band) if ratio else None
    reason = f"{share(ratio)} of {requests(whole)} that ended in {duration(engine.seconds)} ended in an error."
    return None if is_over is None else Seen(reason, is_over, ratio)


def waiting(engine: EngineWindow, sight: Sight) -> Seen | None:
    queued, usage = engine.after.waiting, engine.after.kv_usage
    if not queued:
        return None
    for_room, otherwise = waiting_for_room(engine.after)
    running = count(engine.after.running or 0)
    if not for_room:
        action = "They wait for a KV transfer or a LoRA slot: look at the connector and --max-loras."
        return Seen(f"none waiting for room{otherwise}, while {running} run.", value=queued, action=action)
    room = "" if usage is None else f", KV cache {share(usage)} in use"
    return Seen(f"{requests(for_room)} waiting{otherwise} while {running} run{room}.", value=queued)


def jitter(engine: EngineWindow, sight: Sight) -> Seen | None:
    """Begins where p99 is surely too high, and stays where it may be: a bucket does not say where in it p99 lies."""
    gaps = engine.histogram(metrics.ITL)
    observed = gaps if gaps and gaps.count else engine.histogram(metrics.TPOT)
    p99 = observed.quantile(0.99) if observed and observed.count >= FEWEST_OBSERVED else None
    if observed is None or p99 is None or not observed.mean:
        return None
    limit = sight.thresholds.jitter * observed.mean
    is_sure = p99.low > limit
    if not is_sure and (p99.high <= limit or p99.low <= observed.mean):
        return None
    said = "is" if is_sure else "may be"
    reason = (
        f"p99 between tokens {said} more than {sight.thresholds.jitter:g} times the mean of "
        f"{duration(observed.mean)}: {_interval(p99)}, of {count(observed.count)} in {duration(engine.seconds)}."
    )
    return Seen(reason, is_sure, p99.value / observed.mean)


def ttft(engine: EngineWindow, sight: Sight) -> Seen | None:
    return _promise(engine, metrics.TTFT, "time to first token", sight.thresholds.ttft_p99, sight.thresholds.band)


def tpot(engine: EngineWindow, sight: Sight) -> Seen | None:
    return _promise(engine, metrics.TPOT, "time per output token", sight.thresholds.tpot_p99, sight.thresholds.band)


def _promise(engine: EngineWindow, metric: Metric, name: str, promised: float | None, band: float) -> Seen | None:
    """Judged at the value drawn inside the bucket, and says "may" where the promise lies in it too. In the lowest
    bucket that value says nothing."""
    observed = None if promised is None else engine.histogram(metric)
    p99 = observed.quantile(0.99) if observed else None
    if promised is None or observed is None or p99 is None or p99.low == 0:
        return None
    is_over = over(p99.value, promised, band)
    if is_over is None and p99.low < promised:
        return None
    is_sure = p99.low >= promised
    said = "is" if is_sure else "may be"
    reason = (
        f"p99 of the {name} {said} over the promised {duration(promised)}: {_interval(p99)}, "
        f"of {count(observed.count)} in {duration(engine.seconds)}."
    )
    return Seen(reason, is_sure or bool(is_over), p99.value)


def _interval(found: Quantile) -> str:
    if found.is_above_buckets:
        return f"above {duration(found.low)}, the last bucket"
    return f"between {duration(found.low)} and {duration(found.high)}"


def prefix_hit_rate(engine: EngineWindow, sight: Sight) -> Seen | None:
    rate, wanted = engine.prefix_hit_rate, sight.thresholds.prefix_hit_rate
    is_over = None if rate is None or wanted is None else under(rate, wanted, sight.thresholds.band)
    if rate is None or wanted is None or is_over is None:
        return None
    reason = (
        f"{share(rate)} of what was looked up in {duration(engine.seconds)} was found, {share(wanted)} is expected."
    )
    return Seen(reason, is_over, rate)
