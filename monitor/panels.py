"""What the live page draws, by topic: the union of what published dashboards of vLLM draw.

A Panel is one chart. Only what a server reports is drawn; `why_not` says the reason for the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from monitor import metrics
from monitor.finding import Change, Event
from monitor.metrics import Metric
from monitor.series import Series, gauges, peaks, rates, restarts, splits
from monitor.snapshot import Snapshot
from planner import units
from planner.verdict import Level

MOST_ENGINES = 4
"""Engines with a line of their own; of more, the highest and the mean are drawn  [engines]."""


class Panel(NamedTuple):
    """One chart over time.

    title   what it shows
    unit    of its axis, a key of FORMS
    now     name on the chart -> quantity of `series.gauges`
    past    name on the chart -> quantity of `series.rates`
    split   drawn by its label
    source  what must be reported for it
    flag    a server started without it reports only zeros
    """

    title: str
    unit: str
    source: Metric
    now: Mapping[str, str] = {}
    past: Mapping[str, str] = {}
    split: Metric | None = None
    flag: str = ""


FORMS: Mapping[str, units.Formatter] = {
    "ratio": units.share,
    "s": units.duration,
    "tokens": lambda value: units.count(value, "tokens"),
    "requests": lambda value: units.count(value, "requests"),
    "tokens/s": lambda value: units.rate(value, "tokens/s"),
    "requests/s": lambda value: units.rate(value, "requests/s"),
    "FLOP/s": units.flops,
    "B/s": units.bandwidth,
}
"""How a value of each unit is written."""


def _quantiles(metric: Metric, title: str) -> Panel:
    return Panel(
        title, metric.unit, metric, past={f"p{percent}": f"{metric.key}_p{percent}" for percent in (50, 95, 99)}
    )


def _split(metric: Metric, title: str, unit: str) -> Panel:
    return Panel(title, unit, metric, split=metric)


_MFU = "--enable-mfu-metrics"
KV_USAGE = Panel("KV blocks in use", "ratio", metrics.KV_USAGE, now={"in use": "kv_usage"})
THROUGHPUT = Panel(
    "Tokens", "tokens/s", metrics.GENERATION_TOKENS,
    past={"output": "output_tokens_per_s", "prompts": "prompt_tokens_per_s"},
)  # fmt: skip
WASTE = Panel("Slots held without a token (estimate)", "ratio", metrics.KV_USAGE, now={"waste": "block_waste_share"})

TOPICS: Mapping[str, tuple[Panel, ...]] = {
    "KV cache": (
        KV_USAGE,
        Panel("KV tokens held", "tokens", metrics.NUM_GPU_BLOCKS,
              now={"held": "used_tokens", "pool": "capacity_tokens"}),
        WASTE,
        Panel("Token slots that hold a token", "ratio", metrics.KV_TOKEN_USAGE, now={"filled": "kv_token_usage"}),
        Panel("Residency of a block, median", "s", metrics.BLOCK_LIFETIME,
              past={"lifetime": "block_lifetime_p50", "idle before eviction": "block_idle_p50",
                    "between touches": "block_reuse_gap_p50"}),
        Panel("Offload tier in use", "ratio", metrics.OFFLOAD_USAGE, now={"in use": "offload_usage"}),
        Panel("KV moved to and from the offload tier", "B/s", metrics.OFFLOAD_STORED,
              past={"out": "offload_store_bytes_total", "back": "offload_load_bytes_total"}),
    ),
    "Requests": (
        Panel("Requests", "requests", metrics.RUNNING, now={"running": "running", "waiting": "waiting"}),
        _split(metrics.WAITING_BY_REASON, "Waiting, by reason", "requests"),
        _split(metrics.FINISHED, "Finished, by reason", "requests/s"),
        Panel("Preempted", "requests/s", metrics.PREEMPTIONS, past={"preempted": "preemptions_per_s"}),
        _split(metrics.REJECTED, "Refused at admission, by reason", "requests/s"),
    ),
    "Speed": (
        THROUGHPUT,
        Panel("Tokens of an engine step, mean", "tokens", metrics.STEP_TOKENS, past={"mean": "step_tokens_mean"}),
        Panel("Arithmetic of one GPU", "FLOP/s", metrics.FLOPS, past={"FLOP": "estimated_flops_total"}, flag=_MFU),
        Panel("Memory traffic of one GPU", "B/s", metrics.READ_BYTES,
              past={"read": "estimated_read_bytes_total", "written": "estimated_write_bytes_total"}, flag=_MFU),
        Panel("Draft tokens accepted", "ratio", metrics.SPEC_ACCEPTED, past={"accepted": "spec_acceptance_rate"}),
    ),
    "Latency": (
        _quantiles(metrics.TTFT, "Time to first token"),
        _quantiles(metrics.TPOT, "Time per output token, a request's mean"),
        _quantiles(metrics.ITL, "Time between tokens"),
        _quantiles(metrics.E2E, "Arrival to last token"),
        Panel("Where a request's time goes, median", "s", metrics.QUEUE,
              past={"queued": "queue_p50", "prefill": "prefill_p50", "decode": "decode_p50"}),
    ),
    "Prefix cache": (
        Panel("Prompt tokens found in the prefix cache", "ratio", metrics.PREFIX_QUERIES,
              past={"found": "prefix_hit_rate"}),
        _split(metrics.PROMPT_BY_SOURCE, "Prompt tokens, by source", "tokens/s"),
        _split(metrics.CACHED_BY_SOURCE, "Cached prompt tokens, by tier", "tokens/s"),
    ),
    "Lengths": (
        _quantiles(metrics.PROMPT_LENGTH, "Prompts of finished requests"),
        _quantiles(metrics.OUTPUT_LENGTH, "Outputs of finished requests"),
        _quantiles(metrics.MAX_TOKENS, "Output asked for at most"),
    ),
}  # fmt: skip

LATENCIES = (metrics.TTFT, metrics.TPOT, metrics.ITL, metrics.E2E, metrics.QUEUE, metrics.PREFILL, metrics.DECODE)
LENGTHS = (metrics.PROMPT_LENGTH, metrics.PREFILL_COMPUTED, metrics.OUTPUT_LENGTH, metrics.MAX_TOKENS)


def lines(panel: Panel, history: Sequence[Snapshot]) -> list[Series]:
    """What there is to draw; empty where nothing is reported or nothing happened."""
    if panel.split is not None:
        found = [line for line in splits(history, panel.split) if any(line.known)]
    else:
        found = [*_named(gauges, panel, panel.now, history), *_named(rates, panel, panel.past, history)]
    known = [line for line in found if line.known]
    return known if not panel.flag or any(any(line.known) for line in known) else []


def _named(
    drawn: Callable[..., list[Series]], panel: Panel, names: Mapping[str, str], history: Sequence[Snapshot]
) -> list[Series]:
    found: list[Series] = []
    for name, quantity in names.items():
        engines = drawn(history, quantity)
        if len(engines) > MOST_ENGINES:
            found += [_over(engines, max, f"{name}, highest"), _over(engines, fmean, f"{name}, mean")]
        else:
            found += [line._replace(name=line.name.replace(quantity.replace("_", " "), name, 1)) for line in engines]
            if panel.unit == "ratio" and len(engines) > 1:
                found.append(_over(engines, fmean, f"{name}, mean"))
            highest = peaks(history, quantity) if drawn is gauges else []
            found += [_over(highest, max, f"{name}, highest")] if highest else []
    return found


def _over(engines: Sequence[Series], one: Callable[[list[float]], float], name: str) -> Series:
    """One line for all engines; where none reports, it has a gap."""
    together = zip(*(line.values for line in engines), strict=True)
    known = ([value for value in values if value is not None] for values in together)
    return Series(name, engines[0].times, tuple(one(values) if values else None for values in known))


def marks(history: Sequence[Snapshot]) -> dict[int, str]:
    """Moments that a chart marks [ms], and what happened then."""
    return {round(at * 1e3): "restarted" for at in restarts(history)}


def worth_a_mark(events: Sequence[Event]) -> dict[int, str]:
    """The same for findings that began; restarts are marked where they are seen."""
    began = (event for event in events if event.change is Change.BEGAN and event.level is Level.BAD)
    return {round(event.at * 1e3): event.word for event in began}


def why_not(panel: Panel, page: Snapshot) -> str:
    """Why a panel has nothing to draw."""
    absent = page.missing.get(panel.source.key)
    return absent or (f"0 without {panel.flag}" if panel.flag else "nothing was counted in this window")
