"""What people call the fields that monitor.toml and the flags name; a field's own name stands in its help text."""

from collections.abc import Mapping

from monitor.health import RULES
from pages import _verdict

TARGET: Mapping[str, str] = {
    "name": "Name", "url": "Address", "group": "Group", "ca_file": "CA file", "labels": "Labels", "headers": "Headers",
    "verify": "Check its certificate",
}  # fmt: skip
EXPERIMENT: Mapping[str, str] = {
    "model": "Folder of the model", "kv_cache_dtypes": "KV dtypes to compare", "prompts": "Requests at once",
    "max_tokens": "Tokens generated for each", "max_model_len": "Longest request, tokens",
    "gpu_memory_utilization": "Share of the GPU's memory", "repeat": "Rounds", "port": "Port of the engine",
}  # fmt: skip
THRESHOLDS: Mapping[str, str] = {
    **{rule.lasts or f"{rule.key}_for": f"{rule.word}: for how long, s" for rule in RULES},
    "slo_for": "Slow tokens, first or others: for how long, s",
    "usage_alarm": "KV cache full: usage",
    "usage_act": "KV cache nearly full: usage",
    "preemptions_per_s": "Preempting: preemptions a second",
    "retention": "Recomputing: requests not preempted",
    "full_within": "Filling up: full within, s",
    "full_usage": "Filling up: least usage",
    "full_trend": "Filling up: trend over, s",
    "fragmentation": "Fragmented: slots without a token",
    "fragmentation_usage": "Fragmented: least usage",
    "fragmentation_running": "Fragmented: fewest requests",
    "jitter": "Jitter: p99 over mean",
    "throughput": "Throughput low: of the usual",
    "baseline_output_tokens_per_s": "Throughput low: the usual, tokens/s",
    "errors": "Failing requests: share",
    "rejections_per_s": "Refusing requests: refused a second",
    "http_errors": "HTTP errors: share",
    "ttft_p99": "Slow first token: p99 promised, s",
    "tpot_p99": "Slow tokens: p99 promised, s",
    "prefix_hit_rate": "Few prefix hits: share found",
    "band": "How far back before a finding ends",
    "window": "Window of rates and quantiles, s",
}
"""The word before the colon is the finding's."""


def explained(field: str, meaning: str) -> str:
    """The help text of a field."""
    return _verdict.escaped(f"`{field}`: {meaning}")
