"""PromQL for the metrics of the table: under every name a metric has had, engines kept apart, rates before sums.

The names of a metric are joined by `or` outside of whatever is asked of them, so that a server that reports two
generations at once (0.9.2 to 0.11) is counted once, and the buckets of two histograms are never mixed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from monitor import metrics
from monitor.metrics import Metric

JOB = "vllm"
"""The label `job` of every target that the generated scrape config has."""
PLACE = "job, instance, engine"
"""What tells engines apart where there is no model_name: on the series of the configuration."""
_FRONT_END = "handler, method"
"""What splits the answers of the API server besides their status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromQL:
    """Expressions over the series of a fleet; each keeps all labels that tell engines apart.

    engines  which series of engines, as PromQL writes it between braces; empty is all
    servers  the same for what a server says once, and so has no model_name
    window   over which rates and quantiles are taken: 60s, $__rate_interval
    """

    engines: str = ""
    servers: str = ""
    window: str = "60s"

    def each(self, metric: Metric, where: str = "", asked: Callable[[str], str] = str) -> str:
        """What is asked of the metric's series, under each of its names."""
        selector = self.servers if metric.scope == "server" else self.engines
        braces = _braces(selector, where)
        found = [asked(f"{name}{braces}") for name in metric.names]
        return found[0] if len(found) == 1 else f"({' or '.join(found)})"

    def now(self, metric: Metric, where: str = "") -> str:
        """A gauge; of several processes that report it the largest, and the sum of a split one."""
        if metric.label:
            return self.each(metric, where, lambda series: f"sum without ({metric.label}, pid) ({series})")
        return self.each(metric, where, lambda series: f"max without (pid) ({series})")

    def over(self, function: str, metric: Metric, where: str = "", window: str = "", part: str = "") -> str:
        """rate, increase, resets, … of a counter, or changes, deriv, … of a gauge; `window` may end in an offset.

        `part` is of a histogram: count, sum, bucket.
        """
        length, *offset = (window or self.window).split(" ", 1)

        def one(series: str) -> str:
            return f"{function}({' '.join([f'{_part(series, part)}[{length}]', *offset])})"

        return self.each(metric, where, one)

    def rate(self, metric: Metric, where: str = "", window: str = "") -> str:
        """What a counter counts in a second, a split one in all."""
        found = self.over("rate", metric, where, window)
        split = ", ".join(filter(None, (metric.label, _FRONT_END if metric.scope == "server" else "")))
        return f"sum without ({split}) ({found})" if split else found

    def matcher(self, metric: Metric, value: str) -> str:
        """Which of the series that a metric is split into: reason="capacity"."""
        return f'{metric.label}="{value}"'

    @property
    def up(self) -> str:
        """Whether the last scrape of a server was good, of those selected; empty where none are."""
        return f"up{{{self.servers}}}" if self.servers else ""

    @property
    def offloading(self) -> str:
        """Something of every engine whose KV moves on to another tier: its own pool is then full by design."""
        moved = (metrics.OFFLOAD_USAGE, metrics.OFFLOAD_STORED, metrics.OFFLOAD_LOADED, metrics.OFFLOAD_BYTES)
        size = f'{metrics.OFFLOADING_SIZE.names[0]}=~"[0-9.]+"'
        return f"({' or '.join(map(self.each, moved))} or {metrics.CACHE_CONFIG}{_braces(self.servers, size)})"

    def ratio(self, part: Metric, whole: Metric, where: str = "") -> str:
        """One counter's rate over another's; `where` narrows the part."""
        return f"({self.rate(part, where)} / {self.rate(whole)})"

    def mean(self, metric: Metric) -> str:
        """Of a histogram: what was observed in the window, on average."""
        return self.each(metric, "", lambda series: f"({self._rate(series, 'sum')} / {self._rate(series, 'count')})")

    def quantile(self, metric: Metric, q: float, by: str = "") -> str:
        """Of a histogram, of what was observed in the window; within its bucket interpolated, as Prometheus does.

        Of each engine, or of all that agree in the labels `by`: their buckets are added first.
        """

        def one(series: str) -> str:
            buckets = self._rate(series, "bucket")
            return f"histogram_quantile({q:g}, {f'sum by ({by}, le) ({buckets})' if by else buckets})"

        return self.each(metric, "", one)

    def buckets(self, metric: Metric) -> str:
        """Of a histogram: how many a second fall into each bucket, over all engines, for a heatmap."""
        return self.each(metric, "", lambda series: f"sum by (le) ({self._rate(series, 'bucket')})")

    def within(self, metric: Metric, bound: str) -> str:
        """Of a histogram: the share of what was observed that is within one of its own bounds: exact."""

        def one(series: str) -> str:
            name, brace, rest = series.partition("{")
            inside = self._rate(f'{name}{{le=~"{bound}"{", " if brace else "}"}{rest}', "bucket")
            return f"(sum by (model_name) ({inside}) / sum by (model_name) ({self._rate(series, 'count')}))"

        return self.each(metric, "", one)

    def configured(self, metric: Metric) -> str:
        """A number that is the label of an info series, by job, instance and engine.

        PromQL has no function from a label to a number but one: the bound of a bucket. Of a histogram whose one
        observation is in the bucket up to that number, the largest observation is the number.
        """
        info = f"{metrics.CACHE_CONFIG}{_braces(self.servers)}"
        bucket = f'label_replace({info}, "le", "$1", "{metric.names[0]}", "([0-9.]+)")'
        above = f'label_replace({info}, "le", "+Inf", "", "")'
        return f"histogram_quantile(1, max by ({PLACE}, le) ({bucket} or {above}))"

    @property
    def blocks(self) -> str:
        """KV blocks of each engine: ranks of a data-parallel server all report the sum over them."""
        reported, size = self.configured(metrics.NUM_GPU_BLOCKS), self.configured(metrics.BLOCK_SIZE)
        is_own = f"{self.configured(metrics.KV_CACHE_TOKENS)} == {reported} * {size}"
        ranks = f"count by (job, instance) ({metrics.CACHE_CONFIG}{_braces(self.servers)})"
        return f"({reported} and ({is_own}) or {reported} / on (job, instance) group_left () {ranks})"

    @property
    def waste(self) -> str:
        """Estimate: share of held token slots without a token, each request's last block being half full on average.

        running x (block_size - 1)/2 / (usage x (blocks - 1) x block_size), as `EngineSnapshot.block_waste_share`.
        """
        size = self.configured(metrics.BLOCK_SIZE)
        running_over_usage = f"{self.now(metrics.RUNNING)} / ({self.now(metrics.KV_USAGE)} > 0)"
        slack_over_pool = f"((1 - 1 / {size}) / 2 / ({self.blocks} - 1))"
        return f"clamp_max({running_over_usage} * on ({PLACE}) group_left () {slack_over_pool}, 1)"

    @property
    def waste_of_lengths(self) -> str:
        """Estimate: the share of a request's blocks that is empty halfway, by the lengths of finished requests.

        e / (tokens + e), with e = (block_size - 1)/2 empty slots and tokens = prompt + output/2.
        """
        tokens = f"({self.mean(metrics.PROMPT_LENGTH)} + {self.mean(metrics.OUTPUT_LENGTH)} / 2)"
        inverse = f"(2 / ({self.configured(metrics.BLOCK_SIZE)} - 1))"
        return f"1 / (1 + {tokens} * on ({PLACE}) group_left () {inverse})"

    def _rate(self, series: str, part: str) -> str:
        return f"rate({_part(series, part)}[{self.window}])"


def _part(series: str, part: str) -> str:
    """
    >>> _part('requests{job="vllm"}', "bucket"), _part("requests", "")
    ('requests_bucket{job="vllm"}', 'requests')
    """
    name, brace, rest = series.partition("{")
    return f"{name}_{part}{brace}{rest}" if part else series


def _braces(*matchers: str) -> str:
    """
    >>> _braces("", 'job="vllm"', 'reason="capacity"'), _braces("", "")
    ('{job="vllm", reason="capacity"}', '')
    """
    joined = ", ".join(filter(None, matchers))
    return f"{{{joined}}}" if joined else ""


def duration(seconds: float) -> str:
    """As Prometheus writes it: whole numbers of one unit.

    >>> duration(60), duration(0.25), duration(90)
    ('60s', '250ms', '90s')
    """
    return f"{seconds:.0f}s" if seconds == round(seconds) else f"{seconds * 1000:.0f}ms"
