"""A real vLLM server, run in an interpreter of its own: started, awaited, and ended with everything it spawned."""

import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from monitor.leash import leashed
from monitor.scrape import scrape
from planner.measurement import INTERPRETER

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every engine on this machine takes the same first core
    # Threads that wait give their core back. Spinning ones slow a CPU engine fiftyfold where others want its cores.
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "PYTHONPATH": str(Path(__file__).resolve().parent / "engine_start"),
}
IN_ONE = {"distributed_executor_backend": "uni"}
"""The flag for a CPU build on one rank: the model runs in the process of the scheduler, as it does on a GPU. By default
it has one of its own; both spin while they wait for each other, on two cores for the work of one."""

_ERROR = re.compile(
    r"^(?:\([\w-]+ pid=\d+\) ERROR [^]]*\] )?([\w.]*(?:Error|Exception): .+(?:\n  Value error, .+)?)", re.MULTILINE
)
"""How vLLM's log names what went wrong; the first is the cause, and later ones are what it led to."""


class EngineError(RuntimeError):
    """The engine ended, or was still silent after the patience given; the message ends with its last words.

    line  the same in one line: what happened, and the first error that the engine named
    """

    def __init__(self, what: str, log: str = "", lines: int = 20) -> None:
        words = log.splitlines(keepends=True)[-lines:]
        super().__init__(f"{what}:\n{''.join(words)}" if log else what)
        named = _ERROR.search(log)
        cause = named[1] if named else "".join(words[-1:])
        self.line = " ".join(f"{what}: {cause}".split()) if log else what


class Stopped(Exception):
    """What was waited for was not wanted any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One vLLM server, as it is to be started.

    model    folder with a config.json and a tokenizer
    port     where it listens, on this machine only  [TCP port]
    flags    vLLM's own, by their names in Python: {"max_model_len": 2048, "enforce_eager": True}
    python   the interpreter that vLLM is installed in
    """

    model: Path
    port: int
    flags: Mapping[str, str | float | bool] = field(default_factory=dict)
    python: Path = INTERPRETER

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        """What is run. The module, and not `vllm serve`: the CPU build has no such command."""
        here: dict[str, str | float | bool] = {"model": str(self.model), "host": "127.0.0.1", "port": self.port}
        return [str(self.python), "-m", "vllm.entrypoints.openai.api_server", *arguments(here | dict(self.flags))]


def arguments(flags: Mapping[str, str | float | bool]) -> list[str]:
    """Flags as vLLM's command line spells them.

    >>> arguments({"max_model_len": 2048, "enforce_eager": True, "enable_prefix_caching": False})
    ['--max-model-len', '2048', '--enforce-eager', '--no-enable-prefix-caching']
    """
    words = []
    for name, value in flags.items():
        option = name.replace("_", "-")
        words += (
            [f"--no-{option}"] if value is False else [f"--{option}"] if value is True else [f"--{option}", str(value)]
        )
    return words


NEVER = threading.Event()
"""The event of whoever waits without a way to be stopped."""


@contextmanager
def serving(engine: Engine, *, patience: float = 240, stop: threading.Event = NEVER) -> Iterator[str]:
    """Run the engine for the length of a `with`, which gets its URL once it answers: see `started`."""
    with started(engine, patience=patience, stop=stop):
        yield engine.url


@contextmanager
def started(
    engine: Engine, *, patience: float = 240, stop: threading.Event = NEVER
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the engine for the length of a `with`, which begins once it answers; then end it with all it spawned.

    It also ends when this process is killed: see monitor.leash. Raises EngineError where the port is taken, or the
    engine ends or says nothing on /metrics within the patience [s]; Stopped where `stop` is set meanwhile.
    """
    if scrape(engine.url, timeout=2).state != "refused":
        raise EngineError(f"something listens on {engine.url} already")
    # The CPU build's own setting of the pool would override kv_cache_memory_bytes, the flag that every build knows.
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_CPU_KVCACHE_SPACE"} | SETTINGS
    if IN_ONE.items() <= engine.flags.items():
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # or the CPU build overrules the flag
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        leashed(engine.command, env=environment, output=log) as process,
    ):
        _await(engine, process, log, patience, stop)
        yield process


def resident_bytes(process: subprocess.Popen[bytes]) -> int | None:
    """Memory that a started engine's processes hold together, shared pages counted once  [bytes]; None beside Linux."""
    of_session: dict[int, list[Path]] = {}
    session = None
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            _, parent, _, its = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            of_session.setdefault(int(its), []).append(folder)
            session = int(its) if int(parent) == process.pid else session
    if session is None:
        return None
    total = 0
    for folder in of_session[session]:
        with suppress(OSError):
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def _await(
    engine: Engine, process: subprocess.Popen[bytes], log: IO[str], patience: float, stop: threading.Event
) -> None:
    """Return when /metrics can be read."""
    deadline = time.monotonic() + patience
    while not scrape(engine.url, timeout=5).ok:
        if process.poll() is not None:
            raise EngineError(f"vLLM ended with status {process.returncode} before it served", _words(log))
        if time.monotonic() > deadline:
            raise EngineError(f"vLLM did not serve {engine.url} within {patience:.0f} s", _words(log))
        if stop.wait(0.5):
            raise Stopped


def _words(log: IO[str]) -> str:
    log.seek(0)
    return log.read()
