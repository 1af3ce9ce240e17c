"""Calibrate, headroom and experiment as pages: on a server whose every request is known, a stand-in for the engine."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from monitor.background import Background
from monitor.engine import Stopped
from monitor.experiment import Setup, Step
from monitor.experiment_result import KIND, Experiment, as_json
from monitor.source import TargetState
from monitor.sources import Sources
from monitor.targets import Target
from pages import _experiment_form, _labels, _now, _plan_shelf
from planner.deployment import Deployment
from planner.gpu import gpu_named
from planner.headroom import headroom
from planner.plan import plan
from planner.record import calibration_from
from planner.store import Shelf
from planner.workload import Workload
from tests import screens
from tests.obeying import GAP, INPUT, OUTPUT, history
from tests.screens import Open, boxes, rows
from tests.test_benchmark_results import GUIDELLM
from tests.test_calibration import MODEL
from tests.test_experiment import made, run
from tests.watched import Servers

# 15 windows of 20 s at as many requests a second; a gap is 20 ms whatever runs.
PAGES = history([2.0, 4.0, 1.0, 3.0, 6.0, 2.0, 5.0, 1.0, 4.0, 2.0, 3.0, 5.0, 1.0, 2.0, 4.0], 20)
MEAN = 45 / 15
INPUTS = {"endpoint": "chat", "model": "demo/tiny-llama", "gpu": "cpu", "cpu_kvcache_space": 1.0, "max_model_len": 2048,
          "enforce_eager": True}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'kept.db'}"


@pytest.fixture
def sources(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    target = Target(name="chat", url="http://chat:8000")
    state = TargetState(target=target, history=PAGES, age=1.0, error=None, failures=0)
    servers = Servers(state)
    (tmp_path / "monitor.toml").write_text(f'store = "{store}"\n')
    found = screens.reading(servers, tmp_path, monkeypatch)
    _now._trend.clear()
    yield found
    _plan_shelf._opened.clear()
    _plan_shelf._calibrations.clear()


@pytest.fixture
def opened(sources: Sources) -> Open:
    return partial(screens.opened, servers=True)


def table(page: AppTest, number: int) -> list[dict[str, Any]]:
    return [
        {key: re.sub(r"\\(.)", r"\1", str(value)) for key, value in row.items()} for row in rows(page.table[number])
    ]


# Calibrate


def test_the_traffic_that_was_there_goes_into_the_plan(opened: Open) -> None:
    """45 requests/s in 15 windows; the busiest minute has 3 + 6 + 2 of them, three windows long."""
    found = opened("calibrate", **INPUTS)
    there = {row["Traffic"]: row["There"] for row in table(found, 0)}
    assert there["Prompt, mean"] == f"{INPUT} tokens"
    assert there["Output, mean"] == f"{OUTPUT} tokens"
    assert there["Arrivals, mean"] == "3 requests/s"
    assert there["Prompt tokens found in the cache"] == "25 %"
    assert next(value for name, value in there.items() if name.startswith("Busiest 60 s")) == "3.67 requests/s"
    assert "Prompts, tokens: 100 % up to 500" in found.get("plotly_chart")[0].proto.alt
    found.button(key="take").click().run()
    taken = {key: found.session_state[key] for key in ("input_tokens", "output_tokens", "request_rate", "concurrency")}
    assert taken == {"input_tokens": INPUT, "output_tokens": OUTPUT, "request_rate": 3.0, "concurrency": None}
    assert found.session_state["prefix_hit_ratio"] == 0.25


def test_what_it_teaches_is_proved_and_kept(opened: Open, store: str) -> None:
    """Every gap is 20 ms: one constant explains them all, and later windows are as fitted."""
    found = opened("calibrate", **INPUTS)
    assert "**Calibrated.** On 5 later windows TPOT is off by" in boxes(found)
    step = table(found, 1)[0]
    assert (step["Term"], step["Value"]) == ("step_s", "20 ms")
    assert table(found, 2)[0]["Error without it, median"] == "no prediction"
    found.text_input(key="calibration_name").set_value(" Monday ")
    found.button(key="save_calibration").click().run()
    (kept,) = Shelf(store).all(_plan_shelf.CALIBRATION)
    calibrated = calibration_from(kept.body)
    assert (kept.name, calibrated.name, calibrated.model, calibrated.gpu) == ("Monday", "Monday", MODEL.name, "cpu")
    assert calibrated.step_s == pytest.approx(GAP, rel=0.02)
    found.text_input(key="calibration_name").set_value("  ")
    found.button(key="save_calibration").click().run()
    assert "name: found" in boxes(found)


def test_another_model_or_kv_dtype_is_warned_of_before_the_verdict(opened: Open) -> None:
    """The server runs demo/tiny-llama with auto; as planned, nothing is warned of."""
    assert not opened("calibrate", **INPUTS).warning
    found = opened("calibrate", **{**INPUTS, "model": "meta-llama/Meta-Llama-3-8B"}, kv_cache_dtype="fp8")
    said = (
        "The plan's model is meta-llama/Meta-Llama-3-8B, the server calls its model demo/tiny-llama. "
        "The plan's KV dtype is fp8, the server runs auto."
    )
    assert found.warning[0].value.startswith(said)
    drawn = [each.proto.body for each in found.main if hasattr(getattr(each, "proto", None), "body")]
    verdict = next(number for number, text in enumerate(drawn) if text.startswith("**"))
    assert next(number for number, text in enumerate(drawn) if text.startswith(said)) < verdict


def test_too_little_traffic_says_how_much_is_missing(opened: Open, sources: Sources) -> None:
    few = TargetState(target=Target(name="few", url="http://few"), history=PAGES[:6], age=1.0, error=None, failures=0)
    sources.watch.states["few"] = few  # type: ignore[attr-defined]
    said = boxes(opened("calibrate", **{**INPUTS, "endpoint": "few"}))
    assert "**No calibration.** it needs 3 windows more with traffic, 8 in all." in said


# Headroom


def test_headroom_is_of_the_real_traffic(opened: Open) -> None:
    """On an H100, which has a speed without a calibration: the same figures as the planner's own."""
    found = opened(
        "headroom", endpoint="chat", model="demo/tiny-llama", gpu="H100-SXM", max_model_len=2048, span="5 min"
    )
    load = Workload(input_tokens=INPUT, output_tokens=OUTPUT, request_rate=MEAN, prefix_hit_ratio=0.25)
    expected = headroom(plan(MODEL, Deployment(gpu=gpu_named("H100-SXM"), max_model_len=2048), load), MEAN)
    assert expected.finding in boxes(found)
    assert "Arrivals of chat over 5 min" in boxes(found)
    stops = [row["What stops it"] for row in table(found, 0)]
    assert [each.lower() for each in stops] == [each.reason.lower() for each in expected.ceilings]
    columns = list(table(found, 1)[0])
    assert columns == ["Figure", "The plan", "FP8 KV cache", "One more replica", "Prompts twice as long"]
    assert len(found.get("plotly_chart")) == 2
    said = "No trend: too few hours with a count of requests are recorded, 0 of 8. What is recorded spans 5 min."
    assert said in [text.value for text in found.markdown]


def test_headroom_without_a_server_is_of_the_plan(opened: Open) -> None:
    found = opened("headroom", request_rate=1.0)
    assert "Arrivals of the plan's own load" in boxes(found)
    assert "A trend is read from the history of a server" in boxes(found)
    nothing = opened("headroom")
    assert "**Traffic not known.**" in boxes(nothing)


def test_headroom_without_a_speed_says_why(opened: Open) -> None:
    assert "a device whose speed is known, or a calibration" in boxes(opened("headroom", **INPUTS))


# Experiment

FOUND = made(run("auto", 1, 1000, 1.0), run("fp8", 1, 2000, 1.0), run("auto", 2, 1000, 1.0), run("fp8", 2, 2000, 1.2))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> tuple[Background, threading.Event]:
    """A stand-in for the engine: it tells one step, and is done when it is let go."""
    go = threading.Event()

    def stand_in(setup: Setup, tell: Callable[[Step], None], stop: threading.Event) -> Experiment:
        tell(Step(4, 6, "run 2 of 2, KV dtype fp8: starting the engine"))
        while not go.wait(0.02):
            if stop.is_set():
                raise Stopped
        return FOUND

    found = Background(stand_in)
    monkeypatch.setattr(_experiment_form, "background", lambda: found)
    monkeypatch.setattr(_experiment_form, "installed", lambda: True)
    return found, go


def test_an_experiment_is_begun_watched_by_all_and_kept(
    opened: Open, bench: tuple[Background, threading.Event], store: str
) -> None:
    background, go = bench
    found = opened("experiment")
    found.number_input(key="experiment repeat").set_value(2)
    found.button[0].click().run()
    assert not found.exception
    assert background.progress is not None
    assert (background.progress.setup.repeat, background.progress.setup.model.name) == (2, "tiny-llama")
    seen_by_another = opened("experiment")
    text = " ".join(each.proto.text for each in seen_by_another.get("progress"))
    assert text.startswith("run 2 of 2, KV dtype fp8: starting the engine")
    assert background.progress.share == 0.5
    with pytest.raises(ValueError, match="one at a time"):
        background.start(background.progress.setup, lambda _: None)
    go.set()
    background.wait(60)
    (kept,) = Shelf(store).all(KIND)
    assert kept.body == as_json(FOUND)
    found.run()
    assert "**Held here.** fp8 doubles the tokens of auto. 2,000 tokens against 1,000" in boxes(found)
    assert "P95 latency of fp8 is at most 3 % worse" in boxes(found)
    medians = {row["Figure"]: row for row in table(found, 1)}
    assert medians["Tokens held"]["fp8"] == "2,000 (2,000 to 2,000)"
    assert medians["Latency, p95"]["fp8"] == "1.1 s (1 s to 1.2 s)"
    assert medians["Latency, p95"]["The article says"] == "FP8: at most 3 % worse"


def test_an_experiment_is_cancelled(opened: Open, bench: tuple[Background, threading.Event], store: str) -> None:
    background, _ = bench
    found = opened("experiment")
    found.button[0].click().run()
    found.button(key="cancel").click().run()
    background.wait(60)
    found.run()
    assert "It was cancelled: the engine is ended, nothing is kept." in boxes(found)
    assert Shelf(store).all(KIND) == []


def test_only_editors_start_one(opened: Open, bench: tuple[Background, threading.Event], sources: Sources) -> None:
    sources.path.write_text('editors = ["ops@example.com"]\n' + sources.path.read_text())
    sources.reload()
    found = opened("experiment")
    assert "ops@example.com" in boxes(found)
    assert found.button[0].disabled
    assert bench[0].progress is None


def test_without_an_engine_it_says_what_is_needed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_experiment_form, "installed", lambda: False)
    found = opened("experiment")
    assert [code.value for code in found.code] == ["make engine"]


def test_a_benchmark_stands_beside_the_plan(opened: Open) -> None:
    """GuideLLM measured 20.4 ms and 48.9 tokens/s at one request in flight."""
    found = opened("experiment")
    found.file_uploader[0].upload("benchmarks.json", json.dumps(GUIDELLM).encode(), "application/json").run()
    assert not found.exception
    by_name = {row["Quantity"]: row for row in table(found, 0)}
    assert by_name["tpot s"]["Actual"] == "20.4 ms"
    assert "GuideLLM: 26 requests to Qwen/Qwen3-4B-Thinking-2507" in boxes(found)


def test_a_kept_experiment_is_deleted_and_taken_back(opened: Open, store: str) -> None:
    shelf = Shelf(store)
    for name in ("First", "Second"):
        shelf.put(KIND, name, as_json(FOUND))
    found = opened("experiment")
    assert found.selectbox(key="experiment").options == ["Second (#2)", "First (#1)"]
    found.button(key="delete").click().run()
    assert not found.exception
    assert [each.name for each in shelf.all(KIND)] == ["First"]
    assert found.selectbox(key="experiment").value == "First (#1)"
    assert ":material/delete: “Second” is deleted." in [text.value for text in found.markdown]
    found.button(key="undo").click().run()
    assert found.selectbox(key="experiment").value == "Second (#2)"
    assert "undo" not in {button.key for button in found.button}
    for _ in range(2):
        found.button(key="delete").click().run()
    assert not shelf.all(KIND)
    assert "None yet." in " ".join(caption.value for caption in found.caption)
    later = opened("experiment")  # another visitor
    assert later.selectbox(key="deleted_experiment").options == ["First (#1)", "Second (#2)"]
    later.button(key="restore").click().run()
    assert [each.name for each in shelf.all(KIND)] == ["First"]
    assert "**Held here.** fp8 doubles the tokens of auto." in boxes(later)


def test_a_picture_is_no_result_of_a_benchmark(opened: Open) -> None:
    found = opened("experiment")
    found.file_uploader[0].upload("result.json", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "application/json").run()
    assert not found.exception
    (said,) = [box.value for box in found.error]
    assert said.startswith("file: found 'no JSON: Expecting value at line 1, column 1', accepted: JSON of `vllm bench")


def test_the_form_of_an_experiment_speaks_to_people(opened: Open, bench: tuple[Background, threading.Event]) -> None:
    found = opened("experiment")
    port = found.number_input(key="experiment port")
    assert (port.label, port.help) == ("Port of the engine", "`port`: where the engine listens  [TCP port]")
    model = found.text_input(key="experiment model")
    assert model.label == "Folder of the model"
    assert model.help.startswith("`model`: folder with config.json and a tokenizer")
    assert model.help.endswith("; on the dashboard's machine")
    fields = {each.key.removeprefix("experiment ") for each in found.number_input if "experiment" in each.key}
    assert fields | {"model", "kv_cache_dtypes"} == set(_labels.EXPERIMENT)
