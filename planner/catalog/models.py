"""Models the planner knows by name: one row a shape in models.jsonl, and every checkpoint that has it.

A row keeps of config.json what decides memory and speed. Two abbreviations keep it short:
`{"repeat": [..], "length": n}` is a list that repeats, and `"layers.{3-78}.mlp.gate"` stands for one name a layer.
A checkpoint says what differs from its row; its `quantization_config` may name a recipe of models.quantization.json.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.catalog import FOLDER, entries
from planner.errors import InputError
from planner.families import model_spec
from planner.model import ModelSpec

_EACH_LAYER = re.compile(r"\{(\d+)-(\d+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """One shape of the catalog.

    name                  short name
    checkpoints           Hugging Face ids that have this shape, the original first
    published_parameters  as the publisher's safetensors headers or card count them, None where not known  [parameters]
    source                where the facts come from
    date                  when they were written down
    """

    name: str
    checkpoints: tuple[str, ...]
    published_parameters: int | None
    source: str
    date: str

    @property
    def spec(self) -> ModelSpec:
        """The original checkpoint's ModelSpec."""
        return model_named(self.name)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A Hugging Face id, its row, and what it changes in the row's config."""

    id: str
    row: Mapping[str, Any]
    changes: Mapping[str, Any]

    @property
    def by_publisher(self) -> bool:
        """It has the owner of the row's original."""
        return self.id.partition("/")[0] == next(iter(self.row["checkpoints"])).partition("/")[0]


@cache
def models() -> tuple[CatalogModel, ...]:
    """Every shape, in the file's order (by family)."""
    return tuple(
        CatalogModel(
            name=row["name"],
            checkpoints=tuple(row["checkpoints"]),
            published_parameters=row.get("published_parameters"),
            source=row["source"],
            date=row["date"],
        )
        for row in entries("models.jsonl")
    )


def model_named(name: str) -> ModelSpec:
    """The ModelSpec of a short name or a Hugging Face id, whatever the case; its `name` is the Hugging Face id.

    An id's last part is enough: the publisher's own repository comes before others of that name, which must otherwise
    mean one config. Raises InputError, with the nearest names, for a name that is not in the catalog or not enough.

    >>> model_named("meta-llama/Meta-Llama-3-8B").name == model_named("LLAMA-3-8B").name
    True
    """
    found = _names().get(name.strip().lower(), ())
    if not found:
        raise InputError("model", name, f"a model of the catalog, such as {', '.join(_near(name))}")
    found = tuple(checkpoint for checkpoint in found if checkpoint.by_publisher) or found
    if any(other.row is not found[0].row or other.changes != found[0].changes for other in found):
        raise InputError("model", name, f"one of {', '.join(checkpoint.id for checkpoint in found)}")
    return _spec(found[0].id)


def published_parameters(name: str) -> int | None:
    """The published count of a name's shape, None where the catalog has none  [parameters]."""
    found = _names().get(name.strip().lower(), ())
    return found[0].row.get("published_parameters") if found else None


def knows(name: str) -> bool:
    """Whether the catalog has this name (it may still be ambiguous)."""
    return name.strip().lower() in _names()


@cache
def _spec(checkpoint_id: str) -> ModelSpec:
    checkpoint = _names()[checkpoint_id.lower()][0]
    config = _expanded(_merged(checkpoint.row["config"], checkpoint.changes))
    recipe = config.get("quantization_config")
    if isinstance(recipe, str):
        config["quantization_config"] = _expanded(_recipes()[recipe])
    return model_spec(config, checkpoint.id)


@cache
def _recipes() -> Mapping[str, Mapping[str, Any]]:
    recipes: Mapping[str, Mapping[str, Any]] = json.loads((FOLDER / "models.quantization.json").read_text("utf-8"))
    return recipes


@cache
def _names() -> Mapping[str, tuple[_Checkpoint, ...]]:
    """Lower-case name -> what it may mean. Exact ids and short names come before an id's last part."""
    exact: dict[str, tuple[_Checkpoint, ...]] = {}
    loose: dict[str, tuple[_Checkpoint, ...]] = {}
    for row in entries("models.jsonl"):
        for index, (checkpoint_id, changes) in enumerate(row["checkpoints"].items()):
            checkpoint = _Checkpoint(checkpoint_id, row, changes)
            exact[checkpoint_id.lower()] = (checkpoint,)
            if index == 0:
                exact[row["name"]] = (checkpoint,)
            last = checkpoint_id.lower().rpartition("/")[2]
            loose[last] = (*loose.get(last, ()), checkpoint)
    return loose | exact


def _near(name: str) -> list[str]:
    import difflib  # only an error needs it

    known = {lower: found[0].id if "/" in lower else lower for lower, found in _names().items()}
    close = difflib.get_close_matches(name.strip().lower(), known, n=5, cutoff=0.4) or [
        "llama-3.1-8b",
        "qwen/qwen3-32b",
    ]
    return [known[lower] for lower in close]


def _merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `config` with `changes` laid over it, key by key in nested parts.

    >>> _merged({"a": 1, "text_config": {"b": 2, "c": 3}}, {"a": None, "text_config": {"b": 4}})
    {'a': None, 'text_config': {'b': 4, 'c': 3}}
    """
    merged = dict(config)
    for key, value in changes.items():
        inner = merged.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping) and key != "quantization_config":
            value = _merged(inner, value)
        merged[key] = value
    return merged


def _expanded(value: Any) -> Any:
    """The value without the file's abbreviations.

    >>> _expanded({"layer_types": {"repeat": ["a", "b"], "length": 3}, "ignore": ["lm_head", "layers.{0-1}.gate"]})
    {'layer_types': ['a', 'b', 'a'], 'ignore': ['lm_head', 'layers.0.gate', 'layers.1.gate']}
    """
    if isinstance(value, Mapping):
        if value.keys() == {"repeat", "length"}:
            pattern, length = value["repeat"], value["length"]
            return [pattern[index % len(pattern)] for index in range(length)]
        return {key: _expanded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [item for inner in value for item in _each(inner)]
    return value


def _each(item: Any) -> Iterator[Any]:
    layers = _EACH_LAYER.search(item) if isinstance(item, str) else None
    if layers is None:
        yield _expanded(item)
    else:
        first, last = map(int, layers.groups())
        yield from (_EACH_LAYER.sub(str(layer), item) for layer in range(first, last + 1))
