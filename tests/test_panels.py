"""What is drawn of recorded pages, and the reason where nothing is."""

import pytest

from monitor.panels import FORMS, KV_USAGE, THROUGHPUT, TOPICS, Panel, lines, why_not
from monitor.reading import read
from monitor.snapshot import Snapshot
from tests.recorded import page

PANELS = {panel.title: panel for topic in TOPICS.values() for panel in topic}


def history(*names: str) -> list[Snapshot]:
    return [read(page(name), at=10.0 * moment, wall=1.79e9 + 10 * moment) for moment, name in enumerate(names)]


def test_every_panel_has_a_form_for_its_unit() -> None:
    assert {panel.unit for panel in PANELS.values()} <= set(FORMS)
    assert len(PANELS) == sum(len(topic) for topic in TOPICS.values())


def test_one_engine_has_one_line() -> None:
    pages = history("0.32.0-idle-whole", "0.32.0-load")
    (line,) = lines(KV_USAGE, pages)
    assert line.name == "in use"
    assert line.values == tuple(each.engines[0].kv_usage for each in pages)


def test_two_engines_have_two_lines_and_their_mean() -> None:
    pages = history("0.32.0-dp2-start", "0.32.0-dp2-load")
    found = lines(KV_USAGE, pages)
    assert [line.name for line in found] == ["in use, engine 0", "in use, engine 1", "in use, mean"]
    first, second, mean = (line.known[-1] for line in found)
    assert mean == pytest.approx((first + second) / 2)


def test_of_many_engines_the_highest_and_the_mean_are_drawn() -> None:
    text = "".join(f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} {rank}\n' for rank in range(8))
    pages = [read(text, at=0), read(text, at=5)]
    found = lines(PANELS["Requests"], pages)
    assert {line.name: line.values for line in found} == {"running, highest": (7, 7), "running, mean": (3.5, 3.5)}


def test_rates_and_quantiles_are_drawn_between_pages() -> None:
    pages = history("0.32.0-idle-whole", "0.32.0-preempt-blocks80-load")
    output, prompts = lines(THROUGHPUT, pages)
    assert output.values == (pytest.approx(530.7),)  # another process: all of its 5,307 tokens, in these 10 s
    assert prompts.known[0] > 0
    assert [line.name for line in lines(PANELS["Time to first token"], pages)] == ["p50", "p95", "p99"]


@pytest.mark.parametrize(
    ("title", "reason"),
    [
        ("Offload tier in use", "offloading connector"),
        ("Residency of a block, median", "--kv-cache-metrics"),
        ("Arithmetic of one GPU", "0 without --enable-mfu-metrics"),
    ],
)
def test_what_is_not_drawn_has_its_reason(title: str, reason: str) -> None:
    pages = history("0.32.0-idle-whole", "0.32.0-load")
    assert lines(PANELS[title], pages) == []
    assert reason in why_not(PANELS[title], pages[-1])


def test_an_old_version_says_since_when_a_panel_is_reported() -> None:
    pages = history("0.8.5-V0-start", "0.8.5-V0-load")
    waiting: Panel = PANELS["Waiting, by reason"]
    assert lines(waiting, pages) == []
    assert "0.20" in why_not(waiting, pages[-1])
