"""Fits the constants of the speed law on measurements of vLLM: python scripts/fit_latency.py FILE.jsonl[.gz] [--write]

FILE has one measurement a line, in the format of tests/serving/rows.jsonl.gz (public runs, each with its source).
Prints each constant beside where its search began, and the error on groups (model × device × source) that were left
out of the fit, one at a time. With --write updates planner/latency_constants.json: constants, their error, and for
each kind of case the range that held 80 % of measurements, over predictions with and without the case's group in the
fit together: a plan may be like what was measured, or not.

The loss is Cauchy's on log ratios, so that a run that is not what it says does not bend the law; groups weigh by the
square root of their rows; each constant is drawn a little to a physically likely value, which decides where data are
silent. Efficiencies cannot exceed 97 % of a peak, so no fit promises more than the floor allows.
"""

import argparse
import gzip
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from planner.errors import InputError, Refusal  # noqa: E402
from planner.latency import Latency, spread_kind  # noqa: E402
from planner.latency_law import CONSTANTS, FILE, Constants  # noqa: E402
from planner.roofline import work_of  # noqa: E402
from planner.validation import error_summary  # noqa: E402
from planner.validation.serving import METRICS, Case, case_of, range_of  # noqa: E402

MOST = 0.97  # of a peak that anything reaches
WEIGHTS = {"tpot": 1.0, "output_tokens_per_s": 0.7, "ttft": 0.3}  # of a row's log ratios: TTFT is the noisiest
SCALE = 0.12  # log ratio beyond which the Cauchy loss hardly grows
PULL = 0.03  # strength of the priors, against a row's log ratio
HELD = 0.8  # share of observations a range holds


class Prior(NamedTuple):
    """Where a constant's search begins, and how far it may stray (log units; logits for shares of a peak)."""

    middle: float
    width: float = 0.5


PRIORS: Mapping[str, Prior] = {
    "read_sixteen": Prior(0.90, 0.3), "read_eight": Prior(0.85, 0.3), "read_four": Prior(0.70, 0.3),
    "read_packed": Prior(0.75, 0.3), "read_experts": Prior(0.85, 0.3), "unpack_rate": Prior(2.5e12),
    "read_kv_sixteen": Prior(0.75, 0.3), "read_kv_eight": Prior(0.75, 0.3), "read_kv_packed": Prior(0.50, 0.3),
    "dense_sixteen": Prior(0.65, 0.15), "dense_eight": Prior(0.55, 0.15), "dense_four": Prior(0.35, 0.3),
    "expert_sixteen": Prior(0.50), "expert_eight": Prior(0.30), "expert_four": Prior(0.20),
    "unpack_flops": Prior(1.7e14), "prefill_attention": Prior(0.45), "sharpness": Prior(3.0, 0.2),
    "layer": Prior(35e-6), "moe_layer": Prior(20e-6), "latent_layer": Prior(20e-6), "rounding": Prior(15e-6),
    "expert_rounding": Prior(15e-6), "aging": Prior(0.5), "eager_layer": Prior(400e-6), "prefill_layer": Prior(20e-6),
    "step": Prior(0.5e-3), "waiting": Prior(1.5e-3), "sequence": Prior(8e-6), "message": Prior(4e-6, 0.3),
    "message_pcie": Prior(40e-6), "link": Prior(0.60), "link_pcie": Prior(0.50), "first": Prior(5e-3),
    "first_open": Prior(2e-3), "first_steps": Prior(1.5), "queue": Prior(0.5), "crowding": Prior(0.55, 0.3),
}  # fmt: skip
SHARES = ("read_", "dense_", "expert_", "prefill_attention", "link")


def is_share(name: str) -> bool:
    """The constant is a share of a peak."""
    return name.startswith(SHARES) and not name.endswith("rounding")


def to_search(name: str, value: float) -> float:
    """A constant as the search sees it: logit of a share, logarithm of anything else."""
    return math.log(value / (MOST - value)) if is_share(name) else math.log(value)


def from_search(name: str, place: float) -> float:
    """The inverse of to_search."""
    return MOST / (1 + math.exp(-place)) if is_share(name) else math.exp(place)


def constants_at(places: np.ndarray) -> Constants:
    """The constants at a point of the search."""
    return Constants(**{name: from_search(name, place) for name, place in zip(PRIORS, places, strict=True)})


def places_of(constants: Mapping[str, float]) -> np.ndarray:
    """The point of the search at these constants."""
    return np.array([to_search(name, constants[name]) for name in PRIORS])


MIDDLES = places_of({name: prior.middle for name, prior in PRIORS.items()})
PULLS = np.array([(PULL / prior.width) ** 2 for prior in PRIORS.values()])


def misses(cases: Sequence[Case], constants: Constants) -> np.ndarray:
    """Weighted log ratios of predicted to measured, three a case; 0 where nothing was measured."""
    found = []
    for case in cases:
        made = predicted(case, constants)
        for metric in METRICS:
            measured = case.measured(metric)
            ratio = range_of(made, metric).value / measured if measured else 1.0
            found.append(WEIGHTS[metric] * math.log(ratio))
    return np.array(found)


def predicted(case: Case, constants: Constants) -> Latency:
    """The planner's answer for a case that is known to have one."""
    made = case.predicted(constants)
    assert made is not None
    return made


def fitted(cases: Sequence[Case], start: np.ndarray, rounds: int) -> np.ndarray:
    """Levenberg-Marquardt on the Cauchy loss, from this point of the search."""
    counts = Counter(group(case) for case in cases)
    weight = np.repeat([counts[group(case)] ** -0.5 for case in cases], len(METRICS))
    weight *= len(weight) / weight.sum()
    pulls = PULLS * len(cases) / 670  # the priors keep their weight when a group is left out

    def loss(miss: np.ndarray, at: np.ndarray) -> float:
        cauchy = SCALE**2 / 2 * np.sum(weight * np.log1p((miss / SCALE) ** 2))
        return float(cauchy + np.sum(pulls * (at - MIDDLES) ** 2) / 2)

    at, damping = start, 1e-2
    miss = misses(cases, constants_at(at))
    now = loss(miss, at)
    for _ in range(rounds):
        slopes = np.empty((len(miss), len(at)))
        for index in range(len(at)):
            moved = at.copy()
            moved[index] += 1e-3
            slopes[:, index] = (misses(cases, constants_at(moved)) - miss) / 1e-3
        robust = weight / (1 + (miss / SCALE) ** 2)
        curvature = slopes.T @ (robust[:, None] * slopes) + np.diag(pulls)
        downhill = -(slopes.T @ (robust * miss) + pulls * (at - MIDDLES))
        for _ in range(8):
            move = np.clip(np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill), -0.7, 0.7)
            then = misses(cases, constants_at(at + move))
            better = loss(then, at + move)
            if better < now:
                break
            damping *= 5
        else:
            return at
        gained, at, miss, now, damping = now - better, at + move, then, better, max(damping / 5, 1e-5)
        if gained < 3e-4 * now:
            return at
    return at


def group(case: Case) -> tuple[str, str, str]:
    """What is left out together: rows of one model on one device from one source."""
    return str(case.row["model"]), case.deployment.gpu.name, str(case.row["source"])


def family(case: Case) -> tuple[str]:
    """What is left out together to know how a device of a new kind does."""
    return (case.deployment.gpu.architecture.removesuffix("-ultra"),)


def left_out(cases: Sequence[Case], start: np.ndarray, key: Callable[[Case], tuple[str, ...]], rounds: int
             ) -> dict[str, Latency]:  # fmt: skip
    """Each case predicted by constants fitted without any case of its key, by the case's id."""
    found = {}
    for name in sorted({key(case) for case in cases}):
        kept = [case for case in cases if key(case) != name]
        constants = constants_at(fitted(kept, start, rounds))
        found |= {case.row["id"]: predicted(case, constants) for case in cases if key(case) == name}
    return found


def factors(cases: Sequence[Case], made: Mapping[str, Latency], metric: str) -> list[float]:
    """Measured over predicted."""
    found = ((case.measured(metric), range_of(made[case.row["id"]], metric).value) for case in cases)
    return [measured / value for measured, value in found if measured]


def spread(cases: Sequence[Case], metric: str, *made: Mapping[str, Latency]) -> tuple[float, float]:
    """The factors on predictions that held 80 % of measurements."""
    found = [factor for one in made for factor in factors(cases, one, metric)]
    low, high = np.percentile(found, [50 * (1 - HELD), 50 * (1 + HELD)])
    return round(float(low), 3), round(float(high), 3)


def held(kinds: Mapping[str, Sequence[Case]], made: Mapping[str, Latency], metric: str,
         spreads: Mapping[str, tuple[float, float]]) -> float:  # fmt: skip
    """Share of measurements within the range of their kind."""
    found = [spreads[kind][0] <= factor <= spreads[kind][1]
             for kind, members in kinds.items() for factor in factors(members, made, metric)]  # fmt: skip
    return round(sum(found) / len(found), 3)


def by_kind(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Cases by the kind whose range they are given."""
    kinds: defaultdict[str, list[Case]] = defaultdict(list)
    for case in cases:
        work = work_of(case.model, case.deployment, case.layout, case.stages)
        open_loop = case.workload.request_rate is not None
        kinds[spread_kind(work, case.deployment.gpu, case.streams or 1.0, open_loop)].append(case)
    return kinds


def errors(cases: Sequence[Case], made: Mapping[str, Latency]) -> dict[str, dict[str, Any]]:
    """Error of each metric."""
    return {metric: error_summary([1 / factor for factor in factors(cases, made, metric)]) for metric in METRICS}


def show(title: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """One line of the table."""
    cells = (f"{one['n']:4} {one['median_abs_error_pct'] or 0:6.1f} {one['p90_abs_error_pct'] or 0:7.1f} "
             f"{one['bias_pct'] or 0:+7.1f}" for one in found.values())  # fmt: skip
    print(f"{title:<72} " + " |".join(cells))


def cases_in(path: Path) -> list[Case]:
    """The rows the planner can predict."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = []
    reasons: Counter[str] = Counter()
    for line in text.decode("utf-8").splitlines():
        try:
            case = case_of(json.loads(line))
        except (InputError, Refusal) as reason:
            reasons[str(reason)] += 1
            continue
        if case.streams is None:
            reasons["requests in flight are not stated"] += 1
            continue
        if case.predicted() is not None:
            found.append(case)
    for reason, count in reasons.items():
        print(f"{count} rows left out: {reason}", file=sys.stderr)
    return found


def main() -> None:
    """Fits, cross-validates, prints, and writes when asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=20, help="of the fit on all groups")
    parser.add_argument("--rounds-left-out", type=int, default=4, help="of each fit that leaves a group out")
    parser.add_argument("--write", action="store_true", help=f"update {FILE.relative_to(ROOT)}")
    options = parser.parse_args()

    cases = cases_in(options.file)
    best = fitted(cases, places_of(asdict(CONSTANTS)), options.rounds)
    constants = constants_at(best)
    for name, value in asdict(constants).items():
        print(f"{name:18} {value:12.4g}  (began at {PRIORS[name].middle:g})")
    groups = left_out(cases, best, group, options.rounds_left_out)
    devices = left_out(cases, best, family, options.rounds_left_out)

    print(f"\n{'':72} {'  |'.join(f'   n median     p90    bias  {metric}'[:28] for metric in METRICS)}")
    for name in sorted({group(case) for case in cases}):
        members = [case for case in cases if group(case) == name]
        show(" · ".join(name)[:72], errors(members, groups))
    kinds = by_kind(cases)
    for kind, members in kinds.items():
        show(f"kind: {kind}", errors(members, groups))
    seen = {case.row["id"]: predicted(case, constants) for case in cases}
    show("fitted on all", errors(cases, seen))
    show("its group left out", errors(cases, groups))
    show("its device's architecture left out", errors(cases, devices))

    spreads = {
        metric: {kind: spread(kinds[kind], metric, groups, seen) for kind in sorted(kinds)} for metric in METRICS
    }
    coverage = {metric: held(kinds, groups, metric, spreads[metric]) for metric in METRICS}
    print("range coverage, group left out:", coverage)
    print("range coverage, fitted on all: ", {metric: held(kinds, seen, metric, spreads[metric]) for metric in METRICS})
    for metric in METRICS:
        spreads[metric]["unseen device"] = spread(cases, metric, devices)
    if options.write:
        written = {
            "fitted": date.today().isoformat(),
            "rows": len(cases),
            "groups": len({group(case) for case in cases}),
            "left_out_error": errors(cases, groups),
            "left_out_coverage": coverage,
            "constants": {name: float(f"{value:.4g}") for name, value in asdict(constants).items()},
            "spread": spreads,
            "seen_architectures": sorted({case.deployment.gpu.architecture for case in cases}),
        }
        FILE.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
