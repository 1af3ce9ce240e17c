"""The thresholds of all rules: each once, with its default and its origin. monitor.toml may change any of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a rule speaks, and how long its condition must last first.

    A rule of one event looks back over `window`: where it asks for longer than that, one event alone is not said.
    Where None is allowed, 0 is not: it would be broken at once, or mean nothing.

    down_for                  how long without a page before a target is down                                 [s]
    unreadable_for            how long a page without vLLM's metrics is read before it is said                [s]
    restart_for               as a restart is certain at once                                                 [s]
    livelock_for              how long requests wait while none runs                                          [s]
    stale_for                 how long gauges stand still while nothing is counted (10 s are looked at)       [s]
    saturated_for             how long requests wait for a full pool, or are preempted for it                 [s]
    usage_alarm               KV blocks in use that leave no room for a burst (article)                       [ratio]
    usage_alarm_for           how long                                                                        [s]
    usage_act                 KV blocks in use at which to act (article; most published rules)                [ratio]
    usage_act_for             how long                                                                        [s]
    preemptions_per_s         preemptions that are worth a word (published rules say 1)                       [1/s]
    preempting_for            how long                                                                        [s]
    retention                 requests finished without preemption, of all finished (the article's hit rate)  [ratio]
    retention_for             how long                                                                        [s]
    waiting_for               how long requests wait, on every page read, before it is said                   [s]
    full_within               the KV pool is full within this time at the present trend                       [s]
    full_usage                KV blocks in use below which no trend is judged                                 [ratio]
    full_trend                over which the trend is fitted                                                  [s]
    full_for                  how long it points there                                                        [s]
    fragmentation             estimated share of held token slots that hold no token (article)                [ratio]
    fragmentation_for         how long                                                                        [s]
    fragmentation_usage       KV blocks in use below which waste costs nothing                                [ratio]
    fragmentation_running     requests below which the estimate is too rough                                  [requests]
    jitter                    p99 of the time between tokens over its mean (article)                          [ratio]
    jitter_for                how long                                                                        [s]
    throughput                output tokens/s over the baseline's (article)                                   [ratio]
    throughput_for            how long                                                                        [s]
    baseline_output_tokens_per_s  the baseline where it is set by hand; None learns it from earlier days      [tokens/s]
    errors                    finished requests that ended in an error (published rules)                      [ratio]
    errors_for                how long (published rules)                                                      [s]
    corrupted_for             as one answer of a broken model is too many                                     [s]
    rejections_per_s          requests refused at the door that are worth a word                              [1/s]
    rejections_for            how long                                                                        [s]
    http_errors               answers of the API server with a status of 5xx                                  [ratio]
    http_errors_for           how long                                                                        [s]
    ttft_p99                  promised time to first token; None promises nothing                             [s]
    tpot_p99                  promised time per output token; None promises nothing                           [s]
    slo_for                   how long a promise is broken before it is said                                  [s]
    prefix_hit_rate           prompt tokens found in the prefix cache; None, as it depends on the load        [ratio]
    prefix_hit_rate_for       how long                                                                        [s]
    band                      how far, of its threshold, a value must come back before a finding ends         [ratio]
    window                    over which rates and quantiles are judged                                       [s]
    """

    down_for: float = 15.0
    unreadable_for: float = 15.0
    restart_for: float = 0.0
    livelock_for: float = 30.0
    stale_for: float = 20.0
    saturated_for: float = 15.0
    usage_alarm: float = 0.95
    usage_alarm_for: float = 30.0
    usage_act: float = 0.90
    usage_act_for: float = 60.0
    preemptions_per_s: float = 0.0
    preempting_for: float = 30.0
    retention: float = 0.99
    retention_for: float = 60.0
    waiting_for: float = 60.0
    full_within: float = 600.0
    full_usage: float = 0.50
    full_trend: float = 300.0
    full_for: float = 60.0
    fragmentation: float = 0.30
    fragmentation_for: float = 60.0
    fragmentation_usage: float = 0.50
    fragmentation_running: int = 8
    jitter: float = 2.0
    jitter_for: float = 120.0
    throughput: float = 0.80
    throughput_for: float = 300.0
    baseline_output_tokens_per_s: float | None = None
    errors: float = 0.05
    errors_for: float = 120.0
    corrupted_for: float = 0.0
    rejections_per_s: float = 0.0
    rejections_for: float = 30.0
    http_errors: float = 0.05
    http_errors_for: float = 120.0
    ttft_p99: float | None = None
    tpot_p99: float | None = None
    slo_for: float = 120.0
    prefix_hit_rate: float | None = None
    prefix_hit_rate_for: float = 300.0
    band: float = 0.03
    window: float = 60.0
