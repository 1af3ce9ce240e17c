"""Saved documents: what was put in comes out, by another process too, and what is deleted comes back."""

import json
import sqlite3
from pathlib import Path

import pytest

from planner.deployment import Deployment
from planner.errors import InputError
from planner.gpu import gpu_named
from planner.hub import model_from
from planner.plan import plan
from planner.record import from_json, to_json
from planner.store import UNDO, Shelf, StoreError
from planner.workload import Workload


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'kept.db'}"


def test_a_plan_comes_back_as_it_was(url: str) -> None:
    made = plan(model_from("llama-3-8b"), Deployment(gpu=gpu_named("A100-SXM-80GB")), Workload(concurrency=8))
    kept = Shelf(url, clock=lambda: 1.8e9).put("plan", "Chat", to_json(made), "for the review")
    found = Shelf(url).one(kept.id)
    assert (found.name, found.note, found.at) == ("Chat", "for the review", 1.8e9)
    assert found.body == json.loads(json.dumps(to_json(made)))
    assert from_json(found.body).capacity == made.capacity


def test_the_newest_comes_first_and_kinds_stay_apart(url: str) -> None:
    now = [1.0]
    shelf = Shelf(url, clock=lambda: now[0])
    for name in ("first", "second", "third"):
        shelf.put("plan", name, {})
        now[0] += 1
    shelf.put("calibration", "Monday", {})
    assert [each.name for each in shelf.all("plan")] == ["third", "second", "first"]
    assert [each.name for each in shelf.all("calibration")] == ["Monday"]


def test_delete_can_be_taken_back_for_a_month(url: str) -> None:
    now = [1.0]
    shelf = Shelf(url, clock=lambda: now[0])
    kept = shelf.put("plan", "Chat", {"a": 1})
    shelf.delete(kept.id)
    assert shelf.all("plan") == []
    assert [each.name for each in shelf.all("plan", deleted=True)] == ["Chat"]
    shelf.restore(kept.id)
    assert shelf.all("plan") == [kept]
    shelf.delete(kept.id)
    now[0] += UNDO + 1
    shelf.put("plan", "another", {})
    assert shelf.all("plan", deleted=True) == []


def test_a_copy_lives_its_own_life(url: str) -> None:
    shelf = Shelf(url)
    kept = shelf.put("plan", "Chat", {"a": 1}, "why")
    copy = shelf.duplicate(kept.id, "Chat, twice the traffic")
    shelf.describe(copy.id, "Chat 2", "other")
    shelf.delete(kept.id)
    (left,) = shelf.all("plan")
    assert (left.name, left.note, left.body) == ("Chat 2", "other", {"a": 1})


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda shelf: shelf.put("plan", "  ", {}), "name: found '  ', accepted: a name that is not empty"),
        (lambda shelf: shelf.one(7), "id: found 7, accepted: the id of a saved document"),
        (lambda shelf: shelf.delete(7), "id: found 7"),
        (lambda shelf: Shelf("kept.db"), "store: found 'kept.db', accepted: sqlite:///FILE"),
    ],
)
def test_wrong_input_is_named(url: str, work: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        work(Shelf(url))  # type: ignore[operator]
    assert str(caught.value).startswith(message)


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "kept.db").write_text("no database at all, but long enough to be taken for one" * 20)
    with pytest.raises(StoreError, match="file is not a database"):
        Shelf(f"sqlite:///{tmp_path / 'kept.db'}").all("plan")


def test_a_locked_file_is_said_so(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.store.BUSY", 0.1)
    shelf = Shelf(url)
    shelf.put("plan", "Chat", {})
    with sqlite3.connect(tmp_path / "kept.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="database is locked"):
            shelf.put("plan", "Chat 2", {})
    other.close()
    shelf.put("plan", "Chat 3", {})
    assert [each.name for each in shelf.all("plan")] == ["Chat 3", "Chat"]
