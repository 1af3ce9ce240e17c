"""Windows of real traffic -> Calibration: the plan's constants as this model has them on this device.

A step takes the longer, the more requests run, the more tokens they have cached, and the more prompts are read beside:

    gap = step + running × sequence + cached × token + (prompt tokens/s × gap) × prompt token

so the four constants are a least-squares fit of the mean time between tokens over many windows, none of them negative.
How many requests ran on average follows from the gaps alone: their sum over the seconds (Little's law).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from monitor import metrics
from monitor.snapshot import EngineSnapshot, Snapshot
from monitor.traffic import Traffic, traffic
from monitor.window import EngineWindow, window
from planner.calibration import TERMS, Calibration, engine_of
from planner.errors import InputError
from planner.latency import Latency, latency
from planner.plan import Plan, plan
from planner.units import count, duration, share
from planner.verdict import Level, Verdict

LEAST_WINDOWS = 8
"""Windows with traffic that a calibration rests on at least  [windows]."""
WINDOW = 20.0
"""Length of a window: many steps, and a load that hardly changes in it  [s]."""
NARROWEST = 0.03
"""No range is narrower than this share of the prediction, however well a fit went  [ratio]."""
CLOSE = 0.10
"""Median error of TPOT up to which a calibration is called good  [ratio]."""
_LONGER = "Take a longer span, with more kinds of load in it."
_SPREAD = (0.1, 0.9)
METRICS = {"tpot_s": "tpot", "ttft_s": "ttft", "output_tokens_per_s": "output_tokens_per_s"}
"""A plan's figures of speed, and what a calibration calls their ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How far a metric was off on windows that came after those it was fitted on.

    metric   tpot_s, ttft_s or output_tokens_per_s
    before   median error without the calibration; None where the plan has no speed   [ratio]
    after    with it                                                                  [ratio]
    covered  share of the windows in the calibration's range                          [ratio]
    windows  how many were there                                                      [windows]
    """

    metric: str
    before: float | None
    after: float
    covered: float
    windows: int


def windows(history: Sequence[Snapshot], seconds: float = WINDOW) -> list[EngineWindow]:
    """One engine's history in windows of about this length; engines stay apart."""
    pages, kept = [], None
    for page in history:
        if kept is None or page.at - kept >= seconds:
            pages.append(page)
            kept = page.at
    return [each for before, after in pairwise(pages) for each in window(before, after).engines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a server's history gives a calibration.

    steady     the traffic it may rest on
    windows    of the history, all engines'            [windows]
    preempted  left out, for requests were thrown back  [windows]
    """

    steady: tuple[Traffic, ...]
    windows: int
    preempted: int

    @property
    def finding(self) -> str:
        """What there is, and what is left out."""
        idle = self.windows - len(self.steady) - self.preempted
        return (
            f"{count(len(self.steady))} of {count(self.windows, 'windows')} can be used; in {count(idle)} too little "
            f"was served or the server restarted, in {count(self.preempted)} requests were preempted."
        )

    @property
    def lack(self) -> str:
        """What is missing for a calibration, empty where nothing is."""
        missing = LEAST_WINDOWS - len(self.steady)
        if missing <= 0:
            return ""
        return f"{count(missing, 'windows' if missing > 1 else 'window')} more with traffic, {LEAST_WINDOWS} in all"


def evidence(history: Sequence[Snapshot], seconds: float = WINDOW) -> Evidence:
    """One server's history, cut into windows of about this length."""
    cut = windows(history, seconds)
    seen = [found for each in cut if (found := traffic(each)) is not None]
    usable = tuple(each for each in seen if not each.preemptions)
    return Evidence(steady=usable, windows=len(cut), preempted=len(seen) - len(usable))


def verdict(found: Calibration, later: Sequence[Accuracy]) -> Verdict:
    """Whether plans are better off with it, judged by the time between tokens in windows it was not fitted on."""
    context = (
        f"{found.model} on {found.gpu}, {found.engine}: {count(found.windows, 'windows')}, {duration(found.seconds)}"
    )
    tpot = next((each for each in later if each.metric == "tpot_s"), None)
    if tpot is None:
        reason = "no later windows are left to prove it on."
        return Verdict(level=Level.WARNING, word="Unproven", reason=reason, action=_LONGER, context=context)
    held = f"On {count(tpot.windows, 'later windows')} TPOT is off by {share(tpot.after)} in the middle"
    if tpot.before is not None and tpot.before <= tpot.after:
        reason = f"{held}, and by {share(tpot.before)} without it."
        action = "Leave the plan as it is, or take a span with more kinds of load."
        return Verdict(level=Level.WARNING, word="No better", reason=reason, action=action, context=context)
    before = "without it nothing is predicted" if tpot.before is None else f"without it by {share(tpot.before)}"
    reason = f"{held}, {before}; {share(tpot.covered)} of them are in its range."
    if tpot.after > CLOSE:
        return Verdict(level=Level.WARNING, word="Rough", reason=reason, action=_LONGER, context=context)
    action = "Save it, and choose it under Calibration in the sidebar."
    return Verdict(level=Level.GOOD, word="Calibrated", reason=reason, action=action, context=context)


def as_text(found: Calibration, later: Sequence[Accuracy]) -> str:
    """A calibration for a terminal: its terms with their errors, and the error before and after on later windows."""
    head = f"{found.name}: {found.model} on {found.gpu}, {count(found.windows, 'windows')}, {duration(found.seconds)}"
    terms = [
        f"  {term:<20} {duration(getattr(found, term)):>10} ± {duration(found.errors.get(term, 0.0))}" for term in TERMS
    ]
    errors = [
        f"  {each.metric:<20} error on {each.windows} later windows {share(each.after)}, without it "
        f"{'no prediction' if each.before is None else share(each.before)}; {share(each.covered)} in its range"
        for each in later
    ]
    return "\n".join((head, *terms, *errors))


def uncalibrated(made: Plan) -> Plan:
    """The plan with the planner's own constants, from which a new calibration begins."""
    if made.calibration is None:
        return made
    return plan(made.model, made.deployment, made.workload, made.slo, made.usd_per_gpu_hour, made.billing)


def steady(found: Iterable[EngineWindow]) -> list[Traffic]:
    """The traffic of those windows that a calibration may rest on: without a restart and without preemption."""
    return [seen for each in found if (seen := traffic(each)) is not None and not seen.preemptions]


def calibration(
    made: Plan, seen: Sequence[Traffic], name: str, fitted: str, engine: EngineSnapshot | None = None
) -> Calibration:
    """The constants that explain this traffic best, in the plan's model and device.

    name    what people will call it
    fitted  today, as YYYY-MM-DD
    engine  the server now, which says how much memory was left for its pool

    Its range is how far the later half of the windows lay from a fit of the earlier half.
    Raises InputError where the plan's engine would not start, or where there is too little traffic.
    """
    if made.layout is None or made.capacity is None:
        raise InputError("plan", str(made.limit), "a plan whose engine starts")
    if len(seen) < LEAST_WINDOWS:
        accepted = f"at least {LEAST_WINDOWS} windows in which requests were served without preemption"
        raise InputError("windows", len(seen), accepted)
    whole = _fitted(made, seen, name, fitted, engine)
    half = len(seen) // 2
    early = _fitted(made, seen[:half], name, fitted, engine)
    return replace(whole, spread=_spread(made, early, seen[half:]))


def proven(
    made: Plan, seen: Sequence[Traffic], name: str, fitted: str, engine: EngineSnapshot | None = None
) -> tuple[Calibration, list[Accuracy]]:
    """A calibration on the first two thirds of the windows, and how far it was off on the last. Raises as above."""
    learnt = max(LEAST_WINDOWS, len(seen) * 2 // 3)
    found = calibration(made, seen[:learnt], name, fitted, engine)
    return found, accuracy(made, found, seen[learnt:])


def accuracy(made: Plan, calibrated: Calibration, later: Sequence[Traffic]) -> list[Accuracy]:
    """The error on windows it was not fitted on, before and after."""
    found = []
    for metric in METRICS:
        before = [abs(each - 1) for each in _ratios(made, None, later, metric)]
        after = [abs(each - 1) for each in _ratios(made, calibrated, later, metric)]
        if after:
            low, high = calibrated.spread[METRICS[metric]]
            inside = [low <= each <= high for each in _ratios(made, calibrated, later, metric)]
            found.append(
                Accuracy(
                    metric=metric,
                    before=median(before) if before else None,
                    after=median(after),
                    covered=sum(inside) / len(inside),
                    windows=len(after),
                )
            )
    return found


def _fitted(made: Plan, seen: Sequence[Traffic], name: str, fitted: str, engine: EngineSnapshot | None) -> Calibration:
    assert made.layout is not None
    gaps = np.array([each.gap_s for each in seen])
    columns = np.array(
        [[1.0, each.streams, each.cached_tokens, each.prompt_tokens_per_s * each.gap_s] for each in seen]
    )
    terms, errors = _nonnegative(columns / gaps[:, None], np.ones(len(seen)))
    found = Calibration(
        name=name,
        model=made.model.name,
        gpu=made.deployment.gpu.name,
        engine=engine_of(made.deployment),
        **dict(zip(TERMS, (*terms, 0.0), strict=True)),
        errors=dict(zip(TERMS[:-1], errors, strict=True)),
        bytes_per_token=made.layout.bytes_per_token,
        other_bytes=None if engine is None else _other_bytes(made, engine),
        spread=dict.fromkeys(METRICS.values(), (1.0, 1.0)),
        windows=len(seen),
        seconds=sum(each.seconds for each in seen),
        fitted=fitted,
    )
    firsts = [
        each.first_s - expected.ttft_s.value
        for each in seen
        if each.first_s is not None and (expected := _expected(made, found, each)) is not None
    ]
    return replace(found, first_s=max(0.0, median(firsts))) if firsts else found


def _nonnegative(columns: NDArray[np.float64], target: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    """Least squares without negative terms, and their standard errors: the best of all subsets of so few columns."""
    best, many = (np.inf, [0.0] * columns.shape[1], [0.0] * columns.shape[1]), columns.shape[1]
    for size in range(1, many + 1):
        for chosen in combinations(range(many), size):
            part = columns[:, chosen]
            scale = np.abs(part).max(axis=0)
            if not scale.all():
                continue
            solved, _, rank, _ = np.linalg.lstsq(part / scale, target, rcond=1e-6)
            if rank < size or (solved < 0).any():
                continue
            residual = target - part / scale @ solved
            missed = float(residual @ residual)
            if missed < best[0] * (1 - 1e-9):
                noise = missed / max(1, len(target) - size)
                spread = np.sqrt(np.diag(np.linalg.inv((part / scale).T @ (part / scale))) * noise)
                terms, errors = np.zeros(many), np.zeros(many)
                terms[list(chosen)], errors[list(chosen)] = solved / scale, spread / scale
                best = missed, terms.tolist(), errors.tolist()
    return best[1], best[2]


def _expected(made: Plan, calibrated: Calibration | None, seen: Traffic) -> Latency | None:
    assert made.layout is not None
    assert made.capacity is not None
    blocks, streams = made.capacity[0].num_gpu_blocks, max(1.0, seen.streams)
    return latency(made.model, made.deployment, seen.workload, made.layout, made.weights, blocks, streams,
                   calibration=calibrated)  # fmt: skip


def _ratios(made: Plan, calibrated: Calibration | None, seen: Sequence[Traffic], metric: str) -> list[float]:
    """Measured over predicted, window by window."""
    found = []
    for each in seen:
        expected = _expected(made, calibrated, each)
        actual = {
            "tpot_s": each.gap_s,
            "ttft_s": each.first_s,
            "output_tokens_per_s": each.output_tokens_per_s,
        }[metric]
        if expected is not None and actual is not None:
            found.append(actual / getattr(expected, metric).value)
    return found


def _spread(made: Plan, early: Calibration, later: Sequence[Traffic]) -> dict[str, tuple[float, float]]:
    """Between which factors 80 % of the later windows lay  [ratio]."""
    spread = {}
    for metric, kind in METRICS.items():
        low, high = np.quantile(_ratios(made, early, later, metric) or [1.0], _SPREAD)
        spread[kind] = min(float(low), 1 - NARROWEST), max(float(high), 1 + NARROWEST)
    return spread


def _other_bytes(made: Plan, engine: EngineSnapshot) -> int | None:
    """What the plan thought was free and the server did not find so, where its pool is what memory left  [bytes]."""
    server = made.deployment
    set_by_hand = server.kv_cache_memory_bytes or server.num_gpu_blocks_override or server.gpu.is_cpu
    reported = engine.number(metrics.BLOCKS_OVERRIDE) or engine.number(metrics.KV_MEMORY)
    utilization = engine.number(metrics.UTILIZATION)
    if set_by_hand or reported or made.layout is None or made.budget is None or not engine.num_gpu_blocks:
        return None
    if utilization is not None and utilization != server.utilization:
        return None
    return made.budget.available_kv.value - engine.num_gpu_blocks * made.layout.bytes_per_block
