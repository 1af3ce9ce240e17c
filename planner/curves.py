"""What a plan looks like as one quantity changes: the series behind the charts, each with its finding in a sentence."""

from typing import TYPE_CHECKING, NamedTuple

from planner.units import count, memory

if TYPE_CHECKING:
    from planner.plan import Plan


class Line(NamedTuple):
    """A threshold.

    axis   x or y
    value  where it stands  [unit of that axis]
    label  what it is
    """

    axis: str
    value: float
    label: str


class Curve(NamedTuple):
    """One planned series.

    x        what changes  [see x_name]
    y        what follows  [see y_name]
    limits   the thresholds to draw
    finding  what the series says
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    limits: tuple[Line, ...]
    finding: str


def kv_over_concurrency(plan: "Plan") -> Curve:
    """KV bytes a rank against requests of the workload's length at once, up to past the pool."""
    assert plan.layout is not None
    assert plan.capacity is not None
    each, pool = plan.layout.request_bytes(plan.workload.tokens), plan.pool_bytes
    wanted = plan.workload.concurrency
    last = max(plan.capacity[0].streams, wanted or 0) * 5 // 4 + 1
    x = tuple(float(round(last * step / 40)) for step in range(41))
    limits = [Line("y", pool, f"KV pool {memory(pool)}")]
    if wanted:
        limits.append(Line("x", wanted, f"{count(wanted)} asked"))
    held = f"{count(plan.capacity[0].streams, 'requests')} of {count(plan.workload.tokens, 'tokens')}"
    finding = f"The KV pool of {memory(pool)} a rank holds {held}, {memory(each)} each."
    return Curve(x, tuple(each * requests for requests in x), tuple(limits), finding)


def concurrency_over_length(plan: "Plan") -> Curve:
    """Requests at once against their length, to the longest that fits or the model's limit."""
    assert plan.layout is not None
    assert plan.capacity is not None
    longest = plan.longest_max_model_len
    lengths = _doubling(min(128, longest), longest)
    blocks, per_request = plan.capacity[0].num_gpu_blocks, plan.layout.blocks_per_request
    y = tuple(blocks / per_request(int(length)) for length in lengths)
    finding = (
        f"{y[0]:,.0f} requests of {count(lengths[0], 'tokens')}, {y[-1]:,.1f} of {count(lengths[-1], 'tokens')}; "
        f"the longest request is {count(longest, 'tokens')}."
    )
    here = Line("x", plan.workload.tokens, f"load: {count(plan.workload.tokens, 'tokens')}")
    return Curve(lengths, y, (here,), finding)


def _doubling(first: int, last: int) -> tuple[float, ...]:
    lengths = []
    while first < last:
        lengths.append(float(first))
        first *= 2
    return (*lengths, float(last))
