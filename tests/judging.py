"""Pages in a wanted state, made by hand or from recorded ones, and states of a target that has read them."""

from collections.abc import Iterable, Mapping

from monitor.reading import read
from monitor.scrape import Scrape
from monitor.snapshot import Snapshot
from monitor.source import TargetState
from monitor.targets import Target

TARGET = Target(name="chat-1", url="http://chat-1:8000")
DOWN = Scrape(state="refused", url="http://chat-1:8000/metrics", message="nothing listens there")
WALL = 1_800_000_000.0
"""Unix time of a page read at 0."""


def page(at: float, text: str) -> Snapshot:
    return read(text, at=at, wall=WALL + at)


def engine(blocks: int = 101, block_size: int = 16, **values: float) -> str:
    """A page of a V1 engine: its configuration and the series named."""
    config = f'vllm:cache_config_info{{block_size="{block_size}",engine="0",num_gpu_blocks="{blocks}"}} 1.0\n'
    return config + "".join(f'vllm:{name}{{engine="0",model_name="m"}} {value}\n' for name, value in values.items())


def histogram(name: str, counts: Mapping[str, int], total: float) -> str:
    """Its buckets, cumulative, the last of them +Inf."""
    lines = [f'vllm:{name}_bucket{{engine="0",le="{bound}",model_name="m"}} {n}\n' for bound, n in counts.items()]
    whole = f'vllm:{name}_count{{engine="0",model_name="m"}} {counts["+Inf"]}\n'
    return "".join(lines) + whole + f'vllm:{name}_sum{{engine="0",model_name="m"}} {total}\n'


def split(name: str, label: str, **values: float) -> str:
    """A series for each value of its label."""
    return "".join(f'vllm:{name}{{engine="0",{label}="{part}",model_name="m"}} {n}\n' for part, n in values.items())


def later(text: str, **added: float) -> str:
    """A recorded page some time later: every series of these names, without `vllm:`, has counted so much more."""
    lines = []
    for line in text.splitlines():
        name = line.partition("{")[0].removeprefix("vllm:")
        if name in added:
            series, _, value = line.rpartition(" ")
            line = f"{series} {float(value) + added[name]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def state(pages: Iterable[Snapshot], failures: int = 0, age: float = 0.0) -> TargetState:
    """Of a target that has read these; with failures, of one that was last read `age` seconds ago."""
    history = tuple(pages)
    error = DOWN if failures else None
    return TargetState(target=TARGET, history=history, age=age if history else None, error=error, failures=failures)
