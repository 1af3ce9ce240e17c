"""What the article says of observing and running a server (sections 5 and 6), held against vLLM 0.32 (2026-11)."""

from collections.abc import Iterator

from planner.article_memory import COMPRESSION, COST, LIVE, PLAN, planned, saving
from planner.claim import Claim, Judgement, exactly, figure
from planner.units import share

_BLOCK = 16  # tokens, the engine's default


def observing_claims() -> Iterator[Claim]:
    """Section 5. The names on the wire stand in the monitor's table of metrics."""
    usage = "KV cache usage is used over reserved capacity"
    yield Claim(
        id="5.1", case="name", text="The engine reports it under one short name.", where=LIVE, verdict=Judgement.WRONG,
        reason="That name never existed. The gauge had one name in the old engine and has another in the new; both are "
        "read here.",
    )  # fmt: skip
    yield Claim(
        id="5.1", case="alarm", text=f"{usage}: alarm above 0.95.", unit="ratio", claimed=0.95, where=LIVE,
        verdict=Judgement.OK, reason="A full pool preempts; the alarm needs a duration, not one scrape.",
    )  # fmt: skip
    yield Claim(
        id="5.1", case="act", text=f"{usage}: scale in above 0.90.", unit="ratio", claimed=0.90, where=LIVE,
        verdict=Judgement.WRONG, reason="The direction: fewer replicas make it worse. Scale out, or cap concurrency.",
    )  # fmt: skip
    length = 2048
    waste = _waste(length)
    yield figure(
        "5.2", "Fragmentation, the share of block space that holds no token: alarm above 0.3.", "ratio", 0.3, None,
        exactly(waste),
        f"No version reports it; it is estimated, and labelled so. A request wastes half a block on average: "
        f"{share(waste)} at {length:,} tokens in blocks of {_BLOCK}. 0.3 takes requests below "
        f"{_shortest(0.3):.0f} tokens.",
        LIVE, verdict=Judgement.WRONG,
    )  # fmt: skip
    yield Claim(
        id="5.3", text="KV hit rate should be near 1; below 0.99 much is computed again.", unit="ratio", claimed=0.99,
        where=LIVE, verdict=Judgement.IMPRECISE,
        reason="Two things in vLLM: requests preempted and computed again, which should be near 0, and prefix-cache "
        "hits, which depend on the load and have no right value.",
    )  # fmt: skip
    yield Claim(
        id="5.4", text="Latency jitter: P99 of decoding above twice the mean.", unit="ratio", claimed=2.0, where=LIVE,
        verdict=Judgement.OK,
        reason="Quantiles come from histogram buckets, so that P99 is an interval between two of their edges.",
    )  # fmt: skip
    yield Claim(
        id="5.5", text="Throughput is generated tokens a second; below 80 % of the baseline is a finding.",
        unit="ratio", claimed=0.8, where=LIVE, verdict=Judgement.OK,
        reason="The rate of a counter, which a restart sets back to 0. Little traffic looks the same: compare at "
        "equal load.",
    )  # fmt: skip
    text = "Prometheus scrapes the metrics page every 5 s; Grafana draws usage, latency and fragmentation."
    yield Claim(id="5.6", case="interval", text=text, unit="s", claimed=5, where=LIVE, verdict=Judgement.OK,
                reason="5 s shows a pool filling up; the page itself costs the engine little.")  # fmt: skip
    yield Claim(
        id="5.6", case="flag", text="A flag turns the metrics on.", where=LIVE, verdict=Judgement.WRONG,
        reason="No such flag is needed: the page is on by default and needs no key.",
    )  # fmt: skip


def advice_claims() -> Iterator[Claim]:
    """Section 6."""
    auto, eight = (planned(concurrency=59, kv_cache_dtype=name) for name in ("auto", "fp8"))
    assert auto.latency is not None
    assert eight.latency is not None
    faster = 1 - eight.latency.tpot_s.value / auto.latency.tpot_s.value
    yield Claim(
        id="6.1", where=COMPRESSION, verdict=Judgement.IMPRECISE,
        text="FP8 KV needs an H100 or MI300; on A100 it only saves space, and INT8 is not supported by vLLM.",
        reason=f"A100 stores FP8 and computes at 16 bits, but reading half the bytes helps too: {share(faster)} less "
        "time per output token planned at 59 streams. vLLM 0.32 has int8_per_token_head for devices without FP8.",
    )  # fmt: skip
    yield figure("6.2", "GQA and KV quantisation multiply: 32 to 8 heads and 8 bits.", "ratio", 0.875,
                 1 - (8 / 32) * (8 / 16), exactly(saving(8, "fp8")), "75 % by heads, half of the rest by bits. "
                 "Check quality above 8k context.", COMPRESSION)  # fmt: skip
    refused = planned(block_size=8).refusal
    yield figure(
        "6.3", "Block size: default 16; try 8 or 16.", "tokens", 16, None, exactly(_BLOCK),
        f"The default holds for this model, and half a block a request is lost: {share(_waste(2048))} at 2,048 tokens. "
        f"8 is out of date: {refused}", PLAN, verdict=Judgement.IMPRECISE,
    )  # fmt: skip
    yield Claim(
        id="6.4", where=COST, verdict=Judgement.OK,
        text="The GPU is not the whole cost, but the KV cache is the first lever on it.",
        reason="It sets the batch, and so the price a token (row 1.5); busy hours and the device's price can move it "
        "more.",
    )  # fmt: skip
    yield Claim(
        id="6.5", where=COMPRESSION, verdict=Judgement.OK,
        text="New models: GQA. Existing models: KV quantisation. Long context: watch accuracy, keep some layers "
        "unquantised.",
        reason="--kv-cache-dtype-skip-layers keeps named layers at 16 bits (vLLM 0.32).",
    )  # fmt: skip


def _waste(length: float) -> float:
    """Share of block space without a token when lengths end anywhere in a block: (b − 1)/2 tokens a request  [ratio].

    >>> round(_waste(2048), 5)
    0.00365
    """
    lost = (_BLOCK - 1) / 2
    return lost / (length + lost)


def _shortest(waste: float) -> float:
    """The length at which that share is lost  [tokens].

    >>> round(_shortest(0.3), 1)
    17.5
    """
    lost = (_BLOCK - 1) / 2
    return lost / waste - lost
