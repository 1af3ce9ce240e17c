"""The rules where they are used: real Prometheus, real vLLM, and a real Alertmanager that tells a real webhook."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml  # type: ignore[import-untyped]

from monitor import handover
from monitor.config import config
from monitor.engine import INTERPRETER, Engine, serving
from monitor.tiny_model import SERVED
from scripts.load import Request, start
from tests.conftest import cannot_run, free_port
from tests.hooks import Receiver, receiver
from tests.servers import eventually

BLOCKS = {
    **SERVED,
    "max_model_len": 1024,
    "block_size": 32,
    "num_gpu_blocks_override": 80,
    "kv_cache_memory_bytes": 2**26,  # else the engine wants nearly all memory there is before it takes 80 blocks of it
}
MONITOR_TOML = """
interval = 1
[[targets]]
name = "tiny-1"
url = "{engine}"
group = "tests"
[thresholds]
window = 5
usage_act = 0.6
usage_act_for = 3
[[webhooks]]
name = "ops"
url = "{hook}"
"""
PATIENCE = 300.0
"""For a machine that does much else  [s]."""


@contextmanager
def program(log: Path, *command: object) -> Iterator[None]:
    with log.open("w") as output:
        running = subprocess.Popen([str(word) for word in command], stdout=output, stderr=output, cwd=log.parent)
        try:
            yield
        finally:
            running.terminate()
            running.wait(20)


def sooner(route: dict[str, Any]) -> None:
    """The same route, without the pauses that spare people."""
    for each in (route, *route["routes"]):
        each |= {"group_wait": "0s", "group_interval": "1s"}


@pytest.fixture(scope="module")
def fleet(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Receiver]]:
    """Addresses of an engine of 79 blocks and of the Prometheus that scrapes it, and who is told by Alertmanager."""
    if missing := [name for name in ("prometheus", "prometheus-alertmanager") if shutil.which(name) is None]:
        cannot_run(f"no {' and no '.join(missing)}: install Debian's packages of that name")
    if not INTERPRETER.exists():
        cannot_run("no engine: `make engine` installs one")
    folder = tmp_path_factory.mktemp("fleet")
    with ExitStack() as running:
        told = running.enter_context(receiver())
        engine = running.enter_context(serving(Engine(model=tiny_model, port=free_port(), flags=BLOCKS)))
        (folder / "monitor.toml").write_text(MONITOR_TOML.format(engine=engine, hook=told.url))
        said = config(folder / "monitor.toml")

        route = yaml.safe_load(handover.text("alertmanager", said))
        sooner(route["route"])
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(route))
        alertmanager = f"127.0.0.1:{free_port()}"
        options = ("--storage.path=alerts", f"--web.listen-address={alertmanager}", "--cluster.listen-address=")
        command = ("prometheus-alertmanager", "--config.file=alertmanager.yml", *options)
        running.enter_context(program(folder / "alertmanager.log", *command))

        (folder / "rules.yml").write_text(handover.text("prometheus", said))
        scraping = yaml.safe_load(handover.text("scrape", said))
        scraping |= {
            "rule_files": ["rules.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(scraping))
        prometheus = f"127.0.0.1:{free_port()}"
        options = ("--storage.tsdb.path=samples", f"--web.listen-address={prometheus}")
        command = ("prometheus", "--config.file=prometheus.yml", *options)
        running.enter_context(program(folder / "prometheus.log", *command))
        eventually(lambda: answered(f"http://{prometheus}", "up == 1"), PATIENCE)
        yield engine, f"http://{prometheus}", told


def answered(prometheus: str, query: str) -> list[dict[str, Any]]:
    """The series that a query has now; none while Prometheus starts."""
    try:
        answer = requests.get(f"{prometheus}/api/v1/query", params={"query": query}, timeout=5).json()
    except requests.RequestException:
        return []
    return list(answer["data"]["result"])


def firing(prometheus: str) -> set[str]:
    return {each["metric"]["alertname"] for each in answered(prometheus, 'ALERTS{alertstate="firing"}')}


def alerts_told(told: Receiver) -> list[tuple[str, str, str]]:
    """What Alertmanager has posted: the state, the alert, and of which server."""
    return [
        (alert["status"], alert["labels"]["alertname"], alert["labels"]["name"])
        for body in list(told.bodies)
        for alert in body["alerts"]  # type: ignore[attr-defined]
    ]


def test_the_kv_alert_fires_under_load_is_told_and_ends_with_it(fleet: tuple[str, str, Receiver]) -> None:
    """8 requests of about 400 tokens want 8 × 13 blocks of 32, and there are 79."""
    engine, prometheus, told = fleet
    assert "VllmUsageAct" not in firing(prometheus)
    load = start(engine, concurrency=8, request=Request(prompt_tokens=300, output_tokens=100, shared=0.0, spread=0.2))
    try:
        eventually(lambda: "VllmUsageAct" in firing(prometheus), PATIENCE)
        eventually(lambda: ("firing", "VllmUsageAct", "tiny-1") in alerts_told(told), PATIENCE)
        [series] = answered(prometheus, 'ALERTS{alertname="VllmUsageAct", alertstate="firing"}')
        known = {name: series["metric"][name] for name in ("job", "name", "group", "model_name", "engine", "severity")}
        assert known == {
            "job": "vllm",
            "name": "tiny-1",
            "group": "tests",
            "model_name": "tiny",
            "engine": "0",
            "severity": "warning",
        }
    finally:
        load.set()
    eventually(lambda: not firing(prometheus) & {"VllmUsageAct", "VllmUsageAlarm", "VllmSaturated"}, PATIENCE)
    eventually(lambda: ("resolved", "VllmUsageAct", "tiny-1") in alerts_told(told), PATIENCE)


def test_what_prometheus_makes_of_the_page_is_what_the_dashboard_makes_of_it(fleet: tuple[str, str, Receiver]) -> None:
    """The number of blocks, which is a label that PromQL cannot read as a number but by a trick."""
    from monitor import metrics
    from monitor.promql import PromQL

    _, prometheus, _ = fleet
    for expression, number in (
        (PromQL().blocks, "80"),
        (PromQL().configured(metrics.BLOCK_SIZE), "32"),
        (PromQL().configured(metrics.KV_CACHE_TOKENS), "2560"),
    ):
        [series] = answered(prometheus, expression)
        assert series["value"][1] == number
