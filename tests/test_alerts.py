"""The rules handed to Prometheus, proved with its own tools: promtool fires each of them, under new and old names."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from monitor import alerts, handover, health, metrics
from monitor.config import MonitorConfig, PrometheusServer
from monitor.metrics import Metric
from monitor.thresholds import Thresholds
from tests.tools import tool

PROMISES = Thresholds(ttft_p99=5.0, tpot_p99=0.2, prefix_hit_rate=0.3)
CONFIG = MonitorConfig(thresholds=PROMISES, interval=15)
SCRAPES = 32
"""Eight minutes of a page every 15 s: long enough for every rule."""


Series = tuple[Metric, str, str]
"""A metric, a part of its histogram or "", and further labels."""
World = dict[Series, str]
"""What promtool is told of each series: start+step×scrapes."""


def steady(value: float) -> str:
    return f"{value}+0x{SCRAPES}"


def counting(step: float) -> str:
    """A counter that grows by this much between two scrapes."""
    return f"0+{step}x{SCRAPES}"


def histogram(metric: Metric, buckets: Mapping[str, float], total: float) -> World:
    """Cumulative counts a scrape, by bound, and the sum of what was observed."""
    world = {(metric, "bucket", f'le="{bound}"'): counting(number) for bound, number in buckets.items()}
    return {**world, (metric, "count", ""): counting(buckets["+Inf"]), (metric, "sum", ""): counting(total)}


def configured(blocks: int, size: int, tokens: int | None) -> World:
    known = "" if tokens is None else f', kv_cache_size_tokens="{tokens}"'
    labels = f'num_gpu_blocks="{blocks}", block_size="{size}", kv_offloading_size="None"{known}'
    return {(metrics.NUM_GPU_BLOCKS, "", labels): steady(1)}


HEALTHY: World = {
    (metrics.RUNNING, "", ""): steady(10),
    (metrics.WAITING, "", ""): steady(0),
    (metrics.WAITING_BY_REASON, "", 'reason="capacity"'): steady(0),
    (metrics.WAITING_BY_REASON, "", 'reason="deferred"'): steady(0),
    (metrics.KV_USAGE, "", ""): steady(0.55),
    (metrics.PREEMPTIONS, "", ""): counting(0),
    (metrics.PROMPT_TOKENS, "", ""): counting(1000),
    (metrics.GENERATION_TOKENS, "", ""): counting(500),
    (metrics.FINISHED, "", 'finished_reason="length"'): counting(5),
    (metrics.FINISHED, "", 'finished_reason="error"'): counting(0),
    (metrics.PREFIX_QUERIES, "", ""): counting(1000),
    (metrics.PREFIX_HITS, "", ""): counting(500),
    (metrics.CORRUPTED, "", ""): counting(0),
    (metrics.REJECTED, "", 'reason="max_num_queued_reqs"'): counting(0),
    (metrics.HTTP_REQUESTS, "", 'status="2xx", handler="/v1/completions", method="POST"'): counting(9),
    (metrics.HTTP_REQUESTS, "", 'status="5xx", handler="/v1/completions", method="POST"'): counting(0),
    (metrics.START_TIME, "", ""): steady(1_800_000_000),
    **configured(1001, 16, 16016),
    **histogram(metrics.STEP_TOKENS, {"128.0": 50, "+Inf": 50}, 1500),
    **histogram(metrics.TTFT, {"0.5": 5, "5.0": 5, "10.0": 5, "+Inf": 5}, 0.5),
    # p99 is 0.0246 and the mean 0.015 s.
    **histogram(metrics.TPOT, {"0.01": 3, "0.025": 5, "0.2": 5, "0.4": 5, "+Inf": 5}, 0.075),
    **histogram(metrics.ITL, {"0.01": 300, "0.025": 500, "0.2": 500, "+Inf": 500}, 7.5),
    **histogram(metrics.PROMPT_LENGTH, {"200.0": 5, "+Inf": 5}, 1000),
    **histogram(metrics.OUTPUT_LENGTH, {"100.0": 5, "+Inf": 5}, 500),
}
NEEDS_NEW = {"waiting_for_a_lora_slot", "corrupted", "rejections", "offloading", "tpot", "http_errors"}
"""What no release under the old names reports, or not as a series of the engine."""

SCENARIOS: dict[str, tuple[World, set[str]]] = {
    "healthy": ({}, set()),
    "livelock": (
        {
            (metrics.RUNNING, "", ""): steady(0),
            (metrics.WAITING, "", ""): steady(3),
            (metrics.KV_USAGE, "", ""): steady(0),
            (metrics.PROMPT_TOKENS, "", ""): counting(0),
            (metrics.GENERATION_TOKENS, "", ""): counting(0),
        },
        {"livelock", "waiting"},
    ),
    "stale": (
        {
            (metrics.PROMPT_TOKENS, "", ""): counting(0),
            (metrics.GENERATION_TOKENS, "", ""): counting(0),
            (metrics.STEP_TOKENS, "count", ""): counting(0),
        },
        {"stale"},
    ),
    "a_long_prefill_is_not_stale": (
        {(metrics.PROMPT_TOKENS, "", ""): counting(0), (metrics.GENERATION_TOKENS, "", ""): counting(0)},
        set(),
    ),
    "saturated": (
        {
            (metrics.WAITING, "", ""): steady(5),
            (metrics.WAITING_BY_REASON, "", 'reason="capacity"'): steady(5),
            (metrics.KV_USAGE, "", ""): steady(0.97),
            (metrics.PREEMPTIONS, "", ""): counting(1),
        },
        # A preemption for five that finish: at least 80 % kept.
        {"saturated", "usage_alarm", "usage_act", "preempting", "waiting", "retention"},
    ),
    "preempting_at_0.92_is_saturated_even_when_none_waits": (
        {
            (metrics.KV_USAGE, "", ""): steady(0.92),
            (metrics.PREEMPTIONS, "", ""): counting(0.01),
        },
        {"saturated", "usage_act", "preempting"},
    ),
    "waiting_for_a_lora_slot": (
        {
            (metrics.WAITING, "", ""): steady(5),
            (metrics.WAITING_BY_REASON, "", 'reason="deferred"'): steady(5),
            (metrics.KV_USAGE, "", ""): steady(0.97),
        },
        {"usage_alarm", "usage_act", "waiting"},
    ),
    "waiting": ({(metrics.WAITING, "", ""): steady(2)}, {"waiting"}),
    "usage_alarm": ({(metrics.KV_USAGE, "", ""): steady(0.96)}, {"usage_alarm", "usage_act"}),
    "usage_act": ({(metrics.KV_USAGE, "", ""): steady(0.92)}, {"usage_act"}),
    "usage_below": ({(metrics.KV_USAGE, "", ""): steady(0.90)}, set()),
    "offloading": ({(metrics.KV_USAGE, "", ""): steady(1), (metrics.OFFLOAD_USAGE, "", ""): steady(0.3)}, set()),
    "preempting": ({(metrics.PREEMPTIONS, "", ""): counting(0.02)}, {"preempting"}),
    "retention": ({(metrics.PREEMPTIONS, "", ""): counting(0.1)}, {"preempting", "retention"}),
    # 0.001 of the pool a second, from 0.2: after 8 minutes 0.68, full in 320 s.
    "full": ({(metrics.KV_USAGE, "", ""): f"0.2+0.015x{SCRAPES}"}, {"full"}),
    # 0.0001 a second: full in an hour and a half.
    "full_much_later": ({(metrics.KV_USAGE, "", ""): f"0.5+0.0015x{SCRAPES}"}, set()),
    # 100 requests with 7.5 empty slots each in 0.6 × 200 blocks of 16: 39 % hold nothing.
    "fragmentation": (
        {(metrics.RUNNING, "", ""): steady(100), (metrics.KV_USAGE, "", ""): steady(0.6), **configured(201, 16, 3216)},
        {"fragmentation"},
    ),
    # The same in 0.6 × 300 blocks: 26 %.
    "not_fragmented": (
        {(metrics.RUNNING, "", ""): steady(100), (metrics.KV_USAGE, "", ""): steady(0.6), **configured(301, 16, 4816)},
        set(),
    ),
    # 8 + 8/2 tokens and 7.5 empty slots: 38 % of a request's blocks are empty.
    "block_size": (
        {(metrics.PROMPT_LENGTH, "sum", ""): counting(40), (metrics.OUTPUT_LENGTH, "sum", ""): counting(40)},
        {"block_size"},
    ),
    # 20 of 500 gaps around 0.1 s: p99 is 0.16 s, the mean 0.012 s.
    "jitter": (histogram(metrics.ITL, {"0.01": 480, "0.025": 480, "0.2": 500, "+Inf": 500}, 5.84), {"jitter"}),
    "errors": ({(metrics.FINISHED, "", 'finished_reason="error"'): counting(1)}, {"errors"}),
    "corrupted": ({(metrics.CORRUPTED, "", ""): counting(1)}, {"corrupted"}),
    "rejections": ({(metrics.REJECTED, "", 'reason="max_num_queued_reqs"'): counting(1)}, {"rejections"}),
    "http_errors": (
        {(metrics.HTTP_REQUESTS, "", 'status="5xx", handler="/v1/completions", method="POST"'): counting(1)},
        {"http_errors"},
    ),
    # 1 of 5 between 5 and 10 s.
    "ttft": (histogram(metrics.TTFT, {"0.5": 4, "5.0": 4, "10.0": 5, "+Inf": 5}, 9), {"ttft"}),
    "tpot": (histogram(metrics.TPOT, {"0.01": 4, "0.025": 4, "0.2": 4, "0.4": 5, "+Inf": 5}, 0.4), {"tpot"}),
    "prefix_hit_rate": ({(metrics.PREFIX_HITS, "", ""): counting(100)}, {"prefix_hit_rate"}),
    "restart": (
        {
            (metrics.GENERATION_TOKENS, "", ""): f"0+500x{SCRAPES - 4} 0+500x3",
            (metrics.START_TIME, "", ""): f"{'1800000000 ' * (SCRAPES - 3)}{'1800000600 ' * 4}",
        },
        {"restart"},
    ),
}


def series(world: World, *, age: int = 0, labels: str = 'engine="0", model_name="m"') -> Iterator[dict[str, str]]:
    """As promtool takes it. Age 0 is a metric's newest name, -1 its oldest, as a release before 0.9 wrote it (V0)."""
    found = {}
    for (metric, part, more), values in world.items():
        if age and metric.spans[age][0] >= (0, 9, 0):
            continue
        name, place = metric.names[age], "" if metric.scope == "server" else labels
        if metric.kind == "config":
            name, place = metrics.CACHE_CONFIG, re.sub(r", model_name.*|model_name.*", "", labels)
        said = ", ".join(filter(None, ('job="vllm", instance="gpu1:8000"', place, more)))
        found[f"{name}{f'_{part}' if part else ''}{{{said}}}"] = values
    return ({"series": each, "values": values} for each, values in found.items())


UP = {"series": 'up{job="vllm", instance="gpu1:8000"}', "values": steady(1)}
FIRING = 'count by (rule, engine) (ALERTS{alertstate="firing"})'


def firing(at: str, rules: Collection[tuple[str, str | None] | str]) -> list[dict[str, object]]:
    """That exactly these rules fire at this time. (rule, engine), where engines differ."""
    each = (rule if isinstance(rule, tuple) else (rule, None) for rule in rules)
    labels = (f'rule="{rule}"' + (f', engine="{engine}"' if engine else "") for rule, engine in each)
    return [
        {"expr": FIRING, "eval_time": at, "exp_samples": [{"labels": f"{{{each}}}", "value": 1} for each in labels]}
    ]


def proved(
    folder: Path, tests: Sequence[Mapping[str, object]], config: MonitorConfig = CONFIG, interval: str = "15s"
) -> None:
    (folder / "rules.yml").write_text(handover.text("prometheus", config))
    order = ["kv-monitor-baseline", "kv-monitor"] if config.thresholds.baseline_output_tokens_per_s is None else []
    file = {"rule_files": ["rules.yml"], "evaluation_interval": interval, "group_eval_order": order, "tests": tests}
    (folder / "tests.yml").write_text(yaml.safe_dump(file))
    tool("promtool", "test", "rules", folder / "tests.yml")


def on_engine(rules: set[str], engine: str) -> set[tuple[str, str | None]]:
    """The rules of an engine carry its label, those of a server none."""
    scopes = {rule.key: rule.scope for rule in health.RULES}
    unlabelled = {rule for rule in rules if scopes[rule] == "server"}
    return {(rule, None if rule in unlabelled - {"restart", "rejections"} else engine) for rule in rules}


def test_each_rule_fires_when_it_should_and_no_other_does(tmp_path: Path) -> None:
    proved(
        tmp_path,
        [
            {
                "name": name,
                "interval": "15s",
                "input_series": [UP, *series(HEALTHY | changes)],
                "promql_expr_test": firing("8m", on_engine(rules, "0")),
            }
            for name, (changes, rules) in SCENARIOS.items()
        ],
    )


def test_each_rule_fires_under_the_names_of_old_releases_too(tmp_path: Path) -> None:
    proved(
        tmp_path,
        [
            {
                "name": name,
                "interval": "15s",
                "input_series": [UP, *series(HEALTHY | changes, age=-1, labels='model_name="m"')],
                "promql_expr_test": firing("8m", rules),
            }
            for name, (changes, rules) in SCENARIOS.items()
            if name not in NEEDS_NEW
        ],
    )


def test_a_release_with_both_names_counts_once(tmp_path: Path) -> None:
    world = HEALTHY | SCENARIOS["saturated"][0]
    both = {each["series"]: each["values"] for age in (0, -1) for each in series(world, age=age)}
    test = {
        "interval": "15s",
        "input_series": [UP, *({"series": name, "values": values} for name, values in both.items())],
        "promql_expr_test": firing("8m", on_engine(SCENARIOS["saturated"][1], "0")),
    }
    assert any("gpu_cache_usage" in name for name in both)
    assert any("kv_cache_usage" in name for name in both)
    proved(tmp_path, [test])


def test_down_and_unreadable_need_nothing_but_up(tmp_path: Path) -> None:
    tests = [
        {
            "name": rule,
            "interval": "15s",
            "input_series": [UP | {"values": steady(value)}],
            "promql_expr_test": [*firing("10s", set()), *firing("20s", {rule})],
        }
        for rule, value in (("down", 0), ("unreadable", 1))
    ]
    proved(tmp_path, tests)


def test_every_rule_of_the_dashboard_is_tried_here() -> None:
    """Down and unreadable above, throughput below."""
    tried = set[str]().union(*(rules for _, rules in SCENARIOS.values())) | {"down", "unreadable", "throughput"}
    assert tried == {rule.key for rule in health.RULES} == set(alerts.expressions(CONFIG)) == set(alerts.SAYS)
    assert set(alerts.DIFFERENCES) < tried


def test_for_and_keep_firing_hold_to_the_second(tmp_path: Path) -> None:
    """Above 0.95 from 3:00 to 5:00: the alarm after 30 s, the lower one and the trend after 60, all for 60 s more."""
    usage = f"{'0.5 ' * 12}{'0.96 ' * 8}{'0.5 ' * 12}"
    alarm, all_three = ("usage_alarm", "0"), {("usage_alarm", "0"), ("usage_act", "0"), ("full", "0")}
    test = {
        "interval": "15s",
        "input_series": [UP, *series(HEALTHY | {(metrics.KV_USAGE, "", ""): usage})],
        "promql_expr_test": [
            *firing("3m15s", set()),
            *firing("3m30s", {alarm}),
            *firing("4m", all_three),
            *firing("5m45s", all_three),
            *firing("6m", set()),
        ],
    }
    proved(tmp_path, [test])


def test_what_an_alert_says(tmp_path: Path) -> None:
    labels = {"job": "vllm", "instance": "gpu1:8000", "engine": "0", "model_name": "m"}
    test = {
        "interval": "15s",
        "input_series": [UP, *series(HEALTHY | SCENARIOS["usage_act"][0])],
        "alert_rule_test": [
            {
                "eval_time": "8m",
                "alertname": "VllmUsageAct",
                "exp_alerts": [
                    {
                        "exp_labels": labels | {"severity": "warning", "rule": "usage_act"},
                        "exp_annotations": {
                            "summary": "KV cache nearly full: gpu1:8000, engine 0",
                            "description": "92% of the KV blocks are in use.",
                            "action": "Scale out or cap concurrency before requests are preempted.",
                        },
                    }
                ],
            },
            {"eval_time": "8m", "alertname": "VllmUsageAlarm", "exp_alerts": []},
        ],
    }
    proved(tmp_path, [test])


def test_engines_of_one_server_are_kept_apart(tmp_path: Path) -> None:
    """Two ranks that both report the sum of their blocks, 402: 201 each, of which only engine 1 wastes 39 %."""
    shared = HEALTHY | {(metrics.KV_USAGE, "", ""): steady(0.6)}
    del shared[next(key for key in shared if key[0] is metrics.NUM_GPU_BLOCKS)]
    busy = shared | {(metrics.RUNNING, "", ""): steady(100)} | configured(402, 16, None)
    calm = shared | {(metrics.RUNNING, "", ""): steady(10)} | configured(402, 16, None)
    test = {
        "interval": "15s",
        "input_series": [
            UP,
            *series(calm, labels='engine="0", model_name="m"'),
            *series(
                {key: values for key, values in busy.items() if key[0].scope != "server"},
                labels='engine="1", model_name="m"',
            ),
        ],
        "promql_expr_test": firing("8m", {("fragmentation", "1")}),
    }
    proved(tmp_path, [test])


@pytest.mark.parametrize(("usual", "rules"), [(66.0, {"throughput"}), (41.0, set())])
def test_throughput_against_a_baseline_set_by_hand(tmp_path: Path, usual: float, rules: set[str]) -> None:
    """500 tokens in 15 s, 33.3 a second, are under 80 % of 66, and over 80 % of 41."""
    config = replace(CONFIG, thresholds=replace(PROMISES, baseline_output_tokens_per_s=usual))
    test = {"interval": "15s", "input_series": [UP, *series(HEALTHY)], "promql_expr_test": firing("8m", rules)}
    proved(tmp_path, [test], config)


@pytest.mark.parametrize(("days", "rules"), [(3, {"throughput"}), (2, set())])
def test_throughput_against_the_same_hour_of_earlier_days(tmp_path: Path, days: int, rules: set[str]) -> None:
    """100 tokens/s on each of these days, then 50 for three hours; two days are no baseline yet."""
    steps = days * 24 * 6
    world = {
        (metrics.RUNNING, "", ""): f"10+0x{steps + 18}",
        (metrics.GENERATION_TOKENS, "", ""): f"0+60000x{steps} {60000 * steps + 30000}+30000x17",
    }
    test = {
        "interval": "10m",
        "input_series": [UP | {"values": f"1+0x{steps + 18}"}, *series(world)],
        "promql_expr_test": [*firing(f"{24 * days}h", set()), *firing(f"{24 * days + 3}h", rules)],
    }
    config = MonitorConfig(interval=1800, thresholds=Thresholds(window=1800))
    proved(tmp_path, [test], config, interval="30m")


def test_thresholds_of_monitor_toml_are_those_of_the_rules() -> None:
    config = MonitorConfig(
        interval=2,
        thresholds=Thresholds(usage_alarm=0.8, usage_alarm_for=90, window=30),
        prometheus=PrometheusServer(url="http://p:9090", selector='cluster="eu"'),
    )
    group = yaml.safe_load(handover.text("prometheus", config))["groups"][0]
    rule = next(rule for rule in group["rules"] if rule.get("alert") == "VllmUsageAlarm")
    assert (rule["for"], rule["keep_firing_for"], group["interval"]) == ("90s", "30s", "2s")
    assert re.search(r'kv_cache_usage_perc\{cluster="eu"\}.* > 0\.8 ', rule["expr"])
    down = next(rule for rule in group["rules"] if rule.get("alert") == "VllmDown")
    assert down["expr"] == 'up{cluster="eu"} == 0'


def test_a_promise_that_is_not_made_has_no_alert() -> None:
    without = set(alerts.expressions(MonitorConfig()))
    assert set(alerts.expressions(CONFIG)) - without == {"ttft", "tpot", "prefix_hit_rate"}
