"""What an experiment found -> tables: each figure measured, planned and as the article has it."""

from collections.abc import Callable, Iterator

from monitor.experiment_result import Experiment, Percentiles, Planned, Run, ranged
from pages._tables import MISSING, Rows
from planner import units

_TIMES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Latency"}
_TWICE, _WORSE = "FP8: twice as many", "FP8: at most 3 % worse"
_OUTPUT = "output_tokens_per_s"

Figure = tuple[str, Callable[[Run], float | None], units.Formatter, Callable[[Planned], str], str]


def medians(found: Experiment) -> Rows:
    """The median of the rounds with its range for each KV dtype, beside what was planned and what the article says."""
    rows = []
    for name, value, form, planned, claim in _figures():
        row = {"Figure": name}
        for dtype in found.kv_cache_dtypes:
            row[dtype] = ranged(form, [value(run) for run in found.of(dtype)])
            row[f"{dtype}, planned"] = planned(found.planned[dtype])
        rows.append({**row, "The article says": claim})
    return rows


def _figures() -> Iterator[Figure]:
    yield "Tokens held", lambda run: run.tokens, units.count, _tokens, _TWICE
    yield "Memory of the engine", lambda run: run.memory_bytes, units.memory, lambda _: MISSING, MISSING
    for key, name in _TIMES.items():
        for which in Percentiles._fields:
            expected = _planned(key) if which == "p50" else lambda _: MISSING
            yield (
                f"{name}, {which}",
                _measured(key, which),
                units.duration,
                expected,
                _WORSE if which == "p95" else MISSING,
            )
    yield "Output tokens a second", lambda run: run.output_tokens_per_s, units.count, _rate, MISSING


def _measured(key: str, which: str) -> Callable[[Run], float | None]:
    return lambda run: getattr(getattr(run, key), which)  # type: ignore[no-any-return]


def _planned(key: str) -> Callable[[Planned], str]:
    def said(planned: Planned) -> str:
        value = getattr(planned, f"{key}_s", None)
        return planned.refusal or (MISSING if value is None else units.duration(value))

    return said


def _tokens(planned: Planned) -> str:
    if planned.tokens is None:
        return planned.refusal or MISSING
    return units.count(planned.tokens)


def _rate(planned: Planned) -> str:
    value = planned.output_tokens_per_s
    return MISSING if value is None else units.count(value)


def statements(found: Experiment) -> Rows:
    """Each statement, and whether it held."""
    return [
        {"Statement": each.text, "Here": each.judgement.value, "Measured": each.reason} for each in found.statements
    ]


def runs(found: Experiment) -> Rows:
    """Every run, in the order of running."""
    return [
        {
            "Round": units.count(run.round),
            "KV dtype": run.kv_cache_dtype,
            "Tokens held": units.count(run.tokens),
            "Blocks": f"{units.count(run.blocks)} of {units.count(run.block_size)}",
            "Time to first token, p95": units.duration(run.ttft.p95),
            "Time per output token, p95": units.duration(run.tpot.p95),
            "Latency, p95": units.duration(run.e2e.p95),
            "Output tokens a second": units.count(run.output_tokens_per_s),
            "Preempted": MISSING if run.preemptions is None else units.count(run.preemptions),
        }
        for run in found.runs
    ]
