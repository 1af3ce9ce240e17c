"""Pages of one server read one after the other, and pages with all that can go wrong on the way."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor import metrics, report
from monitor.exposition import parse
from monitor.reading import MAX_KNOWN_LINES, Reader, read
from monitor.window import window
from planner.units import finite
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


@settings(deadline=None)
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


# As others publish them: the names, the labels and the spellings of real pages, cut down to what tells them apart


def test_a_federating_prometheus() -> None:
    """Times behind the numbers, labels of its own, several servers on a page: each apart, and no start time of all."""
    snapshot = read(
        "".join(
            f'vllm:num_requests_running{{engine="0",instance="{host}:8000",job="v",model_name="m"}} {n} 17000000001\n'
            f'vllm:cache_config_info{{engine="0",instance="{host}:8000",num_gpu_blocks="90"}} 1 17000000001\n'
            f'process_start_time_seconds{{instance="{host}:8000",job="vllm"}} 1.7e9 17000000001\n'
            for n, host in enumerate(("a", "b"))
        )
    )
    assert [(e.labels["instance"], e.running, e.num_gpu_blocks) for e in snapshot.engines] == [
        ("a:8000", 0, 90),
        ("b:8000", 1, 90),
    ]
    assert metrics.START_TIME.key not in snapshot.server


def test_ray_with_v0() -> None:
    """Ray 2.32 wrote `ray_vllm:` and no engine label."""
    labels = (
        '{Component="core_worker",NodeAddress="10.0.0.4",SessionName="s",Version="2.32.0",WorkerId="w",model_name="m"}'
    )
    snapshot = read(
        f"ray_vllm:gpu_cache_usage_perc{labels} 5.882698982295764e-05\nray_vllm:num_requests_running{labels} 2.0\n"
        f"ray_vllm:num_requests_swapped{labels} 0.0\nray_vllm:generation_tokens_total{labels} 300.0\n"
        f"ray_vllm:gpu_prefix_cache_hit_rate{labels} -1.0\n"
        f"ray_vllm:avg_generation_throughput_toks_per_s{labels} 17.75\n"
    )
    [engine] = snapshot.engines
    assert (snapshot.kind, snapshot.version_range, engine.engine, engine.running) == ("vllm", "0.5-0.6", None, 2)
    assert (engine.kv_usage, engine.number(metrics.GENERATION_TOKENS)) == (5.882698982295764e-05, 300)
    assert snapshot.missing["prefix_hit_rate"] == "prefix caching is off: the server says -1"


def test_v1_before_it_had_an_engine_label() -> None:
    """0.7 and 0.8.0: prefix counters tell V1, which keeps a null block: 9 of its 10 blocks are for requests."""
    snapshot = read(
        'vllm:num_requests_running{model_name="m"} 0.0\nvllm:gpu_cache_usage_perc{model_name="m"} 0.0\n'
        'vllm:gpu_prefix_cache_queries_total{model_name="m"} 10.0\nvllm:cache_config_info{num_gpu_blocks="10"} 1.0\n'
    )
    assert snapshot.engines[0].usable_blocks == 9
    assert snapshot.version_range == "0.7-0.11"


def test_a_router_says_it_of_each_server_and_no_version() -> None:
    """vLLM's production stack: names of vLLM and of its own, for each server behind it."""
    snapshot = read(
        "".join(
            f'vllm:{name}{{server="http://{host}:8000"}} {value}\n'
            for host in "ab"
            for name, value in (
                ("num_requests_running", 2),
                ("num_requests_swapped", 0),
                ("current_qps", 1),
                ("avg_itl", -1),
            )
        )
    )
    assert (snapshot.kind, snapshot.version_range) == ("vllm", None)
    assert [(e.labels, e.running) for e in snapshot.engines] == [
        ({"server": "http://a:8000"}, 2),
        ({"server": "http://b:8000"}, 2),
    ]


VLLM = "".join(f'vllm:num_requests_{state}{{engine="0",model_name="m"}} 4\n' for state in ("running", "waiting"))
VLLM += 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'


@pytest.mark.parametrize(
    "around",
    [
        "".join(f"tgi_{name} 1\n" for name in ("request_count", "request_success", "queue_size", "batch_current_size")),
        "".join(
            f'dynamo_component_{name}{{dynamo_namespace="d"}} 1\n' for name in ("requests_total", "uptime", "a", "b")
        ),
        "".join(f"lmcache:{name} 1\n" for name in ("num_retrieve_requests", "retrieve_hit_rate", "a", "b", "c")),
        'aibrix:num_requests_running{engine_type="vllm"} 9\naibrix:kv_cache_usage_perc 0.9\n',
        "".join(f"nv_inference_{name} 1\n" for name in ("count", "exec_count", "request_success", "request_failure")),
    ],
)
def test_what_stands_around_vllm_does_not_hide_it(around: str) -> None:
    [engine] = read(around + VLLM).engines
    assert (engine.running, engine.waiting, engine.kv_usage) == (4, 4, 0.5)
    assert read(around).kind not in ("vllm", "unknown")
    assert not any(engine.values for engine in read(around).engines)


def test_adapters_by_when_they_ran() -> None:
    """The newest time is the present; the series have no engine, and belong to the only one."""
    snapshot = read(
        VLLM
        + "".join(
            f'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="{names}",waiting_lora_adapters=""}} {time}\n'
            for names, time in (("", "1.7907e+09"), ("sql,chat", "1.7907001e+09"))
        )
    )
    adapters = snapshot.engines[0].split(metrics.LORA)
    assert max(adapters, key=lambda names: adapters[names]) == "sql,chat"


def test_a_page_in_openmetrics() -> None:
    snapshot = read(
        "# TYPE vllm:generation_tokens counter\n# UNIT vllm:generation_tokens tokens\n"
        'vllm:generation_tokens_total{engine="0"} 12.0 1.7e9 # {trace_id="a"} 1.0 1.7e9\n'
        'vllm:generation_tokens_created{engine="0"} 1.7e9\n# EOF\n'
    )
    assert snapshot.engines[0].number(metrics.GENERATION_TOKENS) == 12
    assert not snapshot.bad_line_count


def test_numbers_as_windows_prints_them() -> None:
    assert (
        read(VLLM + "process_resident_memory_bytes 1.1701968896e+010\n").server["process_resident_bytes"] == 11701968896
    )


# What goes wrong on the way

INSERTED = ["\0", "\r", '"', "\\", "}", "\u2028", "é", "\x0c", " ", '",engine="' + "9" * 5000]
CHANGES = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, 80)),
    st.tuples(st.just("number"), NUMBERS),
    st.tuples(st.just("swap"), st.integers(0, 10**6)),
    st.tuples(st.just("twice"), st.just(0)),
    st.tuples(st.just("insert"), st.sampled_from(INSERTED)),
)


def spoilt(text: str, damage: dict[int, tuple[str, object]]) -> tuple[str, list[str]]:
    """The page with these of its lines damaged, and the lines that are not."""
    lines = text.split("\n")
    hurt = {place % len(lines): how for place, how in damage.items()}
    for place, (what, how) in hurt.items():
        line = lines[place]
        if what == "cut":
            lines[place] = line[:how]
        elif what == "number":
            lines[place] = f"{line.rpartition(' ')[0]} {how}"
        elif what == "swap":
            other = how % len(lines)
            lines[place], lines[other] = lines[other], line
        elif what == "twice":
            lines[place] = f"{line}\n{line}"
        else:
            lines[place] = line[: len(line) // 2] + str(how) + line[len(line) // 2 :]
    return "\n".join(lines), [line for line in text.split("\n") if line in lines]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["0.32.0-dp2-load", "0.8.5-V0-load", "0.10.2-load", "0.32.0-ngramspec-after"]),
    st.dictionaries(st.integers(0, 2000), CHANGES, max_size=12),
    st.sampled_from(["", "\ufeff"]),
)
def test_a_spoilt_page_never_raises_and_keeps_its_good_lines(name: str, damage: dict, mark: str) -> None:
    whole = page(name)
    text, good = spoilt(whole, damage)
    samples = {(sample.name, *sorted(sample.labels.items())) for sample in parse(mark + text).samples}
    assert {(s.name, *sorted(s.labels.items())) for s in parse("\n".join(good)).samples} <= samples
    reader = Reader()
    pages = [reader.read(each, at=float(at)) for at, each in enumerate((whole, mark + text, whole))]
    assert pages[1] == read(mark + text, at=1.0)
    for before, after in pairwise(pages):
        spanned = window(before, after)
        json.dumps(finite(report.as_json(after, spanned)), allow_nan=False)
        assert report.as_text(after, spanned)


def test_line_ends_of_another_system_change_nothing() -> None:
    text = page("0.32.0-dp2-load")
    assert read(text.replace("\n", "\r\n")) == read(text)


@pytest.mark.parametrize(
    "junk",
    [
        "x{" * 10**7,
        "<div>\n" * 10**6,
        'vllm:num_requests_swapped{a="' + "b" * 10**7 + '"} 1',
        "vllm:" + "a" * 10**7 + " 1",
    ],
)
def test_megabytes_of_junk_lose_no_line(junk: str) -> None:
    snapshot = read(f"{junk}\n{VLLM}")
    assert (snapshot.engines[0].running, snapshot.engines[0].kv_usage) == (4, 0.5)
    assert len(snapshot.bad_lines) <= 20
    assert max(map(len, snapshot.bad_lines)) <= 200


def test_each_trap_has_its_test() -> None:
    """The thirteen traps of reading vLLM's metrics are named by number in the tests that prove them handled."""
    named = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert {int(number) for number in re.findall(r"\bTrap (\d+)", named)} == {*range(1, 14)}
