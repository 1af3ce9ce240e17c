"""What each field of a domain type means, read from its docstring, so that help texts and units have one home."""

import inspect
import re
import types
from dataclasses import fields
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

_LINE = re.compile(r"^(\w+)  +(.+)$", re.MULTILINE)


@cache
def meanings(cls: type) -> dict[str, str]:
    """Field name -> its line of the class docstring.

    >>> from planner.workload import Workload
    >>> meanings(Workload)["input_tokens"]
    'prompt length, mean  [tokens]'
    """
    return dict(_LINE.findall(inspect.getdoc(cls) or ""))


@cache
def scalars(cls: type) -> dict[str, tuple[type, Any]]:
    """The fields of a dataclass that hold one int, float, bool or str: name -> (type, default).

    >>> from planner.workload import Slo
    >>> scalars(Slo)
    {'ttft_s': (<class 'float'>, None), 'tpot_s': (<class 'float'>, None)}
    """
    hints = get_type_hints(cls)
    return {item.name: (kind, item.default) for item in fields(cls) if (kind := _scalar(hints[item.name]))}


def _scalar(hint: Any) -> type | None:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    found = [option for option in options if option is not type(None)]
    return found[0] if len(found) == 1 and found[0] in (int, float, bool, str) else None
