"""KV usage that a plan expects for the requests that really run, at a moment and over time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, quantiles

from monitor import metrics
from monitor.series import Series, gauges
from monitor.snapshot import EngineSnapshot, Snapshot
from monitor.traffic import Traffic, traffic
from monitor.window import EngineWindow, window
from planner.kv_layout import KvLayout
from planner.latency import Range
from planner.plan import Plan


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


OVER_TIME: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": mean, "p95": _p95, "peak": max}
"""What of KV usage over a window is compared."""


def _hits_since_start(engine: EngineSnapshot) -> float:
    """Share of the prompt tokens looked up that were in the prefix cache; 0 where none is known to be  [ratio]."""
    hits, asked = engine.number(metrics.PREFIX_HITS), engine.number(metrics.PREFIX_QUERIES)
    return min(1.0, hits / asked) if hits and asked else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a running request of this load holds of the pool.

    layout         how the plan lays out the KV cache
    input_tokens   of a prompt  [tokens]
    output_tokens  of an output  [tokens]
    shared         share of a prompt that others may hold as well  [ratio]
    usable_blocks  what all requests together can hold  [blocks]
    note           what the lengths rest on
    """

    layout: KvLayout
    input_tokens: int
    output_tokens: int
    shared: float
    usable_blocks: int
    note: str

    @classmethod
    def by(cls, made: Plan, engine: EngineSnapshot, load: Traffic | None) -> "Held | None":
        """By the lengths of the requests that finished in the window, else since the start; None where none has."""
        prompts, outputs = engine.histogram(metrics.PROMPT_LENGTH), engine.histogram(metrics.OUTPUT_LENGTH)
        if made.layout is None or not engine.usable_blocks:
            return None
        shared = _hits_since_start(engine)
        if load is not None:
            lengths, source = (load.input_tokens, load.output_tokens), "finished in the window"
            shared = load.prefix_hit_ratio
        elif prompts and outputs and prompts.mean and outputs.mean:
            lengths, source = (prompts.mean, outputs.mean), "finished since the start"
        else:
            return None
        inputs, generated = (max(1, round(length)) for length in lengths)
        return cls(
            layout=made.layout,
            input_tokens=inputs,
            output_tokens=generated,
            shared=max(made.workload.prefix_hit_ratio, shared),
            usable_blocks=engine.usable_blocks,
            note=f"{inputs} in + {generated} out, {source}",
        )

    def blocks(self, running: float) -> Range:
        """Blocks that so many requests hold: half way through their output, at the start with all that is shared held
        by others, and at the end  [blocks]."""
        middle, end = self.input_tokens + self.output_tokens // 2, self.input_tokens + self.output_tokens
        start = max(1, round(self.input_tokens * (1 - self.shared)))
        low, value, high = (self.layout.blocks_per_request(length) for length in (start, middle, end))
        return Range(*(min(self.usable_blocks, running * each) for each in (value, low, high)))

    def share(self, running: float) -> Range:
        """The same as a share of the pool  [ratio]."""
        return self.blocks(running).times(1 / self.usable_blocks)

    def over_time(
        self, pages: Sequence[EngineSnapshot], statistic: Callable[[Sequence[float]], float]
    ) -> tuple[Range | None, float | None]:
        """A statistic of the share expected and of the share in use, page by page; None where no page says both."""
        known = [(page.running, page.kv_usage) for page in pages if page.running is not None]
        both = [(running, used) for running, used in known if used is not None]
        if not both:
            return None, None
        expected = [self.share(running) for running, _ in both]
        planned = Range(*(statistic(part) for part in zip(*expected, strict=True)))
        return planned, statistic([used for _, used in both])


IN_USE, PLANNED = "in use", "planned"
"""What the lines are called."""
LEAST, MOST = f"{PLANNED} at least", f"{PLANNED} at most"
"""The range of what is planned, which one engine alone has beside it."""


def usage_lines(made: Plan, history: Sequence[Snapshot]) -> list[Series]:
    """The share of the pool in use over time, and what the plan expects for what ran at each moment, by engine.

    Nothing is planned where no request has finished, since lengths are then not known.
    """
    if len(history) < 2:
        return []
    engines = window(history[0], history[-1]).engines
    if len(engines) == 1:
        return _of_engine(made, engines[0], history)
    return [
        line._replace(name=f"{line.name}, engine {engine.engine}")
        for engine in engines
        for line in _of_engine(made, engine, history)
        if line.name in (IN_USE, PLANNED)
    ]


def _of_engine(made: Plan, seen: EngineWindow, history: Sequence[Snapshot]) -> list[Series]:
    place = (seen.engine, seen.model_name)
    alone = [
        replace(page, engines=tuple(each for each in page.engines if (each.engine, each.model_name) == place))
        for page in history
    ]
    used, running = gauges(alone, "kv_usage", "running")
    held = Held.by(made, seen.after, traffic(seen))
    if held is None:
        return [used._replace(name=IN_USE)]
    expected = [None if value is None else held.share(value) for value in running.values]
    planned = {
        name: tuple(None if share is None else share[part] for share in expected)
        for part, name in enumerate((PLANNED, LEAST, MOST))
    }
    return [used._replace(name=IN_USE), *(Series(name, running.times, values) for name, values in planned.items())]
