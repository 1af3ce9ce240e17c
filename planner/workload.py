"""Workload and Slo: what the deployment will be asked to do, and what its users were promised."""

from dataclasses import dataclass
from math import inf

from planner.errors import InputError, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A steady load of similar requests.

    input_tokens       prompt length, mean  [tokens]
    output_tokens      generated length, mean  [tokens]
    concurrency        requests kept in flight (closed loop); None is as many as the KV cache holds  [requests]
    request_rate       arrivals (open loop) instead of a fixed concurrency  [requests/s]
    prefix_hit_ratio   share of prompt tokens found in the prefix cache  [ratio]
    acceptance_rate    share of drafted tokens that are kept, None for a usual one  [ratio]
    """

    input_tokens: int = 1024
    output_tokens: int = 1024
    concurrency: int | None = None
    request_rate: float | None = None
    prefix_hit_ratio: float = 0.0
    acceptance_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens", "concurrency"):
            whole_number(name, getattr(self, name), is_optional=name == "concurrency")
        if self.request_rate is not None and not 0 < self.request_rate < inf:
            raise InputError("request_rate", self.request_rate, "a number above 0")
        if self.concurrency is not None and self.request_rate is not None:
            raise InputError("request_rate", self.request_rate, "either a concurrency or a request rate, not both")
        if not 0 <= self.prefix_hit_ratio < 1:
            raise InputError("prefix_hit_ratio", self.prefix_hit_ratio, "a ratio from 0 to below 1")
        if self.acceptance_rate is not None and not 0 <= self.acceptance_rate <= 1:
            raise InputError("acceptance_rate", self.acceptance_rate, "a ratio from 0 to 1")

    @property
    def tokens(self) -> int:
        """Length of one request at its end  [tokens]."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The latencies promised to users; None where nothing was promised.

    ttft_s  time to first token  [s]
    tpot_s  time per output token  [s]
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
