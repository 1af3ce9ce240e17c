"""Vision and audio encoders of multimodal models, with the projectors that hand their output to the language model."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from planner.keys import Keys
from planner.matrices import ENCODER, WHOLE, Cut, Weight, linear, vector
from planner.model import ModelSpec

Tower = Callable[[Keys, Keys, int, Cut], Iterator[Weight]]


def encoder_weights(model: ModelSpec, cut: Cut = WHOLE) -> Iterator[Weight]:
    """Every weight of a model's encoders on one rank, as vLLM builds them; nothing for a text model.

    The first of model_type and vision_config.model_type that has a reader here decides.
    """
    wrapper = Keys(model.wrapper)
    vision = wrapper.part("vision_config")
    for name in _model_types(model, wrapper, vision):
        if name in TOWERS:
            yield from TOWERS[name](wrapper, vision, model.hidden_size, cut)
            return


def encoder_known(model: ModelSpec) -> bool:
    """Whether the weights of the encoders, if the model has any, are counted."""
    wrapper = Keys(model.wrapper)
    vision = wrapper.part("vision_config")
    has = any(name in wrapper for name in ("vision_config", "audio_config", "encoder_config", "speech_config"))
    return not has or any(name in TOWERS for name in _model_types(model, wrapper, vision))


def _model_types(model: ModelSpec, wrapper: Keys, vision: Keys) -> list[str]:
    """What the wrapper, its vision part and the text model call themselves."""
    return [name for name in (wrapper.word("model_type"), vision.word("model_type"), model.model_type) if name]


def _matrix(outputs: int, inputs: int, bias: bool = False) -> Weight:
    return Weight(ENCODER, outputs, inputs, bias=outputs if bias else 0)


def _linear(name: str, outputs: int, inputs: int, bias: bool = False) -> Weight:
    return linear(ENCODER, outputs, inputs, name, bias=bias)


def _vector(elements: int) -> Weight:
    return vector(ENCODER, elements)


def blocks(
    count: int,
    hidden: int,
    width: int,
    cut: Cut,
    *,
    attention: int = 0,
    bias: bool = True,
    mlp_bias: bool = True,
    gated: bool = False,
    norm_vectors: int = 2,
    whole: bool = False,
) -> Iterator[Weight]:
    """Transformer blocks: attention of inner size `attention` (the hidden size by default), feed-forward, two norms."""
    inner, wide = attention or hidden, cut.share(width)
    inner = inner if whole else cut.share(inner)
    for index in range(count):
        name = f"visual.blocks.{index}"
        yield _linear(f"{name}.attn.qkv", 3 * inner, hidden, bias)
        yield _linear(f"{name}.attn.proj", hidden, inner, bias)
        yield _linear(f"{name}.mlp.fc1", wide * (2 if gated else 1), hidden, mlp_bias)
        yield _linear(f"{name}.mlp.fc2", hidden, wide, mlp_bias)
        yield _vector(2 * norm_vectors * hidden)


def _vit(vision: Keys, cut: Cut, depth: int) -> Iterator[Weight]:
    """SigLIP or CLIP: patches, positions, blocks but the last `-1 - depth`; CLIP adds a class token."""
    hidden, layers = vision.count("hidden_size", default=768), vision.count("num_hidden_layers", default=12)
    patch, image = vision.count("patch_size", default=16), vision.count("image_size", default=224)
    clip = "clip" in str(vision.get("model_type")) and "siglip" not in str(vision.get("model_type"))
    built = layers + depth + 1 if depth < 0 else depth
    positions = (image // patch) ** 2 + clip
    yield _matrix(hidden, vision.count("num_channels", default=3) * patch**2, bias=not clip)
    yield _vector(positions * hidden)
    yield from blocks(built, hidden, vision.count("intermediate_size", default=3072), cut)
    if clip:
        yield _vector(3 * hidden)  # class token and the norm before the blocks
    if built == layers:
        yield _vector(2 * hidden)  # the norm after them


def _depth(wrapper: Keys, default: int) -> int:
    value = wrapper.get("vision_feature_layer", default=default)
    return max(value) if isinstance(value, list) else int(value)


def _projector(inputs: int, outputs: int, cut: Cut, bias: bool = True) -> Iterator[Weight]:
    yield _linear("multi_modal_projector.linear_1", cut.share(outputs), inputs, bias)
    yield _linear("multi_modal_projector.linear_2", outputs, cut.share(outputs), bias)


def llava(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """LLaVA: CLIP, SigLIP or Pixtral up to the layer it reads, and a two-layer projector."""
    inner = vision.count("hidden_size", default=1024)
    if vision.get("model_type") == "pixtral":
        yield from _pixtral(vision, cut)
    else:
        yield from _vit(vision, cut, _depth(wrapper, -2))
    yield from _projector(inner, hidden, cut, bool(wrapper.get("multimodal_projector_bias", default=True)))
    if wrapper.get("model_type") in ("llava_next", "llava_onevision", "llava_next_video"):
        yield _vector(hidden)


def llava_onevision(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """LLaVA-OneVision: as LLaVA, its projector whole on every rank."""
    yield from _vit(vision, cut, _depth(wrapper, -1))
    yield from _projector(vision.count("hidden_size"), hidden, WHOLE)
    yield _vector(hidden)


def gemma3(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Gemma 3: SigLIP and one projection with a norm."""
    inner = vision.count("hidden_size", default=1152)
    yield from _vit(vision, cut, -1)
    yield _matrix(inner, hidden)
    yield _vector(inner)


def paligemma(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """PaliGemma: SigLIP and one projection."""
    yield from _vit(vision, cut, -1)
    yield _matrix(hidden, vision.count("hidden_size"), bias=True)


def cohere2_vision(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Command A Vision: SigLIP, patches merged, and a gated projector."""
    inner = vision.count("hidden_size") * wrapper.count("downsample_factor", default=2) ** 2
    width = wrapper.count("alignment_intermediate_size", default=36864)
    yield from _vit(vision, cut, -1)
    yield _linear("multi_modal_projector.linear_1", cut.share(width), inner, True)
    yield _linear("multi_modal_projector.linear_2", hidden, cut.share(width // 2), True)


def idefics3(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Idefics 3 and SmolVLM: SigLIP, patches merged, one projection."""
    scale = wrapper.count("scale_factor", default=2) ** 2
    yield from _vit(vision, cut, -1)
    yield _matrix(hidden, vision.count("hidden_size", default=1152) * scale)


def _pixtral(vision: Keys, cut: Cut) -> Iterator[Weight]:
    hidden = vision.count("hidden_size", default=1024)
    patch = vision.count("patch_size", default=16)
    yield _matrix(hidden, vision.count("num_channels", default=3) * patch**2)
    yield _vector(hidden)
    yield from blocks(vision.count("num_hidden_layers", default=24), hidden,
                      vision.count("intermediate_size", default=4096), cut,
                      bias=False, mlp_bias=False, gated=True, norm_vectors=1)  # fmt: skip


def mistral3(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Mistral Small 3.1 and later: Pixtral, patches merged, and a two-layer projector."""
    inner, merge = vision.count("hidden_size", default=1024), wrapper.count("spatial_merge_size", default=2)
    yield from _pixtral(vision, cut)
    yield _vector(inner)
    yield _matrix(inner, inner * merge**2)
    yield from _projector(inner, hidden, cut, bool(wrapper.get("multimodal_projector_bias")))


def _patches(vision: Keys, hidden: int, bias: bool) -> Weight:
    pixels = vision.count("in_channels", "in_chans", default=3) * vision.count("patch_size", default=14) ** 2
    return _matrix(hidden, pixels * vision.count("temporal_patch_size", default=2), bias)


def _merger(name: str, inner: int, outputs: int, cut: Cut) -> Iterator[Weight]:
    yield _linear(f"visual.{name}.linear_fc1", cut.share(inner), inner, True)
    yield _linear(f"visual.{name}.linear_fc2", outputs, cut.share(inner), True)


def qwen2_vl(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Qwen2-VL: LayerNorm blocks four times as wide within."""
    width = vision.count("embed_dim", default=1280)
    yield _patches(vision, width, False)
    yield from blocks(vision.count("depth", default=32), width,
                      int(width * vision.number("mlp_ratio", 4)), cut)  # fmt: skip
    yield _vector(2 * width)
    inner = width * vision.count("spatial_merge_size", default=2) ** 2
    yield from _merger("merger", inner, vision.count("hidden_size", default=hidden), cut)


def qwen2_5_vl(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Qwen2.5-VL: RMSNorm and gated blocks."""
    width = vision.count("hidden_size", default=1280)
    yield _patches(vision, width, False)
    yield from blocks(vision.count("depth", default=32), width, vision.count("intermediate_size", default=3420), cut,
                      gated=True, norm_vectors=1)  # fmt: skip
    yield _vector(width)
    inner = width * vision.count("spatial_merge_size", default=2) ** 2
    yield from _merger("merger", inner, vision.count("out_hidden_size", default=hidden), cut)


def qwen3_vl(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Qwen3-VL and Qwen3.5: learned positions, and a merger for each deepstack level."""
    width = vision.count("hidden_size", default=1152)
    outputs = vision.count("out_hidden_size", default=hidden)
    inner = width * vision.count("spatial_merge_size", default=2) ** 2
    yield _patches(vision, width, True)
    yield _vector(vision.count("num_position_embeddings", default=2304) * width)
    yield from blocks(vision.count("depth", default=27), width, vision.count("intermediate_size", default=4304), cut)
    yield _vector(2 * width)
    yield from _merger("merger", inner, outputs, cut)
    for level in range(len(vision.get("deepstack_visual_indexes", default=[]))):
        yield _vector(2 * inner)
        yield from _merger(f"deepstack_merger_list.{level}", inner, outputs, cut)


def glm4v(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """GLM-4.1V to 4.6V: gated RMSNorm blocks, a strided convolution and a gated merger."""
    width, outputs = vision.count("hidden_size", default=1536), vision.count("out_hidden_size", default=hidden)
    merge, inner = vision.count("spatial_merge_size", default=2), vision.count("intermediate_size", default=13696)
    positions = (vision.count("image_size", default=336) // vision.count("patch_size", default=14)) ** 2
    yield _patches(vision, width, True)
    yield from blocks(vision.count("depth", default=24), width, outputs, cut, bias=bool(vision.get("attention_bias")),
                      mlp_bias=False, gated=True, norm_vectors=1)  # fmt: skip
    yield _vector(positions * width + 2 * width)
    yield _matrix(outputs, width * merge**2, True)
    yield _linear("visual.merger.proj", cut.share(outputs), outputs)
    yield _vector(2 * outputs)
    yield _linear("visual.merger.gate_up_proj", 2 * cut.share(inner), outputs)
    yield _linear("visual.merger.down_proj", outputs, cut.share(inner))


def internvl(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """InternVL in Hugging Face's form: InternViT with layer scales, its attention whole on every rank."""
    width, layers = vision.count("hidden_size", default=1024), vision.count("num_hidden_layers", default=24)
    image, patch = _side(vision, "image_size", 448), _side(vision, "patch_size", 14)
    scale = wrapper.number("downsample_ratio", 0.5)
    inner = int(width * (1 / scale) ** 2)
    yield _matrix(width, 3 * patch**2, True)
    yield _vector(((image // patch) ** 2 + 2) * width)  # positions, one for the class token, and that token
    bias = bool(vision.get("attention_bias"))
    yield from blocks(layers, width, vision.count("intermediate_size", default=4096), cut, bias=bias, whole=True)
    yield _vector(layers * 2 * width)
    if not bias:
        yield _vector(layers * width)  # the output projection has a bias all the same
    yield _vector(2 * inner)
    yield from _projector(inner, hidden, WHOLE)


def _side(vision: Keys, name: str, default: int) -> int:
    value = vision.get(name, default=default)
    return int(value[0] if isinstance(value, list) else value)


def internvl_chat(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """InternVL in its publisher's form: InternViT cut like the rest."""
    width, layers = vision.count("hidden_size", default=3200), vision.count("num_hidden_layers", default=45)
    image, patch = _side(vision, "image_size", 448), _side(vision, "patch_size", 14)
    inner = int(width / wrapper.number("downsample_ratio", 0.5) ** 2)
    norm = 1 if vision.get("norm_type") == "rms_norm" else 2
    yield _matrix(width, 3 * patch**2, True)
    yield _vector(((image // patch) ** 2 + 2) * width)
    bias = bool(vision.get("qkv_bias"))
    yield from blocks(layers, width, vision.count("intermediate_size", default=12800), cut, bias=bias,
                      norm_vectors=norm)  # fmt: skip
    yield _vector(layers * (2 + (not bias) + 2 * bool(vision.get("qk_normalization"))) * width)
    yield _vector(2 * inner)
    yield _matrix(hidden, inner, True)
    yield _matrix(hidden, hidden, True)


def gemma4(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Gemma 4: a gated encoder with two norms a part, whole on every rank, and a conformer where it hears."""
    width, layers = vision.count("hidden_size", default=768), vision.count("num_hidden_layers", default=16)
    heads, size = vision.count("num_attention_heads", default=12), vision.count("head_dim", default=64)
    yield _vector(2 * vision.count("position_embedding_size", default=10240) * width)
    yield _matrix(width, 3 * vision.count("patch_size", default=16) ** 2)
    yield from blocks(layers, width, vision.count("intermediate_size", default=3072), WHOLE, attention=heads * size,
                      bias=False, mlp_bias=False, gated=True, norm_vectors=2)  # fmt: skip
    yield _vector(layers * 2 * size)
    if vision.get("standardize"):
        yield _vector(2 * width)
    yield _matrix(hidden, width)
    if "audio_config" in wrapper:
        yield from _conformer(wrapper.part("audio_config"), hidden)


def _conformer(audio: Keys, hidden: int) -> Iterator[Weight]:
    """Gemma 4's audio encoder: two feed-forwards around attention and a convolution in each block."""
    width, outputs = audio.count("hidden_size", default=1024), audio.count("output_proj_dims", default=1536)
    first, second = audio.get("subsampling_conv_channels", default=[128, 32])
    head = width // audio.count("num_attention_heads", default=8)
    yield _vector(first * 9 + first + second * first * 9 + second)
    yield _matrix(width, 32 * second)
    for _ in range(audio.count("num_hidden_layers", default=12)):
        yield _matrix(2 * (4 + 4) * width, width)
        yield _matrix((5 + 3) * width, width)
        yield _vector(width * audio.count("conv_kernel_size", default=5) + 9 * width + head)
    yield _matrix(outputs, width, True)
    yield _matrix(hidden, outputs)


def llama4(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Llama 4: unfolded patches, a class token, and an adapter after a pixel shuffle."""
    width, patch = vision.count("hidden_size", default=1408), vision.count("patch_size", default=14)
    positions = (vision.count("image_size", default=336) // patch) ** 2 + 1
    ratio = vision.number("pixel_shuffle_ratio", 0.5)
    inner = vision.count("projector_input_dim", default=4096)
    outputs = vision.count("projector_output_dim", default=4096)
    yield _linear("vision_model.patch_embedding", cut.share(width), 3 * patch**2)
    yield _vector((positions + 1 + 4) * width)  # positions, the class token, norms before and after
    yield from blocks(vision.count("num_hidden_layers", default=34), width,
                      vision.count("intermediate_size", default=5632), cut)  # fmt: skip
    yield _linear("vision_model.vision_adapter.mlp.fc1", cut.share(inner), int(width / ratio**2))
    yield _linear("vision_model.vision_adapter.mlp.fc2", outputs, cut.share(inner))
    yield _linear("multi_modal_projector.linear_1", cut.share(hidden), vision.count("vision_output_dim", default=4096))


def moonvit(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """MoonViT (Kimi-VL, K2.5, K3): two-dimensional positions, patches merged, and a projector whole on every rank."""
    width = vision.count("vt_hidden_size", "hidden_size", default=1152)
    layers = vision.count("vt_num_hidden_layers", "num_hidden_layers", default=27)
    patch = vision.count("patch_size", default=14)
    rows, columns = (vision.count(f"init_pos_emb_{side}", default=64) for side in ("height", "width"))
    merge = vision.get("merge_kernel_size", default=[2, 2])
    norm = 1 if vision.get("norm_type") == "rmsnorm" else 2
    inner = width * int(merge[0]) * int(merge[1])
    yield _matrix(width, 3 * patch**2, bool(vision.get("patch_embed_proj_bias", default=True)))
    yield _vector(rows * columns * width)
    yield from blocks(layers, width, vision.count("vt_intermediate_size", "intermediate_size", default=4304), cut,
                      attention=vision.maybe("qkv_hidden_size") or 0,
                      bias=bool(vision.get("attn_bias", default=True)),
                      mlp_bias=bool(vision.get("linear_bias", default=True)), norm_vectors=norm)  # fmt: skip
    yield _vector(norm * width)
    plain = vision.get("mm_projector_type") == "patchmergerv2"
    yield _matrix(inner, inner, not plain)
    yield _matrix(hidden, inner, not plain)
    yield _vector(hidden if plain else 2 * width)


def _audio(width: int, inputs: int, positions: int, layers: int, inner: int, cut: Cut) -> Iterator[Weight]:
    """Whisper's encoder: two convolutions, positions, blocks whose keys have no bias of their own on the wire."""
    yield _matrix(width, 3 * inputs, True)
    yield _matrix(width, 3 * width, True)
    yield _vector(positions * width)
    yield from blocks(layers, width, inner, cut)
    yield _vector(2 * width)


def whisper(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Whisper: the encoder; its decoder is the language model."""
    yield from _audio(hidden, wrapper.count("num_mel_bins", default=80),
                      wrapper.count("max_source_positions", default=1500), wrapper.count("encoder_layers", default=6),
                      wrapper.count("encoder_ffn_dim", default=4 * hidden), cut)  # fmt: skip


def qwen2_audio(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Qwen2-Audio: Whisper's encoder whole on every rank, keys without bias, and one projection."""
    audio = wrapper.part("audio_config")
    width, layers = audio.count("d_model", default=1280), audio.count("encoder_layers", default=32)
    positions = audio.count("max_source_positions", default=1500)
    yield from _audio(width, audio.count("num_mel_bins", default=128), positions, layers,
                      audio.count("encoder_ffn_dim", default=5120), WHOLE)  # fmt: skip
    yield _vector(-layers * width)
    yield _matrix(hidden, width, True)


def qwen2_5_omni(wrapper: Keys, vision: Keys, hidden: int, cut: Cut) -> Iterator[Weight]:
    """Qwen2.5-Omni's thinker: Qwen2.5-VL's eyes, and Whisper's ears whole on every rank."""
    thinker = wrapper.part("thinker_config")
    audio = thinker.part("audio_config")
    width, layers = audio.count("d_model", default=1280), audio.count("encoder_layers", default=32)
    outputs = audio.count("output_dim", default=hidden)
    yield from qwen2_5_vl(thinker, thinker.part("vision_config"), hidden, cut)
    yield from _audio(width, audio.count("num_mel_bins", default=128), 0, layers,
                      audio.count("encoder_ffn_dim", default=5120), WHOLE)  # fmt: skip
    yield _vector(2 * outputs - layers * width)
    yield _matrix(outputs, width, True)


TOWERS: Mapping[Any, Tower] = {
    "llava": llava, "llava_next": llava, "llava_onevision": llava_onevision, "gemma3": gemma3, "paligemma": paligemma,
    "cohere2_vision": cohere2_vision, "idefics3": idefics3, "smolvlm": idefics3, "mistral3": mistral3,
    "qwen2_vl": qwen2_vl, "qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl, "qwen3_vl_moe": qwen3_vl,
    "qwen3_5": qwen3_vl, "qwen3_5_moe": qwen3_vl, "glm4v": glm4v, "glm4v_moe": glm4v, "internvl": internvl,
    "llama4": llama4, "kimi_k3": moonvit, "kimi_k25": moonvit, "kimi_vl": moonvit, "whisper": whisper,
    "qwen2_audio": qwen2_audio, "qwen2_5_omni": qwen2_5_omni, "internvl_chat": internvl_chat, "gemma4": gemma4,
}  # fmt: skip
