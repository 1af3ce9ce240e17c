"""Where pages get servers from: the collector with its store, or a Prometheus-compatible server. Both look the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from monitor.finding import Event, Finding
from monitor.scrape import Scrape
from monitor.snapshot import Snapshot
from monitor.targets import Target
from monitor.window import Window, window


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What is known of one target now.

    target    as configured
    history   its Snapshots of the last minutes, oldest first
    age       since the last good page; None before the first   [s]
    error     the last scrape, when it failed
    failures  failed scrapes since the last good one            [scrapes]
    findings  what is wrong, worst first
    """

    target: Target
    history: tuple[Snapshot, ...]
    age: float | None
    error: Scrape | None
    failures: int
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def latest(self) -> Snapshot | None:
        return self.history[-1] if self.history else None

    def window(self, seconds: float) -> Window | None:
        """From the newest Snapshot back to the one nearest to `seconds` before it; None while there is only one."""
        if len(self.history) < 2:
            return None
        *earlier, newest = self.history
        return window(min(earlier, key=lambda then: abs(newest.at - seconds - then.at)), newest)

    def since(self, seconds: float) -> tuple[Snapshot, ...]:
        """The Snapshots of the last `seconds` before the newest."""
        return tuple(page for page in self.history if page.at >= self.history[-1].at - seconds)


class Source(Protocol):
    """What a page asks. Trouble of the source itself (store locked, Prometheus down) is `problem`, no exception."""

    @property
    def problem(self) -> str:
        """One line on what is wrong with the source, empty when nothing is."""

    def targets(self) -> tuple[Target, ...]:
        """All servers watched."""

    def state(self, name: str) -> TargetState | None:
        """One server now, or None when it is not watched."""

    def snapshots(self, name: str, start: float, end: float, points: int = 240) -> Sequence[Snapshot]:
        """About so many Snapshots between two Unix times [s], oldest first; empty where nothing is kept."""

    def events(self, start: float, end: float, name: str | None = None) -> Sequence[Event]:
        """The timeline between two Unix times [s], oldest first, of one server or of all."""
