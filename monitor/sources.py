"""Sources: all that one dashboard reads servers from, and monitor.toml behind it, read again whenever it changes."""

import threading
from collections.abc import Callable
from pathlib import Path

from monitor.config import MonitorConfig, config
from monitor.source import Source, TargetState
from monitor.watch import Watch
from planner.errors import InputError

OWN, PROMETHEUS = "This dashboard", "Prometheus"
"""What a reader may read from."""
LOOK = 5.0
"""Between two looks at the file  [s]."""


def _from_prometheus(config: MonitorConfig) -> Source | None:
    """Its client is loaded only where it is wanted."""
    if config.prometheus is None:
        return None
    from monitor.prometheus import PrometheusSource

    return PrometheusSource(config.prometheus, config.thresholds)


class Sources:
    """What scrapes by itself, and a Prometheus where the file names one. A file that is wrong changes nothing.

    `file_problem` is one line on what is wrong with the file, empty when nothing is.
    """

    def __init__(
        self,
        path: Path,
        watch: Callable[[MonitorConfig], Watch] = Watch,
        prometheus: Callable[[MonitorConfig], Source | None] = _from_prometheus,
    ) -> None:
        self.path, self.file_problem, self.config = path, "", MonitorConfig()
        self._from_prometheus = prometheus
        self._changing, self._ended = threading.Lock(), threading.Event()
        self.config = self._read()
        self.watch, self.prometheus = watch(self.config), prometheus(self.config)

    def _read(self) -> MonitorConfig:
        """What the file says; where it is wrong, what it said before."""
        try:
            found, self.file_problem = config(self.path), ""
        except InputError as problem:
            found, self.file_problem = self.config, f"The file is wrong, so what it said before holds. {problem}"
        return found

    def reload(self) -> None:
        """Take what the file says now."""
        with self._changing:
            before, self.config = self.config, self._read()
            if self.config == before:
                return
            if (before.prometheus, before.thresholds) != (self.config.prometheus, self.config.thresholds):
                self.prometheus = self._from_prometheus(self.config)
            self.watch.reload(self.config)

    def start(self) -> None:
        """Scrape, record, judge and look at the file from now on, whoever visits."""
        self.watch.start()
        threading.Thread(target=self._look, name="monitor.toml", daemon=True).start()

    def _look(self) -> None:
        if self.prometheus is not None:
            self.prometheus.targets()  # so that the first visitor does not wait for it
        while not self._ended.wait(LOOK):
            self.reload()

    def stop(self) -> None:
        self._ended.set()
        self.watch.stop()

    @property
    def choices(self) -> tuple[str, ...]:
        """What there is to read from; Prometheus first where this dashboard scrapes nothing by itself."""
        if self.prometheus is None:
            return (OWN,)
        return (OWN, PROMETHEUS) if self.config.targets else (PROMETHEUS, OWN)

    def chosen(self, choice: str | None) -> Source:
        """The source of that name; the first of the choices where it is none of them."""
        name = choice if choice in self.choices else self.choices[0]
        return self.prometheus if name == PROMETHEUS and self.prometheus is not None else self.watch

    def state(self, name: str, choice: str | None) -> TargetState | None:
        """A server of that source, or one whose address a visitor typed, which this dashboard scrapes."""
        return self.chosen(choice).state(name) or self.watch.state(name)

    def of(self, name: str, choice: str | None) -> Source:
        """The source that knows the server."""
        source = self.chosen(choice)
        return source if source.state(name) is not None else self.watch

    def usual(self, name: str, at: float) -> tuple[float, float] | None:
        """Output tokens/s that are low, and those that are usual at this hour (Unix time), where that is known."""
        baseline = self.config.thresholds.baseline_output_tokens_per_s or self.watch.baseline(name, at)
        return None if baseline is None else (baseline * self.config.thresholds.throughput, baseline)
