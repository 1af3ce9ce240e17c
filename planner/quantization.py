"""What a checkpoint's quantisation does to each matrix: which are quantised, and how many bytes one then takes."""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import gcd
from typing import Any, NamedTuple

from planner.errors import InputError

ITEMSIZE = {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e8m0fnu": 1,
            "uint8": 1, "int8": 1, "int64": 8}  # fmt: skip


class Scheme(NamedTuple):
    """One way to store a matrix of outputs × inputs.

    name     in words
    bits     of one weight  [bits]
    dtype    of the tensor that holds the weights
    rows     outputs that share a scale, 0 for all  [elements]
    columns  inputs that share a scale, 0 for all  [elements]
    scale    dtype of the scales, "" for the model's own, none for no such tensor
    zeros    packed zero points beside the scales
    scalars  float32 values for each matrix that was fused into this one  [values]
    indices  an int32 group index for each input

    >>> FP8_BLOCK.stored(5120, 25600, "bfloat16")
    {'float8_e4m3fn': 131072000, 'float32': 32000}
    """

    name: str
    bits: int
    dtype: str
    rows: int = 0
    columns: int = 0
    scale: str = ""
    zeros: bool = False
    scalars: int = 0
    indices: bool = False

    def stored(self, outputs: int, inputs: int, dtype: str, fused: int = 1) -> dict[str, int]:
        """Bytes by dtype of one matrix; `dtype` is the model's, `fused` the matrices merged into it."""
        found = {self.dtype: outputs * inputs * self.bits // 8}
        if self.rows == 1:  # a group cut short by the last rank has no scale of its own
            groups = outputs * max(1, inputs // (self.columns or inputs))
        else:
            groups = -(-outputs // (self.rows or outputs)) * -(-inputs // (self.columns or inputs))
        if self.scale != "none":
            scale = self.scale or dtype
            found[scale] = found.get(scale, 0) + groups * ITEMSIZE[scale]
        if self.zeros:
            found[self.dtype] += groups * self.bits // 8
        extra = self.scalars * fused * 4 + (inputs * 4 if self.indices else 0)
        if extra:
            found["float32"] = found.get("float32", 0) + extra
        return found

    def refined(self, width: int) -> "Scheme":
        """For experts cut to `width`: blocks that do not fit shrink to their common divisor, if that is at least 32.

        Source: vLLM 0.32 fused_moe/oracle/fp8.py, refine_fp8_moe_block_shape.
        """
        block = gcd(self.rows, width)
        if self.rows <= 1 or self.rows != self.columns or block in (self.rows, *range(32)):
            return self
        return self._replace(rows=block, columns=block)


FP8 = Scheme("FP8 per tensor", 8, "float8_e4m3fn", scale="none", scalars=1)
FP8_STATIC = FP8._replace(scalars=2)
FP8_CHANNEL = Scheme("FP8 per channel", 8, "float8_e4m3fn", rows=1, scale="float32")
FP8_BLOCK = Scheme("FP8 in blocks", 8, "float8_e4m3fn", rows=128, columns=128, scale="float32")
INT8_CHANNEL = Scheme("INT8 per channel", 8, "int8", rows=1, scale="float32")
NVFP4 = Scheme("NVFP4", 4, "uint8", rows=1, columns=16, scale="float8_e4m3fn", scalars=2)
MXFP4 = Scheme("MXFP4", 4, "uint8", rows=1, columns=32, scale="uint8")
MXFP8 = Scheme("MXFP8", 8, "float8_e4m3fn", rows=1, columns=32, scale="uint8")
BNB4 = Scheme("bitsandbytes 4-bit", 4, "uint8", scale="none")
BNB8 = Scheme("bitsandbytes 8-bit", 8, "int8", scale="none")
QUANTIZED = {"FP8": FP8_STATIC, "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL, "FP8_PB_WO": FP8_BLOCK, "NVFP4": NVFP4,
             "W4A16_NVFP4": NVFP4._replace(scalars=1), "NVFP4_AWQ": NVFP4, "MXFP8": MXFP8, "MXFP4": MXFP4}  # fmt: skip


def packed(bits: int, group: int, zeros: bool, indices: bool = False, dtype: str = "int32") -> Scheme:
    """Integers packed into words, a scale of the model's dtype for each group of inputs (GPTQ, AWQ, AutoRound).

    >>> packed(4, 128, zeros=True).stored(4096, 4096, "float16")
    {'int32': 8454144, 'float16': 262144}
    """
    return Scheme(f"{bits}-bit integers in groups of {group}", bits, dtype, rows=1, columns=max(group, 0),
                  zeros=zeros, indices=indices)  # fmt: skip


Choice = Callable[[str, str], Scheme | None]


class Recipe(NamedTuple):
    """How a checkpoint is quantised: method's name, and the scheme of a module by its name and kind.

    kind is linear, experts or head; the name is the checkpoint's, from `model.` on.
    """

    method: str
    choose: Choice
    assumptions: tuple[str, ...] = ()

    def scheme(self, names: Sequence[str], kind: str) -> Scheme | None:
        """The scheme of a layer fused from modules of these names; None where it stays as it is."""
        return self.choose(names[0], kind)


UNQUANTIZED = Recipe("none", lambda name, kind: None)


def recipe(config: Mapping[str, Any]) -> Recipe:
    """Read a quantization_config (or the content of hf_quant_config.json).

    Raises InputError where a known method lacks what it needs. A method that is not known is taken as unquantised,
    and says so.
    """
    if not config:
        return UNQUANTIZED
    if isinstance(config.get("quantization"), Mapping):
        config = {"quant_method": "modelopt", **config["quantization"]}
    method = str(config.get("quant_method") or ("modelopt" if "quant_algo" in config else "")).replace("_", "-").lower()
    reader = _READERS.get(method)
    if reader is None:
        note = f"Quantisation method {method or config!r} is not known: weights taken as unquantised."
        return UNQUANTIZED._replace(method=method, assumptions=(note,))
    return Recipe(method, reader(config))


class Names:
    """A list of module names as checkpoints write them: exact, by prefix, wildcard (`*`) or regular expression (`re:`).

    >>> names = Names(["lm_head", "re:.*self_attn.*", "model.layers.0.mlp*"])
    >>> [n in names for n in ("lm_head", "model.layers.3.self_attn.q_proj", "model.layers.0.mlp.up_proj", "model.x")]
    [True, True, True, False]
    """

    def __init__(self, entries: Sequence[str] | None, anywhere: bool = False) -> None:
        entries = [canonical(str(entry)) for entry in entries or ()]
        self.exact = frozenset(e for e in entries if not e.startswith("re:") and "*" not in e)
        self.wild = tuple(e for e in entries if not e.startswith("re:") and "*" in e)
        self.patterns = tuple(_pattern(e[3:]) for e in entries if e.startswith("re:"))
        self.anywhere = anywhere

    def __contains__(self, name: str) -> bool:
        names = spellings(name)
        if any(prefix in self.exact for spelling in names for prefix in _prefixes(spelling)):
            return True
        if self.anywhere and any(entry in spelling for entry in self.exact for spelling in names):
            return True
        if any(fnmatchcase(n, entry) or fnmatchcase(n, entry + ".*") for entry in self.wild for n in names):
            return True
        return any(pattern.match(spelling) for pattern in self.patterns for spelling in names)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InputError("quantization_config.ignore", text, "a regular expression") from error


def canonical(name: str) -> str:
    """The name of a text module without what a multimodal wrapper puts before it.

    >>> canonical("model.language_model.layers.0.mlp"), canonical("backbone.layers.1.mixer")
    ('model.layers.0.mlp', 'model.layers.1.mixer')
    """
    return re.sub(r"^(re:)?(model\.language_model\.|language_model\.model\.|backbone\.|model\.text_model\.)",
                  r"\1model.", name)  # fmt: skip


def spellings(name: str) -> tuple[str, ...]:
    """The ways checkpoints may write a module's full name.

    >>> spellings("visual.blocks.0.attn.qkv")[1]
    'model.visual.blocks.0.attn.qkv'
    """
    if name.startswith("visual."):
        inner = name.removeprefix("visual.")
        return tuple(f"{before}{tower}.{inner}" for tower in _TOWERS for before in ("", "model."))
    inner = name.removeprefix("model.")
    return (name, f"model.language_model.{inner}", f"language_model.model.{inner}", f"backbone.{inner}")


_TOWERS = ("visual", "vision_tower", "vision_model", "vision_encoder", "multi_modal_projector", "mm_projector")


def _fp8(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("ignored_layers") or config.get("modules_to_not_convert"))
    block = config.get("weight_block_size")
    scheme = FP8_STATIC if config.get("activation_scheme") == "static" else FP8
    if block:
        if not isinstance(block, list) or len(block) != 2:
            raise InputError("weight_block_size", block, "two positive integers")
        scheme = FP8_BLOCK._replace(rows=block[0], columns=block[1])
    experts = {"fp4": MXFP4}.get(str(config.get("expert_dtype")), scheme)
    if str(config.get("block_scale_dtype")) == "e8m0":
        scheme = scheme._replace(scale="float8_e8m0fnu")
    return lambda name, kind: None if kind == "head" or name in skip else experts if kind == "experts" else scheme


def _fbgemm(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("modules_to_not_convert"), anywhere=True)
    return lambda name, kind: None if kind == "head" or name in skip else FP8_CHANNEL


def _awq(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("modules_to_not_convert"), anywhere=True)
    scheme = packed(_bits(config), int(config.get("group_size", config.get("q_group_size", 128))), zeros=True)
    return lambda name, kind: None if kind == "head" or name in skip else scheme


def _gptq(config: Mapping[str, Any]) -> Choice:
    bits, group = _bits(config), int(config.get("group_size", 128))
    indices = bool(config.get("desc_act"))
    dynamic = [(sign[:1], _pattern(sign[2:]), change) for sign, change in (config.get("dynamic") or {}).items()]
    head = bool(config.get("lm_head"))

    def choose(name: str, kind: str) -> Scheme | None:
        own, size = bits, group
        for sign, pattern, change in dynamic:
            if any(pattern.match(spelling) for spelling in spellings(name)):
                if sign == "-":
                    return None
                own, size = int(change.get("bits", own)), int(change.get("group_size", size))
        return None if kind == "head" and not head else packed(own, size, zeros=True, indices=indices)

    return choose


def _auto_round(config: Mapping[str, Any]) -> Choice:
    """Intel AutoRound / INC: one width for all, another or none for the modules in extra_config."""
    bits, group = _bits(config), int(config.get("group_size", 128))
    own = config.get("extra_config") or {}
    exact = {canonical(name): change for name, change in own.items()}
    patterns = [(_pattern(name), change) for name, change in own.items() if re.search(r"[\\*\[(]", name)]
    blocks = config.get("block_name_to_quantize") or config.get("to_quant_block_names")
    blocks = blocks.split(",") if isinstance(blocks, str) else [str(block) for block in blocks or ()]
    within = [canonical(block.strip()) for block in blocks]

    no_change: Mapping[str, Any] = {}

    def choose(name: str, kind: str) -> Scheme | None:
        by_pattern = (change for pattern, change in patterns if any(map(pattern.search, spellings(name))))
        change = exact.get(name) or next(by_pattern, no_change)
        outside = bool(within) and not any(name.startswith(block) for block in within)
        width = int(change.get("bits", 16 if kind == "head" or outside else bits))
        return packed(width, int(change.get("group_size", group)), zeros=True) if width < 16 else None

    return choose


def _bitsandbytes(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("llm_int8_skip_modules"), anywhere=True)
    scheme = BNB4 if config.get("load_in_4bit") or config.get("_load_in_4bit") else BNB8
    return lambda name, kind: None if kind == "head" or name in skip else scheme


def _mxfp4(config: Mapping[str, Any]) -> Choice:
    """gpt-oss: only the experts are quantised."""
    return lambda name, kind: MXFP4 if kind == "experts" else None


def _modelopt(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("exclude_modules") or config.get("ignore"))
    algorithm = str(config.get("quant_algo") or "").upper()
    if algorithm == "MIXED_PRECISION":
        layers = {canonical(name): entry for name, entry in (config.get("quantized_layers") or {}).items()}
        return _mixed(layers, skip)
    scheme = _algorithm(algorithm, config.get("group_size"))
    return lambda name, kind: None if kind == "head" or name in skip else scheme


def _mixed(layers: Mapping[str, Mapping[str, Any]], skip: Names) -> Choice:
    """Each module by name; experts by the first of them."""

    def choose(name: str, kind: str) -> Scheme | None:
        entry = layers.get(name)
        if entry is None and kind == "experts":
            first = (f"{name}.0.{leaf}" for leaf in ("gate_proj", "up_proj", "down_proj", "w1", "w2"))
            entry = next((layers[leaf] for leaf in first if leaf in layers), None)
        if entry is None or name in skip:
            return None
        return _algorithm(str(entry.get("quant_algo") or "").upper(), entry.get("group_size"))

    return choose


def _algorithm(name: str, group: Any) -> Scheme:
    if name in QUANTIZED:
        scheme = QUANTIZED[name]
        return scheme._replace(columns=int(group)) if group and scheme.columns not in (0, 128) else scheme
    raise InputError("quant_algo", name, f"one of {', '.join(sorted(QUANTIZED))} or MIXED_PRECISION")


def _compressed_tensors(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("ignore"))
    groups = []
    for group in (config.get("config_groups") or {}).values():
        if not isinstance(group, Mapping):
            raise InputError("config_groups", group, "an object for each group")
        form = str(group.get("format") or config.get("format") or "")
        targets = [str(target) for target in group.get("targets") or ["Linear"]]
        names = Names([t for t in targets if "." in t or t.startswith("re:") or t == "lm_head"])
        groups.append((set(targets), names, _tensor_scheme(group, form)))

    def choose(name: str, kind: str) -> Scheme | None:
        if name in skip or (kind == "experts" and f"{name}.0.gate_proj" in skip):
            return None
        for _, names, scheme in groups:
            if name in names or (kind == "experts" and f"{name}.0.gate_proj" in names):
                return scheme
        if kind == "head":
            return None
        return next((scheme for classes, _, scheme in groups if classes & {"Linear", "FusedMoE"}), None)

    return choose


def _tensor_scheme(group: Mapping[str, Any], form: str) -> Scheme | None:
    """The scheme of one config group: by number type, bits and strategy of its weights."""
    weights = group.get("weights") or {}
    bits, strategy = int(weights.get("num_bits") or 16), str(weights.get("strategy") or "tensor")
    size = int(weights.get("group_size") or 0)
    activations = group.get("input_activations") or {}
    static = 1 if activations and not activations.get("dynamic", True) else 0
    if bits >= 16:
        return None
    if weights.get("type") == "float":
        if bits == 4:
            return MXFP4 if "mxfp4" in form or size == 32 else NVFP4._replace(scalars=2 if activations else 1)
        if "mxfp8" in form or (strategy == "group" and size == 32):
            return MXFP8
        if strategy == "block":
            rows, columns = weights.get("block_structure") or (128, 128)
            return FP8_BLOCK._replace(rows=int(rows), columns=int(columns))
        return (FP8_CHANNEL if strategy == "channel" else FP8)._replace(
            scalars=static + (0 if strategy == "channel" else 1))  # fmt: skip
    if "pack" in form or bits < 8:
        return packed(bits, size, zeros=not weights.get("symmetric", True),
                      indices=weights.get("actorder") in ("group", True))  # fmt: skip
    if strategy == "tensor":
        return Scheme("INT8 per tensor", 8, "int8", scale="none", scalars=1 + static)
    return INT8_CHANNEL._replace(columns=size, scalars=static)


def _quark(config: Mapping[str, Any]) -> Choice:
    """AMD Quark: one global scheme, by the number type of its weights, and modules left out."""
    skip = Names(config.get("exclude"))
    found_weights = (config.get("global_quant_config") or {}).get("weight") or {}
    weights: Mapping[str, Any] = found_weights[0] if isinstance(found_weights, list) else found_weights
    kind_of = str(weights.get("dtype") or "")
    channel = "channel" in str(weights.get("qscheme"))
    found = {"fp8_e4m3": FP8_CHANNEL if channel else FP8_STATIC, "int8": INT8_CHANNEL, "fp4": MXFP4, "mxfp4": MXFP4,
             "int4": packed(4, int(weights.get("group_size") or 128), zeros=True)}.get(kind_of)  # fmt: skip
    if found is None:
        raise InputError("global_quant_config.weight.dtype", kind_of, "fp8_e4m3, int8, int4 or fp4")
    return lambda name, kind: None if kind == "head" or name in skip else found


def _bits(config: Mapping[str, Any]) -> int:
    bits = config.get("bits", config.get("w_bit", 4))
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 16:
        raise InputError("quantization_config.bits", bits, "an integer from 2 to 8")
    return bits


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Choice]] = {
    "fp8": _fp8, "deepseek-v4-fp8": _fp8, "fbgemm-fp8": _fbgemm, "awq": _awq, "awq-marlin": _awq, "gptq": _gptq,
    "gptq-marlin": _gptq, "auto-round": _auto_round, "inc": _auto_round, "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4, "gpt-oss-mxfp4": _mxfp4, "modelopt": _modelopt, "modelopt-fp4": _modelopt,
    "modelopt-mixed": _modelopt, "modelopt-mxfp8": _modelopt, "compressed-tensors": _compressed_tensors,
    "quark": _quark,
}  # fmt: skip
