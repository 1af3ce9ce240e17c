"""Trends: a line is one only where growth is more than chance."""

import random
from math import isclose

import pytest

from planner.forecast import forecast


def test_a_steady_growth_says_when() -> None:
    """5 requests/s growing by 1 an hour reach 10 in five hours."""
    hours = [3600.0 * hour for hour in range(-23, 1)]
    found = forecast(hours, [5 + hour / 3600 for hour in hours])
    assert found is not None
    middle, soonest, latest = found.seconds_to(10) or (0, 0, 0)
    assert all(isclose(value, 5 * 3600, rel_tol=1e-6) for value in (middle, soonest, latest))


def test_noise_is_no_trend() -> None:
    chance = random.Random(3)
    found = forecast(range(200), [chance.gauss(5, 1) for _ in range(200)])
    assert found is not None
    assert not found.is_growing
    assert found.seconds_to(10) is None


def test_noise_widens_the_range() -> None:
    chance = random.Random(3)
    found = forecast(range(200), [5 + 0.02 * hour + chance.gauss(0, 1) for hour in range(200)])
    assert found is not None
    middle, soonest, latest = found.seconds_to(20) or (0, 0, 0)
    assert soonest < middle < latest
    assert soonest < (20 - 9) / 0.02 < latest  # the true line stands at 9 and grows by 0.02


def test_a_ceiling_already_reached_is_now() -> None:
    found = forecast(range(10), range(10))
    assert found is not None
    assert found.seconds_to(3) == (0, 0, 0)


def test_too_few_points_say_nothing() -> None:
    assert forecast(range(7), range(7)) is None
    with pytest.raises(ValueError, match="3 times and 2 values"):
        forecast([1, 2, 3], [1, 2])
