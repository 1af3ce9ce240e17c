"""Compression: what a method, or a stack of them, makes of a plan's KV cache, speed and cost.

Every number is a Plan's: a method changes the model, the flags or the load, and it is planned again. Only what vLLM
lacks (dropped tokens, a dtype its kernels refuse) scales the pages of the layout that it does have.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from planner.compression_methods import ABSENT, METHODS, Method, Subject, with_all_heads
from planner.deployment import version_tuple
from planner.errors import InputError, Refusal
from planner.finding import gain
from planner.gpu import Gpu
from planner.kv_dtype import kv_dtype
from planner.kv_layout import KvGroup, KvLayout, kv_layout
from planner.model import MLA, Attention, ModelSpec
from planner.plan import Plan
from planner.units import GIB, count, memory, share
from planner.verdict import Level, Verdict

SIXTEEN_BIT = "bfloat16"
# Major compute capabilities: Hopper by FlashAttention 3, Blackwell by FlashInfer (vLLM blog, 2026-04-22).
FP8_ATTENTION = (9, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A stack of methods applied to a plan in 16 bits.

    methods    what was applied, in order
    base       the same plan without them, its KV cache in 16 bits
    plan       the plan with them
    multihead  bytes of a request in 16 bits with a KV head for each query head, None where that has no layout  [bytes]
    obstacles  why vLLM does not do it here, empty when it does
    notes      what to know before using the numbers
    """

    methods: tuple[Method, ...]
    base: Plan
    plan: Plan
    multihead: int | None
    obstacles: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The stack in words."""
        return " + ".join(method.name for method in self.methods) or "16 bits"

    @property
    def bytes_per_token(self) -> float | None:
        """KV cache of one token on one rank, as if no layer forgot  [bytes/token]."""
        return None if self.plan.layout is None else self.plan.layout.bytes_per_token

    @property
    def mean_bytes_per_token(self) -> float | None:
        """KV cache of a request of the load's full length, spread over its tokens  [bytes/token]."""
        return None if self.request_bytes is None else self.request_bytes / self.plan.workload.tokens

    @property
    def request_bytes(self) -> int | None:
        """KV cache of a request of the load's full length on one rank  [bytes]."""
        return _request_bytes(self.plan)

    @property
    def saving(self) -> float | None:
        """Share of a request's cache saved, beside this model in 16 bits; below 0 where it grows  [ratio]."""
        return _saved(self.request_bytes, _request_bytes(self.base))

    @property
    def saving_of_multihead(self) -> float | None:
        """The same beside 16 bits and a KV head for each query head, where the article starts  [ratio]."""
        return _saved(self.request_bytes, self.multihead)

    @property
    def in_vllm(self) -> str:
        """How vLLM does it: the flags, that the checkpoint decides, or "not in vLLM" and why."""
        if self.obstacles:
            return "not in vLLM. " + " ".join(self.obstacles)
        named = " ".join(self.plan.deployment.kv_cache_dtype_skip_layers)
        flags = [f"{method.flag} {named if method.kind == 'mixed' else ''}".rstrip() for method in self.methods]
        trained = self.plan.model != self.base.model
        ways = [" ".join(flag for flag in flags if flag), "a checkpoint trained so" if trained else ""]
        return ", and ".join(way for way in ways if way) or "as it is"

    @property
    def verdict(self) -> Verdict:
        """What the stack saves, whether it is to be had, and what to do."""
        now = self.request_bytes
        if self.saving is None or now is None:
            return Verdict(level=Level.BAD, word="No layout", reason=" ".join(self.obstacles), context=self.base.inputs)
        said = f"{self.name}: {memory(now)} a request, {share(self.saving)} less than this model in 16 bits"
        if self.saving_of_multihead is not None:
            said += f" and {share(self.saving_of_multihead)} less than a KV head for each query head in 16 bits"
        return Verdict(
            level=Level.WARNING if self.obstacles else Level.GOOD,
            word="Not in vLLM" if self.obstacles else "Available",
            reason=f"{said}; {gain(self.base, self.plan)}.",
            action=" ".join(self.obstacles) or f"Set: {self.in_vllm}. Check quality on your own prompts.",
            context=self.base.inputs,
        )


def compressed(plan: Plan, keys: Sequence[str]) -> Outcome:
    """The outcome of these methods, in order, on the plan's model, device and load.

    Raises InputError for an unknown method, or for two of one kind.
    """
    methods = stack(keys)
    base = in_sixteen_bits(plan)
    subject = Subject(base.model, base.deployment, base.workload)
    for method in methods:
        subject = method.apply(subject)
    made, refusal = _planned(base, subject)
    return Outcome(
        methods=methods,
        base=base,
        plan=made,
        multihead=_multihead_bytes(base),
        obstacles=(*_missing(base, methods), *([refusal] if refusal else [])),
        notes=_notes(base, methods, made),
    )


def outcomes(plan: Plan) -> tuple[Outcome, ...]:
    """Each method alone, the plan in 16 bits first; layers are left unquantised beside FP8."""
    alone = (("fp8", method.key) if method.kind == "mixed" else (method.key,) for method in METHODS)
    return tuple(compressed(plan, keys) for keys in ((), *alone))


def stack(keys: Sequence[str]) -> tuple[Method, ...]:
    """The methods of these keys. Raises InputError naming what exists, or which two exclude each other.

    >>> [method.name for method in stack(["gqa8", "fp8"])]
    ['GQA, 8 KV heads', 'FP8']
    """
    known = _by_key()
    found: dict[str, Method] = {}
    for key in keys:
        if key not in known:
            raise InputError("stack", key, "any of " + ", ".join(known))
        kind = known[key].kind
        if kind in found:
            raise InputError("stack", f"{found[kind].key} and {key}", f"one method for {kind}")
        found[kind] = known[key]
    return tuple(found.values())


@cache
def _by_key() -> dict[str, Method]:
    return {method.key: method for method in METHODS}


def in_sixteen_bits(plan: Plan) -> Plan:
    """The plan with nothing quantised: auto where that is 16 bits, the dtype by name where a checkpoint says else."""
    bare = replace(plan.deployment, kv_cache_dtype="auto", kv_cache_dtype_skip_layers=())
    if bare != plan.deployment:
        plan = plan.on(bare)
    if plan.layout is not None and kv_dtype(plan.layout.resolved_kv_cache_dtype).quantized:
        named = plan.on(replace(bare, kv_cache_dtype=SIXTEEN_BIT))
        return plan if named.refusal else named
    return plan


def _planned(base: Plan, subject: Subject) -> tuple[Plan, str]:
    """The subject's plan, and why vLLM refuses it; then its pages are scaled from those in 16 bits."""
    made = base.on(subject.deployment, subject.workload, subject.model)
    refusal = made.refusal
    ratio = subject.keep
    if refusal and subject.model != base.model:  # a shape that only this architecture's class cannot have
        subject = subject._replace(model=replace(subject.model, architecture=""))
        made = base.on(subject.deployment, subject.workload, subject.model)
    if made.refusal and subject.deployment.kv_cache_dtype != base.deployment.kv_cache_dtype:
        server = replace(base.deployment, kv_offloading_size=subject.deployment.kv_offloading_size)
        made = base.on(server, subject.workload, subject.model)
        ratio *= _dtype_ratio(subject.model, subject.deployment.kv_cache_dtype)
    if ratio != 1 and made.layout is not None:
        made = made.with_layout(scaled(made.layout, ratio))
    return made, refusal


def scaled(layout: KvLayout, ratio: float) -> KvLayout:
    """The layout with this share of the bytes for a token; recurrent states stay.

    ratio  bytes stored beside bytes as they were  [ratio]

    Pages shrink; beside recurrent states, whose page is given, the same page holds more tokens instead.
    """
    pinned = any(group.kind == "state" for group in layout.groups)
    groups = tuple(group if group.kind == "state" else _scaled(group, ratio, pinned) for group in layout.groups)
    return replace(
        layout,
        groups=groups,
        bytes_per_block=max((group.page_size_bytes for group in groups), default=0),
        bytes_per_token=layout.bytes_per_token * ratio,
        bytes_per_token_growing=layout.bytes_per_token_growing * ratio,
    )


def _scaled(group: KvGroup, ratio: float, pinned: bool) -> KvGroup:
    if pinned:
        return replace(group, block_size=int(group.block_size / ratio))
    page, content = math.ceil(group.page_size_bytes * ratio), math.ceil(group.content_bytes * ratio)
    return replace(group, page_size_bytes=page, content_bytes=content)


def _dtype_ratio(model: ModelSpec, name: str) -> float:
    """Bytes of a token in this dtype beside 16 bits, layers weighed by their size  [ratio]."""
    wanted, sixteen = kv_dtype(name), kv_dtype(SIXTEEN_BIT)
    new = old = 0
    for mixer in model.mixers:
        if isinstance(mixer, Attention):
            heads, sizes = mixer.num_key_value_heads, (mixer.head_dim, mixer.v_head_dim)
        elif isinstance(mixer, MLA):
            heads, sizes = 1, (mixer.kv_lora_rank + mixer.qk_rope_head_dim, 0)
        else:
            continue
        new += heads * wanted.head_slot(*sizes)
        old += heads * sixteen.head_slot(*sizes)
    return new / old if old else 1.0


def _multihead_bytes(base: Plan) -> int | None:
    model = with_all_heads(Subject(base.model, base.deployment, base.workload)).model
    try:
        layout = kv_layout(model, base.deployment)
    except Refusal:
        return None
    return layout.request_bytes(base.workload.tokens)


def _request_bytes(plan: Plan) -> int | None:
    return None if plan.layout is None else plan.layout.request_bytes(plan.workload.tokens)


def _saved(now: int | None, before: int | None) -> float | None:
    return None if now is None or not before else 1 - now / before


def _missing(base: Plan, methods: Sequence[Method]) -> list[str]:
    """What vLLM, or this release of it, has not got."""
    version, found = base.deployment.version, []
    for method in methods:
        if method.support == ABSENT:
            found.append(f"It has no {method.name}.")
        elif method.since and method.kind != "dtype" and version < version_tuple(method.since):
            found.append(f"{method.flag} came with {method.since}.")
    return found


def _notes(base: Plan, methods: Sequence[Method], made: Plan) -> tuple[str, ...]:
    notes = [arithmetic(base.deployment.gpu, method.key) for method in methods if method.kind == "dtype"]
    for method in methods:
        if method.key.startswith("turboquant"):
            notes.append("vLLM's study measured 10 to 68 % more latency; speed here counts the bytes read only.")
        if method.kind == "host" and made.layout is not None and made.layout.bytes_per_token:
            size = (made.deployment.kv_offloading_size or 0) * GIB
            ranks = made.deployment.tensor_parallel_size * made.deployment.pipeline_parallel_size
            tokens = count(size // (made.layout.bytes_per_token * ranks), "tokens")
            notes.append(f"{memory(size)} of host memory keep {tokens} more for requests that return.")
        if method.kind == "reuse":
            notes.append("Blocks that running requests share are stored once; the pool is planned as if none were.")
        if method.kind == "mixed" and not any(other.kind == "dtype" for other in methods):
            notes.append("Nothing is quantised, so no layer is left out: add a KV dtype.")
        if method.kind == "tokens" and method.support == ABSENT:
            notes.append("Speed counts fewer bytes read; choosing tokens costs time that is not counted.")
    return tuple(note for note in notes if note)


def arithmetic(gpu: Gpu, name: str) -> str:
    """What the device does with a cache in this dtype: computes in it, or only stores it."""
    dtype = kv_dtype(name)
    if not dtype.quantized:
        return ""
    if dtype.name.startswith("fp8") and not dtype.name.endswith("_per_token_head") and "fp8" in gpu.peak_flops:
        if gpu.compute_capability is None:
            return f"{gpu.name} has FP8 units; whether attention uses them depends on its kernels."
        if gpu.compute_capability[0] in FP8_ATTENTION:
            return f"Attention computes in FP8 on {gpu.name}."
    return f"Storage only on {gpu.name}: keys and values are unpacked to 16 bits before attention computes."
