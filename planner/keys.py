"""Keys: a config.json read key by key; what is missing or malformed is named."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import InputError


class Keys:
    """One (sub-)configuration. Each reader takes the names a number goes by, in order of preference.

    >>> keys = Keys({"n_layer": 12, "num_key_value_heads": None})
    >>> keys.count("num_hidden_layers", "n_layer"), keys.maybe("num_key_value_heads")
    (12, None)
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def __contains__(self, name: str) -> bool:
        return self.config.get(name) is not None

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these keys that is there and not null."""
        for name in names:
            value = self.config.get(name)
            if value is not None:
                return value
        return default

    def maybe(self, *names: str, least: int = 0) -> int | None:
        """An integer, or None where no name is there; of a list of per-layer values, the largest."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, list) and value:
                value = max((item for item in value if isinstance(item, int)), default=value)
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(name, value, f"an integer of at least {least}")
            return value
        return None

    def count(self, *names: str, default: int | None = None) -> int:
        """A positive integer; raises InputError where neither a name nor a default gives one."""
        value = self.maybe(*names, least=1)
        if value is None:
            value = default
        if value is None:
            raise InputError(names[0], None, "a positive integer in config.json")
        return value

    def number(self, name: str, default: float) -> float:
        """A number, integer or not."""
        value = self.get(name, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(name, value, "a finite number")
        return value

    def word(self, name: str) -> str | None:
        """A string, or None where it is missing or empty."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, str):
            raise InputError(name, value, "a string")
        return value or None

    def part(self, name: str) -> "Keys":
        """A nested object, empty where it is missing."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise InputError(name, value, "an object")
        return Keys(value or {})

    def _each(self, name: str, layers: int | None, kind: type, words: str) -> list[Any] | None:
        """A list with one entry for each layer, or None; a longer list is cut (draft layers come last)."""
        value = self.config.get(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(value) < (layers or 0) or not all(isinstance(v, kind) for v in value):
            raise InputError(name, value, f"a list of {layers or 'as many'} {words}, one for each layer")
        return value[:layers]

    def names(self, name: str, layers: int | None = None) -> list[str] | None:
        """One word for each layer, or None; without a number of layers the list tells it."""
        return self._each(name, layers, str, "words")

    def numbers(self, name: str, layers: int) -> list[int] | None:
        """One integer (or flag) for each layer, or None."""
        return self._each(name, layers, int, "integers")

    def parts(self, name: str, layers: int) -> "list[Keys] | None":
        """One nested object for each layer, or None."""
        found = self._each(name, layers, Mapping, "objects")
        return None if found is None else [Keys(item) for item in found]

    def indices(self, *names: str, default: Sequence[int] = ()) -> set[int]:
        """A list of layer numbers, in any order."""
        value = self.get(*names, default=list(default))
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise InputError(names[0], value, "a list of layer numbers")
        return set(value)
