"""Pages of one server read one after the other, and pages with all that can go wrong on the way."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor import metrics
from monitor.reading import MAX_KNOWN_LINES, Reader, read
from tests.recorded import OTHERS, RAY, V0_5_5, V0_8_5, page

SHORT = [V0_5_5, V0_8_5, RAY, *OTHERS.values()]
SEQUENCES = [
    ("0.32.0-dp2-start", "0.32.0-dp2-load", "0.32.0-dp2-start"),
    ("0.32.0-idle-whole", "0.32.0-load", "0.32.0-shared-prefix", "0.32.0-after-aborts", "0.10.2-load"),
    ("0.8.5-V0-start", "0.8.5-V0-load", "0.8.5-V0-load"),
    ("0.32.0-disablelogstats-start", "0.32.0-disablelogstats-load"),
]
NUMBERS = st.sampled_from(
    ["0", "1", "0.25", "1e9", "37.5", "-1", "NaN", "-nan(ind)", "+Inf", "1e400", "x", "", "1 1700000000000"]
)


def with_numbers(text: str, numbers: dict[int, str]) -> str:
    """The page with these lines' numbers replaced."""
    lines = text.split("\n")
    for place, number in numbers.items():
        line = lines[place % len(lines)]
        if line[:1] not in ("", "#"):
            lines[place % len(lines)] = f"{line.rpartition(' ')[0]} {number}"
    return "\n".join(lines)


@pytest.mark.parametrize("names", SEQUENCES)
def test_a_reader_says_what_read_says(names: tuple[str, ...]) -> None:
    reader = Reader()
    for at, name in enumerate(names):
        assert reader.read(page(name), at=at, wall=at + 9.0) == read(page(name), at=at, wall=at + 9.0)


@given(st.sampled_from(SHORT), st.lists(st.dictionaries(st.integers(0, 30), NUMBERS, max_size=4), max_size=6))
def test_a_reader_says_what_read_says_whatever_changes(text: str, steps: list[dict[int, str]]) -> None:
    reader = Reader()
    for numbers in steps:
        changed = with_numbers(text, numbers)
        assert reader.read(changed) == read(changed)


def test_a_time_behind_a_number_is_not_the_number() -> None:
    """As a federating Prometheus writes it: the number stays and its time moves on."""
    reader = Reader()
    texts = [
        f'vllm:num_requests_running{{engine="0"}} {running} 170000000{time}' for time, running in enumerate((3, 3, 4))
    ]
    assert [reader.read(text).engines[0].running for text in texts] == [3, 3, 4]


def test_snapshots_share_what_has_not_changed() -> None:
    """12 requests later nothing but their numbers is new."""
    reader, text = Reader(), page("0.32.0-load")
    first = reader.read(text)
    later = reader.read(re.sub(r"(vllm:num_requests_running\S+) \S+", r"\1 12.0", text))
    [before], [after] = first.engines, later.engines
    assert (before.running, after.running) == (48, 12)
    assert later.missing is first.missing is after.missing
    assert after.labels is before.labels
    assert after.histogram(metrics.TTFT) is before.histogram(metrics.TTFT)
    assert reader.read(text) == first


def test_readers_of_like_servers_share_their_reasons() -> None:
    assert read(page("0.32.0-load")).missing is read(page("0.32.0-shared-prefix")).missing


def test_a_version_once_said_holds() -> None:
    reader, text = Reader(), page("0.32.0-load")
    said = [reader.read(text, version=version).version_range for version in (None, "0.32.0", None, "0.33.0")]
    assert said == ["0.32-0.33", "0.32.0", "0.32.0", "0.33.0"]


def test_a_page_of_endless_series_is_read_and_not_kept() -> None:
    endless = "".join(f'other_total{{path="/{number}"}} {number}\n' for number in range(MAX_KNOWN_LINES))
    reader = Reader()
    for running in (1, 2):
        text = f'vllm:num_requests_running{{engine="0"}} {running}\n{endless}'
        assert reader.read(text).engines[0].running == running
    assert reader._lines is None
