"""Lines over time from short pages made by hand."""

from dataclasses import replace

from monitor.metrics import FINISHED, TTFT, WAITING_BY_REASON
from monitor.reading import read
from monitor.series import POINTS, as_csv, gauges, heat, peaks, rates, restarts, splits
from monitor.snapshot import Snapshot, Spread


def at(time: float, running: int = 1, generated: int = 0, engines: tuple[str, ...] = ("0",)) -> Snapshot:
    text = "".join(
        f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} {running}\n'
        f'vllm:generation_tokens_total{{engine="{engine}",model_name="m"}} {generated}\n'
        for engine in engines
    )
    return read(text, at=time, wall=1000 + time)


def test_a_gap_stays_a_gap() -> None:
    """Pages every 5 s, then none for 30 s: nothing is drawn between."""
    (line,) = gauges([at(0, 1), at(5, 2), at(10, 3), at(40, 4)], "running")
    assert line.values == (1, 2, 3, None, 4)
    assert line.times == (1000, 1005, 1010, 1040, 1040)
    assert line.finding == "4 now, 1 to 4"


def test_rates_are_taken_between_points() -> None:
    (line,) = rates([at(0, generated=0), at(5, generated=50), at(10, generated=150)], "output_tokens_per_s")
    assert line.values == (10, 20)


def test_a_restart_is_a_mark_and_no_negative_rate() -> None:
    pages = [at(0, generated=100), at(5, generated=150), at(10, generated=30)]
    assert restarts(pages) == [1010]
    assert rates(pages, "output_tokens_per_s")[0].values == (10, 6)


def test_engines_have_lines_of_their_own() -> None:
    pages = [at(0, engines=("0", "1")), at(5, engines=("0", "1"))]
    assert [line.name for line in gauges(pages, "running")] == ["running, engine 0", "running, engine 1"]


def test_a_long_history_is_thinned_and_keeps_its_newest_point() -> None:
    pages = [at(5.0 * step, running=step) for step in range(720)]
    (line,) = gauges(pages, "running")
    assert len(line.values) <= POINTS
    assert line.values[-1] == 719


def test_a_split_has_a_line_for_each_label_and_its_engines_added() -> None:
    def page(time: float, stop: int, length: int) -> Snapshot:
        return read(
            "".join(
                f'vllm:request_success_total{{engine="{engine}",finished_reason="stop",model_name="m"}} {stop}\n'
                f'vllm:request_success_total{{engine="{engine}",finished_reason="length",model_name="m"}} {length}\n'
                f'vllm:num_requests_waiting_by_reason{{engine="{engine}",reason="capacity",model_name="m"}} {length}\n'
                for engine in "01"
            ),
            at=time,
        )

    pages = [page(0, 0, 0), page(5, 10, 0), page(10, 20, 5)]
    assert {line.name: line.values for line in splits(pages, FINISHED)} == {"stop": (4, 4), "length": (0, 2)}
    assert [line.values for line in splits(pages, WAITING_BY_REASON)] == [(0, 0, 10)]


def test_heat_counts_what_was_observed_between_points() -> None:
    """Of 4 requests 3 took up to 0.1 s, then 2 of 2 up to 0.5 s; the buckets of 0.01 and above 1 s are never used."""

    def page(time: float, *counts: int) -> Snapshot:
        name = "vllm:time_to_first_token_seconds"
        bounds = ("0.01", "0.1", "0.5", "1", "+Inf")
        buckets = "".join(f'{name}_bucket{{le="{le}"}} {n}\n' for le, n in zip(bounds, counts, strict=True))
        return read(f"{buckets}{name}_count {counts[-1]}\n{name}_sum 1\n", at=time)

    found = heat(
        [page(0, 0, 0, 0, 0, 0), page(5, 0, 3, 4, 4, 4), page(10, 0, 3, 6, 6, 6), page(15, 0, 3, 6, 6, 6)], TTFT
    )
    assert found.times == (5, 10, 15)
    assert found.bounds == (0.1, 0.5)
    assert found.counts == ((3, 1), (0, 2), (0, 0))
    assert found.shares == [[0.75, 0, None], [0.25, 1, None]]
    assert found.fullest == 0.1
    gap = heat([page(0, 0, 0, 0, 0, 0), page(5, 0, 3, 4, 4, 4), page(10, 0, 3, 4, 4, 4), page(40, 0, 3, 6, 6, 6)], TTFT)
    assert gap.times == (5, 10, 15, 35, 40)
    assert gap.counts == ((3, 1), (0, 0), (0, 0), (0, 0), (0, 2))


def test_csv_has_every_point_and_a_gap_has_no_value() -> None:
    lines = gauges([at(0, 1), at(5, 2), at(10, 3), at(40, 4)], "running")
    assert as_csv({"Requests": lines}).splitlines() == [
        "time,chart,line,value",
        "1970-01-01T00:16:40+00:00,Requests,running,1",
        "1970-01-01T00:16:45+00:00,Requests,running,2",
        "1970-01-01T00:16:50+00:00,Requests,running,3",
        "1970-01-01T00:17:20+00:00,Requests,running,",
        "1970-01-01T00:17:20+00:00,Requests,running,4",
    ]
    assert lines[0].moments[0] == 1_000_000


def test_a_page_that_stands_for_a_minute_shows_its_mean_and_its_highest() -> None:
    """Two minutes as stored, then a page as read: that is its own mean and highest."""
    stored = [
        replace(page, engines=tuple(replace(e, spread={"running": Spread(0, 2.5, high)}) for e in page.engines))
        for page, high in ((at(0, running=1), 9), (at(60, running=1), 7))
    ]
    pages = [*stored, at(120, running=4)]
    assert [line.values for line in gauges(pages, "running")] == [(2.5, 2.5, 4)]
    assert [line.values for line in peaks(pages, "running", "waiting")] == [(9, 7, 4)]
    assert peaks([at(0), at(60)], "running") == []
