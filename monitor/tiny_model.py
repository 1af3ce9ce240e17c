"""A model small enough for any machine: a folder that vLLM loads with random weights, written without any library.

It is a Llama of 4 layers with 2 KV heads of 64: in bfloat16 one token's KV cache is 2 x 2 x 64 x 2 x 4 = 2,048 bytes.
"""

import json
from itertools import product
from pathlib import Path

from monitor.engine import IN_ONE
from planner.catalog.models import model_named

NAME = "tiny-llama"  # in the catalog, so that it can be planned for by name
CONFIG = {**model_named(NAME).wrapper, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "rms_norm_eps": 1e-5}
SERVED = {"served_model_name": "tiny", "load_format": "dummy", "enforce_eager": True, **IN_ONE}
"""vLLM's flags to serve it: random weights, and ready soon."""


def write_tiny_model(folder: Path) -> Path:
    """Write `config.json` and the tokenizer into the folder, and return it. It is served with the flags SERVED."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config.json", CONFIG),
        ("tokenizer.json", _tokenizer()),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder


def _tokenizer() -> dict[str, object]:
    """A byte-level BPE of 512 entries that encodes any text: the 256 bytes, and every pair of 16 common letters."""
    pairs = [(first, second) for first, second in product("etaoinshrdlcumwf", repeat=2)]
    entries = [*_byte_letters(), *(first + second for first, second in pairs)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {entry: number for number, entry in enumerate(entries)},
            "merges": [f"{first} {second}" for first, second in pairs],
        },
    }


def _byte_letters() -> list[str]:
    """The character that stands for each byte in byte-level BPE: itself where it prints, else one above 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
