"""The pages of tests/metrics, and short ones made by hand of names that older versions and other engines write."""

import gzip
from pathlib import Path

FOLDER = Path(__file__).parent / "metrics"
PAGES = sorted(path.name.removesuffix(".prom.gz") for path in FOLDER.glob("*.prom.gz"))


def page(name: str) -> str:
    return gzip.decompress((FOLDER / f"{name}.prom.gz").read_bytes()).decode()


V0_2_7 = """\
# HELP vllm:avg_prompt_throughput_toks_per_s Average prefill throughput in tokens/s.
# TYPE vllm:avg_prompt_throughput_toks_per_s gauge
vllm:avg_prompt_throughput_toks_per_s{model_name="llama"} 120.5
vllm:avg_generation_throughput_toks_per_s{model_name="llama"} 37.25
vllm:num_requests_running{model_name="llama"} 4
vllm:num_requests_swapped{model_name="llama"} 1
vllm:num_requests_waiting{model_name="llama"} 0
vllm:gpu_cache_usage_perc{model_name="llama"} 0.25
vllm:cpu_cache_usage_perc{model_name="llama"} 0.125
"""

# 3,000 of 11,560 blocks; prefix caching off
V0_5_5 = """\
vllm:cache_config_info{block_size="16",cache_dtype="fp8_e5m2",enable_prefix_caching="False",gpu_memory_utilization="0.9",\
num_cpu_blocks="2048",num_gpu_blocks="11560",num_gpu_blocks_override="None",sliding_window="None"} 1.0
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25951557093425603
vllm:cpu_cache_usage_perc{model_name="m"} 0.0
vllm:cpu_prefix_cache_hit_rate{model_name="m"} -1.0
vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1.0
vllm:num_preemptions_total{model_name="m"} 0.0
vllm:prompt_tokens_total{model_name="m"} 5.453083e+06
vllm:generation_tokens_total{model_name="m"} 155722.0
vllm:avg_prompt_throughput_toks_per_s{model_name="m"} 0.0
vllm:avg_generation_throughput_toks_per_s{model_name="m"} 0.0
vllm:request_success_total{finished_reason="stop",model_name="m"} 6193.0
vllm:request_success_total{finished_reason="abort",model_name="m"} 28.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 30.0
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 0.0
vllm:time_per_output_token_seconds_bucket{le="0.025",model_name="m"} 1000.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 1000.0
vllm:time_per_output_token_seconds_count{model_name="m"} 1000.0
"""

# V1 before it left the null block out of its gauge: (99 + 1)/1000. Prefix counters in blocks.
V0_8_5 = """\
# HELP vllm:gpu_prefix_cache_queries_total GPU prefix cache queries, in terms of number of queried blocks.
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 80.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 20.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.1
vllm:num_requests_running{engine="0",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"} 1.0
vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} 0.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 0.0
"""

RAY = """\
ray_vllm_num_requests_running{Component="core_worker",ReplicaId="a",WorkerId="w1",engine="0",model_name="m"} 3.0
ray_vllm_num_requests_running{Component="core_worker",ReplicaId="b",WorkerId="w2",engine="0",model_name="m"} 5.0
ray_vllm_kv_cache_usage_perc{Component="core_worker",ReplicaId="a",WorkerId="w1",engine="0",model_name="m"} 0.5
ray_vllm_kv_cache_usage_perc{Component="core_worker",ReplicaId="b",WorkerId="w2",engine="0",model_name="m"} 0.75
ray_vllm_generation_tokens{Component="core_worker",ReplicaId="a",WorkerId="w1",engine="0",model_name="m"} 100.0
"""

OTHERS = {
    "sglang": """\
sglang:num_running_reqs{model_name="qwen",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="qwen"} 2.0
sglang:token_usage{model_name="qwen"} 0.74
sglang:prompt_tokens_total{model_name="qwen"} 4882260.0
""",
    "tgi": "tgi_request_count 44\ntgi_queue_size 7\ntgi_batch_current_size 4\n",
    "llamacpp": "llamacpp:prompt_tokens_total 1024\nllamacpp:kv_cache_usage_ratio 0.25\nllamacpp:requests_deferred 1\n",
    "trtllm": 'trtllm_kv_cache_utilization{model_name="llama"} 0.62\ntrtllm_num_requests_running 3\n',
    "unknown": "node_load1 0.5\nnode_memory_free_bytes 1e9\n",
}
