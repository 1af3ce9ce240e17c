"""Parameters of a model by part, and the bytes of weights that each rank of a deployment holds."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from planner.deployment import Deployment
from planner.encoders import encoder_known, encoder_weights
from planner.inventory import embedding_weights, head_weights, layer_weights
from planner.matrices import EMBEDDING, ENCODER, EXPERTS, HEAD, Cut, Weight
from planner.model import MLA, ModelSpec, Moe
from planner.quantization import ITEMSIZE, MXFP4, Recipe, recipe

TRITON, MARLIN = (64, 1), (128, 256)  # what MXFP4 experts are padded to: their width, and their input


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A model's parameters by part, its vocabulary padded to a multiple of 64 as vLLM holds it.

    embedding  token and position tables  [parameters]
    attention  attention and recurrent mixers  [parameters]
    mlp        dense feed-forward layers, shared experts and routers  [parameters]
    experts    routed experts, all of them  [parameters]
    norms      normalisation layers  [parameters]
    head       the LM head, 0 where it is the embedding  [parameters]
    encoder    vision and audio towers with their projectors  [parameters]
    other      what only one family has  [parameters]
    active     those a token passes through, tables read by row left out  [parameters]
    """

    embedding: int = 0
    attention: int = 0
    mlp: int = 0
    experts: int = 0
    norms: int = 0
    head: int = 0
    encoder: int = 0
    other: int = 0
    active: int = 0

    @property
    def total(self) -> int:
        """All of them  [parameters]."""
        return (self.embedding + self.attention + self.mlp + self.experts + self.norms + self.head + self.encoder
                + self.other)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of weights on one rank of one pipeline stage.

    total      all of them, as they lie in memory after loading a checkpoint  [bytes]
    experts    routed experts on the rank  [bytes]
    embedding  tables a step reads only by row, 0 where the table is also the head  [bytes]
    head       the LM head  [bytes]
    encoder    vision and audio towers, idle while text is generated  [bytes]
    absorbed   16-bit matrices that MLA makes from an FP8 checkpoint beside the weights, not in total  [bytes]
    by_dtype   total by the dtype it is stored in  [bytes]
    """

    total: int
    experts: int
    embedding: int
    head: int
    encoder: int
    absorbed: int
    by_dtype: Mapping[str, int]

    @property
    def resident(self) -> int:
        """What the rank keeps in memory while it serves  [bytes]."""
        return self.total + self.absorbed

    @property
    def dense(self) -> int:
        """Read in full by every decoding step: all but routed experts, row-wise tables and encoders  [bytes]."""
        return self.total - self.experts - self.embedding - self.encoder


@lru_cache(maxsize=256)
def parameters(model: ModelSpec) -> Parameters:
    """Parameters by part, whole model.

    Llama-2-7B's published 6,738,415,616 and Mixtral-8x7B's 46,702,792,704 are totals of this kind.
    """
    parts: Counter[str] = Counter()
    routed = 0.0
    for weight in (*embedding_weights(model), *head_weights(model), *encoder_weights(model)):
        parts[weight.part] += weight.elements
    for index, layer in enumerate(model.layers):
        share = layer.mlp.num_experts_per_tok / layer.mlp.num_experts if isinstance(layer.mlp, Moe) else 0.0
        for weight in layer_weights(model, index):
            parts[weight.part] += weight.elements
            routed += weight.elements * share if weight.part == EXPERTS else 0.0
    idle = 0 if model.tie_word_embeddings else parts[EMBEDDING]
    active = parts.total() - parts[EXPERTS] - parts[ENCODER] - idle + round(routed)
    return Parameters(**parts, active=active)


def stage_weights(model: ModelSpec, deployment: Deployment) -> tuple[Weights, ...]:
    """Weights of one rank of each pipeline stage.

    The first holds the embedding, the last the head (and the embedding where that is the head), each the encoders.
    """
    capability = deployment.gpu.compute_capability or (0, 0)
    everyone = deployment.tensor_parallel_size * deployment.data_parallel_size  # data parallel shares the experts
    return _stage_weights(model, deployment.tensor_parallel_size, deployment.pipeline_parallel_size, everyone,
                          deployment.enable_expert_parallel, capability[0], deployment.dtype)  # fmt: skip


def weight_bytes_per_rank(model: ModelSpec, deployment: Deployment) -> int:
    """Weights of the fullest rank  [bytes]."""
    return max(stage.total for stage in stage_weights(model, deployment))


def weight_assumptions(model: ModelSpec) -> tuple[str, ...]:
    """What the counts leave out or take for granted, in words; empty where everything is known."""
    unseen = () if encoder_known(model) else ("The vision or audio encoder is of an unknown kind: not counted.",)
    return (*recipe_of(model).assumptions, *unseen)


@lru_cache(maxsize=1024)
def _stage_weights(model: ModelSpec, ranks: int, stages: int, expert_ranks: int, expert_parallel: bool,
                   generation: int, dtype: str) -> tuple[Weights, ...]:  # fmt: skip
    plan = recipe_of(model)
    dtype = {"auto": model.dtype, "half": "float16", "float": "float32"}.get(dtype, dtype)
    dealt, pieces = (expert_ranks, 1) if expert_parallel else (1, expert_ranks)
    cut = Cut(ranks, dealt, pieces, *_expert_steps(model, plan, generation))
    found, start = [], 0
    for stage, count in enumerate(stage_layers(model.num_hidden_layers, stages)):
        outer = list(encoder_weights(model, cut))
        if stage == 0 or (stage == stages - 1 and model.tie_word_embeddings):
            outer += embedding_weights(model, cut)
        if stage == stages - 1:
            outer += head_weights(model, cut)
        found.append(_fold(model, plan, dtype, cut, range(start, start + count), outer, generation))
        start += count
    return tuple(found)


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage; what is left over goes to the stages before the last (vLLM get_pp_indices).

    >>> stage_layers(32, 3), stage_layers(61, 4)
    ((11, 11, 10), (15, 15, 16, 15))
    """
    counts = [layers // stages] * stages
    for step in range(layers % stages):
        counts[-2 - step] += 1
    return tuple(counts)


def recipe_of(model: ModelSpec) -> Recipe:
    """How the checkpoint is quantised, with what only the rest of the config says (DeepSeek-V4's FP4 experts)."""
    config = dict(model.quantization_config)
    if model.model_type == "deepseek_v4" and config:
        config |= {"expert_dtype": model.config.get("expert_dtype", "fp4"), "block_scale_dtype": "e8m0"}
    if model.model_type == "kimi_linear" and str(config.get("format")).startswith("mxfp4"):
        config = {"quant_method": "mxfp4"}  # vLLM serves Kimi-K3 by its experts-only method
    return recipe(config)


def _expert_steps(model: ModelSpec, plan: Recipe, generation: int) -> tuple[int, int]:
    """What the width and the input of a cut expert are padded to, by quantisation and CUDA generation (0 for none).

    vLLM 0.32, fused_moe/oracle: Triton takes MXFP4 in steps of 64 on Hopper, Marlin and TensorRT-LLM in 128 and 256;
    unquantised experts with SiLU or squared ReLU are padded to 128 by TensorRT-LLM's kernel on B200 and its like.
    """
    if plan.choose("model.layers.0.mlp.experts", "experts") == MXFP4 and generation:
        return TRITON if generation == 9 else MARLIN
    keys = ("mlp_hidden_act", "hidden_act", "hidden_activation")
    activation = next((model.config[key] for key in keys if model.config.get(key)), "silu")
    tensorrt = plan.method == "none" and generation == 10 and activation in ("silu", "swish", "relu2")
    return (128, 1) if tensorrt else (1, 1)


def _fold(model: ModelSpec, plan: Recipe, dtype: str, cut: Cut, layers: Iterable[int], outer: Iterable[Weight],
          generation: int) -> Weights:  # fmt: skip
    parts: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    absorbed = 0
    for weight in outer:
        _add(weight, plan, dtype, "", parts, stored)
    for index in layers:
        for weight in layer_weights(model, index, cut):
            _add(weight, plan, dtype, f"model.layers.{index}.", parts, stored)
        absorbed += _absorbed(model, index, plan, cut) if generation == 9 else 0
    idle = 0 if model.tie_word_embeddings else parts[EMBEDDING]
    return Weights(total=parts.total(), experts=parts[EXPERTS], embedding=idle, head=parts[HEAD],
                   encoder=parts[ENCODER], absorbed=absorbed, by_dtype=MappingProxyType(dict(stored)))  # fmt: skip


def _add(weight: Weight, plan: Recipe, dtype: str, prefix: str, parts: Counter[str], stored: Counter[str]) -> None:
    scheme = plan.scheme([prefix + name for name in weight.names], weight.kind) if weight.kind else None
    own = weight.dtype or dtype
    if scheme is None:
        found = {own: weight.elements * ITEMSIZE[own]}
    else:
        width = weight.inputs if weight.kind == "experts" and len(weight.names) == 1 else weight.outputs // 2
        scheme = scheme.refined(width) if weight.kind == "experts" else scheme
        one = scheme.stored(weight.outputs, weight.inputs, own, max(1, len(weight.names)))
        found = {name: size * weight.copies for name, size in one.items()}
        if weight.bias:
            found[own] = found.get(own, 0) + weight.bias * weight.copies * ITEMSIZE[own]
    for name, size in found.items():
        stored[name] += size
        parts[weight.part] += size


def _absorbed(model: ModelSpec, index: int, plan: Recipe, cut: Cut) -> int:
    """Key and value up-projections that MLA keeps in 16 bits beside an FP8 kv_b_proj, on Hopper  [bytes]."""
    name = f"model.layers.{index}.self_attn.kv_b_proj"
    scheme = plan.scheme([name], "linear")
    if scheme is None or scheme.dtype != "float8_e4m3fn":
        return 0
    return sum(
        cut.share(mixer.num_attention_heads) * (mixer.qk_nope_head_dim + mixer.v_head_dim) * mixer.kv_lora_rank * 2
        for mixer in model.layers[index].mixers if isinstance(mixer, MLA)
    )  # fmt: skip
