"""What an experiment found: each run, what the plan had said, and which statements about the KV dtypes held here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import median
from typing import Any, NamedTuple

from planner.errors import InputError
from planner.units import count, duration, finite, memory
from planner.verdict import Level, Verdict

KIND = "experiment"
"""What planner.store.Shelf calls these documents, whose body `as_json` makes and `experiment_from` reads."""
DOUBLE = 1.98
"""Times the tokens that count as twice: vLLM rounds to whole blocks, and profiles each start anew."""
WORSE = 1.03
"""Times the latency that the article allows FP8: 3 % more."""


class Percentiles(NamedTuple):
    """Of what the requests of one run took.

    p50  median  [s]
    p95  95th percentile  [s]
    p99  99th percentile  [s]
    """

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One start of the engine, and one load on it.

    kv_cache_dtype  its KV dtype
    round           of the repetitions, from 1  [round]
    tokens          what the KV pool holds, as the engine reports  [tokens]
    blocks          of the pool, the null block among them  [blocks]
    block_size      tokens a block  [tokens]
    pool_bytes      blocks times the plan's bytes a block; None where nothing could be planned  [bytes]
    memory_bytes    held by the engine after the load; None where nothing says  [bytes]
    prompt_tokens   of each request  [tokens]
    output_tokens   of all requests together  [tokens]
    seconds         from sending the requests to the last token of all  [s]
    ttft            time to first token, by the client's clock
    tpot            time per output token after the first, each request's mean, by the client's clock
    e2e             time to the last token, by the client's clock
    engine_ttft     the engine's own, interpolated in the buckets of its histogram; None where it has none
    engine_tpot     the same of time per output token
    preemptions     requests thrown back meanwhile; None where not reported  [preemptions]
    """

    kv_cache_dtype: str
    round: int
    tokens: int
    blocks: int
    block_size: int
    pool_bytes: int | None
    memory_bytes: int | None
    prompt_tokens: int
    output_tokens: int
    seconds: float
    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    engine_ttft: Percentiles | None
    engine_tpot: Percentiles | None
    preemptions: int | None

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the plan says of one KV dtype; None where it could not be worked out.

    tokens       what the pool holds, the middle  [tokens]
    tokens_low   the least  [tokens]
    tokens_high  the most  [tokens]
    ttft_s       time to first token, the middle  [s]
    tpot_s       time per output token, the middle  [s]
    tpot_s_low   the least  [s]
    tpot_s_high  the most  [s]
    output_tokens_per_s  throughput, the middle  [tokens/s]
    refusal      why it would not start, empty when it would
    """

    tokens: int | None
    tokens_low: int | None
    tokens_high: int | None
    ttft_s: float | None
    tpot_s: float | None
    tpot_s_low: float | None
    tpot_s_high: float | None
    output_tokens_per_s: float | None
    refusal: str


class Judgement(Enum):
    """What measuring says of a statement."""

    HELD = "held"
    FAILED = "did not hold"
    OPEN = "cannot be told"


class Statement(NamedTuple):
    """Something said of KV dtypes, and whether it held here."""

    text: str
    judgement: Judgement
    reason: str

    @property
    def verdict(self) -> Verdict:
        """The same for the top of a page."""
        word = f"{self.judgement.value.capitalize()} here"
        return Verdict(level=_LEVELS[self.judgement], word=word, reason=f"{self.text}. {self.reason}.")


_LEVELS = {Judgement.HELD: Level.GOOD, Judgement.FAILED: Level.BAD, Judgement.OPEN: Level.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One model served with several KV dtypes in turn, under the same load.

    at            when it began, Unix time  [s]
    model         folder of the model
    device        what it ran on
    vllm_version  release of the engine
    prompts       requests sent at once  [requests]
    max_tokens    generated for each  [tokens]
    max_model_len longest request accepted  [tokens]
    pool          the setting that decides the pool's size, in words
    runs          in the order of running: each round starts the engine once for each dtype
    planned       by KV dtype
    notes         what else a reader should know
    """

    at: float
    model: str
    device: str
    vllm_version: str
    prompts: int
    max_tokens: int
    max_model_len: int
    pool: str
    runs: tuple[Run, ...]
    planned: Mapping[str, Planned]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """A name to keep it under."""
        return f"{self.model.rstrip('/').rpartition('/')[2]}: {', '.join(self.kv_cache_dtypes)} on {self.device}"

    @property
    def setting(self) -> str:
        """What ran where, and how often, in one line."""
        rounds = len(self.of(self.kv_cache_dtypes[0]))
        return (
            f"{self.model} on {self.device}, vLLM {self.vllm_version}, {self.pool}; {count(self.prompts)} requests at "
            f"once, {count(self.max_tokens)} tokens each, max_model_len {count(self.max_model_len)}, "
            f"{count(rounds, 'rounds' if rounds > 1 else 'round')}"
        )

    @property
    def kv_cache_dtypes(self) -> tuple[str, ...]:
        """Those compared; the first is what the others are held against."""
        return tuple(dict.fromkeys(run.kv_cache_dtype for run in self.runs))

    def of(self, kv_cache_dtype: str) -> tuple[Run, ...]:
        """The runs with this dtype, one a round."""
        return tuple(run for run in self.runs if run.kv_cache_dtype == kv_cache_dtype)

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The article's two, of each dtype against the first: the tokens double, and P95 is at most 3 % worse."""
        first, *others = self.kv_cache_dtypes
        return tuple(statement for other in others for statement in self._of_pair(first, other))

    def _of_pair(self, first: str, other: str) -> Iterator[Statement]:
        ratios = self._ratios(first, other, lambda run: run.tokens)
        held = [count(median(run.tokens for run in self.of(dtype))) for dtype in (other, first)]
        found = (
            Judgement.HELD if min(ratios) >= DOUBLE else Judgement.FAILED if max(ratios) < DOUBLE else Judgement.OPEN
        )
        reason = f"{held[0]} tokens against {held[1]}: {_times(ratios)}"
        yield Statement(f"{other} doubles the tokens of {first}", found, reason)
        for what, value in _P95.items():
            yield self._at_most_3_percent(f"P95 {what} of {other}", self._ratios(first, other, value))

    def _ratios(self, first: str, other: str, value: Callable[[Run], float]) -> list[float]:
        """One a round, whose two runs follow each other: what drifts over the rounds cancels."""
        return [value(after) / value(before) for before, after in zip(self.of(first), self.of(other), strict=True)]

    @staticmethod
    def _at_most_3_percent(what: str, ratios: Sequence[float]) -> Statement:
        reason, difference = _times(ratios), WORSE - median(ratios)
        if len(ratios) == 1:
            found, reason = Judgement.OPEN, f"{reason}, of one round: its spread is not known"
        elif max(ratios) - min(ratios) > abs(difference):
            found, reason = Judgement.OPEN, f"{reason}: the rounds differ by more than what is asked"
        else:
            found = Judgement.HELD if difference >= 0 else Judgement.FAILED
        return Statement(f"{what} is at most 3 % worse", found, reason)


_P95: Mapping[str, Callable[[Run], float]] = {
    "latency": lambda run: run.e2e.p95,
    "time to first token": lambda run: run.ttft.p95,
    "time per output token": lambda run: run.tpot.p95,
}


def _times(ratios: Sequence[float]) -> str:
    """
    >>> _times([2.0]), _times([1.01, 1.2, 0.9])
    ('2.000 ×', '1.010 × (0.900 to 1.200 in 3 rounds)')
    """
    spread = f" ({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} rounds)" if len(ratios) > 1 else ""
    return f"{median(ratios):.3f} ×{spread}"


# Out and in


def as_json(found: Experiment) -> dict[str, Any]:
    """Everything, with the medians of each dtype, what was planned, and the statements."""
    statements = [{"text": text, "judgement": how.value, "reason": why} for text, how, why in found.statements]
    medians = {dtype: _medians(found, dtype) for dtype in found.kv_cache_dtypes}
    runs = [
        {name: value._asdict() if isinstance(value, Percentiles) else value for name, value in _fields(run).items()}
        for run in found.runs
    ]
    plain = {**asdict(found), "runs": runs, "medians": medians, "statements": statements}
    return {key: finite(value) for key, value in plain.items()}


def _fields(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in Run.__dataclass_fields__}


def _medians(found: Experiment, dtype: str) -> dict[str, float | None]:
    runs, planned = found.of(dtype), found.planned[dtype]
    tokens = median(run.tokens for run in runs)
    sizes = [run.memory_bytes for run in runs if run.memory_bytes is not None]
    values: dict[str, float | None] = {
        f"{key}_{name}_s": median(getattr(getattr(run, key), name) for run in runs)
        for key in ("ttft", "tpot", "e2e")
        for name in Percentiles._fields
    }
    return {
        "tokens": tokens,
        "tokens_planned": planned.tokens,
        "tokens_ratio": tokens / planned.tokens if planned.tokens else None,
        "memory_bytes": median(sizes) if sizes else None,
        "output_tokens_per_s": median(run.output_tokens_per_s for run in runs),
        **values,
    }


def experiment_from(data: Mapping[str, Any]) -> Experiment:
    """The experiment of such a JSON. Raises InputError where it is something else."""
    try:
        known = {name: data[name] for name in Experiment.__dataclass_fields__}
        runs = tuple(Run(**{name: _value(value) for name, value in run.items()}) for run in known["runs"])
        planned = {dtype: Planned(**values) for dtype, values in known["planned"].items()}
        return Experiment(**{**known, "runs": runs, "planned": planned, "notes": tuple(known["notes"])})
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError("experiment", str(error)[:100], "what `python -m monitor experiment --json` prints") from None


def _value(value: Any) -> Any:
    return Percentiles(**value) if isinstance(value, Mapping) else value


def as_text(found: Experiment) -> str:
    """For a person: what ran, a line a dtype with the range over the rounds, the plan, and what held."""
    return "\n".join(_lines(found))


def _lines(found: Experiment) -> Iterator[str]:
    yield f"{found.setting}, an engine start each"
    for dtype in found.kv_cache_dtypes:
        runs, planned = found.of(dtype), found.planned[dtype]
        yield f"\nKV dtype {dtype}"
        tokens = median(run.tokens for run in runs)
        against = f", planned {count(planned.tokens)}: {tokens / planned.tokens:.3f} ×" if planned.tokens else ""
        yield f"  tokens held            {count(tokens)}{against}"
        if planned.refusal:
            yield f"  the plan refused it    {planned.refusal}"
        yield f"  memory                 {ranged(memory, [run.memory_bytes for run in runs])}"
        for name, key, expected in (
            ("time to first token", "ttft", planned.ttft_s),
            ("time per output token", "tpot", planned.tpot_s),
            ("latency", "e2e", None),
        ):
            parts = (
                f"{which} {ranged(duration, [getattr(getattr(run, key), which) for run in runs])}"
                for which in Percentiles._fields
            )
            planned_too = f"; planned {duration(expected)}" if expected is not None else ""
            yield f"  {name:<22} {', '.join(parts)}{planned_too}"
        yield f"  tokens/s               {ranged(count, [run.output_tokens_per_s for run in runs])}"
    yield ""
    for text, how, why in found.statements:
        yield f"{how.value.capitalize()} here: {text}. {why}."
    yield from found.notes


def ranged(words: Callable[[float], str], values: Sequence[float | None]) -> str:
    """Median, and from where to where.

    >>> ranged(count, [3.0, 1.0, 2.0]), ranged(count, [None])
    ('2 (1 to 3)', 'not reported')
    """
    known = [value for value in values if value is not None]
    if not known:
        return "not reported"
    spread = f" ({words(min(known))} to {words(max(known))})" if len(known) > 1 else ""
    return f"{words(median(known))}{spread}"
