"""What arrives at a server: pages whose every request is known, and trends worked out by hand."""

import json
from itertools import count
from pathlib import Path
from socket import socket

import pytest

from monitor import metrics
from monitor.__main__ import main
from monitor.arrivals import Peak, arrivals, load, past, peak, spread, trend
from monitor.reading import read
from monitor.series import Series
from monitor.window import window
from planner.headroom import headroom
from planner.plan import plan
from planner.record import to_json
from planner.workload import Workload
from tests.obeying import INPUT, OUTPUT, history
from tests.obeying import page as said
from tests.recorded import page
from tests.servers import path_of, says, serving
from tests.test_calibration import LOAD, MEASURED, MODEL, SERVER

DAY, HOUR = 86_400.0, 3600.0


def test_the_load_of_a_window_is_what_was_sent() -> None:
    """2 requests a second for 60 s; a quarter of each prompt is found in the cache."""
    first, second = history([2.0], 60)
    found = load(window(first, second))
    assert found == (2.0, Workload(input_tokens=INPUT, output_tokens=OUTPUT, request_rate=2.0, prefix_hit_ratio=0.25),
                     60.0, 1)  # fmt: skip


def test_engines_of_a_server_add_up() -> None:
    """Two engines: 3 + 1 requests ended between the recorded pages, here 8 s apart."""
    pages = [read(page(f"0.32.0-dp2-{name}"), at=at) for name, at in (("start", 0.0), ("load", 8.0))]
    spanned = window(*pages)
    found = load(spanned)
    ended = [engine.increase(metrics.FINISHED) for engine in spanned.engines]
    assert found is not None
    assert (found.engines, found.requests_per_s) == (2, pytest.approx(sum(filter(None, ended)) / 8))


def test_what_is_not_counted_is_not_zero() -> None:
    pages = [read("vllm:num_requests_running 1\n", at=at) for at in (0.0, 1.0)]
    assert load(window(*pages)) is None


def test_arrivals_hour_by_hour_and_the_busiest() -> None:
    pages = history([1.0, 3.0, 2.0], HOUR)
    assert arrivals(pages).values == (1.0, 3.0, 2.0)
    assert peak(pages) == Peak(pages[2].at, 3.0, HOUR)
    assert peak(()) is None


def test_the_past_counts_idle_time() -> None:
    """40 s at 3 requests/s and 80 s without any: 1 a second, of the usual lengths."""
    found = past(history([3.0, 3.0, 0.0, 0.0, 0.0, 0.0], 20))
    assert found is not None
    assert (found.requests_per_s, found.seconds) == (pytest.approx(1.0), 120.0)
    assert found.workload is not None
    assert (found.workload.request_rate, found.workload.input_tokens) == (pytest.approx(1.0), INPUT)
    assert past(history([0.0, 0.0], 20)) is None


def test_a_restart_is_a_gap() -> None:
    before, restarted = history([5.0], HOUR), read(said(10), at=1.79e9 + 2 * HOUR, wall=1.79e9 + 2 * HOUR)
    assert arrivals((*before, restarted)).values == (5.0, None)


def week(days: int, growth: float) -> Series:
    """Every day from 1 to 4 requests/s by its hours, and so much more each day."""
    hours = [
        (day * DAY + hour * HOUR, 1 + 3 * (hour == 15) + growth * day) for day in range(days) for hour in range(24)
    ]
    return Series("requests/s", *map(tuple, zip(*hours, strict=True)))  # type: ignore[arg-type]


def test_the_busiest_hours_of_days_make_the_trend() -> None:
    """The peaks grow by 0.5 a day from 4: at 8.5 on the tenth day, 10.5 is four days later."""
    found = trend(week(10, 0.5))
    assert found.line is not None
    assert (found.line.level, found.line.slope * DAY) == (pytest.approx(8.5), pytest.approx(0.5))
    said = found.finding(10.5)
    assert (
        said == "The trend gets there in 4 d (4 d to 4 d): 0.5 requests/s a day more, over the busiest hours of 9 days."
    )
    assert found.finding(8.0).startswith("The trend is there already")


def test_a_day_s_rise_and_fall_is_no_trend() -> None:
    assert trend(week(10, 0.0)).finding(10).startswith("No trend: ")


def test_few_hours_are_told_as_what_they_are() -> None:
    one_day = trend(Series("requests/s", tuple(HOUR * hour for hour in range(12)), tuple(float(h) for h in range(12))))
    assert one_day.finding(23).endswith(
        "over 12 hours, in which a day's own rise and fall looks like a trend: "
        "too few days, 1 of 9, are recorded to leave it out."
    )
    assert one_day.finding(23).startswith("The trend gets there in 12 h")
    few = trend(Series("requests/s", (0.0, HOUR), (1.0, 2.0)))
    assert few.finding(9) == "No trend: too few hours with a count of requests are recorded, 2 of 8."
    assert trend(Series("requests/s", (), ())).finding(9) == "No trend: nothing is recorded of this server."


def test_minutes_of_history_are_not_nothing() -> None:
    pages = history([2.0, 2.0], 60)
    said = trend(arrivals(pages), pages).finding(9)
    assert said == (
        "No trend: too few hours with a count of requests are recorded, 0 of 8. What is recorded spans 2 min."
    )


def test_lengths_are_spread_over_their_buckets() -> None:
    found = spread(history([2.0, 2.0], 60), metrics.PROMPT_LENGTH)
    assert found == ((500.0,), (1.0,))
    assert spread(history([0.0], 60), metrics.PROMPT_LENGTH) == ((), ())


def test_headroom_of_a_running_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """10 requests end between two pages: their rate and their lengths are taken, in place of the plan's."""
    file, asked = tmp_path / "plan.json", count()
    file.write_text(json.dumps(to_json(plan(MODEL, SERVER, LOAD, calibration=MEASURED))))

    def answer(client: socket, request: str) -> None:
        is_page = path_of(request) == "/metrics"
        says(said(10 * next(asked)).encode() if is_page else b'{"version": "0.32.0"}')(client, request)

    with serving(answer) as url:
        assert main(["headroom", str(file), url, "--seconds", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["request_rate"] <= 20  # 10 in half a second or more
    assert (found["workload"]["input_tokens"], found["workload"]["output_tokens"]) == (INPUT, OUTPUT)
    made = plan(MODEL, SERVER, Workload(**found["workload"]), calibration=MEASURED)
    first = headroom(made, found["request_rate"]).first
    assert found["ceilings"][0]["request_rate"] == pytest.approx(first.request_rate.value)
