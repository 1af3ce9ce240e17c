"""What a saved plan said when it was saved, beside what this planner makes of the same inputs."""

from collections.abc import Mapping
from math import isclose
from typing import Any, NamedTuple

from planner.plan import Plan
from planner.record import figures

SAME = 1e-9
"""Figures this near are the same: JSON and the order of a sum may change the last digit  [ratio]."""


class Change(NamedTuple):
    """One figure of a saved plan that this planner works out otherwise.

    key   as in the plan's figures
    then  as it was
    now   as it is
    """

    key: str
    then: Any
    now: Any


def changes(saved: Mapping[str, Any], made: Plan) -> list[Change]:
    """Where the figures saved are not those of the same plan made today; a figure that one of them lacks is left out.

    >>> from planner.catalog.models import model_named
    >>> from planner.deployment import Deployment
    >>> from planner.gpu import gpu_named
    >>> from planner.plan import plan
    >>> made = plan(model_named("llama-3-8b"), Deployment(gpu=gpu_named("H100-SXM")))
    >>> changes({"block_size": 32, "bytes_per_token": 131072, "of another planner": 1}, made)
    [Change(key='block_size', then=32, now=16)]
    """
    today = figures(made)
    return [
        Change(key, saved[key], now) for key, now in today.items() if key in saved and not _is_same(saved[key], now)
    ]


def _is_same(then: object, now: object) -> bool:
    if isinstance(then, int | float) and isinstance(now, int | float):
        return isclose(then, now, rel_tol=SAME)
    return then == now
