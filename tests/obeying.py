"""Pages of a made-up server that does exactly what it is told: requests of a known length, so many a second."""

from collections.abc import Iterable

from monitor.reading import read
from monitor.snapshot import Snapshot

INPUT, OUTPUT, GAP = 300, 100, 0.02
"""Of each request, in tokens; and between two of its tokens, in seconds."""
_LABELS = 'engine="0",model_name="demo/tiny-llama"'
_COUNTERS = {"prompt_tokens_total": INPUT, "generation_tokens_total": OUTPUT, "num_preemptions_total": 0}
_HISTOGRAMS = {  # observations a request, what is observed, bounds
    "inter_token_latency_seconds": (OUTPUT - 1, GAP, (0.01, 0.025, 0.1)),
    "request_prompt_tokens": (1, INPUT, (100, 200, 500)),
    "request_generation_tokens": (1, OUTPUT, (50, 100, 200)),
    "time_to_first_token_seconds": (1, 0.1, (0.05, 0.25, 1.0)),
    "request_queue_time_seconds": (1, 0.0, (0.3, 1.0)),
}


def page(requests: float, gap: float = GAP) -> str:
    """What it says after so many requests; `gap` is the mean of all gaps until now [s]."""
    counters = {**_COUNTERS, "prefix_cache_queries_total": INPUT, "prefix_cache_hits_total": INPUT / 4}
    lines = [f"vllm:{name}{{{_LABELS}}} {each * requests}" for name, each in counters.items()]
    lines.append(f'vllm:request_success_total{{{_LABELS},finished_reason="length"}} {requests}')
    lines.append(f'vllm:cache_config_info{{{_LABELS},block_size="128",cache_dtype="auto",num_gpu_blocks="4096"}} 1')
    lines += [f"vllm:num_requests_{state}{{{_LABELS}}} 0" for state in ("running", "waiting")]
    for name, (each, value, bounds) in _HISTOGRAMS.items():
        seen, mean = each * requests, gap if name == "inter_token_latency_seconds" else value
        for bound in (*bounds, float("inf")):
            counted = seen if mean <= bound else 0.0
            le = "+Inf" if bound == float("inf") else bound
            lines.append(f'vllm:{name}_bucket{{{_LABELS},le="{le}"}} {counted}')
        lines += [f"vllm:{name}_count{{{_LABELS}}} {seen}", f"vllm:{name}_sum{{{_LABELS}}} {seen * mean}"]
    return "\n".join(lines) + "\n"


def history(rates: Iterable[float], seconds: float, start: float = 1.79e9) -> tuple[Snapshot, ...]:
    """A page at the start, and one after each stretch of so many seconds at that many requests a second."""
    pages, requests, at = [page(0)], 0.0, [start]
    for each in rates:
        requests += each * seconds
        pages.append(page(requests))
        at.append(at[-1] + seconds)
    return tuple(read(text, at=then, wall=then) for text, then in zip(pages, at, strict=True))
