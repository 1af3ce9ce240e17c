"""One experiment at a time, run beside the dashboard: begun by one visitor, watched by all, ended by whoever may."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from monitor.engine import EngineError, Stopped
from monitor.experiment import Setup, Step, experiment
from monitor.experiment_result import Experiment
from monitor.tiny_model import NAME, write_tiny_model
from planner.errors import InputError
from planner.store import StoreError
from planner.units import duration

PORT = 8121
"""Where its engine listens: not where a server or the demo does by default  [TCP port]."""
Run = Callable[[Setup, Callable[[Step], None], threading.Event], Experiment]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an experiment is, or how the last one ended.

    setup       what is run
    began       Unix time  [s]
    step        what is done now, or was at last; None before the first
    is_running  whether it goes on
    problem     why nothing came of it, or was kept; empty where all went well
    found       its result
    """

    setup: Setup
    began: float
    step: Step | None = None
    is_running: bool = True
    problem: str = ""
    found: Experiment | None = None

    @property
    def share(self) -> float:
        """Of its steps, those that are done  [ratio]."""
        return 0.0 if self.step is None else (self.step.number - 1) / self.step.of

    def text(self, now: float) -> str:
        """The step, and how long all has taken; `now` in Unix time [s]."""
        step = "checking engine and memory" if self.step is None else self.step.text
        return f"{step}, {duration(round(max(0.0, now - self.began)))} since the start"


class Background:
    """Runs experiments in a thread of its own. Any thread may call its methods."""

    def __init__(self, run: Run = experiment) -> None:
        self._run, self._starting = run, threading.Lock()
        self._stop, self._thread = threading.Event(), threading.Thread()
        self.progress: Progress | None = None

    def start(self, setup: Setup, keep: Callable[[Experiment], object]) -> None:
        """Begin one, whose result `keep` gets. Raises InputError while another runs."""
        with self._starting:
            if self._thread.is_alive():
                raise InputError("experiment", "one that runs already", "one at a time: wait for it, or cancel it")
            self._stop = threading.Event()
            self.progress = Progress(setup=setup, began=time.time())
            work = (self.progress, keep, self._stop)
            self._thread = threading.Thread(target=self._work, args=work, name="experiment", daemon=True)
            self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether it was cancelled and the engine has not ended yet."""
        return self._stop.is_set() and self._thread.is_alive()

    def cancel(self) -> None:
        """End it, and the engine with it, in a moment."""
        self._stop.set()

    def wait(self, seconds: float) -> None:
        """Until nothing of it is left, so long at most."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _work(self, progress: Progress, keep: Callable[[Experiment], object], stop: threading.Event) -> None:
        def tell(step: Step) -> None:
            self.progress = replace(progress, step=step)

        found, problem = None, ""
        try:
            found = self._run(progress.setup, tell, stop)
            keep(found)
        except Stopped:
            problem = "It was cancelled: the engine is ended, nothing is kept."
        except EngineError as error:
            problem = error.line
        except (InputError, StoreError) as error:
            problem = str(error)
        except Exception as error:  # the page must say what nobody thought of
            _log.exception("the experiment failed")
            problem = repr(error)
        assert self.progress is not None
        self.progress = replace(self.progress, is_running=False, problem=problem, found=found)


def model_folder(typed: str) -> Path:
    """The folder that was named; a tiny random model's where none was."""
    return Path(typed.strip()) if typed.strip() else write_tiny_model(Path(_home().name) / NAME)


@cache
def _home() -> "TemporaryDirectory[str]":
    """Until this process ends."""
    return TemporaryDirectory(prefix="model-")
