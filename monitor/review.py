"""One server over a span of time: what was recorded of it, in one verdict."""

from collections.abc import Sequence
from itertools import pairwise

from monitor.finding import Change, Event
from monitor.panels import KV_USAGE, THROUGHPUT, lines
from monitor.series import Series
from monitor.snapshot import Snapshot
from monitor.times import moment
from planner.units import Formatter, count, duration, share
from planner.verdict import Level, Verdict


def review(
    name: str, history: Sequence[Snapshot], events: Sequence[Event], start: float, end: float, problem: str = ""
) -> Verdict:
    """How full it was, how fast, and what went wrong, between two Unix times [s].

    problem  why not all that was recorded can be read; it is then not known that nothing was wrong
    """
    context = f"{name}, {moment(start)} to {moment(end)}"
    if len(history) < 2:
        return Verdict(
            level=Level.UNKNOWN,
            word="Nothing recorded",
            reason="there are not two pages of this server in this span.",
            action="Choose a longer span, or an earlier one.",
            context=context,
        )
    began = [event for event in events if event.change is Change.BEGAN]
    bad = sum(event.level is Level.BAD for event in began)
    warned = sum(event.level is Level.WARNING for event in began)
    is_silent = not any(engine.values for page in history for engine in page.engines)
    quiet = (Level.GOOD, "Quiet")
    if problem or is_silent:
        quiet = (Level.UNKNOWN, "Nothing reported" if is_silent else "Partly known")
    level, word = (Level.BAD, "Trouble") if bad else (Level.WARNING, "Warnings") if warned else quiet
    nothing = "what was found cannot be read" if problem else "nothing was found wrong"
    if is_silent:
        nothing = history[-1].missing.get(KV_USAGE.source.key) or "its pages name no engine"
    parts = [f"{count(bad)} bad and {count(warned)} warning findings began"] if began else [nothing]
    parts += _highest("KV cache at most {} in use", share, lines(KV_USAGE, history))
    parts += _highest("output at most {} tokens/s", count, lines(THROUGHPUT, history)[:1])
    every = (history[-1].at - history[0].at) / (len(history) - 1)
    longest = max(after.at - before.at for before, after in pairwise(history))
    context += f", {count(len(history), 'pages')}, one every {duration(every)}, longest pause {duration(longest)}"
    return Verdict(level=level, word=word, reason=f"{', '.join(parts)}.", context=context)


def _highest(text: str, form: Formatter, found: Sequence[Series]) -> list[str]:
    known = [value for line in found for value in line.known]
    return [text.format(form(max(known)))] if known else []
