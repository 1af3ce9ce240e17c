"""What the monitor hands to Prometheus, Alertmanager and Grafana: their own files, made from monitor.toml.

Secrets stay out of them: ${NAME} is printed as it is written in monitor.toml, to be filled in by `envsubst`.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml  # type: ignore[import-untyped]

from monitor import alerts, health
from monitor.config import MonitorConfig, Webhook
from monitor.promql import JOB, duration
from monitor.scrape import metrics_url
from monitor.targets import Target
from planner.errors import InputError

FORMATS = ("prometheus", "alertmanager", "grafana", "scrape")
_WHOLE_VARIABLE = re.compile(r"\$\{(\w+)\}")
_TEXT = "{{ range .Alerts }}{{ .Annotations.description }} {{ .Annotations.action }}\n{{ end }}"


def text(form: str, config: MonitorConfig) -> str:
    """The file in one of FORMATS. Raises InputError for another."""
    match form:
        case "prometheus":
            return _yaml(alerts.rules(config), "Rules for Prometheus: rule_files in prometheus.yml.")
        case "scrape":
            return _yaml(scrape(config), "What Prometheus scrapes: part of prometheus.yml.", *_scrape_notes(config))
        case "alertmanager":
            return _yaml(alertmanager(config), "Who is told: alertmanager.yml.", *_receiver_notes(config))
        case "grafana":
            from monitor import grafana  # the SDK takes a moment to load

            return grafana.dashboard(config)
    raise InputError("--format", form, ", ".join(FORMATS))


def scrape(config: MonitorConfig) -> dict[str, object]:
    """scrape_configs: one job for all targets that are reached the same way, one label `job` for all of them."""
    targets = config.targets or (Target(name="vllm", url="http://localhost:8000"),)
    ways = groupby(sorted(targets, key=_way), key=_way)
    jobs = []
    for number, (_, members) in enumerate(ways):
        reached = list(members)
        job = {"job_name": JOB if not number else f"{JOB}-{number + 1}", **_reached(reached[0])}
        static = [{"targets": [_host(target)], "labels": _labels(target)} for target in reached]
        jobs.append(job | {"static_configs": static})
    timeout = duration(min(config.timeout, config.interval))
    return {"global": {"scrape_interval": duration(config.interval), "scrape_timeout": timeout}, "scrape_configs": jobs}


def _way(target: Target) -> tuple[str, ...]:
    """How a target is reached: targets that agree in this share a job."""
    parts = urlsplit(metrics_url(target.url))
    secrets = (f"{name}={value}" for name, value in sorted(target.headers.items()))
    return (
        parts.scheme,
        parts.path,
        parts.query,
        parts.netloc.rpartition("@")[0],
        target.ca_file,
        str(target.verify),
        *secrets,
    )


def _reached(target: Target) -> dict[str, Any]:
    parts = urlsplit(metrics_url(target.url))
    found: dict[str, Any] = {"scheme": parts.scheme, "metrics_path": parts.path}
    if parts.query:
        found["params"] = parse_qs(parts.query)
    if parts.path.endswith("/federate"):
        found["honor_labels"] = True
    if parts.username is not None:
        found["basic_auth"] = {"username": unquote(parts.username), "password": unquote(parts.password or "")}
    for name, value in target.headers.items():
        if name.lower() == "authorization" and parts.username is None:
            kind, _, credentials = value.rpartition(" ")
            found["authorization"] = {"type": kind or "Bearer", "credentials": credentials}
    if target.ca_file or not target.verify:
        tls: dict[str, object] = {"ca_file": target.ca_file} if target.ca_file else {}
        found["tls_config"] = tls | ({} if target.verify else {"insecure_skip_verify": True})
    return found


def _host(target: Target) -> str:
    return urlsplit(metrics_url(target.url)).netloc.rpartition("@")[2]


def _labels(target: Target) -> dict[str, str]:
    group = {"group": target.group} if target.group else {}
    return {"job": JOB, "name": target.name} | group | dict(target.labels)


def _scrape_notes(config: MonitorConfig) -> Iterable[str]:
    if not config.targets:
        yield "monitor.toml names no target: this is the address that vLLM serves by default."
    for target in config.targets:
        yield from (
            f"{target.name}: the header {name} is not sent, as Prometheus before 2.55 cannot."
            for name in target.headers
            if name.lower() != "authorization"
        )


def alertmanager(config: MonitorConfig) -> dict[str, object]:
    """Alerts grouped by group and model; critical ones at once and again after an hour, others after four."""
    everybody = [webhook for webhook in config.webhooks if not webhook.groups]
    some = [webhook for webhook in config.webhooks if webhook.groups]
    route = {
        "receiver": _FOR_ALL["warning"],
        "group_by": ["group", "model_name"],
        "group_wait": "10s",
        "group_interval": "1m",
        "repeat_interval": "4h",
        "routes": [
            {
                "receiver": f"webhook {webhook.name}",
                "matchers": [f'group=~"{"|".join(map(_quoted, webhook.groups))}"'],
                "continue": True,
            }
            for webhook in some
        ]
        + [
            {
                "receiver": _FOR_ALL["critical"],
                "matchers": ['severity="critical"'],
                "group_wait": "0s",
                "repeat_interval": "1h",
            }
        ],
    }
    receivers = [{"name": name, **_receivers(everybody)} for name in _FOR_ALL.values()]
    receivers += [{"name": f"webhook {webhook.name}", **_receivers([webhook])} for webhook in some]
    return {"route": route, "receivers": receivers, "inhibit_rules": list(_inhibited())}


_FOR_ALL = {"critical": "all, critical", "warning": "all, warning"}
"""Receivers of those who are told of every group."""


def _inhibited() -> Iterable[dict[str, list[str]]]:
    """A rule that covers others keeps them quiet: on the same engine, or the server where they are about servers."""
    scopes = {rule.key: rule.scope for rule in health.RULES}
    for rule in health.RULES:
        for scope, place in (("engine", ["instance", "model_name", "engine"]), ("server", ["instance"])):
            if covered := [key for key in rule.covers if scopes[key] == scope]:
                yield {
                    "source_matchers": [f'rule="{rule.key}"'],
                    "target_matchers": [f'rule=~"{"|".join(covered)}"'],
                    "equal": place,
                }


def _quoted(group: str) -> str:
    """Literally, within a regular expression within quotes."""
    return re.escape(group).replace("\\", "\\\\").replace('"', '\\"')


def _receivers(webhooks: Iterable[Webhook]) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = {}
    for webhook in webhooks:
        if webhook.format == "slack":
            variable = _WHOLE_VARIABLE.fullmatch(webhook.url)
            address = {"api_url_file": f"secrets/{variable[1]}"} if variable else {"api_url": webhook.url}
            message = {"title": "{{ .CommonAnnotations.summary }}", "text": _TEXT}
            found.setdefault("slack_configs", []).append({**address, "send_resolved": True, **message})
        else:
            found.setdefault("webhook_configs", []).append({"url": webhook.url, "send_resolved": True})
    return found


def _receiver_notes(config: MonitorConfig) -> Iterable[str]:
    if not config.webhooks:
        yield "monitor.toml names no webhook: nobody is told."
    for webhook in config.webhooks:
        if webhook.format == "slack" and (variable := _WHOLE_VARIABLE.fullmatch(webhook.url)):
            yield f"{webhook.name}: write the address into the file secrets/{variable[1]} beside this one."


class _Readable(yaml.SafeDumper):
    """YAML as people write it: lists indented, long texts in a block."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _block(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Readable.add_representer(str, _block)


def _yaml(content: Mapping[str, object], *notes: str) -> str:
    written = yaml.dump(content, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=10_000)
    if "${" in written:
        notes += ("Fill in each ${NAME} before use: envsubst < this > that.",)
    return "".join(f"# {note}\n" for note in notes) + written
