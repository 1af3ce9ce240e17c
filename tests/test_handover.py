"""What is handed to Prometheus, Alertmanager and Grafana, proved with promtool and amtool."""

import json
import re
from pathlib import Path
from string import Template

import pytest
import yaml  # type: ignore[import-untyped]

from monitor import handover, health, metrics
from monitor.__main__ import main
from monitor.config import MonitorConfig, Webhook
from monitor.metrics import METRICS
from monitor.targets import Target
from monitor.thresholds import Thresholds
from tests.tools import tool

CONFIG = MonitorConfig(thresholds=Thresholds(ttft_p99=5.0, tpot_p99=0.2, prefix_hit_rate=0.3))

# What is scraped, and who is told

FLEET = MonitorConfig(
    targets=(
        Target(name="chat-1", url="gpu1:8000", group="chat", labels={"region": "eu"}),
        Target(name="chat-2", url="http://gpu2:8000/v1", group="chat"),
        Target(
            name="safe", url="https://gpu3", headers={"Authorization": "Bearer ${TOKEN}", "X-Org": "a"}, verify=False
        ),
        Target(name="basic", url="https://ann:${PASSWORD}@gpu4/metrics"),
        Target(name="all", url="http://prom:9090/federate?match[]=up"),
    ),
    webhooks=(
        Webhook(name="on call", url="${SLACK_WEBHOOK}", format="slack"),
        Webhook(name="ops", url="https://ops/hook?key=${OPS_KEY}"),
        Webhook(name="batch", url="https://batch/hook", groups=("batch", 'odd".group')),
    ),
)


def test_promtool_takes_the_rules_and_the_scrape_config(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(handover.text("prometheus", CONFIG))
    assert f"SUCCESS: {len(health.RULES) + 3} rules found" in tool("promtool", "check", "rules", tmp_path / "rules.yml")
    for config in (FLEET, MonitorConfig()):
        (tmp_path / "prometheus.yml").write_text(handover.text("scrape", config))
        tool("promtool", "check", "config", tmp_path / "prometheus.yml")


def test_targets_that_are_reached_alike_share_a_job() -> None:
    found = yaml.safe_load(handover.text("scrape", FLEET))
    assert found["global"] == {"scrape_interval": "5s", "scrape_timeout": "5s"}
    jobs = {job["static_configs"][0]["labels"]["name"]: job for job in found["scrape_configs"]}
    assert [len(job["static_configs"]) for job in jobs.values()] == [1, 2, 1, 1]
    assert jobs["chat-1"]["static_configs"][0] == {
        "targets": ["gpu1:8000"],
        "labels": {"job": "vllm", "name": "chat-1", "group": "chat", "region": "eu"},
    }
    assert jobs["safe"]["authorization"] == {"type": "Bearer", "credentials": "${TOKEN}"}
    assert jobs["safe"]["tls_config"] == {"insecure_skip_verify": True}
    assert jobs["basic"]["basic_auth"] == {"username": "ann", "password": "${PASSWORD}"}
    assert jobs["all"]["params"] == {"match[]": ["up"]}
    assert jobs["all"]["metrics_path"] == "/federate"
    assert len({job["job_name"] for job in jobs.values()}) == 4


def test_what_the_scrape_config_cannot_say_is_said_above_it() -> None:
    text = handover.text("scrape", FLEET)
    assert "# safe: the header X-Org is not sent, as Prometheus before 2.55 cannot.\n" in text
    assert "# Fill in each ${NAME} before use: envsubst < this > that.\n" in text


def test_amtool_takes_the_route_and_sends_alerts_where_they_belong(tmp_path: Path) -> None:
    filled = Template(handover.text("alertmanager", FLEET)).safe_substitute(OPS_KEY="k")
    (tmp_path / "alertmanager.yml").write_text(filled)
    (tmp_path / "nobody.yml").write_text(handover.text("alertmanager", MonitorConfig()))
    tool("amtool", "check-config", tmp_path / "alertmanager.yml", tmp_path / "nobody.yml")

    def told(*labels: str) -> str:
        return tool(
            "amtool", "config", "routes", "test", "--config.file", tmp_path / "alertmanager.yml", *labels
        ).strip()

    assert told("severity=warning", "group=chat") == "all, warning"
    assert told("severity=critical", "group=chat") == "all, critical"
    assert told("severity=critical", "group=batch") == "webhook batch,all, critical"
    receivers = {each["name"]: each for each in yaml.safe_load(filled)["receivers"]}
    assert receivers["all, critical"]["slack_configs"][0]["api_url_file"] == "secrets/SLACK_WEBHOOK"
    assert receivers["all, critical"]["webhook_configs"] == [{"url": "https://ops/hook?key=k", "send_resolved": True}]
    assert receivers["webhook batch"]["webhook_configs"] == [{"url": "https://batch/hook", "send_resolved": True}]


def test_what_a_rule_covers_is_quiet_with_it() -> None:
    inhibited = yaml.safe_load(handover.text("alertmanager", FLEET))["inhibit_rules"]
    pairs = {
        (each["source_matchers"][0].split('"')[1], covered)
        for each in inhibited
        for covered in each["target_matchers"][0].split('"')[1].split("|")
    }
    assert pairs == {(rule.key, covered) for rule in health.RULES for covered in rule.covers}


# The dashboard for Grafana

BOARD = json.loads(handover.text("grafana", CONFIG))
PANELS = {panel["title"]: panel for panel in BOARD["panels"] if panel["type"] != "row"}
EXPRESSIONS = [(title, target["expr"]) for title, panel in PANELS.items() for target in panel["targets"]]
KNOWN = {
    f"{name}{part}"
    for metric in METRICS
    if metric.kind != "config"
    for name in metric.names
    for part in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
} | {metrics.CACHE_CONFIG, "up", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"}


def test_every_expression_parses_and_names_only_metrics_that_exist(tmp_path: Path) -> None:
    filled = [
        expr.replace("$__rate_interval", "1m").replace("$ttft_slo", "1.0").replace("$itl_slo", "0.1")
        for _, expr in EXPRESSIONS
    ]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(filled)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in tool("promtool", "check", "rules", tmp_path / "panels.yml")
    named = {name for expr in filled for name in re.findall(r"(?:vllm:|DCGM_|process_|http_)\w+|\bup\b", expr)}
    assert named <= KNOWN
    assert {metric.names[0] for metric in (metrics.KV_USAGE, metrics.RUNNING, metrics.GENERATION_TOKENS)} <= named


def test_the_article_s_three_panels_are_there_with_their_thresholds() -> None:
    against = PANELS["KV cache in use against throughput"]
    assert against["type"] == "timeseries"
    assert [target["legendFormat"] for target in against["targets"]] == ["KV cache in use", "output tokens/s"]
    steps = against["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step["value"] for step in steps] == [None, 0.9, 0.95]
    assert against["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"] == {"mode": "dashed"}
    heat = PANELS["Time to first token: how many"]
    assert (heat["type"], heat["targets"][0]["format"], heat["targets"][0]["legendFormat"]) == (
        "heatmap",
        "heatmap",
        "{{le}}",
    )
    waste = next(panel for panel in BOARD["panels"] if panel["type"] == "gauge" and "Waste" in panel["title"])
    assert [step["value"] for step in waste["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 0.3]


def test_the_dashboard_has_its_variables_and_no_two_panels_overlap() -> None:
    variables = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance", "model", "ttft_slo", "itl_slo"]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert {target["datasource"]["uid"] for panel in PANELS.values() for target in panel["targets"]} == {
        "${datasource}"
    }
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


# The command


@pytest.mark.parametrize("form", handover.FORMATS)
def test_the_command_prints_what_the_file_says(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "monitor.toml"
    file.write_text('[thresholds]\nusage_alarm = 0.99\n[[targets]]\nname = "a"\nurl = "gpu9:8000"\n')
    assert main(["rules", "--format", form, "--config", str(file)]) == 0
    said = {"prometheus": "> 0.99", "grafana": "0.99", "scrape": "gpu9:8000", "alertmanager": "nobody is told"}
    assert said[form] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "nagios"], "--format: found 'nagios', accepted: prometheus, alertmanager, grafana, scrape"),
        (["--format", "scrape", "--config", "not-there.toml"], "--config: found 'not-there.toml', accepted: a file"),
        (["--format", "scrape", "--config", "pyproject.toml"], "pyproject.toml: tool"),
        ([], "the following arguments are required: --format"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.count("\n") == 1
