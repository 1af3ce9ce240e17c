"""The heap of a process that keeps thousands of Snapshots: they hold no cycles, so garbage is looked for elsewhere.

Python goes through all objects for it, at its own time, and Streamlit after every run of a page: 25 µs a Snapshot, in
which no thread runs. What has lived for a while is taken out of that, and looked through seldom.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

SETTLED = 20.0
"""After so long what is still there is taken out  [s]."""
THOROUGH = 30
"""Once in so many times everything is looked through: what became garbage after it was taken out  [times]."""


@contextmanager
def settled() -> Iterator[None]:
    """Keep it so for the length of a `with`."""
    stopping = threading.Event()
    thread = threading.Thread(target=_settle, args=(stopping,), name="settle", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        gc.unfreeze()


def _settle(stopping: threading.Event) -> None:
    for turn in count():
        if turn % THOROUGH == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        if stopping.wait(SETTLED):
            return
