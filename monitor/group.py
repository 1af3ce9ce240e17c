"""Several servers held against one plan: each with its verdict, the worst first, and what they are together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

from monitor.compare import over
from monitor.deviation import Comparison, Deviation
from monitor.health import WORST_FIRST
from monitor.snapshot import Snapshot
from planner.latency import Range
from planner.plan import Plan
from planner.units import count
from planner.verdict import Level, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server held against a plan.

    name     as configured
    pages    what it said in the time compared, oldest first
    found    the comparison, one for each engine, the worst first
    silence  why it says nothing now, empty where it does
    """

    name: str
    pages: tuple[Snapshot, ...]
    found: tuple[Comparison, ...]
    silence: str = ""

    @property
    def verdict(self) -> Verdict:
        """Its worst engine's; that nothing is compared where it has none."""
        if self.found:
            return self.found[0].verdict
        reason = self.silence or "it said nothing in this time."
        return Verdict(level=Level.UNKNOWN, word="Nothing to compare", reason=reason, context=self.name)


def servers(
    made: Plan, pages: Mapping[str, Sequence[Snapshot]], silent: Mapping[str, str] | None = None
) -> list[Server]:
    """Each of these servers held against the plan, the worst first.

    pages   what each said in the time compared
    silent  why some say nothing now

    Raises InputError for a plan whose engine would not start.
    """
    found = [
        Server(
            name=name,
            pages=tuple(said),
            found=tuple(sorted(over(made, said), key=_badness)) if said else (),
            silence=(silent or {}).get(name, ""),
        )
        for name, said in pages.items()
    ]
    return sorted(found, key=lambda each: (_rank(each.verdict), -_farthest(each.found), each.name))


def _badness(found: Comparison) -> tuple[int, float, str]:
    return _rank(found.verdict), -_farthest((found,)), found.engine or ""


def _rank(verdict: Verdict) -> int:
    return WORST_FIRST.index(verdict.level)


def _farthest(found: Sequence[Comparison]) -> float:
    """How far the quantity that is farthest off is from the plan, in either direction, as a logarithm."""
    off = [each for comparison in found for each in comparison.deviations if each.is_off]
    return max((abs(log(each.ratio)) if each.ratio and each.ratio > 0 else inf for each in off), default=0.0)


def group_verdict(found: Sequence[Server]) -> Verdict:
    """All of them in one sentence, with the worst."""
    well = sum(each.verdict.level is Level.GOOD for each in found)
    worst = found[0].verdict
    many = f"{well} of {count(len(found), 'servers')}"
    if worst.level is Level.GOOD:
        return Verdict(level=Level.GOOD, word="As planned", reason=f"{many}.", context=worst.context)
    reason = f"{many} are as planned. The worst, {found[0].name}: {worst.reason}"
    return Verdict(level=worst.level, word=worst.word, reason=reason, context=worst.context)


def sums(made: Plan, found: Sequence[Server]) -> tuple[Deviation, ...]:
    """Capacity and tokens a second of all servers together, against the plan times as many servers.

    Tokens a second are held against what the plan expects for the traffic that is there, and against its own load.
    """
    tokens, rate = "kv_cache_size_tokens", "output_tokens_per_s"
    silent = [each.name for each in found if not each.found]
    replicas = made.deployment.data_parallel_size * len(found)
    held = None if made.capacity is None else Range(*(getattr(each, tokens) for each in made.capacity)).times(replicas)
    own = None if made.latency is None else made.latency.output_tokens_per_s.times(len(found))
    for_traffic = _added(rate, "tokens/s", found)
    gone = f"{', '.join(silent)} said nothing. " if silent else ""
    note = f"the plan × {count(len(found), 'servers')}"
    capacity = Deviation(quantity=tokens, unit="tokens", planned=held, actual=_added(tokens, "tokens", found).actual,
                         note=note)  # fmt: skip
    at_own_load = Deviation(quantity=rate, unit="tokens/s", planned=own, actual=for_traffic.actual,
                            note=f"{note}, at the load planned for")  # fmt: skip
    why = for_traffic.cause or "traffic is not the planned one: what runs is as fast as planned."
    return (
        capacity.because(gone + _first_cause(tokens, found)),
        for_traffic,
        at_own_load.because(gone + why),
    )


def _added(quantity: str, unit: str, found: Sequence[Server]) -> Deviation:
    """The engines' deviations in a quantity, added up where both sides are known."""
    each = [one for server in found for engine in server.found for one in engine.deviations if one.quantity == quantity]
    known = [(one.planned, one.actual) for one in each if one.planned is not None and one.actual is not None]
    actual = [one.actual for one in each if one.actual is not None]
    both = len(known) == len(actual)
    total = Deviation(
        quantity=quantity,
        unit=unit,
        planned=Range(*map(sum, zip(*(planned for planned, _ in known), strict=True))) if known and both else None,
        actual=sum(actual) if actual else None,
        note=f"for the traffic there, {count(len(actual), 'engines')}",
    )
    return total.because(_first_cause(quantity, found))


def _first_cause(quantity: str, found: Sequence[Server]) -> str:
    """Of the worst server that is off in it."""
    off = (one for server in found for engine in server.found for one in engine.deviations if one.quantity == quantity)
    return next((one.cause for one in off if one.cause), "")
