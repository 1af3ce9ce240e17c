"""Predictions held against published observations: one module for each kind of file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import InputError


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


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """One JSON object a line; raises InputError naming the file, and the line that is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), type(error).__name__, "a readable .jsonl file") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}", line[:40], "a JSON object")
        rows.append(row)
    return rows
