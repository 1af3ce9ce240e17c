"""Methods that shrink the KV cache: what each changes, what it costs, and how one gets it in vLLM.

Figures of quality are those of the source beside them, read 2026-11-29; releases are those of vLLM's release notes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count
from typing import NamedTuple, TypeGuard

from planner.deployment import Deployment
from planner.model import MLA, Attention, Mixer, ModelSpec
from planner.workload import Workload

FLAG, CHECKPOINT, ABSENT = "flag", "checkpoint", "absent"  # how vLLM comes to do it
OFFLOADED = 64.0  # host memory assumed for offloading  [GiB]
HITS = 0.5  # share of prompt tokens assumed to be found in the prefix cache


class Subject(NamedTuple):
    """What a method changes.

    model       its heads, windows and shared layers
    deployment  its flags
    workload    the load
    keep        share of a request's cache that is stored, where vLLM has no such thing  [ratio]
    """

    model: ModelSpec
    deployment: Deployment
    workload: Workload
    keep: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method.

    key         its name in a stack and in the URL
    name        its name in a table
    kind        heads, dtype, tokens, layers, mixed, host or reuse: a stack holds at most one of each
    principle   what it does
    apply       the subject after it
    quality     what it costs in answers
    source      of those figures
    training    what the model needs first
    difficulty  of putting it in production
    support     flag, checkpoint (the model decides, no flag does) or absent
    since       vLLM release that first did it, where a flag does
    flag        what to set
    """

    key: str
    name: str
    kind: str
    principle: str
    apply: Callable[[Subject], Subject]
    quality: str
    source: str
    training: str = "none"
    difficulty: str = "low: one flag"
    support: str = FLAG
    since: str = ""
    flag: str = ""


def _remixed(subject: Subject, change: Callable[[int, Attention], Mixer]) -> Subject:
    """The subject with every attention mixer changed, each given its place among them."""
    places = count()
    layers = tuple(
        replace(layer, mixers=tuple(change(next(places), m) if _grows(m) else m for m in layer.mixers))
        for layer in subject.model.layers
    )
    return subject._replace(model=_known(replace(subject.model, layers=layers)))


def _grows(mixer: Mixer) -> TypeGuard[Attention]:
    return isinstance(mixer, Attention) and not mixer.cross


@lru_cache(maxsize=256)
def _known(model: ModelSpec) -> ModelSpec:
    """The first model equal to this one, so that what is remembered by model is found again."""
    return model


def with_kv_heads(most: int, subject: Subject) -> Subject:
    """At most so many KV heads a layer: the largest number that divides the query heads.

    32 KV heads to 8 stores a quarter, to 1 a 32nd (Ainslie et al. 2023, Shazeer 2019).
    """

    def grouped(_: int, mixer: Attention) -> Mixer:
        queries, own = mixer.num_attention_heads, mixer.num_key_value_heads
        heads = next(count for count in range(min(most, own), 0, -1) if queries % count == 0)
        return replace(mixer, num_key_value_heads=heads)

    return _remixed(subject, grouped)


def with_all_heads(subject: Subject) -> Subject:
    """Every query head with a key and a value of its own, as before GQA and MLA."""

    def spread(mixer: Mixer) -> Mixer:
        if not isinstance(mixer, MLA):
            return mixer
        heads, size = mixer.num_attention_heads, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        return Attention(num_attention_heads=heads, num_key_value_heads=heads, head_dim=size,
                         v_head_dim=mixer.v_head_dim)  # fmt: skip

    layers = tuple(replace(layer, mixers=tuple(map(spread, layer.mixers))) for layer in subject.model.layers)
    model = replace(subject.model, layers=layers)
    return _remixed(
        subject._replace(model=model), lambda _, mixer: replace(mixer, num_key_value_heads=mixer.num_attention_heads)
    )


def with_latents(subject: Subject) -> Subject:
    """Latent attention in DeepSeek-V2's proportions: a latent of 4 heads' size, a rotary key of half a head's."""
    return _remixed(
        subject,
        lambda _, mixer: MLA(
            num_attention_heads=mixer.num_attention_heads,
            q_lora_rank=None,
            kv_lora_rank=4 * mixer.head_dim,
            qk_nope_head_dim=mixer.head_dim,
            qk_rope_head_dim=mixer.head_dim // 2,
            v_head_dim=mixer.v_head_dim,
        ),
    )


def with_windows(window: int, full_every: int, subject: Subject) -> Subject:
    """A window in every attention layer, but for one in full_every that sees all; 0 for a window in each."""

    def windowed(place: int, mixer: Attention) -> Mixer:
        if mixer.attention_chunk_size or (full_every and (place + 1) % full_every == 0):
            return mixer
        return replace(mixer, sliding_window=min(window, mixer.sliding_window or window))

    return _remixed(subject, windowed)


def with_shared_layers(subject: Subject) -> Subject:
    """Every second attention layer reads the cache of the one before it (CLA2)."""
    return _remixed(subject, lambda place, mixer: replace(mixer, kv_shared=mixer.kv_shared or place % 2 == 1))


def cached_once(window: int, subject: Subject) -> Subject:
    """The lower half of the attention layers sees a window; the upper half shares one cache of all tokens (YOCO)."""
    half = sum(_grows(mixer) for mixer in subject.model.mixers) // 2

    def once(place: int, mixer: Attention) -> Mixer:
        lower = replace(mixer, sliding_window=window)
        return lower if place < half else replace(mixer, sliding_window=None, kv_shared=place > half)

    return _remixed(subject, once)


def with_dtype(name: str, subject: Subject) -> Subject:
    """Keys and values stored in another dtype."""
    return subject._replace(deployment=replace(subject.deployment, kv_cache_dtype=name))


def with_unquantized(named: Callable[[ModelSpec], tuple[str, ...]], subject: Subject) -> Subject:
    """Some layers left in 16 bits."""
    layers = named(subject.model)
    return subject._replace(deployment=replace(subject.deployment, kv_cache_dtype_skip_layers=layers))


def with_tokens(kept: Callable[[Workload], float], subject: Subject) -> Subject:
    """Only some tokens kept: a share of what was, for a request of the load's full length."""
    return subject._replace(keep=subject.keep * min(1.0, kept(subject.workload)))


def offloaded(gib: float, subject: Subject) -> Subject:
    """Blocks that leave the GPU go to host memory and come back for a request that needs them."""
    return subject._replace(deployment=replace(subject.deployment, kv_offloading_size=gib))


def reused(hits: float, subject: Subject) -> Subject:
    """Prompts found in the prefix cache, for at least this share of their tokens."""
    load = replace(subject.workload, prefix_hit_ratio=max(hits, subject.workload.prefix_hit_ratio))
    return subject._replace(deployment=replace(subject.deployment, enable_prefix_caching=True), workload=load)


def ends(model: ModelSpec) -> tuple[str, ...]:
    """The first two and the last two layers, by number."""
    last = len(model.layers)
    return tuple(str(index) for index in sorted({*range(min(2, last)), *range(max(0, last - 2), last)}))


def _quantized(key: str, name: str, principle: str, quality: str, source: str, since: str) -> Method:
    return Method(key=key, name=name, kind="dtype", principle=principle, apply=partial(with_dtype, key),
                  quality=quality, source=source, since=since, flag=f"--kv-cache-dtype {key}")  # fmt: skip


def _evicting(key: str, name: str, principle: str, kept: Callable[[Workload], float], quality: str, source: str,
              difficulty: str = "high: custom kernels and cache manager") -> Method:  # fmt: skip
    return Method(key=key, name=name, kind="tokens", principle=principle, apply=partial(with_tokens, kept),
                  quality=quality, source=source, difficulty=difficulty, support=ABSENT)  # fmt: skip


_PRETRAINED = {"training": "pretraining", "difficulty": "high: a new model", "support": CHECKPOINT}
_GSM8K = "https://github.com/vllm-project/vllm/pull/40633 (Qwen3.5-35B-A3B, GSM8K 5-shot, ± 0.02)"
_STUDY = "vLLM 0.32 quantization/turboquant/config.py; study of vLLM, 2026-05-11, https://vllm.ai/blog/turboquant"
_SINKS, _RECENT = 4, 1_020
_SNAPPED = 1_024

METHODS: tuple[Method, ...] = (
    Method(key="mha", name="MHA", kind="heads", principle="a KV head for each query head: the start of the comparison",
           apply=with_all_heads, quality="the reference", source="Vaswani et al. 2017, arXiv:1706.03762",
           **_PRETRAINED),
    Method(key="gqa8", name="GQA, 8 KV heads", kind="heads", principle="a KV head for each group of query heads",
           apply=partial(with_kv_heads, 8), quality="close to multi-head after 5 % of the pretraining compute",
           source="Ainslie et al. 2023, arXiv:2305.13245", training="uptraining or pretraining",
           difficulty="high: a new checkpoint", support=CHECKPOINT),
    Method(key="mqa", name="MQA", kind="heads", principle="one KV head for all query heads",
           apply=partial(with_kv_heads, 1), quality="minor degradation; fine-tuning on long inputs can be unstable",
           source="Shazeer 2019, arXiv:1911.02150; Ainslie et al. 2023, arXiv:2305.13245",
           training="uptraining or pretraining", difficulty="high: a new checkpoint", support=CHECKPOINT),
    Method(key="mla", name="MLA", kind="heads", principle="one latent and one rotary key a token for all heads",
           apply=with_latents, quality="above multi-head in the paper's ablation; 93.3 % less cache than DeepSeek 67B",
           source="DeepSeek-V2 2024, arXiv:2405.04434", **_PRETRAINED),
    _quantized("fp8", "FP8", "8-bit floats, one scale a tensor: half of 16 bits, never a quarter",
               "94 to 99 % of the 16-bit scores; calibrate the scales for long context",
               "The State of FP8 KV-Cache in vLLM, 2026-04-22, https://vllm.ai/blog/fp8-kvcache", ""),
    _quantized("int8_per_token_head", "INT8 per token and head", "8-bit integers, a scale a token, head and side",
               "GSM8K 0.916 beside 0.928 in 16 bits: within the error", _GSM8K, "0.20.0"),
    _quantized("fp8_per_token_head", "FP8 per token and head", "8-bit floats, a scale a token, head and side",
               "GSM8K 0.924 beside 0.928 in 16 bits: within the error", _GSM8K, "0.20.0"),
    _quantized("int4_per_token_head", "INT4 per token and head", "4-bit integers, scales as INT8's",
               "GSM8K 0.912 beside 0.928 in 16 bits: within the error; measure long context yourself",
               "https://github.com/vllm-project/vllm/pull/40835 (Qwen3.5-35B-A3B, GSM8K 5-shot, ± 0.03)", "0.25.0"),
    _quantized("nvfp4", "NVFP4", "4-bit floats, an FP8 scale for each 16",
               "under 1 % lost in code, knowledge and long context",
               "NVIDIA, 2025-12-08, Optimizing Inference with NVFP4 KV Cache", "0.21.0"),
    _quantized("turboquant_k8v4", "TurboQuant k8v4", "FP8 keys, 4-bit values; two layers at each end in 16 bits",
               "perplexity + 1.17 %; slower than FP8 for little more room", _STUDY, "0.20.0"),
    _quantized("turboquant_4bit_nc", "TurboQuant 4 bit", "4-bit keys and values; two layers at each end in 16 bits",
               "perplexity + 2.71 %; 1 to 4 points lost", _STUDY, "0.20.0"),
    _quantized("turboquant_k3v4_nc", "TurboQuant k3v4", "3-bit keys, 4-bit values; two layers at each end in 16 bits",
               "perplexity + 10.6 %; about 20 points lost in AIME25", _STUDY, "0.20.0"),
    _quantized("turboquant_3bit_nc", "TurboQuant 3 bit", "3-bit keys and values; two layers at each end in 16 bits",
               "perplexity + 20.6 %; about 20 points lost in AIME25", _STUDY, "0.20.0"),
    _evicting("prune50", "Pruning, half kept", "half of the tokens or values dropped", lambda load: 0.5,
              "not controllable: some tasks lose nothing, others much", "Michel et al. 2019, arXiv:1905.10650"),
    _evicting("streaming_llm", "StreamingLLM", f"{_SINKS} first and {_RECENT:,} last tokens kept",
              lambda load: (_SINKS + _RECENT) / load.tokens,
              "stable over 4 million tokens, but what left the window is gone", "Xiao et al. 2023, arXiv:2309.17453"),
    _evicting("h2o", "H2O, 20 % kept", "the tokens with most attention and the last ones kept", lambda load: 0.2,
              "near the full cache in the paper's tasks at 20 %; retrieval from the middle suffers",
              "Zhang et al. 2023, arXiv:2306.14048"),
    _evicting("snapkv", "SnapKV, 1,024 kept", f"{_SNAPPED:,} prompt tokens kept, chosen at the end of the prompt",
              lambda load: (min(_SNAPPED, load.input_tokens) + load.output_tokens) / load.tokens,
              "comparable on 16 long-input sets; the whole prompt is still stored while it is read",
              "Li et al. 2024, arXiv:2404.14469"),
    Method(key="window", name="Sliding window 4,096", kind="tokens", principle="each layer sees 4,096 tokens back",
           apply=partial(with_windows, 4_096, 0), quality="trained in; tokens beyond reach only through other layers",
           source="Jiang et al. 2023 (Mistral 7B), arXiv:2310.06825", **_PRETRAINED),
    Method(key="window_5_1", name="Five windows, one full", kind="tokens",
           principle="five layers see 1,024 tokens back, the sixth all", apply=partial(with_windows, 1_024, 6),
           quality="perplexity hardly moves", source="Gemma 3 report 2025, arXiv:2503.19786", **_PRETRAINED),
    Method(key="cla2", name="Cross-layer sharing (CLA2)", kind="layers",
           principle="every second layer reads the cache of the one before", apply=with_shared_layers,
           quality="nearly that of MQA at half its cache, at 1B and 3B", source="Brandon et al. 2024, arXiv:2405.12981",
           **_PRETRAINED),
    Method(key="yoco", name="Cached once (YOCO)", kind="layers",
           principle="a window in the lower half of the layers, one shared cache for the upper half",
           apply=partial(cached_once, 1_024), quality="favourable beside a Transformer of the same size",
           source="Sun et al. 2024, arXiv:2405.05254", **_PRETRAINED),
    Method(key="mixed_ends", name="Mixed precision, ends", kind="mixed",
           principle="two layers at each end stay in 16 bits", apply=partial(with_unquantized, ends),
           quality="spends cache on the layers most sensitive to rounding; as TurboQuant does",
           source="vLLM 0.32 quantization/turboquant/config.py", since="0.20.0",
           flag="--kv-cache-dtype-skip-layers"),
    Method(key="mixed_windows", name="Mixed precision, windows", kind="mixed",
           principle="windowed layers stay in 16 bits", apply=partial(with_unquantized, lambda _: ("sliding_window",)),
           quality="safer, and no slower: little is saved in windows",
           source="https://github.com/vllm-project/vllm/pull/33695", since="0.20.0",
           flag="--kv-cache-dtype-skip-layers"),
    Method(key="offload", name=f"CPU offload, {OFFLOADED:g} GiB", kind="host",
           principle="blocks that leave the GPU wait in host memory", apply=partial(offloaded, OFFLOADED),
           quality="exact; 2 to 22 times faster first tokens where a prompt returns",
           source="Inside vLLM's KV Offloading Connector, 2026-01, https://blog.vllm.ai", since="0.14.0",
           flag=f"--kv-offloading-size {OFFLOADED:g}"),
    Method(key="prefix", name="Prefix caching, half found", kind="reuse",
           principle="a prompt's known beginning is read from the cache", apply=partial(reused, HITS),
           quality="exact", source="vLLM 0.32 config/cache.py", flag="--enable-prefix-caching (the default)"),
)  # fmt: skip
