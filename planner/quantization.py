"""What a checkpoint's quantisation does to each matrix: which are quantised, and how many bytes one then takes."""

import re
from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple

from planner.errors import InputError
from planner.module_names import Names, canonical, compiled, spellings

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
    method = method_of(config)
    reader = _READERS.get(method)
    if reader is None:
        note = f"Quantisation method {method or config!r} is not known: weights taken as unquantised."
        return UNQUANTIZED._replace(method=method, assumptions=(note,))
    return Recipe(method, reader(config))


def method_of(config: Mapping[str, Any]) -> str:
    """The method's name in lower case and with hyphens; empty where the config states none.

    >>> method_of({"quant_method": "fbgemm_fp8"}), method_of({"quant_algo": "NVFP4"}), method_of({})
    ('fbgemm-fp8', 'modelopt', '')
    """
    method = config.get("quant_method")
    if method is not None and not isinstance(method, str):
        raise InputError("quantization_config.quant_method", method, "a string")
    modelopt = "quant_algo" in config or isinstance(config.get("quantization"), Mapping)
    return (method or ("modelopt" if modelopt else "")).replace("_", "-").lower()


def gptq_reorders(config: Mapping[str, Any]) -> bool:
    """Whether a GPTQ checkpoint orders its inputs by activation within groups, in all modules or in some.

    >>> gptq_reorders({"desc_act": True, "group_size": -1}), gptq_reorders({"desc_act": True, "group_size": 128})
    (False, True)
    """
    base = {"desc_act": config.get("desc_act"), "group_size": config.get("group_size")}
    changes = [change for sign, change in _object(config, "dynamic").items() if not sign.startswith("-:")]
    every = [base, *(base | dict(change) for change in changes if isinstance(change, Mapping))]
    return any(each["desc_act"] and each["group_size"] != -1 for each in every)


def _integer(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """An integer from -1 on, which stands for "all"; raises InputError for anything else that is there, also null."""
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise InputError(f"quantization_config.{name}", value, "an integer, -1 for all")
    return value


def _stated(config: Mapping[str, Any], name: str, default: int) -> int:
    """The integer, or the default where it is missing, null or zero."""
    return _integer(config, name) if config.get(name) else default


def _object(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object, empty where it is missing or null."""
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise InputError(f"quantization_config.{name}", value, "an object")
    return value or {}


def _objects(config: Mapping[str, Any], name: str) -> Mapping[str, Mapping[str, Any]]:
    """A nested object whose values are objects."""
    found = _object(config, name)
    for key, value in found.items():
        if not isinstance(value, Mapping):
            raise InputError(f"quantization_config.{name}.{key}", value, "an object")
    return found


def _block(config: Mapping[str, Any], name: str) -> tuple[int, int]:
    """Rows and columns of one scale."""
    match config[name]:
        case [int(rows), int(columns)] if min(rows, columns) > 0:
            return rows, columns
    raise InputError(name, config[name], "two positive integers")


def _fp8(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("ignored_layers") or config.get("modules_to_not_convert"))
    scheme = FP8_STATIC if config.get("activation_scheme") == "static" else FP8
    if config.get("weight_block_size"):
        rows, columns = _block(config, "weight_block_size")
        scheme = FP8_BLOCK._replace(rows=rows, columns=columns)
    experts = {"fp4": MXFP4}.get(str(config.get("expert_dtype")), scheme)
    if str(config.get("block_scale_dtype")) == "e8m0":
        scheme = scheme._replace(scale="float8_e8m0fnu")
    return lambda name, kind: None if kind == "head" or name in skip else experts if kind == "experts" else scheme


def _fbgemm(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("modules_to_not_convert"), anywhere=True)
    return lambda name, kind: None if kind == "head" or name in skip else FP8_CHANNEL


def _awq(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("modules_to_not_convert"), anywhere=True)
    group = _integer(config, "group_size" if "group_size" in config else "q_group_size", 128)
    scheme = packed(_bits(config), group, zeros=True)
    return lambda name, kind: None if kind == "head" or name in skip else scheme


def _gptq(config: Mapping[str, Any]) -> Choice:
    bits, group = _bits(config), _integer(config, "group_size", 128)
    indices = gptq_reorders(config)
    dynamic = [(sign[:1], compiled(sign[2:]), change) for sign, change in _objects(config, "dynamic").items()]
    head = bool(config.get("lm_head"))

    def choose(name: str, kind: str) -> Scheme | None:
        own, size = bits, group
        for sign, pattern, change in dynamic:
            if any(pattern.match(spelling) for spelling in spellings(name)):
                if sign == "-":
                    return None
                own, size = _integer(change, "bits", own), _integer(change, "group_size", size)
        return None if kind == "head" and not head else packed(own, size, zeros=True, indices=indices)

    return choose


def _auto_round(config: Mapping[str, Any]) -> Choice:
    """Intel AutoRound / INC: one width for all, another or none for the modules in extra_config."""
    bits, group = _bits(config), _integer(config, "group_size", 128)
    own = _objects(config, "extra_config")
    exact = {canonical(name): change for name, change in own.items()}
    patterns = [(compiled(name), change) for name, change in own.items() if re.search(r"[\\*\[(]", name)]
    blocks = config.get("block_name_to_quantize") or config.get("to_quant_block_names")
    blocks = blocks.split(",") if isinstance(blocks, str) else [str(block) for block in blocks or ()]
    within = [canonical(block.strip()) for block in blocks]

    no_change: Mapping[str, Any] = {}

    def choose(name: str, kind: str) -> Scheme | None:
        by_pattern = (change for pattern, change in patterns if any(map(pattern.search, spellings(name))))
        change = exact.get(name) or next(by_pattern, no_change)
        outside = bool(within) and not any(name.startswith(block) for block in within)
        width = _integer(change, "bits", 16 if kind == "head" or outside else bits)
        return packed(width, _integer(change, "group_size", group), zeros=True) if width < 16 else None

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
        layers = {canonical(name): entry for name, entry in _objects(config, "quantized_layers").items()}
        return _mixed(layers, skip)
    scheme = _algorithm(algorithm, config)
    return lambda name, kind: None if kind == "head" or name in skip else scheme


def _mxfp8(config: Mapping[str, Any]) -> Choice:
    """MiniMax's name for ModelOpt's MXFP8."""
    return _modelopt({"quant_algo": "MXFP8", "ignore": config.get("ignored_layers")})


def _mixed(layers: Mapping[str, Mapping[str, Any]], skip: Names) -> Choice:
    """Each module by name; experts by the first of them."""

    def choose(name: str, kind: str) -> Scheme | None:
        entry = layers.get(name)
        if entry is None and kind == "experts":
            first = (f"{name}.0.{leaf}" for leaf in ("gate_proj", "up_proj", "down_proj", "w1", "w2"))
            entry = next((layers[leaf] for leaf in first if leaf in layers), None)
        if entry is None or name in skip:
            return None
        return _algorithm(str(entry.get("quant_algo") or "").upper(), entry)

    return choose


def _algorithm(name: str, config: Mapping[str, Any]) -> Scheme:
    if name in QUANTIZED:
        scheme = QUANTIZED[name]
        group = _stated(config, "group_size", 0)
        return scheme._replace(columns=group) if group > 0 and scheme.columns not in (0, 128) else scheme
    raise InputError("quant_algo", name, f"one of {', '.join(sorted(QUANTIZED))} or MIXED_PRECISION")


def _compressed_tensors(config: Mapping[str, Any]) -> Choice:
    skip = Names(config.get("ignore"))
    groups = []
    for group in _objects(config, "config_groups").values():
        form = str(group.get("format") or config.get("format") or "")
        targets = group.get("targets") or ["Linear"]
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise InputError("quantization_config.targets", targets, "a list of names")
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
    weights, activations = _object(group, "weights"), _object(group, "input_activations")
    bits = _stated(weights, "num_bits", 16)
    size = _stated(weights, "group_size", 0)
    strategy = str(weights.get("strategy") or "tensor")
    static = 1 if activations and not activations.get("dynamic", True) else 0
    if bits >= 16:
        return None
    if weights.get("type") == "float":
        if bits == 4:
            return MXFP4 if "mxfp4" in form or size == 32 else NVFP4._replace(scalars=2 if activations else 1)
        if "mxfp8" in form or (strategy == "group" and size == 32):
            return MXFP8
        if strategy == "block":
            rows, columns = _block(weights, "block_structure") if weights.get("block_structure") else (128, 128)
            return FP8_BLOCK._replace(rows=rows, columns=columns)
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
    whole = _object(config, "global_quant_config")
    first = whole["weight"][0] if isinstance(whole.get("weight"), list) and whole["weight"] else whole.get("weight")
    weights = _object({"global_quant_config.weight": first}, "global_quant_config.weight")
    kind_of = str(weights.get("dtype") or "")
    channel = "channel" in str(weights.get("qscheme"))
    found = {"fp8_e4m3": FP8_CHANNEL if channel else FP8_STATIC, "int8": INT8_CHANNEL, "fp4": MXFP4, "mxfp4": MXFP4,
             "int4": packed(4, _stated(weights, "group_size", 128), zeros=True)}.get(kind_of)  # fmt: skip
    if found is None:
        raise InputError("global_quant_config.weight.dtype", kind_of, "fp8_e4m3, int8, int4 or fp4")
    return lambda name, kind: None if kind == "head" or name in skip else found


def _bits(config: Mapping[str, Any]) -> int:
    bits = config.get("bits", config.get("w_bit", 4))
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 16:
        raise InputError("quantization_config.bits", bits, "an integer from 1 to 16")
    return bits


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Choice]] = {
    "fp8": _fp8, "deepseek-v4-fp8": _fp8, "fbgemm-fp8": _fbgemm, "awq": _awq, "auto-awq": _awq, "awq-marlin": _awq,
    "gptq": _gptq, "auto-gptq": _gptq, "gptq-marlin": _gptq, "auto-round": _auto_round, "inc": _auto_round,
    "bitsandbytes": _bitsandbytes, "mxfp4": _mxfp4, "gpt-oss-mxfp4": _mxfp4, "mxfp8": _mxfp8, "modelopt": _modelopt,
    "modelopt-fp4": _modelopt, "modelopt-mixed": _modelopt, "modelopt-mxfp8": _modelopt,
    "compressed-tensors": _compressed_tensors, "quark": _quark,
}  # fmt: skip
