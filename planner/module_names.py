"""Names of modules as checkpoints write them: which a list means, and how wrappers spell the same one."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from planner.errors import InputError


class Names:
    """A list of module names as checkpoints write them: exact, by prefix, wildcard (`*`) or regular expression (`re:`).

    >>> names = Names(["lm_head", "re:.*self_attn.*", "model.layers.0.mlp*"])
    >>> [n in names for n in ("lm_head", "model.layers.3.self_attn.q_proj", "model.layers.0.mlp.up_proj", "model.x")]
    [True, True, True, False]
    """

    def __init__(self, entries: Sequence[str] | None, anywhere: bool = False) -> None:
        if entries is not None and not isinstance(entries, list | tuple):
            raise InputError("quantization_config", entries, "a list of module names")
        entries = [canonical(str(entry)) for entry in entries or ()]
        self.exact = frozenset(e for e in entries if not e.startswith("re:") and "*" not in e)
        self.wild = tuple(e for e in entries if not e.startswith("re:") and "*" in e)
        self.patterns = tuple(compiled(e[3:]) for e in entries if e.startswith("re:"))
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


def compiled(text: str) -> re.Pattern[str]:
    """The compiled expression; raises InputError where it is none."""
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
