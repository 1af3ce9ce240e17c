"""The monitor's pages on servers in recorded states: what they show is what was recorded."""

import re
from functools import partial
from pathlib import Path

import pytest
import streamlit
from PIL import ImageFont
from streamlit.testing.v1 import AppTest

from monitor.config import config
from monitor.finding import Change, Condition, Event, Finding
from monitor.health import RULES
from monitor.sources import Sources
from monitor.targets import Target
from monitor.thresholds import Thresholds
from pages import _labels, _monitor_tables, _source
from planner.fields import meanings, scalars
from planner.verdict import Level
from tests import screens
from tests.conftest import ROOT
from tests.recorded import page
from tests.screens import Open, boxes, charts, rows
from tests.watched import DOWN, IDLE, LOAD, PREEMPTING, STARTED, Servers, state

ASK = "Scale out, or cap concurrency."
PRESSED = Condition(
    rule="saturated", engine="0", level=Level.BAD, word="Saturated", reason="3 requests wait.", action=ASK
)
BEGAN = Event(
    at=STARTED + 5, target="chat-2", engine="0", rule="saturated", change=Change.BEGAN, level=Level.BAD,
    word="Saturated", reason="3 requests wait.", action=ASK,
)  # fmt: skip


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """What the pages read from: one server that is well, one that is saturated, one that is gone."""
    finding = Finding(target="chat-2", condition=PRESSED, since=STARTED)
    servers = Servers(
        state("chat-1", IDLE, LOAD, group="chat"),
        state("chat-2", IDLE, PREEMPTING, group="chat", findings=(finding,)),
        state("gone", error=DOWN),
        timeline=[BEGAN],
        usual=500.0,
    )
    found = screens.reading(servers, tmp_path, monkeypatch)
    _source._judged.clear()
    return found


@pytest.fixture
def opened(sources: Sources) -> Open:
    """opened("live", endpoint="chat-1"): the page with these widgets set."""
    return partial(screens.opened, servers=True)


def cards(page: AppTest) -> dict[str, tuple[str, str]]:
    return {card.label: (card.value, card.delta) for card in page.metric}


def test_live_shows_the_signals_of_a_preempting_server(opened: Open, sources: Sources) -> None:
    """80 blocks of 32 tokens; the pages are 10 s apart, and another process began in between: 5,307 tokens in 10 s."""
    found = opened("live", endpoint="chat-2")
    assert "**Saturated.** 3 requests wait." in boxes(found)
    engine = sources.watch.state("chat-2").latest.engines[0]  # type: ignore[union-attr]
    shown = cards(found)
    assert shown["KV cache in use"][1].endswith("of 2,560 tokens")
    assert shown["Running"][0] == str(engine.running)
    assert shown["Waiting"] == (str(engine.waiting), f"capacity {engine.waiting}, {shown['Waiting'][1].split(', ')[1]}")
    assert shown["Output"][0] == "531 tokens/s"
    assert "p50" in shown["Time to first token, p99"][1]
    (finding,) = rows(found.table[0])
    assert (finding["Finding"], finding["What to do"]) == ("✗ Saturated", ASK)
    assert finding["Since"].startswith("2026-09-21 14:13:20 UTC")


def test_live_draws_only_the_topic_that_is_seen(opened: Open) -> None:
    cache = {"KV blocks in use", "KV tokens held", "Slots held without a token (estimate)"}
    assert set(charts(opened("live", endpoint="chat-1"))) == cache
    latency = opened("live", endpoint="chat-1", topic="Latency")
    assert len(charts(latency)) == 5
    first = rows(latency.table[0])[0]
    assert first["Observed"] == "Arrival to first token"
    assert " to " in first["p99"]  # the bucket that surely holds it
    said = opened("live", endpoint="chat-1", topic="KV cache").caption
    assert any("--kv-cache-metrics" in caption.value for caption in said)


def test_live_says_how_the_cache_is_configured_and_what_is_missing(opened: Open) -> None:
    table = {
        row["Setting"].replace("\\", ""): row["engine 0"]
        for row in rows(opened("live", endpoint="chat-2", topic="Configuration").table[1])
    }
    assert (table["num_gpu_blocks"], table["block_size"]) == ("80", "32")
    missing = rows(opened("live", endpoint="chat-1", topic="Not reported").dataframe[0])
    assert all(row["Why"] for row in missing)


def test_an_address_that_is_typed_is_watched(opened: Open) -> None:
    found = opened("live", endpoint="http://typed:8000")
    assert "http://typed:8000" in boxes(found)
    assert cards(found)["Running"][0] != "–"


def test_a_server_that_is_gone_is_said_to_be_down(opened: Open) -> None:
    found = opened("live", endpoint="gone")
    assert "**Down.** no page yet: nothing listens there (refused)" in boxes(found)
    assert not found.metric


def test_without_a_server_the_page_says_how_to_connect(opened: Open) -> None:
    for name in ("live", "history"):
        found = opened(name)
        assert "No server is chosen." in boxes(found)
        assert [code.value for code in found.code] == ["make demo"]


def test_trouble_of_file_and_source_is_seen_while_the_page_goes_on(opened: Open, sources: Sources) -> None:
    sources.path.write_text("interval = 'soon'\n")
    sources.reload()
    sources.watch.problem = "The store is locked."  # type: ignore[misc]
    for name in ("live", "fleet", "history", "alerts"):
        found = opened(name, endpoint="chat-1")
        assert "monitor.toml: interval" in boxes(found)
        assert "The store is locked." in boxes(found)


def test_the_fleet_is_a_table_with_the_worst_first(opened: Open) -> None:
    found = opened("fleet")
    assert "**2 of 3 servers.** Saturated (chat-2), Down (gone)." in boxes(found)
    table = rows(found.dataframe[0])
    assert [row["Verdict"] for row in table] == ["✗ Saturated", "✗ Down", "✓ Healthy"]
    assert table[0]["Server"] == "live?endpoint=chat-2"
    assert table[0]["Output, tokens/s"] == pytest.approx(530.7)
    models, groups = (rows(table) for table in found.table)
    assert sum(int(row["Servers"]) for row in models) == 3
    assert [(row["Group"], row["Servers"], row["Well"]) for row in groups] == [("chat", "2", "1"), ("–", "1", "0")]
    assert groups[1]["Running"] == "–"  # it was never heard, which is not 0


def test_the_fleet_is_searched(opened: Open) -> None:
    found = opened("fleet", find_server="region=eu healthy")
    assert [row["Verdict"] for row in rows(found.dataframe[0])] == ["✓ Healthy"]
    assert [row["Verdict"] for row in rows(opened("fleet", group="chat").dataframe[0])] == ["✗ Saturated", "✓ Healthy"]


def test_a_server_is_added_changed_and_removed(opened: Open, sources: Sources) -> None:
    found = opened("fleet")
    found.text_input(key="a new one name").set_value("chat-3")
    found.text_input(key="a new one url").set_value("http://chat-3:8000")
    found.text_area(key="a new one headers").set_value("Authorization = Bearer ${TOKEN}")
    found.button[0].click().run()
    (target,) = config(sources.path).targets
    assert (target.name, target.headers) == ("chat-3", {"Authorization": "Bearer ${TOKEN}"})
    found.selectbox(key="target_edited").select("chat-3").run()
    found.text_input(key="chat-3 group").set_value("chat")
    found.button[0].click().run()
    assert config(sources.path).targets[0].group == "chat"
    found.text_input(key="chat-3 url").set_value("ftp://chat-3")
    found.button[0].click().run()
    assert "ftp://chat-3" in boxes(found)
    found.button[1].click().run()
    assert config(sources.path).targets == ()


@pytest.mark.parametrize(
    ("field", "entered", "said"),
    [
        ("ca_file", "/gone/ca.pem", "ca_file: found '/gone/ca.pem', accepted: a readable file of PEM certificates"),
        ("labels", "region = eu\nregion = us", "labels: found 'region', accepted: each key once"),
        ("name", 101 * "a", f"name: found '{100 * 'a'}…', accepted: at most 100 characters, without ://"),
        ("name", "http://gpu1", "name: found 'http://gpu1', accepted: at most 100 characters, without ://"),
    ],
)
def test_a_server_that_could_not_be_read_is_not_added(
    opened: Open, sources: Sources, field: str, entered: str, said: str
) -> None:
    found = opened("fleet")
    found.text_input(key="a new one name").set_value("chat-3")
    found.text_input(key="a new one url").set_value("http://chat-3:8000")
    (found.text_area if field == "labels" else found.text_input)(key=f"a new one {field}").set_value(entered)
    found.button[0].click().run()
    assert said in re.sub(r"[\\\u2060]", "", boxes(found))  # without what keeps it from being markup
    assert config(sources.path).targets == ()


def test_a_variable_that_is_not_set_is_warned_of(
    opened: Open, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file says what no page would add, and is read nevertheless."""
    sources.path.write_text(
        f'[[targets]]\nname = "{101 * "a"}"\nurl = "http://a"\nca_file = "/gone/ca.pem"\n'
        'headers = { Authorization = "Bearer ${KV_TEST_TOKEN}" }\n'
    )
    sources.reload()
    assert len(sources.config.targets) == 1
    assert "Not set where this dashboard runs: `KV_TEST_TOKEN`." in boxes(opened("fleet"))
    monkeypatch.setenv("KV_TEST_TOKEN", "secret")
    assert "Not set where" not in boxes(opened("fleet"))


def test_those_who_may_not_edit_are_told_who_may(opened: Open, sources: Sources) -> None:
    sources.path.write_text('editors = ["ops@example.com"]\n')
    sources.reload()
    for name in ("fleet", "alerts"):
        assert "ops@example.com" in boxes(opened(name))


def test_history_draws_the_span_with_its_events(opened: Open) -> None:
    found = opened("history", endpoint="chat-2")
    assert "**Trouble.** 1 bad and 0 warning findings began" in boxes(found)
    assert "Time to first token" in charts(found)
    alt = found.get("plotly_chart")[0].proto.alt
    assert "Tokens, output: 531 tokens/s now" in alt
    assert "usual at this hour: 500 tokens/s, low below 400 tokens/s" in alt
    assert "Saturated" in found.get("plotly_chart")[0].proto.spec
    assert rows(found.table[-1])[0]["What"] == "✗ Saturated began"
    assert found.get("download_button")
    assert "Nothing recorded" in boxes(opened("history", endpoint="gone"))


def test_history_of_a_server_that_reports_nothing_has_no_empty_chart(opened: Open, sources: Sources) -> None:
    silent = page("0.32.0-disablelogstats-load")
    sources.watch.states["silent"] = state("silent", silent, silent)  # type: ignore[attr-defined]
    found = opened("history", endpoint="silent")
    assert "**Nothing reported.**" in boxes(found)
    assert not found.get("plotly_chart")
    said = " ".join(caption.value for caption in found.caption)
    why = "the engine reports nothing: remove --disable-log-stats from the server's flags"
    assert f"Not drawn: {why}." in said
    assert f"Not drawn. Requests: {why}" in said


def test_history_can_draw_the_plan(opened: Open) -> None:
    assert "planned output" in opened("history", endpoint="chat-1", with_plan=True).get("plotly_chart")[0].proto.spec


def test_alerts_show_what_is_wrong_and_the_rules_to_copy(opened: Open) -> None:
    found = opened("alerts")
    assert [row["Finding"] for row in rows(found.table[0])] == ["✗ Saturated"]
    assert rows(found.dataframe[0])[0]["When"] == "2026-09-21 14:13:25 UTC"
    assert "VllmKvUsage" in found.code[0].value or "alert:" in found.code[0].value
    assert '"panels"' in opened("alerts", rules_for="grafana").code[0].value


def test_thresholds_are_saved_with_the_file(opened: Open, sources: Sources) -> None:
    found = opened("alerts")
    found.number_input(key="threshold usage_act").set_value(0.8)
    found.number_input(key="threshold ttft_p99").set_value(2.0)
    found.button[0].click().run()
    saved = config(sources.path).thresholds
    assert (saved.usage_act, saved.ttft_p99, saved.usage_alarm) == (0.8, 2.0, 0.95)
    assert "usage_act, ttft_p99" in " ".join(caption.value for caption in found.caption)
    found.number_input(key="threshold usage_act").set_value(0.99)
    found.button[0].click().run()
    assert "at most usage_alarm" in boxes(found)


def test_a_promise_is_withdrawn_where_its_field_is_emptied_and_0_is_none(opened: Open, sources: Sources) -> None:
    sources.path.write_text("[thresholds]\nttft_p99 = 2.0\ntpot_p99 = 0.05\n")
    sources.reload()
    found = opened("alerts")
    field = found.number_input(key="threshold ttft_p99")
    assert (field.value, field.proto.HasField("default")) == (2.0, False)  # with a default a browser does not empty it
    field.set_value(0.0)
    found.button[0].click().run()
    assert "thresholds.ttft_p99: found 0.0, accepted: a number above 0, at most 1e+09, or none" in boxes(found)
    assert config(sources.path).thresholds.ttft_p99 == 2.0
    found.number_input(key="threshold ttft_p99").set_value(None)
    found.button[0].click().run()
    assert sources.path.read_text() == "[thresholds]\ntpot_p99 = 0.05\n"
    assert found.number_input(key="threshold ttft_p99").value is None


def test_overview_has_the_fleet_beside_the_plan(sources: Sources) -> None:
    found = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60).run()
    assert not found.exception
    assert "**Fits.**" in boxes(found)
    assert "**2 of 3 servers.**" in boxes(found)


def test_a_pool_of_unknown_size_is_no_part_of_anything(opened: Open, sources: Sources) -> None:
    """The usage is known, and neither the blocks nor the tokens that it is of."""
    unknown = re.sub(r'(num_gpu_blocks|kv_cache_size_tokens)="[^"]*"', r'\1="None"', LOAD)
    sources.watch.states["chat-1"] = state("chat-1", unknown, unknown)  # type: ignore[attr-defined]
    assert cards(opened("live", endpoint="chat-1"))["KV cache in use"] == ("3.57 %", "")


def test_the_fleet_s_columns_are_wide_enough(opened: Open) -> None:
    """In a window of 1,400 px a page has 300 px of sidebar and 80 px on both sides, and the table a border of 1 px."""
    fonts = Path(streamlit.__file__).parent.glob("static/static/media/SourceSansVF-Upright*")
    font = ImageFont.truetype(str(next(fonts)), 14)  # as tables have it, with 8 px beside each text
    font.set_variation_by_axes([400])
    longest = {
        "Server": "http://127.0.0.1:8000",
        "Verdict": max((f"⚠ {rule.word}" for rule in RULES), key=font.getlength),
        "Page": "12.3 min ago",
        "Model": "Qwen/Qwen3-4B-Thinking",
        "Up": "99.9 d",
        "Version": "0.9.2-0.10.1",
    }
    columns = _monitor_tables.FLEET_COLUMNS
    shown = list(rows(opened("fleet").dataframe[0])[0])
    assert set(shown) == set(columns)
    for name, column in columns.items():
        for text in (column["label"] or name, longest.get(name, "")):
            assert font.getlength(text) + 16 <= column["width"], text
    seen = shown[: shown.index("Model") + 1]
    assert "Page" in seen
    assert sum(columns[name]["width"] for name in seen) <= 1400 - 300 - 2 * 80 - 2


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("http://gpu1:8000/" + 3000 * "a", "http://gpu1:8000/" + 83 * "a" + "…"),
        ("ftp://" + 3000 * "a", "ftp://" + 94 * "a" + "…"),
        (3000 * "a", 100 * "a" + "…"),
    ],
    ids=["an address", "no address", "a name"],
)
def test_of_a_long_address_little_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, found: str
) -> None:
    """By the real watch, which is not started: no server is asked."""
    (tmp_path / "monitor.toml").write_text('store = ""\n')
    sources = Sources(tmp_path / "monitor.toml")
    monkeypatch.setattr(_source, "shared", lambda: sources)
    monkeypatch.setattr(_source, "FIRST_PAGE", 0.0)
    _source._judged.clear()
    for name in ("live", "history", "compare", "headroom", "calibrate"):
        page = screens.opened(name, servers=True, endpoint=address)
        drawn = " ".join(str(getattr(each, "proto", "")) for each in page.main)
        assert not re.search("a{101}", drawn), name
    assert found in boxes(screens.opened("live", servers=True, endpoint=address))


def test_the_forms_speak_to_people_and_name_the_fields(opened: Open) -> None:
    """Labels for people; the help names the field as monitor.toml has it, and leaves dollars dollars."""
    assert set(_labels.THRESHOLDS) == set(scalars(Thresholds))
    assert len(set(_labels.THRESHOLDS.values())) == len(_labels.THRESHOLDS)
    words = {rule.word for rule in RULES}
    assert {label.partition(":")[0] for label in _labels.THRESHOLDS.values() if ":" in label} - words == {
        "Slow tokens, first or others"  # one threshold of two rules
    }
    assert set(_labels.TARGET) == set(meanings(Target))
    fleet, alerts = opened("fleet"), opened("alerts")
    field = fleet.text_input(key="a new one ca_file")
    assert (field.label, field.help) == ("CA file", "`ca_file`: certificates to trust instead of the system's")
    headers = fleet.text_area(key="a new one headers")
    assert headers.label == "Headers"
    assert headers.help.startswith(r"`headers`: sent with each request; \${NAME} stands for")
    lasting = alerts.number_input(key="threshold usage_act_for")
    assert lasting.label == "KV cache nearly full: for how long, s"
    assert " ".join(lasting.help.split()) == "`usage_act_for`: how long [s]; the default is 60"
    thresholds = [each for each in alerts.number_input if each.key.startswith("threshold ")]
    assert len(thresholds) == len(scalars(Thresholds))
    assert not {each.label for each in thresholds} & set(scalars(Thresholds))
