"""Results of other load generators as one kind of measurement: `vllm bench serve`, GuideLLM and AIPerf.

The tools share words and mean different things by them. Here TPOT is a request's mean time per token after its first,
and ITL each single gap:

tool        TPOT                              ITL
vLLM        tpot                              itl
GuideLLM    inter_token_latency               not kept; its time_per_output_token includes the first token
AIPerf      inter_token_latency               inter_chunk_latency, a chunk being what the server sends at once

Read from their sources (vLLM 0.32, GuideLLM 0.5 to 0.8, AIPerf 0.5 to 0.10, November 2026).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from planner.errors import InputError

ACCEPTED = (
    "JSON of `vllm bench serve --save-result`, of GuideLLM (benchmarks.json) or AIPerf (profile_export_aiperf.json)"
)
_MOST = 10**18
"""No run has more of anything; beyond it a number is a broken file."""
_LONGEST = 80
"""Of what is found in a file, so much is said  [characters]."""
_SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
Table = Mapping[str, Any]


class Spread(NamedTuple):
    """What the requests of a run took.

    p50  median  [s]
    p99  99th percentile; None where the tool was not told to keep it  [s]
    """

    p50: float
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One load on one server, as a tool measured it. What it does not say is None.

    tool                 vLLM, GuideLLM or AIPerf
    model                as the server calls it
    input_tokens         prompt length, mean  [tokens]
    output_tokens        generated length, mean  [tokens]
    requests             answered in full  [requests]
    concurrency          requests kept in flight, or all at once  [requests]
    request_rate         arrivals instead  [requests/s]
    ttft                 time to first token
    tpot                 time per output token after the first, each request's mean
    itl                  each gap between two tokens
    output_tokens_per_s  of all requests together  [tokens/s]
    """

    tool: str
    model: str
    input_tokens: float | None
    output_tokens: float | None
    requests: int
    concurrency: int | None
    request_rate: float | None
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    output_tokens_per_s: float


def measurements(path: Path) -> tuple[Measurement, ...]:
    """The measurements of a file, in its order. Raises InputError, which says what was found instead."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("file", str(path), f"a text file that can be read ({error})") from None
    return measurements_in(text)


def measurements_in(text: str) -> tuple[Measurement, ...]:
    """The same from its content. With --append-result, vLLM writes one result a line."""
    try:
        results = [json.loads(text)]
    except (ValueError, RecursionError) as error:
        results = list(_lines(text, error))
    if not results:
        raise InputError("file", "nothing", ACCEPTED)
    return tuple(made for result in results for made in _measurements(result))


def _lines(text: str, whole: Exception) -> Iterator[Any]:
    """Each line's JSON; where not even the first is one, the file was meant as a whole, and is told so."""
    first = True
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError("file", _no_json(whole, 1) if first else _no_json(error, number), ACCEPTED) from None
        first = False


def _no_json(error: Exception, line: int) -> str:
    """What is wrong and where, without a word of the file, which may be a picture; `line` is that of its first."""
    if not isinstance(error, json.JSONDecodeError):
        return "no JSON that can be read: nested too deeply, or a number of too many digits"
    what = error.msg.removesuffix(" at").rstrip(": ")
    return f"no JSON: {what} at line {error.lineno + line - 1}, column {error.colno}"


def _measurements(result: Any) -> Iterator[Measurement]:
    keys = set(result) if isinstance(result, Mapping) else set()
    if {"model_id", "output_throughput", "completed"} <= keys:
        yield _vllm(result)
    elif {"metadata", "benchmarks"} <= keys:
        benchmarks = result["benchmarks"]
        if not isinstance(benchmarks, Sequence) or not benchmarks:
            raise InputError("benchmarks", _brief(benchmarks), "a list with one entry or more")
        for number, benchmark in enumerate(benchmarks):
            yield _guidellm(result, benchmark, f"benchmarks[{number}]")
    elif {"input_config", "output_token_throughput"} <= keys:
        yield _aiperf(result)
    else:
        shape = f"a {type(result).__name__}"
        raise InputError("file", _brief(f"{shape} with {', '.join(sorted(keys)[:6])}" if keys else shape), ACCEPTED)


# vLLM


def _vllm(result: Table) -> Measurement:
    answered = int(_number(result, "completed"))
    if not answered:
        raise InputError("completed", 0, "at least one answered request")
    rate = result.get("request_rate")
    is_all_at_once = rate in ("inf", None)
    in_flight = _optional(result, "max_concurrency")
    if in_flight is None and is_all_at_once:
        in_flight = _optional(result, "num_prompts")
    return Measurement(
        tool="vLLM",
        model=_text(result, "model_id"),
        input_tokens=_mean(result, "total_input_tokens", answered),
        output_tokens=_mean(result, "total_output_tokens", answered),
        requests=answered,
        concurrency=None if in_flight is None else int(in_flight),
        request_rate=None if is_all_at_once else _number(result, "request_rate"),
        ttft=_of_vllm(result, "ttft"),
        tpot=_of_vllm(result, "tpot"),
        itl=_of_vllm(result, "itl"),
        output_tokens_per_s=_number(result, "output_throughput"),
    )


def _mean(result: Table, key: str, answered: int) -> float | None:
    total = _optional(result, key)
    return total / answered if total is not None and answered else None


def _of_vllm(result: Table, what: str) -> Spread | None:
    median, high = _optional(result, f"median_{what}_ms"), _optional(result, f"p99_{what}_ms")
    return None if median is None else Spread(median / 1e3, None if high is None else high / 1e3)


# GuideLLM


def _guidellm(report: Table, benchmark: Any, where: str) -> Measurement:
    run = _table(benchmark, "config", "args", where=where)
    strategy = _table(run, "strategy", where=f"{where}.config")
    said = _table(benchmark, "metrics", where=where)
    kind = strategy.get("type_") or strategy.get("kind")
    in_flight = {"synchronous": 1, "concurrent": strategy.get("streams")}.get(
        str(kind), strategy.get("max_concurrency")
    )
    asked = [run.get("backend"), report.get("args"), report.get("config")]
    models = [table.get("model") for table in asked if isinstance(table, Mapping)]
    lengths = {key: _successful(said, f"{key}_token_count", where) for key in ("prompt", "output")}
    rate = _successful(said, "output_tokens_per_second", where)
    if rate is None:
        raise InputError(f"{where}.metrics.output_tokens_per_second", "no answered request", "at least one")
    totals = _table(said, "request_totals", where=f"{where}.metrics")
    return Measurement(
        tool="GuideLLM",
        model=next((model for model in models if isinstance(model, str)), ""),
        input_tokens=None if lengths["prompt"] is None else _number(lengths["prompt"], "mean", where),
        output_tokens=None if lengths["output"] is None else _number(lengths["output"], "mean", where),
        requests=int(_number(totals, "successful", where)),
        concurrency=in_flight if isinstance(in_flight, int) else None,
        request_rate=_optional(strategy, "rate", where),
        ttft=_of_guidellm(said, "time_to_first_token_ms", where),
        tpot=_of_guidellm(said, "inter_token_latency_ms", where),
        itl=None,
        output_tokens_per_s=_number(rate, "mean", where),
    )


def _successful(metrics: Table, key: str, where: str) -> Table | None:
    """The distribution over answered requests; GuideLLM writes zeros where there are none."""
    if key not in metrics:
        return None
    found = _table(_table(metrics, key, where=where), "successful", where=f"{where}.metrics.{key}")
    return found if found.get("count") else None


def _of_guidellm(metrics: Table, key: str, where: str) -> Spread | None:
    found, where = _successful(metrics, key, where), f"{where}.metrics.{key}"
    if found is None:
        return None
    shares = _table(found, "percentiles", where=where)
    return Spread(_number(shares, "p50", where) / 1e3, _number(shares, "p99", where) / 1e3)


# AIPerf


def _aiperf(result: Table) -> Measurement:
    asked = _table(result, "input_config")
    load = _aiperf_load(asked)
    in_flight = _optional(load, "concurrency", "input_config")
    rate = _optional(load, "rate", "input_config")
    return Measurement(
        tool="AIPerf",
        model=_aiperf_model(asked),
        input_tokens=_average(result, "input_sequence_length"),
        output_tokens=_average(result, "output_sequence_length"),
        requests=int(_number(_table(result, "request_count"), "avg", "request_count")),
        concurrency=None if in_flight is None else int(in_flight),
        request_rate=_optional(load, "request_rate", "input_config") if rate is None else rate,
        ttft=_of_aiperf(result, "time_to_first_token"),
        tpot=_of_aiperf(result, "inter_token_latency"),
        itl=_of_aiperf(result, "inter_chunk_latency"),
        output_tokens_per_s=_number(_table(result, "output_token_throughput"), "avg", "output_token_throughput"),
    )


def _aiperf_load(asked: Table) -> Table:
    """The phase that was measured; before 0.10 there was one, `loadgen`."""
    phases = asked.get("phases")
    if not isinstance(phases, Sequence) or not phases:
        return _table(asked, "loadgen", where="input_config")
    for number, phase in enumerate(phases):
        if not isinstance(phase, Mapping):
            raise InputError(f"input_config.phases[{number}]", _brief(phase), "a table")
    return next((phase for phase in reversed(phases) if not phase.get("exclude_from_results")), phases[-1])


def _aiperf_model(asked: Table) -> str:
    """Before 0.10 `endpoint.model_names` named it."""
    match asked:
        case {"models": {"items": [{"name": str(name)}, *_]}} | {"endpoint": {"model_names": [str(name), *_]}}:
            return name
        case _:
            raise InputError("input_config.models", _brief(asked.get("models")), "the name of the model")


def _average(result: Table, key: str) -> float | None:
    return _number(_table(result, key), "avg", key) if key in result else None


def _of_aiperf(result: Table, key: str) -> Spread | None:
    if key not in result:
        return None
    found = _table(result, key)
    unit = _SECONDS.get(str(found.get("unit")))
    if unit is None:
        raise InputError(f"{key}.unit", _brief(found.get("unit")), "one of " + ", ".join(_SECONDS))
    high = _optional(found, "p99", key)
    return Spread(_number(found, "p50", key) * unit, None if high is None else high * unit)


# Reading


def _brief(found: object) -> object:
    """The value, or how it begins where a message of it would be long; characters that do not print are dots.

    >>> _brief(-1.5), _brief("a\\0b"), _brief([12345] * 100)[:15], len(_brief("x" * 100))
    (-1.5, 'a·b', '[12345, 12345, ', 80)
    """
    text = found if isinstance(found, str) else repr(found)
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    elif not isinstance(found, str):
        return found
    return "".join(each if each.isprintable() else "·" for each in text)


def _table(data: Any, *keys: str, where: str = "") -> Table:
    """What the first of these keys that is there holds, which is a table."""
    known = data if isinstance(data, Mapping) else {}
    key = next((key for key in keys if key in known), keys[0])
    found = known.get(key)
    if not isinstance(found, Mapping):
        raise InputError(".".join(filter(None, (where, key))), _brief(found), "a table")
    return found


def _text(table: Table, key: str) -> str:
    if not isinstance(found := table.get(key), str):
        raise InputError(key, _brief(found), "text")
    return found


def _optional(table: Table, key: str, where: str = "") -> float | None:
    return None if table.get(key) is None else _number(table, key, where)


def _number(table: Table, key: str, where: str = "") -> float:
    found = table.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= _MOST:
        raise InputError(".".join(filter(None, (where, key))), _brief(found), "a number from 0 to 10^18")
    return float(found)
