"""What lives for a while is out of the garbage collector's way, and what becomes garbage there is still found."""

import gc
import threading
import weakref

import pytest

from monitor import heap
from tests.servers import eventually


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "SETTLED", 0.01)
    monkeypatch.setattr(heap, "THOROUGH", 3)


class Ring:
    """Its own neighbour: nothing but a garbage collector frees it."""

    def __init__(self) -> None:
        self.next = self


def test_what_is_there_is_taken_out_and_given_back() -> None:
    before = len(gc.get_objects())
    with heap.settled():
        eventually(lambda: gc.get_freeze_count() > before / 2, 60)
        assert len(gc.get_objects()) < before / 2
    assert gc.get_freeze_count() == 0
    assert "settle" not in {thread.name for thread in threading.enumerate()}


def test_garbage_among_it_is_found_in_the_end() -> None:
    ring = Ring()
    last = weakref.ref(ring)
    with heap.settled():
        eventually(gc.get_freeze_count, 60)
        del ring
        eventually(lambda: last() is None, 60)
