"""What each rule sees on recorded pages of real servers and on pages worked out by hand; and the verdicts."""

from dataclasses import fields, replace

import pytest

from monitor.finding import Condition, Finding
from monitor.health import DOWN, RULES, conditions, group_verdict, sight, verdict
from monitor.scrape import Scrape, State
from monitor.source import TargetState
from monitor.thresholds import Thresholds
from planner.verdict import Level
from tests import recorded
from tests.judging import engine, histogram, later, page, split, state

DEFAULTS = Thresholds()
PREEMPTING = recorded.page("0.32.0-preempt-blocks80-load")
"""80 blocks of 32: 7 running, 3 waiting, 17 preemptions so far, usage 70/79."""


def seen(
    before: str, after: str, seconds: float = 60.0, limits: Thresholds = DEFAULTS, baseline: float | None = None
) -> dict[str, Condition]:
    """By rule, what is seen on two pages."""
    at_end = state([page(0.0, before), page(seconds, after)])
    return {condition.rule: condition for condition in conditions(sight(at_end, limits, baseline))}


# The table


def test_the_table_is_whole() -> None:
    """Each threshold is some rule's, each rule has one check and an action, and what it names is there."""
    names = {field.name for field in fields(Thresholds)}
    used = {name for rule in RULES for name in (*rule.uses, rule.lasts or f"{rule.key}_for")}
    assert used == names - {"band", "window"}
    keys = [rule.key for rule in RULES]
    assert len(set(keys)) == len(keys)
    assert {key for rule in RULES for key in rule.covers} <= set(keys)
    assert all((rule.server is None) != (rule.engine is None) and rule.action.endswith((".", "?")) for rule in RULES)
    assert [rule.key for rule in RULES if rule.scope == "server"] == [
        "down", "unreadable", "http_errors", "restart", "rejections", "throughput",
    ]  # fmt: skip


@pytest.mark.parametrize("name", recorded.PAGES)
def test_a_recorded_page_of_a_server_at_work_is_not_bad(name: str) -> None:
    """The same page with tokens counted in between: all these servers were well, but for the one that preempted."""
    text = recorded.page(name)
    found = seen(text, later(text, generation_tokens_total=500, num_preemptions_total=0))
    assert not any(condition.level is Level.BAD and condition.is_over for condition in found.values())
    over = {rule for rule, condition in found.items() if condition.is_over}
    silent, queueing = "disablelogstats" in name, name == "0.32.0-preempt-blocks80-load"
    assert over == ({"unreadable"} if silent else {"waiting"} if queueing else set())


@pytest.mark.parametrize("text", [recorded.V0_2_7, recorded.V0_5_5, recorded.V0_8_5, recorded.RAY])
def test_what_is_not_reported_is_no_condition(text: str) -> None:
    assert set(seen(text, text, limits=replace(DEFAULTS, ttft_p99=0.1, tpot_p99=0.1, prefix_hit_rate=0.5))) <= {
        "waiting", "stale",
    }  # fmt: skip


# The KV pool


def test_saturated_is_waiting_and_preemption_together() -> None:
    found = seen(PREEMPTING, later(PREEMPTING, num_preemptions_total=5, generation_tokens_total=900))
    assert found["saturated"].reason == ("3 requests waiting for room, KV cache 88.6 % in use, 5 preemptions in 60 s.")
    assert found["saturated"].is_over
    assert found["preempting"].value == pytest.approx(5 / 60)
    assert "--max-num-seqs" in found["saturated"].action


def test_saturated_by_a_full_pool_stays_while_its_usage_dips() -> None:
    """A saturated server shows more than 95 % in under half of its scrapes."""

    def one(usage: float, waiting: int) -> Condition | None:
        text = engine(num_requests_running=8, num_requests_waiting=waiting, kv_cache_usage_perc=usage)
        return seen(text, text).get("saturated")

    assert (one(0.96, 2) or pytest.fail("none")).is_over
    assert not (one(0.92, 2) or pytest.fail("none")).is_over
    assert one(0.85, 2) is None
    assert one(0.99, 0) is None


def test_saturated_stays_while_one_more_request_does_not_fit() -> None:
    """Seen on a slow engine of 79 blocks: none is preempted for longer than the window, and five wait all the time.

    7 requests hold 70 blocks, so one more needs 10 where 9 are free. With 5 on 54 blocks there is room for two.
    """

    def one(running: int, used: int) -> Condition | None:
        text = engine(80, 32, num_requests_running=running, num_requests_waiting=5, kv_cache_usage_perc=used / 79)
        return seen(text, text).get("saturated")

    assert not (one(7, 70) or pytest.fail("none")).is_over
    assert one(5, 54) is None


def test_who_waits_for_something_else_is_not_waiting_for_room() -> None:
    def text(capacity: int, deferred: int) -> str:
        reasons = split("num_requests_waiting_by_reason", "reason", capacity=capacity, deferred=deferred)
        return reasons + engine(
            num_requests_running=8, num_requests_waiting=capacity + deferred, kv_cache_usage_perc=0.97
        )

    both, deferred = seen(text(1, 2), text(1, 2)), seen(text(0, 2), text(0, 2))
    assert both["saturated"].reason.startswith("1 request waiting for room and 2 for another reason (deferred), KV")
    assert "saturated" not in deferred
    assert deferred["waiting"].reason == "none waiting for room and 2 for another reason (deferred), while 8 run."
    assert "KV transfer" in deferred["waiting"].action


def test_usage_has_two_limits_each_with_a_band() -> None:
    """A band of 3 %: from 0.95 to 0.9215, from 0.90 to 0.873."""

    def over(usage: float) -> dict[str, bool]:
        text = engine(num_requests_running=4, num_requests_waiting=0, kv_cache_usage_perc=usage)
        return {rule: condition.is_over for rule, condition in seen(text, text).items()}

    assert over(0.96) == {"usage_alarm": True, "usage_act": True}
    assert over(0.93) == {"usage_alarm": False, "usage_act": True}
    assert over(0.92) == {"usage_act": True}
    assert over(0.88) == {"usage_act": False}
    assert over(0.87) == {}


def test_a_full_pool_is_right_with_an_offloading_tier() -> None:
    """Trap 7; the verdict says why it is silent."""
    text = engine(
        num_requests_running=4, num_requests_waiting=0, kv_cache_usage_perc=0.99, kv_offload_cpu_cache_usage_perc=0.4
    )
    assert seen(text, text) == {}
    assert "another tier" in verdict(state([page(0, text), page(60, text)])).reason


def test_retention_counts_requests_not_preemptions() -> None:
    """Between the two recorded pages 123 requests finished, with 136 preemptions: 31 with 2, 9 with 3, so 47 with 1."""
    found = seen(PREEMPTING, recorded.page("0.32.0-preempt-blocks80-after"))["retention"]
    assert found.value == pytest.approx((123 - 31 - 9 - 47) / 123)
    assert found.reason == "29.3 % of 123 requests that finished in 60 s were never preempted."


def test_retention_of_older_versions_is_the_least_it_can_be() -> None:
    text = recorded.page("0.10.2-load")
    found = seen(text, later(text, request_success_total=100, num_preemptions_total=6, generation_tokens_total=9))
    assert found["retention"].value == pytest.approx(1 - 6 / 300)  # stop, length and abort: 100 each
    assert "if each preemption met another" in found["retention"].reason
    assert "retention" not in seen(text, later(text, request_success_total=100, generation_tokens_total=9))


def rising(usage: list[float]) -> TargetState:
    """A page every 5 s."""
    texts = (engine(num_requests_running=9, num_requests_waiting=0, kv_cache_usage_perc=value) for value in usage)
    return state(page(5.0 * place, text) for place, text in enumerate(texts))


def filling(usage: list[float]) -> Condition | None:
    found = conditions(sight(rising(usage), DEFAULTS))
    return next((condition for condition in found if condition.rule == "full"), None)


def test_when_the_pool_is_full_at_the_present_trend() -> None:
    """A point a page from 50 %: 62 % after 60 s, and 38 % at 0.2 % a second take 190 s."""
    found = filling([0.50 + 0.01 * place for place in range(13)])
    assert found is not None
    assert found.value == pytest.approx(190.0)
    assert found.reason == "full in 3.17 min at the present trend: 62 % in use and 12 % of the pool more a minute."


def test_no_trend_where_usage_is_level_noisy_low_or_has_levelled_off() -> None:
    assert filling([0.62] * 13) is None
    assert filling([0.55 + 0.1 * (place % 2) for place in range(25)]) is None
    assert filling([0.20 + 0.01 * place for place in range(13)]) is None
    assert filling([0.50 + 0.01 * place for place in range(25)] + [0.75] * 13) is None
    assert filling([0.50 + 0.0005 * place for place in range(60)]) is None  # 47 % at 0.01 % a second: over an hour


# Blocks


def test_waste_is_an_estimate_and_counts_only_in_a_pool_in_use() -> None:
    """40 requests, each with half a block of 128 empty, in 60 blocks: 40 x 63.5 / (60 x 128) = 33 %."""

    def one(usage: float, running: int) -> Condition | None:
        text = engine(101, 128, num_requests_running=running, num_requests_waiting=0, kv_cache_usage_perc=usage)
        return seen(text, text).get("fragmentation")

    found = one(0.60, 40)
    assert found is not None
    assert found.value == pytest.approx(2540 / 7680)
    assert "estimated 33.1 %" in found.reason
    assert one(0.60, 30) is None  # 25 %
    assert one(0.20, 15) is None  # 37 %, but four fifths of the pool are free


def test_a_block_size_too_large_for_the_lengths_seen_names_a_better_one() -> None:
    """50 prompt and 100 output tokens: 100 held on average. Half a block is 63.5 of 163.5, of 64 31.5 of 131.5."""

    def text(finished: int) -> str:
        lengths = [("request_prompt_tokens", 50), ("request_generation_tokens", 100)]
        made = [histogram(name, {"200": finished, "+Inf": finished}, finished * mean) for name, mean in lengths]
        values = {"num_requests_running": 20, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.6}
        return "".join(made) + engine(101, 128, **values)

    found = seen(text(10), text(40))["block_size"]
    assert found.value == pytest.approx(63.5 / 163.5)
    assert found.action == "Set --block-size 64: the waste is then about 24 %."
    assert "block_size" not in seen(text(10), text(12))


# Requests


def test_p99_over_twice_the_mean_is_said_only_when_its_bucket_says_so() -> None:
    """1,000 gaps. Surely: 10 ms on average, the last 20 above 25 ms. Maybe: 15 ms, for 25 ms is under 30 ms."""

    def text(number: int, mean: float) -> str:
        counts = {"0.01": int(0.9 * number), "0.025": int(0.98 * number), "0.05": number, "+Inf": number}
        return engine(num_requests_running=9) + histogram("inter_token_latency_seconds", counts, number * mean)

    surely, maybe = (seen(text(0, mean), text(1000, mean))["jitter"] for mean in (0.010, 0.015))
    assert surely.is_over
    assert surely.reason == (
        "p99 between tokens is more than 2 times the mean of 10 ms: between 25 ms and 50 ms, of 1,000 in 60 s."
    )
    assert not maybe.is_over
    assert "may be more than" in maybe.reason
    assert "jitter" not in seen(text(0, 0.026), text(1000, 0.026))
    assert "jitter" not in seen(text(0, 0.010), text(50, 0.010))


def test_jitter_in_the_lowest_bucket_cannot_be_told() -> None:
    """Prometheus would draw p99 at 9.9 ms, 3 times the mean."""
    counts = {"0.01": 1000, "0.025": 1000, "+Inf": 1000}
    first = engine() + histogram("inter_token_latency_seconds", dict.fromkeys(counts, 0), 0)
    assert "jitter" not in seen(first, engine() + histogram("inter_token_latency_seconds", counts, 3.0))


def test_a_promise_is_judged_with_its_bucket() -> None:
    """p99 between 0.25 and 0.5 s, drawn at 0.25 + 0.25 x 9/10 = 0.475 s."""

    def text(number: int) -> str:
        counts = {"0.1": 0, "0.25": 9 * number, "0.5": 10 * number, "+Inf": 10 * number}
        return engine() + histogram("time_to_first_token_seconds", counts, 2.0 * number)

    def one(promised: float) -> Condition | None:
        return seen(text(0), text(100), limits=replace(DEFAULTS, ttft_p99=promised)).get("ttft")

    surely, maybe, band = one(0.25), one(0.4), one(0.48)
    assert surely is not None
    assert surely.reason == (
        "p99 of the time to first token is over the promised 250 ms: between 250 ms and 500 ms, of 1,000 in 60 s."
    )
    assert surely.value == pytest.approx(0.475)
    assert maybe is not None
    assert "may be over the promised 400 ms" in maybe.reason
    assert band is not None
    assert not band.is_over
    assert one(0.5) is None
    assert "ttft" not in seen(text(0), text(100))


def test_errors_corruption_and_refusals() -> None:
    """3 of 50 requests are 6 %."""

    def text(stop: int, error: int, refused: int, nan: int) -> str:
        ended = split("request_success_total", "finished_reason", stop=stop, error=error)
        door = split("admission_rejections_total", "reason", max_num_queued_reqs=refused)
        return ended + door + engine(corrupted_requests_total=nan)

    found = seen(text(100, 0, 5, 1), text(147, 3, 17, 3))
    assert found["errors"].reason == "6 % of 50 requests that ended in 60 s ended in an error."
    assert found["corrupted"].value == 2
    assert found["rejections"].reason == "12 requests refused in 60 s (max_num_queued_reqs)."
    assert seen(text(100, 0, 5, 1), text(200, 2, 5, 1)) == {}


def test_refusals_and_http_errors_that_are_said_of_the_whole_server() -> None:
    """Data parallel: the series of refusals has no engine."""
    quiet = recorded.page("0.32.0-dp2-start") + 'http_requests_total{status="2xx"} 10.0\n'
    refused = later(quiet, admission_rejections_total=2) + 'http_requests_total{status="5xx"} 1.0\n'
    found = seen(quiet, refused.replace('status="2xx"} 10.0', 'status="2xx"} 19.0'))
    assert found["rejections"].value == pytest.approx(4 / 60)
    assert found["http_errors"].reason == "10 % of 10 answers in 60 s are 5xx."


def test_throughput_under_the_baseline_says_whether_traffic_is_low() -> None:
    """30,000 tokens in 60 s are 500 tokens/s."""

    def one(baseline: float, waiting: int = 0, running: int = 9, limits: Thresholds = DEFAULTS) -> Condition | None:
        values = {"num_requests_running": running, "num_requests_waiting": waiting}
        before, after = (engine(generation_tokens_total=tokens, **values) for tokens in (0, 30_000))
        return seen(before, after, limits=limits, baseline=baseline).get("throughput")

    slow, quiet = one(1000, waiting=4), one(1000)
    assert slow is not None
    assert slow.reason == "500 output tokens/s over 60 s, 50 % of the usual 1,000, while requests pile up."
    assert quiet is not None
    assert "traffic is low, not the server slow" in quiet.reason
    assert one(1000, running=0) is None
    assert not (one(620) or pytest.fail("none")).is_over  # 80.6 %: within the band
    assert one(600) is None
    by_hand = one(1000, limits=replace(DEFAULTS, baseline_output_tokens_per_s=600))
    assert by_hand is None


def test_prefix_hits_have_no_alarm_unless_one_is_set() -> None:
    before = engine(prefix_cache_queries_total=0, prefix_cache_hits_total=0)
    after = engine(prefix_cache_queries_total=1000, prefix_cache_hits_total=100)
    assert seen(before, after) == {}
    found = seen(before, after, limits=replace(DEFAULTS, prefix_hit_rate=0.5))["prefix_hit_rate"]
    assert found.reason == "10 % of what was looked up in 60 s was found, 50 % is expected."


def test_stuck_and_frozen() -> None:
    stuck = engine(num_requests_running=0, num_requests_waiting=3, generation_tokens_total=5)
    assert seen(stuck, stuck)["livelock"].reason == "3 requests waiting, none running, and nothing came out in 60 s."
    frozen = recorded.page("0.32.0-load")
    assert seen(frozen, frozen)["stale"].reason.startswith("48 requests counted as running, yet nothing")
    assert "stale" not in seen(frozen, later(frozen, generation_tokens_total=1))


def test_a_restart_says_when() -> None:
    """The process of this page started at 1,795,966,011.28."""
    text = recorded.page("0.32.0-idle-whole")
    start = "process_start_time_seconds 1.79596601128e+09"
    assert start in text
    found = seen(
        text.replace(start, "process_start_time_seconds 1.7e9"), text.replace(start, start[:-17] + "1800000035")
    )
    assert found["restart"].reason.startswith("it began anew 25 s ago")


# Verdicts


def judged(*texts: str, findings: tuple[Finding, ...] = ()) -> TargetState:
    pages = (page(10.0 * moment, text) for moment, text in enumerate(texts))
    return replace(state(pages, age=1.0), findings=findings)


def found(rule: str, reason: str = "3 requests waiting.", engine: str | None = "0") -> Finding:
    made = next(each for each in RULES if each.key == rule)
    condition = Condition(rule=rule, engine=engine, level=made.level, word=made.word, reason=reason, action=made.action)
    return Finding(target="chat-1", condition=condition, since=0.0)


def test_a_server_with_nothing_to_do() -> None:
    idle = verdict(judged(*[recorded.page("0.32.0-idle-whole")] * 2))
    assert str(idle) == "Idle: 0 running, KV cache 0 % in use, 0 tokens/s."
    assert idle.context == "http://chat-1:8000, vLLM 0.32-0.33, measured 1 s ago, rates over 10 s"


def test_engines_that_are_well_are_added() -> None:
    """231 and 49 tokens in 10 s; engine 0 holds 10 of 4,095 blocks."""
    well = verdict(judged(recorded.page("0.32.0-dp2-start"), recorded.page("0.32.0-dp2-load")))
    assert str(well) == "Healthy: 12 running on 2 engines, KV cache at most 0.244 % in use, 28 tokens/s."


def test_one_page_has_no_rates_yet() -> None:
    once = verdict(judged(recorded.page("0.32.0-load")))
    assert (once.level, once.word) == (Level.GOOD, "Reachable")


def test_the_worst_finding_decides_and_the_others_are_counted() -> None:
    text = recorded.page("0.32.0-load")
    worst = verdict(judged(text, text, findings=(found("saturated"), found("jitter"))))
    assert (worst.level, worst.word, worst.reason) == (Level.BAD, "Saturated", "3 requests waiting. 1 more below.")
    assert "replica" in worst.action
    ranks = recorded.page("0.32.0-dp2-load")
    assert verdict(judged(ranks, ranks, findings=(found("saturated", engine="1"),))).reason.startswith("engine 1: 3")


def test_without_statistics_the_flag_is_named() -> None:
    silent = verdict(judged(recorded.page("0.32.0-disablelogstats-load")))
    assert (silent.level, silent.word) == (Level.UNKNOWN, "No statistics")
    assert "--disable-log-stats" in silent.reason


@pytest.mark.parametrize(("kind", "text"), recorded.OTHERS.items())
def test_another_engine_is_named_and_not_judged(kind: str, text: str) -> None:
    other = verdict(judged(text))
    assert other.level is Level.UNKNOWN
    assert kind in other.reason
    assert set(seen(text, text)) == {"unreadable"}


def test_a_dead_endpoint_says_the_error_and_the_age_of_its_last_page() -> None:
    text = recorded.page("0.32.0-load")
    assert verdict(state([], failures=1)).word == "Down"
    assert verdict(state([])).word == "Connecting"
    assert verdict(state([page(0, text)], failures=1)).word == "Reachable"  # one missed scrape is no outage
    twice = verdict(state([page(0, text)], failures=2, age=40.0))
    assert (twice.level, twice.word) == (Level.BAD, "No data for 40 s")
    assert "nothing listens there" in twice.reason


ANSWERS = "Something answers there: are address and port those of a vLLM server? If so, read the server's log."
ASKED = "It is asked again every cycle. Does the process run, and is the address reachable from here?"
ADVICE: dict[State, str] = {
    "html": ANSWERS, "empty": ANSWERS, "http_status": ANSWERS, "refused": ASKED, "timeout": ASKED,
    "misconfigured": "Correct it in monitor.toml, or set the variable.",
    "tls": "Something listens there: correct ca_file or verify, or is http:// meant, or another port?",
}  # fmt: skip


@pytest.mark.parametrize("answered", ADVICE)
def test_only_where_nothing_answers_is_it_asked_whether_the_process_runs(answered: State) -> None:
    error = Scrape(state=answered, url="http://chat-1:8000/metrics", message="so it went")
    never = replace(state([], failures=1), error=error)
    no_more = replace(state([page(0, recorded.page("0.32.0-load"))], failures=2, age=40.0), error=error)
    (condition,) = conditions(sight(never, DEFAULTS), (DOWN,))
    assert verdict(never).reason == f"no page yet: so it went ({answered})."
    assert condition.action == ADVICE[answered]
    assert [verdict(never).action, verdict(no_more).action] == 2 * [ADVICE[answered]]


def test_a_group_says_how_many_what_and_which() -> None:
    text = recorded.page("0.32.0-load")
    well = judged(text, later(text, generation_tokens_total=100))

    def named(name: str, *findings: Finding) -> TargetState:
        return replace(well, target=replace(well.target, name=name), findings=findings)

    bad = [named(f"chat-{place}", found("saturated")) for place in (1, 2)]
    rest = [named("chat-3", found("jitter")), *(named(f"chat-{place}") for place in range(4, 13))]
    assert str(group_verdict([*rest, *bad])).startswith("2 of 12 servers: Saturated (chat-1, chat-2). Add a replica")
    assert group_verdict([*rest, *bad]).level is Level.BAD
    assert str(group_verdict(rest[1:])) == "Healthy: 9 servers, 432 requests run."  # 48 on each
    many = [named(f"chat-{place}", found("livelock")) for place in range(5)]
    assert "Stuck (chat-0, chat-1, chat-2 and 2 more)" in group_verdict(many).reason
    assert group_verdict([]).level is Level.UNKNOWN
