"""A Grafana dashboard of the fleet: what the pages show, as panels on any Prometheus-compatible data source."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, gauge, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import AxisPlacement, GraphThresholdsStyleMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from monitor import metrics
from monitor.config import MonitorConfig
from monitor.metrics import Metric
from monitor.promql import PromQL
from monitor.thresholds import Thresholds

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
SERVERS = 'job=~"$job", instance=~"$instance"'
ENGINES = f'{SERVERS}, model_name=~"$model"'
QUERY = PromQL(engines=ENGINES, servers=SERVERS, window="$__rate_interval")
ENGINE = "{{instance}} {{model_name}} {{engine}}"
_HEIGHT, _ROW = 8, 24

Panel = Builder[model.Panel]
Query = tuple[str, str]
"""PromQL, and what its line is called."""


def dashboard(config: MonitorConfig) -> str:
    """The dashboard as JSON, to be imported in Grafana or put into its provisioning folder."""
    limits = config.thresholds
    board = (
        boards.Dashboard("vLLM KV cache")
        .uid("vllm-kv-cache")
        .description(
            "KV cache, load and latency of vLLM servers, every release since 0.2.7. Rates are over the interval."
        )
        .tags(["vllm", "kv-cache"])
        .refresh("10s")
        .time("now-1h", "now")
        .variables(_variables())
    )
    for title, panels in _rows(limits):
        board.with_row(boards.Row(title))
        for each in panels:
            board.with_panel(each)
    built = board.build()
    for number, panel in enumerate(built.panels or (), start=1):
        panel.id_val = number
    return json.dumps(built, cls=JSONEncoder, indent=2) + "\n"


def _variables() -> list[Builder[model.VariableModel]]:
    running = metrics.RUNNING.names[0]
    chosen = (
        ("job", "Job", f"label_values({running}, job)"),
        ("instance", "Instance", f'label_values({running}{{job=~"$job"}}, instance)'),
        ("model", "Model", f"label_values({running}{{{SERVERS}}}, model_name)"),
    )
    bounds = (
        ("ttft_slo", "Time to first token within (s)", metrics.TTFT, "1.0"),
        ("itl_slo", "Time between tokens within (s)", metrics.ITL, "0.1"),
    )
    return [
        boards.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        *(_labels(name, label, query).multi(True).include_all(True).all_value(".*") for name, label, query in chosen),
        *(
            _labels(name, label, f"label_values({metric.names[0]}_bucket{{{SERVERS}}}, le)").current(
                model.VariableOption(text=bound, value=bound)
            )
            for name, label, metric, bound in bounds
        ),
    ]


def _labels(name: str, label: str, query: str) -> boards.QueryVariable:
    return (
        boards.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NUMERICAL_ASC)
    )


def _rows(limits: Thresholds) -> Iterable[tuple[str, Sequence[Panel]]]:
    q = QUERY
    usage = q.now(metrics.KV_USAGE)
    generated = q.rate(metrics.GENERATION_TOKENS)
    full = ((limits.usage_act, "orange"), (limits.usage_alarm, "red"))
    yield (
        "State",
        [
            _stat("Targets without a page", f"count(up{{{SERVERS}}} == 0) or vector(0)", above=((1, "red"),)),
            _stat("Requests running", f"sum({q.now(metrics.RUNNING)})"),
            _stat("Requests waiting", f"sum({q.now(metrics.WAITING)})", above=((1, "orange"),)),
            _stat("Output tokens/s", f"sum({generated})"),
            _gauge("KV cache in use, fullest engine", f"max({usage})", full),
            _gauge(
                "Waste in held blocks (estimate)",
                f"max({q.waste})",
                ((limits.fragmentation, "orange"),),
                "Held token slots that hold no token: each request's last block is half full on average.",
            ),
        ],
    )
    yield (
        "KV cache",
        [
            _against("KV cache in use against throughput", usage, generated, full),
            _lines(
                "KV cache in use, over engines",
                [(f"max({usage})", "fullest"), (f"avg({usage})", "mean")],
                "percentunit",
                full,
            ),
            _lines("Preemptions/s", [(q.rate(metrics.PREEMPTIONS), ENGINE)], "short", _one(limits.preemptions_per_s)),
            _lines(
                "Prefix cache hits", [(q.ratio(metrics.PREFIX_HITS, metrics.PREFIX_QUERIES), ENGINE)], "percentunit"
            ),
            _lines("Waste in held blocks (estimate)", [(q.waste, "{{instance}} {{engine}}")], "percentunit"),
            _lines("Offload tier in use", [(q.now(metrics.OFFLOAD_USAGE), ENGINE)], "percentunit"),
            _lines(
                "Block residency p95 (--kv-cache-metrics)",
                [
                    (q.quantile(metric, 0.95, "model_name"), f"{word} {{{{model_name}}}}")
                    for word, metric in (
                        ("lifetime", metrics.BLOCK_LIFETIME),
                        ("idle", metrics.BLOCK_IDLE),
                        ("reuse gap", metrics.BLOCK_REUSE),
                    )
                ],
                "s",
            ),
        ],
    )
    yield (
        "Load",
        [
            _lines(
                "Running and waiting",
                [(q.now(metrics.RUNNING), f"running {ENGINE}"), (q.now(metrics.WAITING), f"waiting {ENGINE}")],
            ),
            _lines("Waiting, and why", [_split(metrics.WAITING_BY_REASON, is_counter=False)]),
            _lines("Tokens/s", [(f"sum({q.rate(metrics.PROMPT_TOKENS)})", "prompt"), (f"sum({generated})", "output")]),
            _lines("Prompt tokens/s by source", [_split(metrics.PROMPT_BY_SOURCE)]),
            _lines("Requests/s by how they ended", [_split(metrics.FINISHED)], "reqps"),
            _lines("Requests refused/s", [_split(metrics.REJECTED)], "reqps"),
            _lines("Tokens a step, mean", [(q.mean(metrics.STEP_TOKENS), ENGINE)]),
            _lines(
                "HTTP answers 5xx",
                [
                    (
                        q.ratio(metrics.HTTP_REQUESTS, metrics.HTTP_REQUESTS, 'status="5xx"'),
                        "{{instance}} {{handler}} {{method}}",
                    )
                ],
                "percentunit",
                _one(limits.http_errors),
            ),
            _lines(
                "Draft tokens accepted",
                [(q.ratio(metrics.SPEC_ACCEPTED, metrics.SPEC_DRAFT_TOKENS), ENGINE)],
                "percentunit",
            ),
            _lines("Work of one GPU (--enable-mfu-metrics)", [(q.rate(metrics.FLOPS), ENGINE)], "flops"),
        ],
    )
    yield (
        "Latency",
        [
            *(
                _lines(title, _quantiles(metric), "s", _one(promise))
                for title, metric, promise in (
                    ("Time to first token", metrics.TTFT, limits.ttft_p99),
                    ("Time between tokens", metrics.ITL, None),
                    ("Time per output token, of a request", metrics.TPOT, limits.tpot_p99),
                    ("End to end", metrics.E2E, None),
                )
            ),
            _lines(
                "Queue, prefill, decode: mean",
                [
                    (q.mean(metric), f"{metric.key} {ENGINE}")
                    for metric in (metrics.QUEUE, metrics.PREFILL, metrics.DECODE)
                ],
                "s",
            ),
            _lines(
                "Promises kept",
                [
                    (q.within(metrics.TTFT, "$ttft_slo"), "first token within $ttft_slo s {{model_name}}"),
                    (q.within(metrics.ITL, "$itl_slo"), "between tokens within $itl_slo s {{model_name}}"),
                ],
                "percentunit",
            ),
            _heat("Time to first token", metrics.TTFT, "s"),
            _heat("Time between tokens", metrics.ITL, "s"),
            _heat("End to end", metrics.E2E, "s"),
        ],
    )
    yield (
        "Lengths",
        [
            _heat("Prompt tokens", metrics.PROMPT_LENGTH, "short"),
            _heat("Output tokens", metrics.OUTPUT_LENGTH, "short"),
        ],
    )
    yield (
        "Fleet",
        [
            _table("By model", _columns("model_name")),
            _table("By instance", _columns("instance")),
            _table("Cache configuration", [(f"{metrics.CACHE_CONFIG}{{{SERVERS}}}", "configured")]),
            _lines("Uptime", [(f"time() - {q.now(metrics.START_TIME)}", "{{instance}}")], "s"),
        ],
    )
    yield (
        "GPU (DCGM exporter)",
        [
            _lines("GPU utilisation", [("DCGM_FI_DEV_GPU_UTIL", "{{Hostname}} {{gpu}}")], "percent"),
            _lines("GPU temperature", [("DCGM_FI_DEV_GPU_TEMP", "{{Hostname}} {{gpu}}")], "celsius"),
            _lines("GPU power", [("DCGM_FI_DEV_POWER_USAGE", "{{Hostname}} {{gpu}}")], "watt"),
        ],
    )


def _quantiles(metric: Metric) -> list[Query]:
    return [(QUERY.quantile(metric, p / 100, "model_name"), f"p{p} {{{{model_name}}}}") for p in (50, 95, 99)]


def _split(metric: Metric, is_counter: bool = True) -> Query:
    found = QUERY.over("rate", metric) if is_counter else QUERY.each(metric)
    return f"sum by ({metric.label}) ({found})", f"{{{{{metric.label}}}}}"


def _columns(label: str) -> list[Query]:
    q = QUERY
    return [
        (f"sum by ({label}) ({q.now(metrics.RUNNING)})", "running"),
        (f"sum by ({label}) ({q.now(metrics.WAITING)})", "waiting"),
        (f"max by ({label}) ({q.now(metrics.KV_USAGE)})", "KV cache in use"),
        (f"sum by ({label}) ({q.rate(metrics.GENERATION_TOKENS)})", "output tokens/s"),
        (f"sum by ({label}) ({q.rate(metrics.PREEMPTIONS)})", "preemptions/s"),
        (q.quantile(metrics.TTFT, 0.99, label), "TTFT p99"),
    ]


def _one(limit: float | None) -> Sequence[tuple[float, str]]:
    return () if not limit else ((limit, "red"),)


def _steps(above: Iterable[tuple[float, str]]) -> boards.ThresholdsConfig:
    """Where colours change; below the first step all is well."""
    steps = [
        model.Threshold(value=None, color="green"),
        *(model.Threshold(value=at, color=color) for at, color in above),
    ]
    return boards.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _queries(queries: Iterable[Query]) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().datasource(SOURCE).expr(expr).legend_format(name).range().ref_id(chr(ord("A") + number))
        for number, (expr, name) in enumerate(queries)
    ]


def _lines(
    title: str, queries: Sequence[Query], unit: str = "short", above: Sequence[tuple[float, str]] = ()
) -> timeseries.Panel:
    panel = timeseries.Panel().title(title).datasource(SOURCE).unit(unit).min(0).height(_HEIGHT).span(_ROW // 3)
    if unit == "percentunit":
        panel.max(1)
    if above:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        panel.thresholds(_steps(above)).thresholds_style(style)
    return panel.targets(list(_queries(queries)))


def _against(title: str, usage: str, generated: str, full: Sequence[tuple[float, str]]) -> timeseries.Panel:
    """Two axes, one time: where throughput stops rising although the pool fills is where it saturates."""
    panel = _lines(
        title, [(f"max({usage})", "KV cache in use"), (f"sum({generated})", "output tokens/s")], "percentunit", full
    )
    right = [
        model.DynamicConfigValue(id_val="unit", value="short"),
        model.DynamicConfigValue(id_val="max", value=None),
        model.DynamicConfigValue(id_val="custom.axisPlacement", value=AxisPlacement.RIGHT),
        model.DynamicConfigValue(id_val="custom.thresholdsStyle", value={"mode": "off"}),
    ]
    return panel.override_by_name("output tokens/s", right).span(_ROW // 3 * 2)


def _heat(title: str, metric: Metric, unit: str) -> heatmap.Panel:
    query = (
        prometheus.Dataquery()
        .datasource(SOURCE)
        .expr(QUERY.buckets(metric))
        .legend_format("{{le}}")
        .format(PromQueryFormat.HEATMAP)
        .range()
        .ref_id("A")
    )
    panel = heatmap.Panel().title(f"{title}: how many").datasource(SOURCE).height(_HEIGHT).span(_ROW // 3)
    return panel.calculate(False).y_axis(heatmap.YAxisConfig().unit(unit)).with_target(query)


def _stat(title: str, expr: str, above: Sequence[tuple[float, str]] = ()) -> stat.Panel:
    panel = stat.Panel().title(title).datasource(SOURCE).height(_HEIGHT // 2).span(_ROW // 6)
    return panel.thresholds(_steps(above)).targets(list(_queries([(expr, title)])))


def _gauge(title: str, expr: str, above: Sequence[tuple[float, str]], says: str = "") -> gauge.Panel:
    panel = gauge.Panel().title(title).description(says).datasource(SOURCE).height(_HEIGHT // 2).span(_ROW // 6)
    panel.unit("percentunit").min(0).max(1).thresholds(_steps(above)).show_threshold_markers(True)
    return panel.targets(list(_queries([(expr, title)])))


def _table(title: str, columns: Sequence[Query]) -> table.Panel:
    """Each query a column, joined by their common label."""
    queries = [query.instant().format(PromQueryFormat.TABLE) for query in _queries(columns)]
    names: dict[str, Any] = {f"Value #{chr(ord('A') + number)}": name for number, (_, name) in enumerate(columns)}
    panel = table.Panel().title(title).datasource(SOURCE).height(_HEIGHT).span(_ROW // 2).targets(list(queries))
    return panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={})).with_transformation(
        model.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}, "renameByName": names})
    )
