"""A source of servers that stand still in recorded states: what a Watch would say of them."""

from collections.abc import Sequence

from monitor.config import MonitorConfig
from monitor.finding import Event, Finding
from monitor.reading import read
from monitor.scrape import Scrape
from monitor.snapshot import Snapshot
from monitor.source import TargetState
from monitor.targets import Target
from tests.recorded import page

DOWN = Scrape(state="refused", url="http://gone", message="nothing listens there")
STARTED = 1.79e9
"""Unix time of the first page  [s]."""
IDLE, LOAD, PREEMPTING = (page(name) for name in ("0.32.0-idle-whole", "0.32.0-load", "0.32.0-preempt-blocks80-load"))


def state(
    name: str, *pages: str, group: str = "", error: Scrape | None = None, findings: tuple[Finding, ...] = ()
) -> TargetState:
    """A server that answered these pages 10 s apart, and nothing since where there is an error."""
    history = tuple(read(text, at=10.0 * number, wall=STARTED + 10 * number) for number, text in enumerate(pages))
    target = Target(name=name, url=f"http://{name}:8000", group=group, labels={"region": "eu"})
    age, failures = 1.0 if pages else None, 3 if error else 0
    return TargetState(target=target, history=history, age=age, error=error, failures=failures, findings=findings)


class Servers:
    """These servers, and one more for each address that is typed; `heard` is the order of what was asked of it."""

    def __init__(self, *states: TargetState, timeline: Sequence[Event] = (), usual: float | None = None) -> None:
        self.states = {each.name: each for each in states}
        self.timeline, self.usual, self.problem = timeline, usual, ""
        self.heard: list[str] = []
        self.config = MonitorConfig()

    def targets(self) -> tuple[Target, ...]:
        return tuple(each.target for each in self.states.values())

    def state(self, name: str) -> TargetState | None:
        return self.states.get(name)

    def snapshots(self, name: str, start: float, end: float, points: int = 240) -> Sequence[Snapshot]:
        return self.states[name].history if name in self.states else ()

    def events(self, start: float, end: float, name: str | None = None) -> Sequence[Event]:
        return [event for event in self.timeline if name in (None, event.target)]

    def baseline(self, name: str, at: float) -> float | None:
        return self.usual

    def watch(self, url: str) -> None:
        self.states[url] = state(url, page("0.32.0-dp2-start"), page("0.32.0-dp2-load"))

    def wait_for_page(self, name: str, seconds: float) -> None:
        pass

    def reload(self, config: MonitorConfig) -> None:
        self.config = config
        self.heard.append("reload")

    def start(self) -> None:
        self.heard.append("start")

    def stop(self) -> None:
        self.heard.append("stop")
