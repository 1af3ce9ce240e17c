"""The thresholds of all rules: each once, with its default and its origin. monitor.toml may change any of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a rule speaks, and how long its condition must last first.

    usage_act                 KV blocks in use at which to act (article; most published rules)                [ratio]
    usage_act_for             how long                                                                        [s]
    usage_alarm               KV blocks in use that leave no room for a burst (article)                       [ratio]
    usage_alarm_for           how long                                                                        [s]
    fragmentation             estimated share of held token slots that hold no token (article)               [ratio]
    fragmentation_for         how long                                                                        [s]
    retention                 requests finished without preemption, of all finished (the article's hit rate)  [ratio]
    jitter                    p99 of the time per output token over its mean (article)                        [ratio]
    jitter_for                how long                                                                        [s]
    throughput                output tokens/s over the baseline's (article)                                   [ratio]
    throughput_for            how long                                                                        [s]
    baseline_output_tokens_per_s  the baseline where it is set by hand; None learns it from earlier days      [tokens/s]
    waiting_for               how long requests wait before it is said                                        [s]
    preemptions_per_s         preemptions that are worth a word (published rules say 1)                       [1/s]
    errors                    finished requests that ended in an error                                        [ratio]
    errors_for                how long                                                                        [s]
    ttft_p99                  promised time to first token; None promises nothing                             [s]
    tpot_p99                  promised time per output token; None promises nothing                           [s]
    slo_for                   how long a promise is broken before it is said                                  [s]
    full_within               the KV pool is full within this time at the present trend                       [s]
    down_for                  how long without a page before a target is down                                 [s]
    band                      how far a value must fall back below its threshold before a finding ends        [ratio]
    window                    over which rates and quantiles are judged                                       [s]
    """

    usage_act: float = 0.90
    usage_act_for: float = 60.0
    usage_alarm: float = 0.95
    usage_alarm_for: float = 30.0
    fragmentation: float = 0.30
    fragmentation_for: float = 60.0
    retention: float = 0.99
    jitter: float = 2.0
    jitter_for: float = 120.0
    throughput: float = 0.80
    throughput_for: float = 300.0
    baseline_output_tokens_per_s: float | None = None
    waiting_for: float = 30.0
    preemptions_per_s: float = 0.0
    errors: float = 0.05
    errors_for: float = 60.0
    ttft_p99: float | None = None
    tpot_p99: float | None = None
    slo_for: float = 120.0
    full_within: float = 600.0
    down_for: float = 15.0
    band: float = 0.03
    window: float = 60.0
