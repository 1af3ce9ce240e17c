"""The page of saved plans: what was saved comes back into the sidebar with the same figures."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pages import _plan_shelf, _source, _verdict
from planner.catalog.models import model_named
from planner.deployment import Deployment
from planner.families import model_spec
from planner.gpu import Gpu, gpu_named
from planner.plan import plan
from planner.record import from_json, to_json
from planner.store import Shelf
from planner.workload import Slo, Workload
from tests import screens
from tests.screens import Open, boxes, rows
from tests.test_calibration import MEASURED
from tests.watched import Servers

A100 = gpu_named("A100-SXM-80GB")
CHAT = plan(
    model_named("llama-3-8b"),
    Deployment(gpu=A100, kv_cache_dtype="fp8", max_model_len=4096, tensor_parallel_size=2, gpu_memory_utilization=0.8),
    Workload(input_tokens=700, output_tokens=300, concurrency=40),
    Slo(tpot_s=0.05),
    1.75,
)
INVENTED = plan(
    model_spec({**model_named("llama-3-8b").wrapper, "num_hidden_layers": 4}, "lab/invented"), Deployment(gpu=A100)
)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """The store that monitor.toml names, empty."""
    url = f"sqlite:///{tmp_path / 'kept.sqlite'}"
    (tmp_path / "monitor.toml").write_text(f'store = "{url}"\n')
    screens.reading(Servers(), tmp_path, monkeypatch)
    _plan_shelf._opened.clear()
    _plan_shelf._calibrations.clear()
    kept = Shelf(url)
    yield kept
    kept.close()
    _plan_shelf._opened.clear()


@pytest.fixture
def opened(shelf: Shelf) -> Open:
    """opened(gpu="H100-SXM"): the page with these inputs."""
    return partial(screens.opened, "plans", calibrations=True)


def pressed(page: AppTest, key: str) -> AppTest:
    page.button(key=key).click().run()
    assert not page.exception
    return page


def test_a_plan_saved_and_opened_again_gives_the_same_figures(opened: Open, shelf: Shelf) -> None:
    shelf.put("plan", "Chat", to_json(CHAT), "for the review")
    page = pressed(opened(gpu="L4"), "open")
    assert "“Chat” is open in the sidebar." in boxes(page)
    page.text_input(key="save_name").set_value("Chat again")
    pressed(page, "save")
    again, first = shelf.all("plan")
    assert again.body == first.body
    assert from_json(again.body) == CHAT
    assert [row["Name"] for row in rows(page.dataframe[0])] == ["Chat again (#2)", "Chat (#1)"]
    shown = rows(page.dataframe[0])[1]
    assert (shown["Note"], shown["Model"], shown["Device"]) == ("for the review", CHAT.model.name, "A100-SXM-80GB")
    assert shown["Verdict then"] == "✓ Fits"
    assert shown["KV tokens"] == CHAT.capacity[0].kv_cache_size_tokens  # type: ignore[index]


def test_a_price_of_the_quotes_stays_one(opened: Open, shelf: Shelf) -> None:
    """The plan was saved with the median of the quotes: opened again, no price is typed in."""
    shelf.put("plan", "Chat", to_json(replace(INVENTED, model=CHAT.model).on()))
    page = pressed(opened(usd_per_gpu_hour=9.0), "open")
    assert page.number_input(key="usd_per_gpu_hour").value is None


def test_a_model_that_the_catalog_lacks_is_opened_from_what_was_saved(opened: Open, shelf: Shelf) -> None:
    """Llama 3 8B with 4 layers: 2 x 4 x 8 x 128 x 2 = 16,384 bytes a token."""
    shelf.put("plan", "Invented", to_json(INVENTED))
    page = pressed(opened(), "open")
    assert "lab/invented is not known here with this config.json" in boxes(page)
    model = page.selectbox(key="model").value
    assert model.startswith("upload/invented-")
    page.text_input(key="save_name").set_value("Again")
    pressed(page, "save")
    assert shelf.all("plan")[0].body["bytes_per_token"] == 16_384


def test_what_the_sidebar_has_no_field_for_is_said(opened: Open, shelf: Shelf) -> None:
    held = CHAT.on(replace(CHAT.deployment, other_memory=2**30))
    shelf.put("plan", "Shared", to_json(held))
    assert "other_memory 1073741824 has no field here" in boxes(pressed(opened(), "open"))


def test_a_device_that_is_gone_is_said(opened: Open, shelf: Shelf) -> None:
    own = Gpu(**{**asdict(A100), "name": "Lab 80GB"})
    shelf.put("plan", "Lab", to_json(CHAT.on(replace(CHAT.deployment, gpu=own))))
    page = pressed(opened(), "open")
    assert "Lab 80GB" in boxes(page)
    assert page.selectbox(key="gpu").value == "A100-SXM-80GB"


def test_figures_of_another_planner_stand_beside_todays(opened: Open, shelf: Shelf) -> None:
    shelf.put("plan", "Old", {**to_json(CHAT), "block_size": 8})
    page = opened()
    assert "works some figures out otherwise" in boxes(page)
    table = {row["Figure"]: (row["As it was"], row["Today"]) for row in rows(page.table[0])}
    assert table["block_size"] == ("8", "16")
    assert table["KV cache a token"] == ("32 KiB", "the same")  # of one rank of two, in FP8


def test_a_plan_that_cannot_be_planned_again_still_says_what_it_said(opened: Open, shelf: Shelf) -> None:
    body = to_json(CHAT)
    shelf.put("plan", "Future", {**body, "inputs": {**body["inputs"], "format": 2}})
    page = opened()
    assert "inputs.format: found 2" in boxes(page)
    assert rows(page.table[0])[0]["As it was"] == "yes"
    assert "open" not in {button.key for button in page.button}


def test_delete_has_a_way_back(opened: Open, shelf: Shelf) -> None:
    shelf.put("plan", "Chat", to_json(CHAT))
    page = pressed(opened(), "delete")
    assert shelf.all("plan") == []
    assert not page.dataframe
    pressed(page, "undo")
    assert [each.name for each in shelf.all("plan")] == ["Chat"]
    pressed(page, "delete")
    page = opened()  # another visitor, later
    pressed(page, "restore")
    assert rows(page.dataframe[0])[0]["Name"] == "Chat (#1)"


def test_rename_and_duplicate(opened: Open, shelf: Shelf) -> None:
    shelf.put("plan", "Chat", to_json(CHAT), "first")
    page = opened()
    page.text_input(key="name 1").set_value("Talk")
    pressed(page, "rename")
    assert page.selectbox(key="saved").value == "Talk (#1)"
    page.text_input(key="name 1").set_value("Talk, twice")
    page.text_input(key="note 1").set_value("second")
    pressed(page, "duplicate")
    assert [(each.name, each.note) for each in shelf.all("plan")] == [("Talk, twice", "second"), ("Talk", "first")]
    assert page.selectbox(key="saved").value == "Talk, twice (#2)"
    pressed(page, "save")
    assert "a name that is not empty" in boxes(page)


def test_trouble_of_the_store_is_seen(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "kept.sqlite").write_text("no database at all, but long enough to be taken for one" * 20)
    assert "file is not a database" in boxes(opened())
    (tmp_path / "monitor.toml").write_text('store = ""\n')
    _source.shared().reload()
    assert "`store` is empty in monitor.toml" in boxes(opened())


def test_a_calibration_is_offered_for_its_model_and_device_only(opened: Open, shelf: Shelf) -> None:
    shelf.put("calibration", "Monday", asdict(MEASURED))
    _plan_shelf._calibrations.clear()
    page = opened()
    assert page.selectbox(key="calibration").options == []
    page = opened(model=MEASURED.model, gpu=MEASURED.gpu)
    assert "calibrated, " not in boxes(page)
    page.selectbox(key="calibration").select("Monday (#1)").run()
    assert f"calibrated, {MEASURED.name}" in boxes(page)
    page.text_input(key="save_name").set_value("With it")
    pressed(page, "save")
    kept = from_json(shelf.all("plan")[0].body)
    assert kept.calibration == MEASURED
    page.selectbox(key="gpu").select("L4").run()
    assert page.selectbox(key="calibration").value is None
    assert "calibrated, " not in boxes(page)
    pressed(page, "open")
    assert page.selectbox(key="calibration").value == "Monday (#1)"


def test_a_name_that_is_refused_leaves_its_form_open(opened: Open, shelf: Shelf) -> None:
    shelf.put("plan", "Chat", to_json(CHAT))
    page = opened()
    form = next(each for each in page.expander if each.label == "Rename or duplicate")
    assert (form.proto.expanded, len(form.error)) == (False, 0)
    for button in ("rename", "duplicate"):
        page.text_input(key="name 1").set_value(" ")
        pressed(page, button)
        form = next(each for each in page.expander if each.label == "Rename or duplicate")
        assert form.proto.expanded
        assert [box.value for box in form.error] == ["name: found ' ', accepted: a name that is not empty"]
        assert len(page.error) == 1  # beside the form, and nowhere else
    page.text_input(key="name 1").set_value("Talk").run()
    form = next(each for each in page.expander if each.label == "Rename or duplicate")
    assert form.proto.expanded  # while a better name is typed
    pressed(page, "rename")
    form = next(each for each in page.expander if each.label == "Rename or duplicate")
    assert (form.proto.expanded, len(page.error)) == (False, 0)
    assert [each.name for each in shelf.all("plan")] == ["Talk"]


def test_the_plan_saved_last_is_the_one_that_delete_takes(opened: Open, shelf: Shelf) -> None:
    for name in ("First", "Second"):
        shelf.put("plan", name, to_json(CHAT))
    page = opened()
    assert page.query_params["saved"] == "Second (#2)"  # the newest too: a copied link means the same later
    page.text_input(key="save_name").set_value("Third")
    pressed(page, "save")
    assert (page.selectbox(key="saved").value, page.query_params["saved"]) == ("Third (#3)", "Third (#3)")
    pressed(page, "delete")
    assert [each.name for each in shelf.all("plan")] == ["Second", "First"]
    assert page.selectbox(key="saved").value == "Second (#2)"
    for _ in range(2):
        pressed(page, "delete")
    assert shelf.all("plan") == []
    page.text_input(key="save_name").set_value("Fourth")
    pressed(page, "save")
    assert page.selectbox(key="saved").value.startswith("Fourth (#")
    assert page.query_params["saved"] == page.selectbox(key="saved").value


def test_an_address_of_a_plan_that_is_gone_shows_no_other(shelf: Shelf) -> None:
    shelf.put("plan", "Chat", to_json(CHAT))
    page = screens.unopened("plans", calibrations=True)
    page.query_params["saved"] = "Gone (#9)"
    page.run()
    assert not page.exception
    assert "saved: found 'Gone (#9)', accepted: one plan of the list" in boxes(page)
    assert page.selectbox(key="saved").value is None
    assert "delete" not in {button.key for button in page.button}
    page.selectbox(key="saved").select("Chat (#1)").run()
    assert "Gone" not in boxes(page)
    assert "delete" in {button.key for button in page.button}


def test_a_name_with_markup_is_shown_as_it_was_typed(opened: Open, shelf: Shelf) -> None:
    shelf.put("plan", "**b** :red[x] [l](http://x) $1", to_json(CHAT))
    page = pressed(opened(), "open")
    shown = r"\*\*b\*\* \:red\[x\] \[l\](http://x) \$1"
    assert f"“{shown}” is open in the sidebar." in [box.value for box in page.success]
    pressed(page, "delete")
    assert f":material/delete: “{shown}” is deleted." in [text.value for text in page.markdown]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("tpot_s is 5 % of 20 ms, 12:30", "tpot_s is 5 % of 20 ms, 12:30"),
        ("_a_ `b` ~c~ <i> &amp;", r"\_a\_ \`b\` \~c\~ \<i> \&amp;"),
        (":smile: :material/delete: a@b.eu www.x.eu", r"\:%smile: \:%material/delete: a@b.eu www.x.eu"),
        ("- a\n# b\n> c\n1. d\n-5", "\\- a\n\\# b\n\\> c\n1%. d\n-5"),
    ],
)
def test_literal(typed: str, shown: str) -> None:
    """Where a % stands after what is typed, a mark without width parts it."""
    assert _verdict.literal(typed).replace("\N{WORD JOINER}", "%") == shown
