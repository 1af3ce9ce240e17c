"""What the article says of memory, compression and its experiment (sections 1 to 3), each figure worked out again."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from planner.catalog.models import model_named
from planner.claim import Claim, Judgement, exactly, figure
from planner.deployment import Deployment
from planner.families import model_spec
from planner.gpu import gpu_named
from planner.kv_layout import KvLayout, kv_layout
from planner.latency import Range
from planner.model import ModelSpec
from planner.plan import Plan, plan
from planner.price import prices
from planner.units import GB, GIB, MIB, count, memory, share, usd
from planner.weights import parameters
from planner.workload import Workload

PLAN, COMPRESSION, COST, LIVE, COMPARE = "Plan capacity", "Compression", "Cost", "Live", "Planned vs actual"
USD_PER_HOUR = 4.0  # what the article pays for one A100-80GB
_SEQUENCES, _LENGTH = 8, 4096  # its batch and its context


@cache
def planned(model: str = "llama-3-8b", **inputs: Any) -> Plan:
    """The article's model on the article's device, under its load; inputs are fields of Deployment or Workload."""
    load = {name: inputs.pop(name) for name in ("input_tokens", "output_tokens", "concurrency") if name in inputs}
    return plan(model_named(model), Deployment(gpu=gpu_named("A100-SXM-80GB"), **inputs), Workload(**load),
                usd_per_gpu_hour=USD_PER_HOUR)  # fmt: skip


def memory_claims() -> Iterator[Claim]:
    """Section 1."""
    layers, heads, size = 32, 32, 128
    of_head = 2 * _LENGTH * size * 2
    batch = of_head * layers * heads * _SEQUENCES
    llama = _layout(model_named("llama-2-7b"))
    real = _SEQUENCES * llama.request_bytes(_LENGTH)
    yield Claim(
        id="1.1", where=PLAN, verdict=Judgement.OK,
        text="KV bytes = batch × layers × KV heads × 2 × tokens × head size × bytes an element.",
        reason="Right with the number of KV heads, not of query heads, which row 4.2 confuses. vLLM rounds a request "
        "up to whole blocks and treats windows, latent attention and recurrent layers differently.",
    )  # fmt: skip
    text = "Llama-7B, 8 sequences of 4,096 tokens at 16 bits"
    yield figure(
        "1.2", text, "bytes", 2 * MIB, of_head, exactly(llama.bytes_per_token * _LENGTH / layers / heads),
        "2 × 4,096 tokens × 128 × 2 bytes.", PLAN, "one sequence, one head, one layer",
    )  # fmt: skip
    yield figure("1.2", text, "MiB", 16_384, batch / MIB, exactly(real / MIB),
                 "2 MiB × 32 layers × 32 heads × 8 sequences.", PLAN, "all")  # fmt: skip
    yield figure(
        "1.2", text, "MB", 16_777, round(batch / 1024 / 1000), exactly(real / 1e6),
        f"The same {batch:,} bytes divided once by 1,024 and once by 1,000: neither MiB nor MB.", PLAN,
        "all, printed as MB",
    )  # fmt: skip
    eight = _layout(model_named("llama-2-7b"), "fp8")
    yield figure("1.3", "FP8 halves the KV cache.", "GiB", 8, batch / 2 / GIB,
                 exactly(_SEQUENCES * eight.request_bytes(_LENGTH) / GIB), "One byte an element in place of two.",
                 COMPRESSION, "FP8")  # fmt: skip
    yield figure("1.3", "Twice the context takes twice the memory.", "ratio", 2, 2.0,
                 exactly(llama.request_bytes(2 * _LENGTH) / llama.request_bytes(_LENGTH)),
                 "Every token keeps its keys and values; only windows bound that.", PLAN, "context")  # fmt: skip
    yield from _seventy_billion(batch)
    yield _chain()
    quoted = prices(gpu_named("A100-SXM-80GB"))
    assert quoted is not None
    for claimed, case in ((3.0, "least"), (5.0, "most")):
        yield figure(
            "1.6", "An A100-80GB costs $3 to $5 an hour.", "dollars/hour", claimed, None,
            Range(quoted.median, quoted.low, quoted.high),
            f"An input, not a result: {len(quoted.quotes)} on-demand quotes of 2026 span {usd(quoted.low)} to "
            f"{usd(quoted.high)}. Your own price comes first.", COST, case, verdict=Judgement.IMPRECISE,
        )  # fmt: skip


def _seventy_billion(small_batch: int) -> Iterator[Claim]:
    text = "A 70B model on one A100-80GB: about 35 GB of weights, and 8 sequences of 4,096 tokens fill the other 40 GB."
    model = model_named("llama-3-70b")
    sixteen = 2 * parameters(model).total / GB
    yield figure(
        "1.4", text, "GB", 35, 70e9 / 2 / GB, exactly(sixteen),
        f"Half a byte a parameter is a 4-bit checkpoint, which is not said; at 16 bits it is {sixteen:.0f} GB and "
        "needs more than one card.", PLAN, "weights", verdict=Judgement.IMPRECISE,
    )  # fmt: skip
    kv = _SEQUENCES * _layout(model).request_bytes(_LENGTH) / GIB
    full = _SEQUENCES * _layout(_changed(model, num_key_value_heads=64)).request_bytes(_LENGTH) / GIB
    yield figure(
        "1.4", text, "GiB", 40, small_batch * 80 / 32 / GIB, exactly(kv),
        f"40 comes out as the 7B batch with 80 layers in place of 32. The 70B models of Llama have 8 KV heads: "
        f"{kv:.0f} GiB; with all 64 heads it would be {full:.0f} GiB.", PLAN, "KV cache",
    )  # fmt: skip


def _chain() -> Claim:
    """Row 1.5 with numbers: the same server with an eighth of the pool."""
    large = planned(max_num_seqs=1024)
    small = planned(max_num_seqs=1024, kv_cache_memory_bytes=large.pool_bytes // 8)
    told = []
    for each in (large, small):
        assert each.latency is not None
        assert each.cost is not None
        rate, price = each.latency.output_tokens_per_s.value, each.cost.usd_per_million_output_tokens.value
        pool, run = memory(each.pool_bytes), count(each.streams, "requests")
        told.append(f"{pool} of KV pool run {run}, {count(rate, 'tokens/s')}, {usd(price)} a million output tokens")
    return Claim(
        id="1.5", where=COST, verdict=Judgement.OK,
        text="A request costs its prefill and its decoding; too little memory means smaller batches, an idler GPU and "
        "a higher price a token.",
        reason=f"Llama-3-8B at $4 an hour: {told[0]}; {told[1]}.",
    )  # fmt: skip


def compression_claims() -> Iterator[Claim]:
    """Section 2: savings are of KV bytes a token against 32 heads at 16 bits."""
    yield figure("2.1", "MQA, one KV head for all query heads: saves H times.", "ratio", 0.969,
                 round(1 - 1 / 32, 3), exactly(saving(1)),
                 "1 − 1/32. The model must be trained for it, and long contexts suffer first; tensor "
                 "parallelism then copies the one head to every rank.", COMPRESSION)  # fmt: skip
    yield figure("2.2", "GQA, 32 to 8 KV heads.", "ratio", 0.75, 1 - 8 / 32, exactly(saving(8)),
                 "1 − 8/32. A property of the model, not a flag.", COMPRESSION)  # fmt: skip
    halved = exactly(1 / (1 - saving(32, "fp8")))
    scaled = 1 / (1 - saving(32, "int8_per_token_head"))
    text = "KV quantisation to 8 bits"
    yield figure("2.3", text, "times", 2, 16 / 8, halved,
                 f"8 of 16 bits. Scales a token and head cost a little: int8_per_token_head saves {scaled:.2f} times.",
                 COMPRESSION, "INT8 or FP8 against FP16")  # fmt: skip
    yield figure("2.3", text, "times", 4, 32 / 8, halved,
                 "8 of 32 bits: four times holds against FP32, in which nobody keeps a KV cache. Against 16 bits it "
                 "takes 4-bit KV.", COMPRESSION, "FP8, called four times")  # fmt: skip
    yield Claim(
        id="2.3", case="quality", text="KV quantisation loses about 0.1 point.", where=COMPRESSION,
        verdict=Judgement.IMPRECISE,
        reason="No law: it depends on model, scales and context length. Measure your own task, most of all above 8k.",
    )  # fmt: skip
    yield Claim(
        id="2.4", text="Pruning or dropping tokens saves up to 50 %, with quality hard to control.", unit="ratio",
        claimed=0.5, reproduced=1 - 0.5, verdict=Judgement.IMPRECISE, where=COMPRESSION,
        reason="The share kept is chosen, not found: saving = 1 − kept, and windows save more. vLLM frees whole blocks "
        "only and has no flag that drops tokens of an ordinary model.",
    )  # fmt: skip
    yield figure("2.5", "GQA 32 to 8 heads, then 8-bit KV.", "ratio", 0.875, 1 - (8 / 32) * (8 / 16),
                 exactly(saving(8, "fp8")),
                 "The two multiply: 1/4 × 1/2 = 1/8. Check quality above 8k context.", COMPRESSION)  # fmt: skip


def experiment_claims() -> Iterator[Claim]:
    """Section 3: the same model twice in vLLM, KV dtype auto and fp8."""
    load = {"input_tokens": 8, "output_tokens": 512, "concurrency": 64}
    flags = {"max_model_len": 8192, "gpu_memory_utilization": 0.9}
    auto, eight = planned(**load, **flags), planned(**load, **flags, kv_cache_dtype="fp8")
    tokens = [each.capacity[0].kv_cache_size_tokens for each in (auto, eight) if each.capacity]
    yield figure("3.1", "At the same utilisation FP8 holds twice the tokens.", "times", 2, 16 / 8,
                 exactly(tokens[1] / tokens[0]), f"Planned for Llama-3-8B on A100-80GB: {tokens[0]:,} and "
                 f"{tokens[1]:,} tokens.", PLAN)  # fmt: skip
    assert auto.latency is not None
    assert eight.latency is not None
    more = eight.latency.tpot_s.value / auto.latency.tpot_s.value - 1
    word = "longer" if more > 0 else "shorter"
    asked = 64 * sum((load["input_tokens"], load["output_tokens"]))
    yield figure(
        "3.2", "P95 latency with FP8 is no more than 3 % worse.", "ratio", 0.03, None, exactly(more),
        f"An expectation, not a result. Planned is the mean time per output token, which is {share(abs(more))} {word} "
        f"on an A100. The test's 64 requests need {asked:,} KV tokens of {tokens[0]:,}: memory is never short in it.",
        COMPARE, verdict=Judgement.IMPRECISE,
    )  # fmt: skip


def saving(heads: int, kv_cache_dtype: str = "auto") -> float:
    """Of the bytes a token of a model with 32 KV heads at 16 bits, left with so many heads in this KV dtype  [ratio].

    >>> saving(8), saving(8, "fp8")
    (0.75, 0.875)
    """
    model = model_named("llama-2-7b")
    small = _layout(_changed(model, num_key_value_heads=heads), kv_cache_dtype)
    return 1 - small.bytes_per_token / _layout(model).bytes_per_token


def _layout(model: ModelSpec, kv_cache_dtype: str = "auto") -> KvLayout:
    return kv_layout(model, Deployment(gpu=gpu_named("A100-SXM-80GB"), kv_cache_dtype=kv_cache_dtype))


def _changed(model: ModelSpec, **keys: Any) -> ModelSpec:
    """The same model with other keys in its config."""
    return model_spec({**model.wrapper, **keys}, model.name)
