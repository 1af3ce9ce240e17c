"""The fleet: every server with its verdict, worst first, and what they are together by model and by group."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from monitor.health import WORST_FIRST, verdict
from monitor.source import Source, TargetState
from monitor.summary import Number, Summary, summary, usage_over_time
from planner.verdict import Level, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One line of the fleet.

    summary  its numbers now
    verdict  what they come to
    usage    KV usage over the last minutes, oldest first  [ratio]
    """

    summary: Summary
    verdict: Verdict
    usage: tuple[float, ...]

    @property
    def state(self) -> TargetState:
        return self.summary.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Several servers together. A sum leaves out those that do not report it, and is None where none does.

    name                 of the model or the group; empty where none is said
    servers              how many                          [servers]
    well                 of them, good                     [servers]
    silent               of them, without a current page   [servers]
    running              requests in their batches         [requests]
    waiting              requests queued                   [requests]
    output_tokens_per_s  generated                         [tokens/s]
    used_tokens          in the blocks held                [tokens]
    capacity_tokens      what their pools hold             [tokens]
    """

    name: str
    servers: int
    well: int
    silent: int
    running: int | None
    waiting: int | None
    output_tokens_per_s: float | None
    used_tokens: int | None
    capacity_tokens: int | None

    @property
    def kv_usage(self) -> float | None:
        """Of all their pools together  [ratio]."""
        if self.used_tokens is None or not self.capacity_tokens:
            return None
        return self.used_tokens / self.capacity_tokens


def members(source: Source, seconds: float) -> list[Member]:
    """Every server the source knows, worst first, then the fullest; rates over `seconds`."""
    states = filter(None, (source.state(target.name) for target in source.targets()))
    found = [
        Member(summary=summary(state, seconds), verdict=verdict(state, seconds), usage=tuple(usage_over_time(state)))
        for state in states
    ]
    return sorted(found, key=_badness)


def _badness(member: Member) -> tuple[int, float, str]:
    return WORST_FIRST.index(member.verdict.level), -(member.summary.kv_usage or 0), member.state.name


def having(found: Iterable[Member], words: str, group: str | None = None) -> list[Member]:
    """Those of the group that hold each of the words in their name, address, labels, models or verdict."""
    wanted = words.casefold().split()
    return [
        each
        for each in found
        if group in (None, each.state.target.group) and all(word in _text(each) for word in wanted)
    ]


def _text(member: Member) -> str:
    target = member.state.target
    labels = (f"{key}={value}" for key, value in target.labels.items())
    parts = (target.name, target.url, target.group, *labels, *member.summary.models, member.verdict.word)
    return " ".join(parts).casefold()


def by_model(found: Sequence[Member]) -> list[Total]:
    """Totals of the servers of each model, the largest first."""
    return _totals(found, lambda each: ", ".join(each.summary.models))


def by_group(found: Sequence[Member]) -> list[Total]:
    """Totals of the servers of each group, the largest first."""
    return _totals(found, lambda each: each.state.target.group)


def _totals(found: Sequence[Member], name: Callable[[Member], str]) -> list[Total]:
    named: dict[str, list[Member]] = {}
    for each in found:
        named.setdefault(name(each), []).append(each)
    return sorted((total(key, those) for key, those in named.items()), key=lambda each: (-each.servers, each.name))


def total(name: str, those: Sequence[Member]) -> Total:
    """These servers together; one without a current page adds nothing but its count."""
    heard = [each.summary for each in those if each.state.latest is not None and each.state.error is None]
    return Total(
        name=name,
        servers=len(those),
        well=sum(each.verdict.level is Level.GOOD for each in those),
        silent=len(those) - len(heard),
        running=_sum(each.running for each in heard),
        waiting=_sum(each.waiting for each in heard),
        output_tokens_per_s=_sum(each.output_tokens_per_s for each in heard),
        used_tokens=_sum(each.used_tokens for each in heard),
        capacity_tokens=_sum(each.capacity_tokens for each in heard if each.used_tokens is not None),
    )


def _sum(values: Iterable[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
