"""A plan in words: lines for a terminal, and a Markdown report for a review, both from the plan's figures."""

from collections.abc import Iterator

from planner import units
from planner.latency import Range
from planner.plan import Plan
from planner.record import figures


def lines(made: Plan) -> Iterator[str]:
    """The plan for a terminal: verdict first, then what explains it."""
    yield f"{made.verdict.word}. {made.verdict.reason} {made.verdict.action}".rstrip()
    yield f"  {made.inputs}"
    yield from (f"  {name:<30} {value}" for name, value in _rows(made))
    yield from (f"  assumed: {each}" for each in made.assumptions)
    yield made.deployment.serve_command(made.model.name)


def report(made: Plan) -> str:
    """The plan as Markdown: verdict, inputs, figures with ranges, the memory budget with its formulas, the command."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in _rows(made))
    parts = "\n".join(
        f"| {part.name} | {units.memory(part.value)} | {part.formula} | {part.source} |"
        for part in (made.budget.parts if made.budget else ())
    )
    assumed = "\n".join(f"- {each}" for each in made.assumptions) or "- nothing"
    return (
        f"# {made.verdict.word}: {made.model.name}\n\n{made.verdict.reason} {made.verdict.action}\n\n{made.inputs}\n\n"
        f"## Figures\n\n| Figure | Value |\n|---|---|\n{rows}\n\n"
        f"## Memory of one GPU\n\n| Part | Memory | Formula | Source |\n|---|---|---|---|\n{parts}\n\n"
        f"## Assumed\n\n{assumed}\n\n"
        f"## Command\n\n```bash\n{made.deployment.serve_command(made.model.name)}\n```\n"
    )


def _rows(made: Plan) -> Iterator[tuple[str, str]]:
    found = figures(made)
    if made.budget is not None:
        yield "weights a rank", units.memory(found["weight_bytes_per_rank"])
        yield "available for the KV cache", units.memory(found["available_kv_bytes"])
    if made.layout is not None:
        yield "KV cache a token", units.memory(found["bytes_per_token"])
        stored = units.memory(found["request_stored_bytes"])
        yield "KV cache a request", f"{units.memory(found['request_bytes'])} charged, {stored} stored"
        yield "block size", units.count(found["block_size"], "tokens")
    if made.capacity is not None:
        yield "blocks", units.count(found["num_gpu_blocks"])
        yield "KV cache size", units.count(found["kv_cache_size_tokens"], "tokens")
        yield "concurrency at max_model_len", f"{found['max_concurrency']:,.2f}"
        yield "requests of the load at once", units.count(made.streams)
        yield "longest request that fits", units.count(made.longest_max_model_len, "tokens")
    speed, price = made.latency, made.cost
    if speed is not None:
        yield "time to first token", _with_range(speed.ttft_s, units.duration)
        yield "time per output token", _with_range(speed.tpot_s, units.duration)
        yield "floor of it", units.duration(speed.floor_tpot_s)
        yield "output tokens/s", _with_range(speed.output_tokens_per_s, units.count)
    if price is not None:
        yield "dollars an hour", units.usd(price.usd_per_hour)
        yield "a million output tokens", _with_range(price.usd_per_million_output_tokens, units.usd)
        yield "a million input tokens", _with_range(price.usd_per_million_input_tokens, units.usd)


def _with_range(value: Range, form: units.Formatter) -> str:
    return f"{form(value.value)} ({form(value.low)} to {form(value.high)})"
