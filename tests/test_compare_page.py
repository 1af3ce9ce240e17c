"""Planned vs actual on recorded servers: what is adopted is as planned, and what is planned wrong is named first."""

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pages import _plan_shelf
from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.gpu import gpu_named
from planner.plan import plan
from planner.record import from_json, to_json
from planner.store import Shelf
from planner.workload import Workload
from tests import screens
from tests.recorded import page
from tests.screens import Open, boxes, charts, rows
from tests.test_drift import PLAN, days
from tests.watched import DOWN, IDLE, LOAD, PREEMPTING, Servers, state

TINY = {"model": "demo/tiny-llama", "gpu": "cpu", "cpu_kvcache_space": 1.0, "max_model_len": 2048,
        "input_tokens": 200, "output_tokens": 100}  # fmt: skip
"""What the recorded servers were started with."""
ADOPT = {"plan_from": "The server's own", "adopt_model": "demo/tiny-llama", "adopt_gpu": "cpu"}


NBSP, WHY = "\N{NO-BREAK SPACE}", "Likely cause, and what it rests on"


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    (tmp_path / "monitor.toml").write_text(f'store = "sqlite:///{tmp_path / "kept.sqlite"}"\n')
    servers = Servers(
        state("chat-1", IDLE, IDLE, group="chat"),
        state("chat-2", page("0.32.0-preempt-blocks80-load"), PREEMPTING, group="chat"),
        state("chat-3", error=DOWN, group="chat"),
        state("pair", page("0.32.0-dp2-start"), page("0.32.0-dp2-load")),
        state("busy", IDLE, LOAD),
    )
    screens.reading(servers, tmp_path, monkeypatch)
    _plan_shelf._opened.clear()
    return servers


@pytest.fixture
def opened(watched: Servers) -> Open:
    def opened(**widgets: object) -> AppTest:
        found = screens.opened("compare", servers=True, **widgets)
        charts(found)
        return found

    return opened


def quantities(found: AppTest, table: int = 0) -> dict[str, dict[str, str]]:
    return {row["Quantity"].replace(" ", "_"): row for row in rows(found.table[table])}


def test_a_server_as_planned(opened: Open) -> None:
    """4,096 blocks of 128 tokens: 1 GiB of a model whose token takes 2,048 bytes."""
    found = opened(**TINY, endpoint="chat-1")
    assert "**As planned.**" in boxes(found)
    tokens = quantities(found)["kv_cache_size_tokens"]
    assert (tokens["Planned"], tokens["Actual"]) == ("524,288 tokens, exactly", "524,288 tokens")
    assert (tokens["Ratio"], tokens["Range"]) == (f"100{NBSP}%", f"✓{NBSP}within")


def test_a_wrong_kv_dtype_is_named_first(opened: Open) -> None:
    found = opened(**TINY, endpoint="chat-1", kv_cache_dtype="fp8")
    cause = "KV dtype: planned fp8, the server runs auto."
    assert f"Likely cause: {cause}" in boxes(found)
    assert any(text.value.startswith(f"1. {cause}") for text in found.markdown)
    row = quantities(found)["kv_cache_size_tokens"]
    assert (row["Ratio"], row["Range"], row[WHY]) == (f"50{NBSP}%", f"✗{NBSP}outside", cause)


@pytest.mark.parametrize("name", ["chat-1", "chat-2", "busy"])
def test_a_server_adopted_as_plan_is_as_planned(opened: Open, name: str) -> None:
    found = opened(endpoint=name, **ADOPT)
    tokens = quantities(found)["kv_cache_size_tokens"]
    assert (tokens["Ratio"], tokens["Range"]) == (f"100{NBSP}%", f"✓{NBSP}within")
    if name != "busy":
        assert "**As planned.**" in boxes(found)


def test_an_adopted_plan_is_put_into_the_sidebar(opened: Open) -> None:
    """It was started with 80 blocks of 32 tokens and requests of at most 2,048."""
    found = opened(endpoint="chat-2", **ADOPT)
    found.button(key="open").click().run()
    assert not found.exception
    assert found.selectbox(key="model").value == "demo/tiny-llama"
    assert found.number_input(key="num_gpu_blocks_override").value == 80
    assert found.number_input(key="max_model_len").value == 2048
    assert "“chat-2 as it is” is open in the sidebar." in boxes(found)
    found = opened(endpoint="chat-1", **ADOPT)
    found.button(key="open").click().run()
    assert found.query_params["cpu_kvcache_space"] == "1"  # of an input that was not there before


def test_a_model_that_only_the_server_knows_is_asked_for(opened: Open) -> None:
    found = opened(endpoint="chat-1", plan_from="The server's own")
    assert "./tiny" in boxes(found)
    assert not found.table


def test_a_group_has_its_worst_server_first_and_its_sums(opened: Open) -> None:
    """Three planned of 524,288 tokens each; one has them, one has 80 x 32 = 2,560, and one is gone."""
    found = opened(**TINY, group="chat")
    assert "**Not as planned.** 1 of 3 servers are as planned. The worst, chat-2: " in boxes(found)
    servers = rows(found.table[0])
    assert [row["Server"] for row in servers] == ["chat-2", "chat-3", "chat-1"]
    assert [row["Verdict"] for row in servers] == ["⚠ Not as planned", "? Nothing to compare", "✓ As planned"]
    assert "nothing listens there" in servers[1]["First cause"]
    total = quantities(found, 1)["kv_cache_size_tokens"]
    assert (total["Planned"], total["Actual"]) == ("1,572,864 tokens, exactly", "526,848 tokens")
    assert total[WHY].startswith("chat-3 said nothing. block count: ")
    assert found.selectbox(key="in_full").value == "chat-2"


def test_engines_stay_apart_and_usage_has_a_line_for_each(opened: Open) -> None:
    found = opened(**TINY, endpoint="pair")
    assert [header.value for header in found.subheader][:2] == ["./tiny, engine 0", "./tiny, engine 1"]
    alt = found.get("plotly_chart")[0].proto.alt
    assert "in use, engine 0" in alt
    assert "planned, engine 0" in alt
    assert "in use, engine 1" in alt  # none of its requests has finished


def test_planned_usage_is_dashed_on_the_same_axis(opened: Open) -> None:
    found = opened(**TINY, endpoint="busy", when="Looking back")
    figure = json.loads(found.get("plotly_chart")[0].proto.spec)
    drawn = {trace["name"]: trace for trace in figure["data"]}
    assert drawn["planned"]["line"]["dash"] == "dash"
    assert drawn["in use"]["line"]["dash"] == "solid"
    assert drawn["planned at most"]["fill"] == "tonexty"
    assert all("yaxis" not in trace for trace in figure["data"])


def test_a_saved_plan_is_compared_as_it_was(opened: Open, tmp_path: Path) -> None:
    """The sidebar plans for an A100; the plan kept is the server's, but for 64 tokens a block."""
    made = plan(
        model_named("tiny-llama"),
        Deployment(gpu=gpu_named("cpu"), cpu_kvcache_space=1, max_model_len=2048, block_size=64),
        Workload(input_tokens=200, output_tokens=100),
    )
    shelf = Shelf(f"sqlite:///{tmp_path / 'kept.sqlite'}")
    shelf.put("plan", "Small blocks", to_json(made))
    shelf.close()
    found = opened(endpoint="chat-1", plan_from="A saved one")
    assert "block size: planned 64, the server runs 128." in boxes(found)
    assert from_json(json.loads(json.dumps(to_json(made)))) == made


def test_an_address_that_names_no_plan_compares_none(watched: Servers, tmp_path: Path) -> None:
    shelf = Shelf(f"sqlite:///{tmp_path / 'kept.sqlite'}")
    shelf.put("plan", "Steady", to_json(PLAN))
    shelf.close()
    found = screens.unopened("compare", servers=True)
    found.query_params.update(endpoint="chat-1", plan_from="A saved one", saved="zzz")
    for _ in range(2):  # a later rerun says the same
        found.run()
        assert not found.exception
        assert [box.value for box in found.error] == ["saved: found 'zzz', accepted: one plan of the list"]
        assert not found.table
    found.selectbox(key="saved").select("Steady (#1)").run()
    assert not found.error
    assert quantities(found)["kv_cache_size_tokens"]["Actual"] == "524,288 tokens"
    assert found.query_params["saved"] == "Steady (#1)"
    other = opened_on("chat-1")
    assert (other.selectbox(key="saved").value, other.query_params["saved"]) == ("Steady (#1)", "Steady (#1)")


def opened_on(name: str) -> AppTest:
    """A saved plan against that server, as a visitor without more in the address gets it."""
    return screens.opened("compare", servers=True, endpoint=name, plan_from="A saved one")


def test_without_a_saved_plan_the_way_to_one_is_said(opened: Open) -> None:
    assert "No plan is saved yet" in boxes(opened(endpoint="chat-1", plan_from="A saved one"))


def test_drift_is_drawn_when_asked(opened: Open, watched: Servers, tmp_path: Path) -> None:
    """A server that grows 1 % slower each of ten days, against the plan that a calibration made."""
    shelf = Shelf(f"sqlite:///{tmp_path / 'kept.sqlite'}")
    shelf.put("plan", "Steady", to_json(PLAN))
    shelf.close()
    history = tuple(days(10, 0.01))
    watched.snapshots = lambda name, start, end, points=240: history  # type: ignore[method-assign]
    found = opened(endpoint="chat-1", plan_from="A saved one", when="Drift over days")
    table = {row["Quantity"]: row for row in rows(found.table[0])}
    assert table["tpot s"]["Periods"] == "10"
    assert table["tpot s"]["Finding"].endswith("it grows by 1.1 % of the plan a day.")
    assert "**Drifts.** tpot_s was " in boxes(found)
    figure = json.loads(found.get("plotly_chart")[0].proto.spec)
    assert len(next(trace for trace in figure["data"] if trace["name"] == "tpot_s")["y"]) == 10


def test_a_single_day_is_no_drift(opened: Open) -> None:
    assert "**Too few days.**" in boxes(opened(**TINY, endpoint="chat-1", when="Drift over days"))
