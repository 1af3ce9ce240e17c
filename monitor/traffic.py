"""Traffic: the load that was really there in a window, in a plan's own words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor import metrics
from monitor.window import EngineWindow
from planner.errors import InputError
from planner.workload import Workload

LEAST_GAPS = 50
"""Gaps between tokens below which a window's mean says little  [gaps]."""
_MOST_HITS = 0.999  # a workload computes at least something of each prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one engine was asked to do in one window, and how fast it did it.

    seconds              how long                                                       [s]
    gap_s                mean time between two tokens of a request                      [s]
    running              requests that decoded, on average (Little's law)               [requests]
    input_tokens         mean prompt of the requests that finished                      [tokens]
    output_tokens        their mean output                                              [tokens]
    prompt_tokens_per_s  prompt tokens computed, those found in the cache left out      [tokens/s]
    prefix_hit_ratio     share of prompt tokens found in the cache                      [ratio]
    requests_per_s       requests that finished                                         [requests/s]
    output_tokens_per_s  tokens generated                                               [tokens/s]
    ttft_s               mean time to first token                                       [s]
    queue_s              mean time in the queue before                                  [s]
    preemptions          requests thrown back                                           [preemptions]
    """

    seconds: float
    gap_s: float
    running: float
    input_tokens: float
    output_tokens: float
    prompt_tokens_per_s: float
    prefix_hit_ratio: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: float | None
    queue_s: float | None
    preemptions: float = 0.0

    @property
    def first_s(self) -> float | None:
        """Time to first token beyond the queue  [s]."""
        return None if self.ttft_s is None else max(0.0, self.ttft_s - (self.queue_s or 0.0))

    @property
    def streams(self) -> float:
        """Requests that decoded or had their prompt read, on average  [requests]."""
        return self.running + self.requests_per_s * (self.first_s or 0.0)

    @property
    def cached_tokens(self) -> float:
        """Of all these, which are half way through their output on average  [tokens]."""
        return self.streams * (self.input_tokens + self.output_tokens / 2)

    @property
    def workload(self) -> Workload:
        """The same as a plan's load: requests of these lengths, so many a second."""
        return Workload(
            input_tokens=max(1, round(self.input_tokens)),
            output_tokens=max(1, round(self.output_tokens)),
            request_rate=self.requests_per_s,
            prefix_hit_ratio=min(_MOST_HITS, self.prefix_hit_ratio),
        )


def traffic(found: EngineWindow) -> Traffic | None:
    """What an engine did in a window; None where no request finished, too little came out, or it restarted.

    Requests that run follow from the gaps alone: their sum over the seconds.
    """
    gaps = found.histogram(metrics.ITL)
    prompts, outputs = found.histogram(metrics.PROMPT_LENGTH), found.histogram(metrics.OUTPUT_LENGTH)
    read, rate, requests = found.rate(metrics.PROMPT_TOKENS), found.output_tokens_per_s, found.requests_per_s
    if gaps is None or gaps.count < LEAST_GAPS or not gaps.mean or found.has_restarted:
        return None
    if prompts is None or outputs is None or not prompts.mean or not outputs.mean:
        return None
    if read is None or not rate or not requests:
        return None
    hits = found.prefix_hit_rate or 0.0
    return Traffic(
        seconds=found.seconds,
        gap_s=gaps.mean,
        running=gaps.total / found.seconds,
        input_tokens=prompts.mean,
        output_tokens=outputs.mean,
        prompt_tokens_per_s=read * (1 - hits),
        prefix_hit_ratio=hits,
        requests_per_s=requests,
        output_tokens_per_s=rate,
        ttft_s=found.mean(metrics.TTFT),
        queue_s=found.mean(metrics.QUEUE),
        preemptions=found.increase(metrics.PREEMPTIONS) or 0.0,
    )


def workload(seen: Sequence[Traffic]) -> Workload:
    """The load of several windows, for a plan: lengths by the requests that finished, arrivals over all the time.

    Raises InputError where there are none.
    """
    if not seen:
        raise InputError("windows", 0, "at least one window in which requests finished")
    finished = np.array([each.requests_per_s * each.seconds for each in seen])
    inputs, outputs, hits = (
        float(np.average([getattr(each, key) for each in seen], weights=finished))
        for key in ("input_tokens", "output_tokens", "prefix_hit_ratio")
    )
    return Workload(
        input_tokens=max(1, round(inputs)),
        output_tokens=max(1, round(outputs)),
        request_rate=float(finished.sum()) / sum(each.seconds for each in seen),
        prefix_hit_ratio=min(_MOST_HITS, hits),
    )


def peak(seen: Sequence[Traffic]) -> Traffic:
    """The window with the most output a second: what a deployment must be sized for. Raises InputError without any."""
    if not seen:
        raise InputError("windows", 0, "at least one window in which requests finished")
    return max(seen, key=lambda each: each.output_tokens_per_s)
