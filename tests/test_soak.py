"""An hour of 50 servers in three minutes, in a process of its own: see benchmarks/soak.py."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from monitor.collector import WORKERS

pytestmark = pytest.mark.alone
ROOT = Path(__file__).resolve().parent.parent
OWN_THREADS = 4
"""The main one, the collector's, the store's and the heap's; workers come on top  [threads]."""
HICCUP = 0.002
"""Turns that one pause of the machine of 0.3 s takes  [ratio]."""
QUIET = 0.25
"""For so much of the time the watch's threads have no core where two are theirs and the servers' alone  [ratio]."""
STARVED = 0.2
"""Turns that may be missed, of the time beyond that  [ratio]."""
PAGE_MS = 5.0
"""CPU of a page beyond which 200 a second are more than one core does  [ms]."""


@pytest.fixture(scope="module")
def hour() -> Mapping[str, float]:
    command = [sys.executable, "-m", "benchmarks.soak"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: Mapping[str, float] = json.loads(done.stdout)
    return found


def test_memory_stays(hour: Mapping[str, float]) -> None:
    assert hour["memory_growth"] < 0.05


def test_no_thread_is_left(hour: Mapping[str, float]) -> None:
    assert hour["most_threads"] <= WORKERS + OWN_THREADS
    assert hour["threads_left"] == 0


def test_no_cycle_is_missed(hour: Mapping[str, float]) -> None:
    """A cycle lasts 0.25 s here: whoever takes the cores away for longer takes one, as 5 s would at the usual speed.

    On a quiet machine none of 36,000 was missed. A busy one is allowed for: with 2 cores for 9 to 14 other processes,
    turns missed were 2 to 8 % of the time in which threads waited for a core.
    """
    assert hour["wanted"] == pytest.approx(36_000, rel=0.01)
    assert hour["missed"] <= HICCUP + STARVED * max(0.0, hour["starved"] - QUIET)
    assert hour["cpu_ms_a_page"] < PAGE_MS


def test_every_page_is_recorded(hour: Mapping[str, float]) -> None:
    """And each minute and hour that they complete, of each of the 50 servers."""
    assert hour["troubles"] == []
    assert hour["unrecorded"] == 0
    assert hour["minutes"] > 50 * 50
    assert (hour["minutes_unmade"], hour["hours_unmade"]) == (0, 0)
