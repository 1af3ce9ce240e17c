"""THE table: everything we read from a vLLM server, under every name it has had, oldest version to newest.

Names and releases: read from the sources of 56 vLLM releases, 0.2.7 to 0.33.0, and from real pages (November 2026).
Names are as a server writes them; `slots` also knows them without `_total` and with Ray's prefixes.
"""

import re
from functools import lru_cache, partial
from typing import NamedTuple

Version = tuple[int, int, int]

NEWEST: Version = (0, 33, 0)
"""The newest release whose names were read."""
OPEN: Version = (999, 0, 0)
"""Last release of a name that is still reported."""


class Metric(NamedTuple):
    """One thing vLLM reports: our key, what it counts, its unit, and its names on the wire, newest first.

    `spans` are each name's first and last release. `label` names the label that splits it (reason, source, …).
    `needs` is what it takes to be reported (a flag, a feature). `scope` is "engine", or "server" for what is said once.
    """

    key: str
    kind: str
    unit: str
    names: tuple[str, ...]
    meaning: str
    spans: tuple[tuple[Version, Version], ...]
    label: str = ""
    needs: str = ""
    scope: str = "engine"

    @property
    def first(self) -> Version:
        return min(first for first, _ in self.spans)

    @property
    def last(self) -> Version:
        return max(last for _, last in self.spans)


class Slot(NamedTuple):
    """Where a sample belongs.

    metric  what it counts
    rank    of its name among the metric's, 0 the newest  [position]
    part    of a histogram: bucket, sum or count; else empty
    """

    metric: Metric
    rank: int
    part: str


def version(text: str) -> Version:
    """A release as numbers; what follows the third is left out.

    >>> version("0.5.3.post1"), version("0.32")
    ((0, 5, 3), (0, 32, 0))
    """
    numbers = [int(number) for number in re.findall(r"\d+", text)[:3]]
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major, minor, patch


METRICS: list[Metric] = []


def _row(kind: str, key: str, unit: str, history: str, meaning: str, **rest: str) -> Metric:
    """Add a row. `history` is "name first, older_name first-last"; no last: still so; no first: any version."""
    names, spans = [], []
    for entry in history.split(", "):
        name, _, span = entry.partition(" ")
        first, _, last = span.partition("-")
        names.append(name if kind == "config" or "scope" in rest else f"vllm:{name}")
        spans.append((version(first), version(last) if last else OPEN))
    metric = Metric(key, kind, unit, tuple(names), meaning, tuple(spans), **rest)
    METRICS.append(metric)
    return metric


_gauge, _counter, _histogram, _config = (partial(_row, kind) for kind in ("gauge", "counter", "histogram", "config"))
_SPECULATING = {"needs": "speculative decoding"}
_OFFLOADING = {"needs": "an offloading connector"}
_TIERS = {"needs": "an offloading connector with tiers"}
_SIMPLE = {"needs": "the simple CPU offloading connector"}
_HISPARSE = {"needs": "HiSparse"}
_TRANSFER = {"needs": "a NIXL or Mooncake connector"}
_STORE = {"needs": "the Mooncake store connector"}
_TRACING = {"needs": "--kv-cache-metrics"}
_SERVER = {"scope": "server"}

# fmt: off
# How it is now
KV_USAGE = _gauge("kv_usage", "ratio", "kv_cache_usage_perc 0.9.2, gpu_cache_usage_perc 0.2.7-0.11.2", "KV blocks held")
RUNNING = _gauge("running", "requests", "num_requests_running 0.2.7", "Requests in the batch")
WAITING = _gauge("waiting", "requests", "num_requests_waiting 0.2.7", "Requests queued in the engine")
WAITING_BY_REASON = _gauge("waiting_by_reason", "requests", "num_requests_waiting_by_reason 0.20.0", "Queued, and why",
                           label="reason")
KV_TOKEN_USAGE = _gauge("kv_token_usage", "ratio", "kv_cache_token_usage_perc", "KV token slots that hold a token")
SWAPPED = _gauge("swapped", "requests", "num_requests_swapped 0.2.7-0.9.0", "Requests swapped to CPU memory")
CPU_KV_USAGE = _gauge("cpu_kv_usage", "ratio", "cpu_cache_usage_perc 0.2.7-0.9.0", "CPU swap blocks in use")
PREFIX_HIT_RATE = _gauge("prefix_hit_rate", "ratio", "gpu_prefix_cache_hit_rate 0.5.5-0.9.0", "Prefix hits, averaged")
CPU_PREFIX_HIT_RATE = _gauge("cpu_prefix_hit_rate", "ratio", "cpu_prefix_cache_hit_rate 0.5.5-0.9.0", "On the CPU")
AVG_PROMPT_RATE = _gauge("avg_prompt_tokens_per_s", "tokens/s", "avg_prompt_throughput_toks_per_s 0.2.7-0.6.6",
                         "Prefill rate, as the engine averages")
AVG_OUTPUT_RATE = _gauge("avg_output_tokens_per_s", "tokens/s", "avg_generation_throughput_toks_per_s 0.2.7-0.6.6",
                         "Decode rate, as the engine averages")
SLEEP_STATE = _gauge("sleep_state", "flag", "engine_sleep_state 0.11.1", "Awake or not", label="sleep_state")
KV_FETCH = _gauge("kv_fetch_by_stage", "requests", "num_requests_kv_fetch_by_stage 0.32.0", "Requests fetching KV",
                  label="stage", needs="a KV connector that receives")
SPEC_ACCEPTANCE = _gauge("spec_acceptance_rate", "ratio", "spec_decode_draft_acceptance_rate 0.5.3-0.9.2",
                         "Draft tokens accepted", **_SPECULATING)
SPEC_EFFICIENCY = _gauge("spec_efficiency", "ratio", "spec_decode_efficiency 0.5.3-0.9.2", "Tokens of the possible",
                         **_SPECULATING)
OFFLOAD_USAGE = _gauge("offload_usage", "ratio", "kv_offload_cpu_cache_usage_perc 0.24.0", "Offload tier in use",
                       **_OFFLOADING)
OFFLOAD_USED_BLOCKS = _gauge("offload_used_blocks", "blocks", "simple_kv_offload_used_blocks 0.31.0",
                             "Offload blocks pinned", **_SIMPLE)
OFFLOAD_PENDING_BLOCKS = _gauge("offload_pending_blocks", "blocks", "simple_kv_offload_pending_store_blocks 0.31.0",
                                "Offload blocks not yet stored", **_SIMPLE)
HISPARSE_USAGE = _gauge("hisparse_usage", "ratio", "hisparse_host_cache_usage_perc 0.32.0", "Host KV cache in use",
                        **_HISPARSE)
LORA = _gauge("lora_adapters", "s", "lora_requests_info 0.6.4", "When these adapters last ran (Unix time)",
              label="running_lora_adapters", needs="--enable-lora")
START_TIME = _gauge("process_start_time_s", "s", "process_start_time_seconds", "When it started (Unix time)", **_SERVER)
RESIDENT_MEMORY = _gauge("process_resident_bytes", "bytes", "process_resident_memory_bytes", "Of the server", **_SERVER)

# How much since the start
PREEMPTIONS = _counter("preemptions_total", "preemptions", "num_preemptions_total 0.4.3", "Requests thrown back")
PROMPT_TOKENS = _counter("prompt_tokens_total", "tokens", "prompt_tokens_total 0.3.3", "Prompt tokens, cached ones too")
GENERATION_TOKENS = _counter("generation_tokens_total", "tokens", "generation_tokens_total 0.3.3", "Tokens generated")
PREFIX_QUERIES = _counter("prefix_queries_total", "tokens",
                          "prefix_cache_queries_total 0.9.2, gpu_prefix_cache_queries_total 0.7.3-0.11.2",
                          "Looked up in the prefix cache (blocks, not tokens, before 0.9.0)")
PREFIX_HITS = _counter("prefix_hits_total", "tokens",
                       "prefix_cache_hits_total 0.9.2, gpu_prefix_cache_hits_total 0.7.3-0.11.2",
                       "Found in the prefix cache (blocks, not tokens, before 0.9.0)")
EXTERNAL_QUERIES = _counter("external_prefix_queries_total", "tokens", "external_prefix_cache_queries_total 0.11.1",
                            "Looked up through a KV connector")
EXTERNAL_HITS = _counter("external_prefix_hits_total", "tokens", "external_prefix_cache_hits_total 0.11.1",
                         "Found through a KV connector")
MM_QUERIES = _counter("mm_queries_total", "items", "mm_cache_queries_total 0.11.1", "Media items looked up")
MM_HITS = _counter("mm_hits_total", "items", "mm_cache_hits_total 0.11.1", "Media items found")
FINISHED = _counter("requests_finished_total", "requests", "request_success_total 0.4.3", "Requests ended, and how",
                    label="finished_reason")
REJECTED = _counter("admission_rejections_total", "requests", "admission_rejections_total 0.32.0", "Refused at once",
                    label="reason")
CORRUPTED = _counter("corrupted_requests_total", "requests", "corrupted_requests_total 0.11.1", "NaN in the logits",
                     needs="VLLM_COMPUTE_NANS_IN_LOGITS=1")
PROMPT_BY_SOURCE = _counter("prompt_tokens_by_source_total", "tokens", "prompt_tokens_by_source_total 0.16.0",
                            "Prompt tokens, and whence", label="source")
PROMPT_CACHED = _counter("prompt_tokens_cached_total", "tokens", "prompt_tokens_cached_total 0.16.0", "Not computed")
CACHED_BY_SOURCE = _counter("prompt_tokens_cached_by_source_total", "tokens",
                            "prompt_tokens_cached_by_source_total 0.32.0",
                            "Prefix hits by tier", label="source")
FLOPS = _counter("estimated_flops_total", "FLOP", "estimated_flops_per_gpu_total 0.17.0",
                 "Work of one GPU (0 without --enable-mfu-metrics)")
READ_BYTES = _counter("estimated_read_bytes_total", "bytes", "estimated_read_bytes_per_gpu_total 0.17.0",
                      "Read by one GPU (0 without --enable-mfu-metrics)")
WRITE_BYTES = _counter("estimated_write_bytes_total", "bytes", "estimated_write_bytes_per_gpu_total 0.17.0",
                       "Written by one GPU (0 without --enable-mfu-metrics)")
SPEC_DRAFTS = _counter("spec_drafts_total", "drafts", "spec_decode_num_drafts_total 0.8.5", "Drafts", **_SPECULATING)
SPEC_DRAFT_TOKENS = _counter("spec_draft_tokens_total", "tokens", "spec_decode_num_draft_tokens_total 0.5.3",
                             "Tokens drafted", **_SPECULATING)
SPEC_ACCEPTED = _counter("spec_accepted_tokens_total", "tokens", "spec_decode_num_accepted_tokens_total 0.5.3",
                         "Draft tokens accepted", **_SPECULATING)
SPEC_ACCEPTED_BY_POSITION = _counter("spec_accepted_tokens_by_position_total", "tokens",
                                     "spec_decode_num_accepted_tokens_per_pos_total 0.8.5",
                                     "Draft tokens accepted, by place in the draft", label="position", **_SPECULATING)
SPEC_EMITTED = _counter("spec_emitted_tokens_total", "tokens", "spec_decode_num_emitted_tokens_total 0.5.3-0.9.2",
                        "Tokens emitted", **_SPECULATING)
OFFLOAD_STORED = _counter("offload_store_bytes_total", "bytes", "kv_offload_store_bytes_total 0.24.0",
                          "KV moved out of the GPU", **_OFFLOADING)
OFFLOAD_LOADED = _counter("offload_load_bytes_total", "bytes", "kv_offload_load_bytes_total 0.24.0", "KV brought back",
                          **_OFFLOADING)
OFFLOAD_BYTES = _counter("offload_bytes_total", "bytes", "kv_offload_total_bytes_total 0.16.0", "KV moved, whither",
                         label="transfer_type", **_OFFLOADING)
OFFLOAD_STORE_TIME = _counter("offload_store_s_total", "s", "kv_offload_store_time_total 0.24.0", "Time of moving out",
                              **_OFFLOADING)
OFFLOAD_LOAD_TIME = _counter("offload_load_s_total", "s", "kv_offload_load_time_total 0.24.0", "Time of bringing back",
                             **_OFFLOADING)
OFFLOAD_SKIPPED = _counter("offload_stores_skipped_total", "blocks", "kv_offload_stores_skipped_total 0.24.0",
                           "Not moved out: the tier was full", **_OFFLOADING)
OFFLOAD_FAILURES = _counter("offload_allocation_failures_total", "failures",
                            "kv_offload_allocation_failure_total 0.26.0", "No room in the tier", **_OFFLOADING)
TIER_READ = _counter("tier_read_bytes_total", "bytes", "kv_offload_tiering_read_bytes_total 0.28.0",
                     "KV read from a further tier", label="tier", **_TIERS)
TIER_WRITTEN = _counter("tier_write_bytes_total", "bytes", "kv_offload_tiering_write_bytes_total 0.28.0",
                        "KV written to a further tier", label="tier", **_TIERS)
TIER_QUERIES = _counter("tier_queries_total", "chunks", "kv_offload_tiering_chunk_queries_total 0.28.0",
                        "Looked up in a further tier", label="tier", **_TIERS)
TIER_HITS = _counter("tier_hits_total", "chunks", "kv_offload_tiering_chunk_hits_total 0.28.0",
                     "Found in a further tier", label="tier", **_TIERS)
OFFLOAD_LOADED_BLOCKS = _counter("offload_load_blocks_total", "blocks", "simple_kv_offload_load_blocks_total 0.31.0",
                                 "KV blocks brought back", **_SIMPLE)
OFFLOAD_SAVES = _counter("offload_saves_total", "blocks", "simple_kv_offload_save_outcomes_total 0.31.0",
                         "Blocks offered, and what became of them", label="outcome", **_SIMPLE)
HISPARSE_HITS = _counter("hisparse_hits_total", "pages", "hisparse_cache_hits_total 0.32.0", "Found on the GPU",
                         **_HISPARSE)
HISPARSE_MISSES = _counter("hisparse_misses_total", "pages", "hisparse_cache_misses_total 0.32.0", "Fetched from host",
                           **_HISPARSE)
TRANSFER_FAILURES = _counter("kv_transfer_failures_total", "transfers",
                             "mooncake_num_failed_transfers_total 0.33.0, nixl_num_failed_transfers_total 0.11.1",
                             "KV transfers that failed", **_TRANSFER)
KV_EXPIRED = _counter("kv_expired_requests_total", "requests",
                      "mooncake_num_kv_expired_reqs_total 0.33.0, nixl_num_kv_expired_reqs_total 0.16.0",
                      "KV given up: nobody fetched it", **_TRANSFER)
STORE_BYTES = _counter("kv_store_bytes_total", "bytes", "mooncake_store_operation_bytes_total 0.22.0",
                       "Moved to and from the store", label="operation", **_STORE)
STORE_FAILURES = _counter("kv_store_failed_keys_total", "keys", "mooncake_store_operation_failed_keys_total 0.22.0",
                          "Not moved", label="operation", **_STORE)
PROMPT_RECOMPUTED = _counter("prompt_tokens_recomputed_total", "tokens", "prompt_tokens_recomputed_total 0.16.0-0.19.0",
                             "Cached, yet computed again")
HTTP_REQUESTS = _counter("http_requests_total", "requests", "http_requests_total", "Answers by status class",
                         label="status", **_SERVER)

# How it went
TTFT = _histogram("ttft", "s", "time_to_first_token_seconds 0.3.3", "Arrival to first token")
TPOT = _histogram("tpot", "s",
                  "request_time_per_output_token_seconds 0.11.0, time_per_output_token_seconds 0.3.3-0.14.0",
                  "Time per output token, a request's mean (each gap before 0.11)")
ITL = _histogram("itl", "s", "inter_token_latency_seconds 0.10.2, time_per_output_token_seconds 0.3.3-0.14.0",
                 "Time between tokens, each gap")
E2E = _histogram("e2e", "s", "e2e_request_latency_seconds 0.3.3", "Arrival to last token")
QUEUE = _histogram("queue", "s", "request_queue_time_seconds 0.6.4, time_in_queue_requests 0.6.4-0.9.0", "Queued")
PREFILL = _histogram("prefill", "s", "request_prefill_time_seconds 0.6.4", "Scheduled to first token")
DECODE = _histogram("decode", "s", "request_decode_time_seconds 0.6.4", "First token to last")
INFERENCE = _histogram("inference", "s", "request_inference_time_seconds 0.6.4", "Scheduled to last token")
PROMPT_LENGTH = _histogram("prompt_length", "tokens", "request_prompt_tokens 0.4.3", "Prompts of finished requests")
OUTPUT_LENGTH = _histogram("output_length", "tokens", "request_generation_tokens 0.4.3", "Outputs of finished requests")
MAX_OUTPUT_LENGTH = _histogram("max_output_length", "tokens", "request_max_num_generation_tokens 0.6.4", "Longest of n")
MAX_TOKENS = _histogram("max_tokens", "tokens", "request_params_max_tokens 0.6.4", "Output asked for at most")
PARALLEL_SAMPLES = _histogram("parallel_samples", "samples", "request_params_n 0.4.3", "Outputs asked for")
PREFILL_COMPUTED = _histogram("prefill_computed_length", "tokens", "request_prefill_kv_computed_tokens 0.13.0",
                              "Prompts less what was cached")
STEP_TOKENS = _histogram("step_tokens", "tokens", "iteration_tokens_total 0.6.4", "Tokens of an engine step")
REQUEST_PREEMPTIONS = _histogram("request_preemptions", "preemptions", "request_num_preemptions 0.30.0", "Of a request")
BLOCK_LIFETIME = _histogram("block_lifetime", "s", "kv_block_lifetime_seconds 0.12.0", "A block, until reallocated",
                            **_TRACING)
BLOCK_IDLE = _histogram("block_idle", "s", "kv_block_idle_before_evict_seconds 0.12.0", "A block, until evicted",
                        **_TRACING)
BLOCK_REUSE = _histogram("block_reuse_gap", "s", "kv_block_reuse_gap_seconds 0.12.0", "Between touches", **_TRACING)

TRANSFER_TIME = _histogram("kv_transfer", "s", "mooncake_xfer_time_seconds 0.33.0, nixl_xfer_time_seconds 0.11.1",
                           "A KV transfer between servers", **_TRANSFER)
TRANSFER_BYTES = _histogram("kv_transfer_bytes", "bytes",
                            "mooncake_bytes_transferred 0.33.0, nixl_bytes_transferred 0.11.1",
                            "Of a KV transfer", **_TRANSFER)
OFFLOAD_LOOKUP = _histogram("offload_lookup", "s", "kv_offload_lookup_async_delay_seconds 0.26.0",
                            "Waited for the tier to answer", **_OFFLOADING)

# How it is configured: the labels of one constant series
CACHE_CONFIG = "vllm:cache_config_info"
NUM_GPU_BLOCKS = _config("num_gpu_blocks", "blocks", "num_gpu_blocks 0.3.3", "KV blocks, the null block among them")
BLOCK_SIZE = _config("block_size", "tokens", "block_size 0.3.3", "Tokens a block (the smallest, of several kinds)")
KV_CACHE_DTYPE = _config("kv_cache_dtype", "text", "cache_dtype 0.3.3", "auto is the model's own")
KV_CACHE_TOKENS = _config("kv_cache_size_tokens", "tokens", "kv_cache_size_tokens 0.24.0", "What the pool holds")
MAX_CONCURRENCY = _config("kv_cache_max_concurrency", "requests", "kv_cache_max_concurrency 0.24.0", "At full length")
ATTENTION_BLOCK = _config("effective_attention_block_size", "tokens", "effective_attention_block_size 0.31.0",
                          "Tokens a block of full attention")
BLOCKS_OVERRIDE = _config("num_gpu_blocks_override", "blocks", "num_gpu_blocks_override 0.3.3", "Blocks set by hand")
UTILIZATION = _config("gpu_memory_utilization", "ratio", "gpu_memory_utilization", "Share of the GPU's memory")
KV_MEMORY = _config("kv_cache_memory_bytes", "bytes", "kv_cache_memory_bytes 0.10.2", "KV memory set by hand")
PREFIX_CACHING = _config("enable_prefix_caching", "flag", "enable_prefix_caching", "On or off")
SLIDING_WINDOW = _config("sliding_window", "tokens", "sliding_window 0.3.3", "How far a layer looks back")
NUM_CPU_BLOCKS = _config("num_cpu_blocks", "blocks", "num_cpu_blocks 0.3.3", "Blocks of CPU swap")
OFFLOADING_SIZE = _config("kv_offloading_size", "GiB", "kv_offloading_size", "Offload tier")
# fmt: on

HISTOGRAMS = tuple(metric for metric in METRICS if metric.kind == "histogram")
CONFIG = tuple(metric for metric in METRICS if metric.kind == "config")

# What tells engines apart. Other labels are dropped; of series that then coincide (one a pid, …) the largest counts.
# `model` and `server` are what Triton's vLLM backend and vLLM's router write; ReplicaId and WorkerId are Ray's.
IDENTITY = ("engine", "model_name", "model", "server", "instance", "pod", "ReplicaId", "WorkerId")

ENGINES = {
    "vllm": re.compile(r"(?:ray_)?vllm[:_]"),
    "sglang": re.compile(r"(?:ray_)?sglang[:_]|sgl_router_"),
    "tgi": re.compile(r"tgi_"),
    "llamacpp": re.compile(r"llamacpp[:_]"),
    "trtllm": re.compile(r"trtllm[:_]|tensorrt_llm[:_]|nv_trt_llm_|nv_llm_(?!http_service)"),
    "lmdeploy": re.compile(r"lmdeploy[:_]"),
    "aphrodite": re.compile(r"aphrodite[:_]"),
    "lightllm": re.compile(r"lightllm_"),
    "max": re.compile(r"maxserve[:_.]"),
    "tei": re.compile(r"te_(?:request|embed|queue|batch)"),
    "nim": re.compile(r"num_request_max$"),
}
"""Which engine a metric name belongs to, by its prefix (NIM has none, but this name of its own)."""

AROUND = {
    "dynamo": re.compile(r"dynamo_|nv_llm_http_service"),
    "lmcache": re.compile(r"lmcache[:_]"),
    "aibrix": re.compile(r"aibrix[:_]"),
    "litellm": re.compile(r"litellm_"),
    "gateway": re.compile(r"inference_(?:pool|model|objective|extension)_"),
    "triton": re.compile(r"nv_inference_"),
}
"""What stands around engines, and often passes their metrics on: it names a page only where no engine does."""

FRONT_END = "http_request_duration_highr_seconds_bucket"
"""What vLLM's API server writes by itself (prometheus-fastapi-instrumentator), even with `--disable-log-stats`."""


@lru_cache(maxsize=4096)
def engine_of(name: str) -> str | None:
    """The engine, or what stands around it, whose prefix this name carries.

    >>> engine_of("ray_vllm_num_requests_running"), engine_of("sglang:token_usage"), engine_of("up")
    ('vllm', 'sglang', None)
    """
    return next((engine for engine, prefix in (*ENGINES.items(), *AROUND.items()) if prefix.match(name)), None)


def _stem(name: str) -> str:
    """The name without vLLM's or Ray's prefix and without `_total`, which Ray and old exporters leave out."""
    return re.sub(r"^(?:ray_)?vllm[:_]", "vllm:", name).removesuffix("_total")


def _slots_by_stem() -> dict[str, tuple[Slot, ...]]:
    found: dict[str, tuple[Slot, ...]] = {}
    for metric in METRICS:
        for rank, name in enumerate(metric.names if metric.kind != "config" else ()):
            parts = ("bucket", "sum", "count") if metric.kind == "histogram" else ("",)
            for part in parts:
                stem = _stem(f"{name}_{part}" if part else name)
                found[stem] = (*found.get(stem, ()), Slot(metric, rank, part))
    return found


_SLOTS = _slots_by_stem()


@lru_cache(maxsize=4096)
def slots(name: str) -> tuple[Slot, ...]:
    """Where a sample of this name belongs; nowhere for what we do not read (`_created`, other exporters' series).

    >>> [(slot.metric.key, slot.rank) for slot in slots("ray_vllm_gpu_cache_usage_perc")]
    [('kv_usage', 1)]
    >>> [(slot.metric.key, slot.part) for slot in slots("vllm:time_per_output_token_seconds_sum")]
    [('tpot', 'sum'), ('itl', 'sum')]
    """
    return _SLOTS.get(_stem(name), ())


@lru_cache(maxsize=4096)
def is_cache_config(name: str) -> bool:
    """Whether this is the series whose labels are the cache configuration, under whichever prefix."""
    return _stem(name) == CACHE_CONFIG
