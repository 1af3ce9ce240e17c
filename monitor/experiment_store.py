"""Experiments in the store: each saved whole or not at all, listed newest first, opened again, deleted."""

import json
from typing import NamedTuple

from sqlalchemy import Column, Engine, Float, Integer, MetaData, String, Table, Text, delete, insert, inspect, select

from monitor.experiment_result import Experiment, as_json, experiment_from
from planner.errors import InputError
from planner.store import writing

_EXPERIMENTS = Table(
    "experiments",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),  # Unix time  [s]
    Column("model", String, nullable=False),
    Column("content", Text, nullable=False),  # as `python -m monitor experiment --json` prints
)


class Saved(NamedTuple):
    """One experiment of the store.

    number  by which it is opened  [number]
    at      when it began, Unix time  [s]
    model   folder of the model
    """

    number: int
    at: float
    model: str


def prepare(store: Engine) -> None:
    """Make the table where there is none: what cannot be written is known before an experiment and not after it."""
    with writing(store) as connection:
        _EXPERIMENTS.create(connection, checkfirst=True)


def save(store: Engine, found: Experiment) -> int:
    """Keep it; the number by which it is opened again."""
    prepare(store)
    content = json.dumps(as_json(found))
    with writing(store) as connection:
        row = insert(_EXPERIMENTS).values(at=found.at, model=found.model, content=content)
        return int(connection.execute(row.returning(_EXPERIMENTS.c.id)).scalar_one())


def saved(store: Engine) -> tuple[Saved, ...]:
    """All that are kept, newest first."""
    if not inspect(store).has_table(_EXPERIMENTS.name):
        return ()
    kept = _EXPERIMENTS.c
    with store.connect() as connection:
        rows = connection.execute(select(kept.id, kept.at, kept.model).order_by(kept.at.desc(), kept.id.desc()))
        return tuple(Saved(*row) for row in rows)


def opened(store: Engine, number: int) -> Experiment:
    """The experiment of this number. Raises InputError where there is none."""
    if number not in {each.number for each in saved(store)}:
        raise InputError("experiment", number, "the number of one that is saved")
    with store.connect() as connection:
        content = connection.execute(select(_EXPERIMENTS.c.content).where(_EXPERIMENTS.c.id == number)).scalar_one()
    return experiment_from(json.loads(content))


def deleted(store: Engine, number: int) -> Experiment:
    """The experiment that was of this number, and is not kept any more; `save` undoes it."""
    found = opened(store, number)
    with writing(store) as connection:
        connection.execute(delete(_EXPERIMENTS).where(_EXPERIMENTS.c.id == number))
    return found
