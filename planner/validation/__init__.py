"""Predictions held against published observations: one module for each kind of file."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def error_summary(ratios: Sequence[float]) -> dict[str, Any]:
    """How far predictions are from observations, given predicted / observed  [ratio].

    >>> error_summary([1.1, 0.9, 1.0])
    {'n': 3, 'median_abs_error_pct': 10.0, 'p90_abs_error_pct': 10.0, 'bias_pct': 0.0}
    """
    if not ratios:
        return {"n": 0, "median_abs_error_pct": None, "p90_abs_error_pct": None, "bias_pct": None}
    errors = (np.asarray(ratios, dtype=float) - 1) * 100
    p50, p90 = np.percentile(np.abs(errors), (50, 90))
    return {
        "n": len(ratios),
        "median_abs_error_pct": round(float(p50), 3),
        "p90_abs_error_pct": round(float(p90), 3),
        "bias_pct": round(float(np.median(errors)), 3),
    }
