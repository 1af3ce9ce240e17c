"""monitor.toml: what it says, how a wrong one is refused, and edits that leave the rest of the file alone."""

import ast
import re
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest

from monitor import config as module
from monitor.config import (
    MonitorConfig,
    PrometheusServer,
    Webhook,
    can_edit,
    config,
    config_path,
    put_target,
    put_thresholds,
    remove_target,
    without_secrets,
)
from monitor.handover import FORMATS, text
from monitor.targets import Target
from monitor.thresholds import Thresholds
from planner.errors import InputError

WHOLE = """\
# Our servers.
interval = 10
timeout = 20.5
store = "postgresql+psycopg://kv@db/kv"
editors = ["ann@example.org"]

[[targets]]
name = "chat-1" # the old one
url = "https://gpu1:8000"
group = "chat"
labels = { region = "eu" }
verify = false

# Behind the gateway.
[[targets]]
name = "chat-2"
url = "gpu2:8000"
ca_file = "ca.pem"
[targets.headers]
Authorization = "Bearer ${VLLM_TOKEN}"

[thresholds]
usage_act = 0.85 # since the incident
ttft_p99 = 2

[prometheus]
url = "http://prom:9090"
selector = 'job="vllm"'
timeout = 5

[[webhooks]]
name = "on call"
url = "${SLACK_WEBHOOK}"
format = "slack"
groups = ["chat"]
"""
CHAT_1 = Target(name="chat-1", url="https://gpu1:8000", group="chat", labels={"region": "eu"}, verify=False)
CHAT_2 = Target(
    name="chat-2", url="gpu2:8000", headers={"Authorization": "Bearer ${VLLM_TOKEN}"}, ca_file="ca.pem"
)  # fmt: skip


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "monitor.toml"
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    assert config(written(tmp_path, WHOLE)) == MonitorConfig(
        interval=10.0,
        timeout=20.5,
        store="postgresql+psycopg://kv@db/kv",
        editors=("ann@example.org",),
        targets=(CHAT_1, CHAT_2),
        thresholds=Thresholds(usage_act=0.85, ttft_p99=2.0),
        prometheus=PrometheusServer(url="http://prom:9090", selector='job="vllm"', timeout=5.0),
        webhooks=(Webhook(name="on call", url="${SLACK_WEBHOOK}", format="slack", groups=("chat",)),),
    )


def test_no_file_and_an_empty_one_are_the_defaults(tmp_path: Path) -> None:
    assert config(tmp_path / "absent.toml") == MonitorConfig()
    assert config(written(tmp_path, "")) == MonitorConfig()


def test_the_example_in_the_docstring_reads(tmp_path: Path) -> None:
    text = (module.__doc__ or "").partition("it is used.\n")[2]
    found = config(written(tmp_path, text))
    assert [target.name for target in found.targets] == ["chat-1"]
    assert found.thresholds == Thresholds(usage_act=0.85)
    assert [webhook.format for webhook in found.webhooks] == ["slack"]


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KV_MONITOR_CONFIG", raising=False)
    assert config_path() == Path("monitor.toml")
    monkeypatch.setenv("KV_MONITOR_CONFIG", "/etc/kv/monitor.toml")
    assert config_path() == Path("/etc/kv/monitor.toml")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path, "interval = 7")
    assert config(path).interval == 7
    path.write_text("interval = 11")
    assert config(path).interval == 11


TARGET = '[[targets]]\nname = "a"\nurl = "gpu1:8000"\n'
WRONG = {
    "intervall = 5": ("intervall", "5", "interval"),
    "interval = 0.5": ("interval", "0.5", "a number from 1 to"),
    "interval = true": ("interval", "True", "a number"),
    "interval = nan": ("interval", "nan", "a number"),
    "interval = inf": ("interval", "inf", "a number"),
    f"interval = {10**18}": ("interval", "1000", "a number"),
    "timeout = 0": ("timeout", "0", "a number from 0.1"),
    "store = 3": ("store", "3", "a text"),
    'editors = "ann@example.org"': ("editors", "ann", "a list of texts"),
    "editors = [1]": ("editors", "[1]", "a list of texts"),
    "targets = 1": ("targets", "1", "[[targets]] tables"),
    "targets = [1]": ("targets[1]", "1", "a table"),
    '[targets]\nname = "a"': ("targets", "a", "[[targets]] tables"),
    '[[targets]]\nname = "a"': ("targets[1].url", "nothing", "an address"),
    '[[targets]]\nurl = "a"': ("targets[1].name", "nothing", "a name"),
    '[[targets]]\nname = " "\nurl = "a"': ("targets[1].name", " ", "a name on one line"),
    '[[targets]]\nname = "a\\nb"\nurl = "a"': ("targets[1].name", "a", "a name on one line"),
    '[[targets]]\nname = "a"\nurl = "ftp://a"': ("targets[1].url", "ftp://a", "http://host:8000"),
    '[[targets]]\nname = "a"\nurl = "a:99999"': ("targets[1].url", "a:99999", "http://host:8000"),
    TARGET + TARGET: ("targets[2].name", "a", "each name once"),
    TARGET + 'port = "1"': ("targets[1].port", "1", "name, url, group, labels, headers, ca_file, verify"),
    TARGET + 'verify = "no"': ("targets[1].verify", "no", "true or false"),
    TARGET + "labels = { a = 1 }": ("targets[1].labels", "{'a': 1}", "a table of texts"),
    TARGET + 'headers = { "a b" = "c" }': ("targets[1].headers", "a b", "header names"),
    TARGET + 'headers = { a = "b\\r\\nc" }': ("targets[1].headers", "a", "printable ASCII"),
    "[thresholds]\nusage = 0.9": ("thresholds.usage", "0.9", "usage_act"),
    "[thresholds]\nusage_act = 90": ("thresholds.usage_act", "90", "a number from 0 to 1"),
    "[thresholds]\nusage_act = 0.99": ("thresholds.usage_act", "0.99", "at most usage_alarm, 0.95"),
    "[thresholds]\nfragmentation_running = 1.5": ("thresholds.fragmentation_running", "1.5", "an integer from 0"),
    "[thresholds]\ndown_for = -1": ("thresholds.down_for", "-1", "a number from 0"),
    "[thresholds]\nwindow = 0": ("thresholds.window", "0", "a number from 1"),
    "[thresholds]\nttft_p99 = 0": ("thresholds.ttft_p99", "0", "a number above 0, at most 1e+09, or none"),
    "[thresholds]\nbaseline_output_tokens_per_s = 0.0": (
        "thresholds.baseline_output_tokens_per_s",
        "0.0",
        "a number above 0",
    ),
    "[prometheus]\nselector = 'job=\"a\"'": ("prometheus.url", "nothing", "an address"),
    "[prometheus]\nurl = 'http://a'\nselector = 'job='": ("prometheus.selector", "job=", 'job="vllm"'),
    "[thresholds]\nfull_trend = 0": ("thresholds.full_trend", "0", "from 10"),
    '[[targets]]\nname = "a"\nurl = "http://a"\nlabels = { bad-label = "x" }': (
        "targets[1].labels",
        "bad-label",
        "letters, digits and _",
    ),
    '[[targets]]\nname = "a"\nurl = "http://a"\nlabels = { job = "x" }': ("targets[1].labels", "job", "none of job"),
    "[prometheus]\nurl = 'prom:port'": ("prometheus.url", "prom:port", "http://host:8000"),
    "[[webhooks]]\nname = 'a'\nurl = 'http://a'\nformat = 'xml'": ("webhooks[1].format", "xml", "generic or slack"),
    "interval = ": ("", "Invalid value", "a readable TOML file"),
    "interval = 5\ninterval = 6": ("", "overwrite", "a readable TOML file"),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_names_itself_the_key_and_what_is_accepted(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as raised:
        config(path)
    key, found, accepted = WRONG[text]
    assert raised.value.field == (f"{path}: {key}" if key else str(path))
    assert found in str(raised.value.found)
    assert accepted in raised.value.accepted


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "monitor.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="a readable TOML file"):
        config(path)
    with pytest.raises(InputError, match="a readable TOML file"):
        config(tmp_path)


def test_every_threshold_that_is_a_share_is_at_most_one() -> None:
    """Its unit says so; the p99 over the mean is a ratio, but no share."""
    unit = dict(re.findall(r"^ *(\w+) .*\[(.+)\]$", Thresholds.__doc__ or "", re.MULTILINE))
    shares = {name for name, said in unit.items() if said == "ratio"} - {"jitter"}
    assert shares == {field.name for field in fields(Thresholds)} & set(module._SHARES)


# Edits


def test_a_target_is_put_in_its_place_and_all_else_stays(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    put_target(path, replace(CHAT_1, url="https://gpu9:8000", labels={}))
    assert path.read_text() == WHOLE.replace("gpu1", "gpu9").replace('labels = { region = "eu" }\n', "")


def test_a_new_target_comes_after_the_others(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    new = Target(name="chat-3", url="gpu3:8000", headers={"X-Key": "${KEY}"})
    put_target(path, new)
    assert config(path).targets == (CHAT_1, CHAT_2, new)
    lines = path.read_text().splitlines()
    assert [line for line in lines if line not in WHOLE.splitlines()] == [
        'name = "chat-3"',
        'url = "gpu3:8000"',
        'headers = {X-Key = "${KEY}"}',
    ]
    assert [line for line in WHOLE.splitlines() if line not in lines] == []


def test_a_target_is_taken_out(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    remove_target(path, "chat-2")
    assert config(path).targets == (CHAT_1,)
    assert "# since the incident" in path.read_text()
    remove_target(path, "chat-2")
    remove_target(path, "chat-1")
    assert config(path).targets == ()
    put_target(path, CHAT_2)
    assert config(path).targets == (CHAT_2,)


@pytest.mark.parametrize(
    "before",
    [
        None,
        "",
        "interval = 7",
        "# only a comment",
        "targets = []",
        'targets = [{ name = "z", url = "z:1" }]',
        '[[targets]]\nname = "z"\nurl = "z:1"\n[thresholds]\nusage_act = 0.8\n[[targets]]\nname = "y"\nurl = "y:1"\n',
        '[[targets]]\r\nname = "chat-1"\r\nurl = "z:1"\r\n',
        'thresholds.usage_act = 0.8\n[[targets]]\nname = "chat-1"\nurl = "z:1"\nlabels.region = "us"',
    ],
)
def test_edits_of_files_of_every_shape(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "monitor.toml"
    if before is not None:
        path.write_bytes(before.encode())
    found = config(path)
    others = tuple(target for target in found.targets if target.name not in ("chat-1", "chat-2"))
    put_target(path, CHAT_2)
    put_target(path, CHAT_1)
    assert {target.name: target for target in config(path).targets} == {
        target.name: target for target in (*others, CHAT_1, CHAT_2)
    }
    thresholds = Thresholds(usage_act=0.5, tpot_p99=0.05)
    put_thresholds(path, thresholds)
    remove_target(path, "chat-1")
    remove_target(path, "chat-2")
    assert config(path) == replace(found, targets=others, thresholds=thresholds)
    assert [line for line in (before or "").splitlines() if line.startswith("#")] == [
        line for line in path.read_text().splitlines() if line.startswith("#")
    ]


def test_thresholds_are_put_and_defaults_need_no_line(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    put_thresholds(path, Thresholds(usage_act=0.8))
    assert path.read_text() == WHOLE.replace("0.85 # since", "0.8 # since").replace("ttft_p99 = 2\n", "")


def test_what_would_not_read_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    for edit in (
        lambda: put_target(path, Target(name="x", url="ftp://x")),
        lambda: put_target(path, Target(name="", url="x:1")),
        lambda: put_target(path, Target(name="x", url="x:1", headers={"a": "b\n"})),
        lambda: put_thresholds(path, Thresholds(usage_act=2.0)),
    ):
        with pytest.raises(InputError):
            edit()
    assert path.read_text() == WHOLE
    assert [file.name for file in tmp_path.iterdir()] == ["monitor.toml"]


def test_a_wrong_file_is_not_edited(tmp_path: Path) -> None:
    path = written(tmp_path, "nonsense = 1")
    with pytest.raises(InputError, match="nonsense"):
        put_target(path, CHAT_1)
    assert path.read_text() == "nonsense = 1"


def test_an_edit_goes_through_a_link_and_keeps_the_rights(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = written(tmp_path / "real", WHOLE)
    real.chmod(0o640)
    link = tmp_path / "monitor.toml"
    link.symlink_to(real)
    remove_target(link, "chat-1")
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert config(link).targets == (CHAT_2,)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "no" / "folder" / "monitor.toml"
    assert not can_edit(path, MonitorConfig(), None)
    with pytest.raises(InputError, match="a file that can be written"):
        put_target(path, CHAT_1)


def test_who_may_edit(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    assert can_edit(path, MonitorConfig(), None)
    assert can_edit(tmp_path / "new.toml", MonitorConfig(), None)
    named = config(path)
    assert [can_edit(path, named, email) for email in (None, "", "bob@example.org", "Ann@Example.org")] == [
        False,
        False,
        False,
        True,
    ]


def test_many_edits_at_once_lose_none_and_no_reader_sees_half(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    threads = [
        threading.Thread(target=put_target, args=(path, Target(name=f"t{n}", url=f"gpu{n}:1"))) for n in range(16)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert {"chat-1", "chat-2"} <= {target.name for target in config(path).targets}
    assert len(config(path).targets) == 18


def test_the_fields_of_the_file_are_all_in_the_docstrings() -> None:
    """Whoever writes a monitor.toml reads them there."""
    for kind in (MonitorConfig, Target, PrometheusServer, Webhook):
        described = set(re.findall(r"^ {4}(\w+) ", ast.literal_eval(repr(kind.__doc__)), re.MULTILINE))
        assert {field.name for field in fields(kind)} <= described


def test_what_is_shown_to_anybody_holds_no_secret(tmp_path: Path) -> None:
    """Rules on the page are made from this: no header's value, no webhook's path and no password is in them."""
    path = tmp_path / "monitor.toml"
    path.write_text(
        '[[targets]]\nname = "a"\nurl = "http://ann:pa55@gpu1:8000"\nheaders = { Authorization = "Bearer s3cret", '
        'X-Key = "${KEY}" }\n[[webhooks]]\nname = "w"\nurl = "https://hooks.example/s3cret/path"\nformat = "slack"\n'
    )
    shown = without_secrets(config(path))
    assert shown.targets[0].headers == {"Authorization": "(hidden)", "X-Key": "${KEY}"}
    texts = [text(form, shown) for form in FORMATS]
    assert not any(secret in each for each in texts for secret in ("s3cret", "pa55"))
    assert any("s3cret" in text(form, config(path)) for form in FORMATS)
