"""What is looked at of an engine's KV pool and its blocks. What is not reported gives no condition, never one of 0."""

from collections.abc import Sequence
from math import sqrt

from monitor import metrics
from monitor.histogram import Histogram
from monitor.rule import Seen, Sight, over, requests, same_engine, under
from monitor.snapshot import EngineSnapshot
from monitor.thresholds import Thresholds
from monitor.window import EngineWindow
from planner.units import count, duration, share

SIGNIFICANT = 4.0
"""Standard errors that a trend must lie above 0: pages seconds apart are not independent  [standard errors]."""
SMALLEST_RISE = 0.05
"""Share of the pool that a trend must have filled to be told from the ups and downs of single requests  [ratio]."""
FEWEST_PAGES = 4
"""Through fewer points every line is a good one  [pages]."""
BLOCK_SIZES = (128, 64, 32, 16)
"""What vLLM's attention backends take, from the one that costs the least  [tokens]."""


def saturated(engine: EngineWindow, sight: Sight) -> Seen | None:
    """Waiting, usage and preemption together: a saturated server shows a full pool in under half of its scrapes.

    It stays so while requests wait and what is free is less than one of those that run holds: a preempted one is let
    in again only when all of it fits, which may take minutes where steps are slow or requests long.
    """
    usage, preempted = engine.after.kv_usage, engine.increase(metrics.PREEMPTIONS)
    waiting, otherwise = waiting_for_room(engine.after)
    act, alarm = sight.thresholds.usage_act, sight.thresholds.usage_alarm
    is_full, is_nearly_full = ((usage or 0.0) > limit for limit in (alarm, act))
    more = engine.after.concurrency_left
    has_no_room = is_nearly_full or (more is not None and more < 1)
    is_over = bool(waiting and (preempted or is_full)) or bool(preempted and is_nearly_full)
    if not is_over and not preempted and not (waiting and has_no_room):
        return None
    parts = [] if waiting is None else [f"{requests(waiting)} waiting for room{otherwise}"]
    parts += [] if usage is None else [f"KV cache {share(usage)} in use"]
    parts += [] if preempted is None else [f"{count(preempted, 'preemptions')} in {duration(engine.seconds)}"]
    return Seen(f"{', '.join(parts)}.", is_over, waiting)


def waiting_for_room(engine: EngineSnapshot) -> tuple[float | None, str]:
    """Requests that wait for room, and a word on those that wait for something else, where that is reported."""
    reasons = engine.split(metrics.WAITING_BY_REASON)
    others = {reason: number for reason, number in reasons.items() if reason != "capacity" and number}
    if "capacity" not in reasons or not others:
        return engine.waiting, ""
    return reasons["capacity"], f" and {count(sum(others.values()))} for another reason ({', '.join(others)})"


def usage_alarm(engine: EngineWindow, sight: Sight) -> Seen | None:
    return _usage(engine, sight, sight.thresholds.usage_alarm)


def usage_act(engine: EngineWindow, sight: Sight) -> Seen | None:
    return _usage(engine, sight, sight.thresholds.usage_act)


def _usage(engine: EngineWindow, sight: Sight, limit: float) -> Seen | None:
    usage = engine.after.kv_usage
    is_over = None if usage is None or is_offloading(engine.after) else over(usage, limit, sight.thresholds.band)
    if usage is None or is_over is None:
        return None
    free = engine.after.free_blocks
    left = "" if free is None else f"; {count(free, 'blocks')} are free"
    return Seen(f"{share(usage)} of the KV blocks are in use, the limit is {share(limit)}{left}.", is_over, usage)


def is_offloading(engine: EngineSnapshot) -> bool:
    """Whether KV moves on to another tier: the GPU's pool is then full by design."""
    moved = (metrics.OFFLOAD_STORED, metrics.OFFLOAD_LOADED, metrics.OFFLOAD_BYTES, metrics.OFFLOADING_SIZE)
    return engine.number(metrics.OFFLOAD_USAGE) is not None or any(engine.number(metric) for metric in moved)


def full(engine: EngineWindow, sight: Sight) -> Seen | None:
    """A line through the usage of the last pages, when it rises beyond doubt and has not levelled off since."""
    usage, thresholds = engine.after.kv_usage, sight.thresholds
    if usage is None or usage <= thresholds.full_usage or is_offloading(engine.after):
        return None
    pages = [(page.at, same_engine(engine.after, page)) for page in sight.state.since(thresholds.full_trend)]
    points = [(at, each.kv_usage) for at, each in pages if each and each.kv_usage is not None]
    lately = [point for point in points if point[0] >= points[-1][0] - thresholds.window]
    span = points[-1][0] - points[0][0]
    if len(lately) < FEWEST_PAGES or span < thresholds.window / 2:
        return None
    slope, error = _slope(points)
    slope_lately, _ = _slope(lately)
    if slope <= SIGNIFICANT * error or slope * span < SMALLEST_RISE or slope_lately <= 0:
        return None
    slope = min(slope, slope_lately)
    left = (1 - usage) / slope
    is_over = under(left, thresholds.full_within, thresholds.band)
    rise = f"{share(usage)} in use and {share(slope * 60)} of the pool more a minute"
    return None if is_over is None else Seen(f"full in {duration(left)} at the present trend: {rise}.", is_over, left)


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of the line through them by least squares, with its standard error.

    >>> _slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0), (3.0, 7.0)])
    (2.0, 0.0)
    """
    middle = sum(at for at, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    spread = sum((at - middle) ** 2 for at, _ in points)
    slope = sum((at - middle) * (value - mean) for at, value in points) / spread
    residual = sum((value - mean - slope * (at - middle)) ** 2 for at, value in points)
    return slope, sqrt(residual / (len(points) - 2) / spread)


def preempting(engine: EngineWindow, sight: Sight) -> Seen | None:
    rate = engine.preemptions_per_s
    if rate is None or rate <= sight.thresholds.preemptions_per_s:
        return None
    times = f"{count(rate * engine.seconds, 'preemptions')} in {duration(engine.seconds)}"
    return Seen(f"{times}: what those requests held is computed again.", value=rate)


def retention(engine: EngineWindow, sight: Sight) -> Seen | None:
    """The article's KV hit rate. Where requests do not say how often each was preempted, the least it can be."""
    observed = engine.histogram(metrics.REQUEST_PREEMPTIONS)
    finished, preemptions = engine.increase(metrics.FINISHED), engine.increase(metrics.PREEMPTIONS)
    if observed is not None:
        lost, whole, how = preempted_requests(observed), observed.count, ""
    elif finished is None or preemptions is None:
        return None
    else:
        lost, whole, how = min(finished, preemptions), finished, ", if each preemption met another"
    is_over = over(lost / whole, 1 - sight.thresholds.retention, sight.thresholds.band) if whole else None
    if is_over is None:
        return None
    kept = 1 - lost / whole
    done = f"{requests(whole)} that finished in {duration(engine.seconds)}"
    return Seen(f"{share(kept)} of {done} were never preempted{how}.", is_over, kept)


def preempted_requests(observed: Histogram) -> float:
    """Requests that were preempted, at the least: the lowest bucket holds those with 0 and with 1 alike.

    What those in higher buckets do not account for in the sum are requests with 1. Exact up to 5 preemptions a request,
    above which a bucket has several numbers.

    >>> from array import array  # 3 requests with 0 or 1, 1 with 2; 4 preemptions in all: two of the three had 1
    >>> preempted_requests(Histogram(bounds=(1.0, 2.0), counts=array("d", [3, 4]), total=4.0))
    3.0
    """
    once = observed.total
    more = 0.0
    for below, now, bound in zip(observed.counts, observed.counts[1:], observed.bounds[1:], strict=False):
        more += now - below
        once -= (now - below) * bound if now > below else 0.0
    return more + max(0.0, once)


def fragmentation(engine: EngineWindow, sight: Sight) -> Seen | None:
    running, thresholds = engine.after.running, sight.thresholds
    if running is None or running < thresholds.fragmentation_running or not _is_in_use(engine, thresholds):
        return None
    waste = engine.after.block_waste_share
    if waste is None:
        return None
    is_over = over(waste, thresholds.fragmentation, thresholds.band)
    reason = f"an estimated {share(waste)} of the held token slots hold no token (vLLM does not report it)."
    return None if is_over is None else Seen(reason, is_over, waste)


def block_size(engine: EngineWindow, sight: Sight) -> Seen | None:
    """From the lengths of finished requests: at its middle one holds its prompt and half of its output."""
    thresholds, size = sight.thresholds, engine.after.block_size
    if not _is_in_use(engine, thresholds):
        return None
    prompts, outputs = (engine.histogram(metric) for metric in (metrics.PROMPT_LENGTH, metrics.OUTPUT_LENGTH))
    if not size or not prompts or not outputs or prompts.mean is None or outputs.mean is None:
        return None
    if prompts.count < thresholds.fragmentation_running:
        return None
    tokens = prompts.mean + outputs.mean / 2
    is_over = over(_waste(tokens, size), thresholds.fragmentation, thresholds.band)
    if is_over is None:
        return None
    better = next(
        (each for each in BLOCK_SIZES if each < size and _waste(tokens, each) < thresholds.fragmentation), None
    )
    held = f"requests hold {count(tokens)} tokens on average, which leaves an estimated {share(_waste(tokens, size))}"
    action = "Requests this short waste even blocks of 16; more of them at once is all that helps."
    if better is not None:
        action = f"Set --block-size {better}: the waste is then about {share(_waste(tokens, better))}."
    return Seen(f"{held} of their blocks of {size} empty.", is_over, _waste(tokens, size), action)


def _waste(tokens: float, size: int) -> float:
    """Share of a request's blocks that is empty when its last block is half full.

    >>> _waste(48.0, 33)
    0.25
    """
    empty = (size - 1) / 2
    return empty / (tokens + empty)


def _is_in_use(engine: EngineWindow, thresholds: Thresholds) -> bool:
    usage = engine.after.kv_usage
    return usage is not None and usage > thresholds.fragmentation_usage
