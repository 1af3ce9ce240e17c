"""The catalog page with the shared inputs beside it: what it knows, an upload, own devices, errors that stay small."""

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from planner.catalog.browse import device_rows, model_rows
from planner.catalog.models import models
from planner.catalog.own import Own, as_toml
from planner.gpu import gpus
from tests.screens import opened, rows, unopened
from tests.test_own_catalog import DEVICE, LLAMA, PRICE


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setenv("KV_PLANNER_OWN", str(tmp_path / "planner.toml"))
    (tmp_path / "planner.toml").write_text(as_toml("prices", PRICE))
    return opened("catalog")


def devices(page: AppTest) -> AppTest:
    page.session_state["browse"] = "Devices and prices"
    page.run()
    assert not page.exception
    return page


def test_every_model_is_there_with_its_source(page: AppTest) -> None:
    assert len(rows(page.dataframe[0])) == len(models())
    llama = next(row for row in rows(page.dataframe[0]) if row["Short name"] == "llama-3-8b")
    assert llama["Parameters"] == llama["Published"] == 8_030_261_248  # the publisher's safetensors headers
    assert (llama["KV bytes a token, 16-bit"], llama["KV bytes a token, FP8"]) == (131_072, 65_536)
    assert all(row["Source"] and row["Date"] for row in rows(page.dataframe[0]))


def test_find_narrows_both_lists(page: AppTest) -> None:
    page.text_input(key="find").set_value("Gemma windowed").run()
    assert rows(page.dataframe[0])
    assert all("gemma" in row["Model"].lower() and "windowed" in row["Layers"] for row in rows(page.dataframe[0]))
    page.text_input(key="find").set_value("h100 NVLink4").run()
    found = rows(devices(page).dataframe[0])
    assert "H100-SXM" in {row["Device"] for row in found}
    assert all("NVLink4" in row["Link"] for row in found)


def test_planned_beside_published(page: AppTest) -> None:
    chosen = rows(page.table[0])[0]
    assert (chosen["Parameters counted"], chosen["Published"]) == ("8,030,261,248", "8,030,261,248")


def test_own_price_stands_with_the_devices(page: AppTest) -> None:
    found = {row["Device"]: row for row in rows(devices(page).dataframe[0])}
    assert len(found) == len(gpus())
    assert found["H100-SXM"]["Median, $ an hour"] == 2.1
    assert found["A10G"]["Median, $ an hour"] == 1.006  # Amazon's g5.xlarge
    assert {row["Source"] for row in rows(page.dataframe[1]) if row["Device"] == "H100-SXM"} == {"our contract"}


def test_a_device_is_added_by_form(page: AppTest, tmp_path: Path) -> None:
    devices(page)
    page.text_input(key="own_name").set_value("Lab 48GB")
    page.number_input(key="own_memory").set_value(47.4)
    page.number_input(key="own_bandwidth").set_value(1008.0).run()
    assert "bfloat16" in page.error[0].value
    page.number_input(key="own_bfloat16").set_value(165.0).run()
    assert not page.error
    page.button(key="own_name_save").click().run()
    assert not page.exception
    assert rows(page.dataframe[0])[0]["Device"] == "Lab 48GB"
    assert page.text_input(key="own_name").value == ""
    assert 'name = "Lab 48GB"' in (tmp_path / "planner.toml").read_text()


def test_a_wrong_file_is_an_error_and_the_rest_goes_on(page: AppTest, tmp_path: Path) -> None:
    (tmp_path / "planner.toml").write_text(as_toml("gpus", DEVICE | {"speed": 3}))
    page.run()
    assert "speed" in page.error[0].value
    assert len(rows(page.dataframe[0])) == len(models())


def test_an_uploaded_model_is_planned_with(page: AppTest) -> None:
    page.file_uploader[0].set_value(("mine.json", json.dumps(LLAMA).encode(), "application/json")).run()
    assert not page.exception
    reference = page.success[0].value.split("`")[1]
    next(button for button in page.button if button.label == "Plan with it").click().run()
    assert not page.exception
    assert page.selectbox(key="model").value == reference
    assert rows(page.table[0])[0]["From"] == "upload"


def test_a_lost_upload_says_so_and_the_rest_goes_on() -> None:
    page = unopened("catalog")
    page.query_params["model"] = "upload/gone-12345678"
    page.run()
    assert not page.exception
    assert "upload its config.json again" in page.error[0].value
    assert len(rows(page.dataframe[0])) == len(models())


def test_counts_are_the_publishers_but_for_padding() -> None:
    """Published counts know no padding of the vocabulary to 64, and LLaVA's no unused last encoder layer."""
    over = {row.name: row.counted_over_published for row in model_rows()}
    assert sum(each is not None for each in over.values()) >= 100
    assert all(0.998 < each < 1.002 for each in over.values() if each is not None)


def test_every_model_and_device_has_a_row() -> None:
    assert all(row.kv_16_bit is not None and row.kv_fp8 is not None and row.layers for row in model_rows())
    assert [row.gpu for row in device_rows(Own())] == list(gpus())
