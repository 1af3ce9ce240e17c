"""Cost: what an hour of a deployment costs, and from its speed what tokens and requests do.

An hour buys the tokens the deployment makes in it. Prompts and outputs share the devices: the share of time spent
reading prompts is charged to input tokens and the rest to output tokens, so that both together are the whole bill.
"""

import math
from dataclasses import dataclass

from planner.errors import InputError
from planner.latency import Latency, Range
from planner.price import KINDS
from planner.workload import Workload

HOURS_A_MONTH = 730.0  # 365 × 24 / 12
SECONDS_AN_HOUR = 3600.0
MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """How the hours of a deployment are paid for; what is paid beside the devices is of one whole deployment.

    price_kind            of the quotes taken: on demand, reserved or spot; the user's own price comes before them
    cpu_usd_per_hour      processors, where the device's price does not hold them  [dollars/hour]
    memory_usd_per_hour   main memory, where it does not  [dollars/hour]
    network_usd_per_hour  traffic and load balancing  [dollars/hour]
    storage_usd_per_hour  disks for weights and logs  [dollars/hour]
    watts_per_gpu         drawn at the plug, cooling included, 0 where the price covers power  [W]
    usd_per_kwh           price of electricity  [dollars/kWh]
    busy_share            of the paid hours in which the deployment is loaded as planned  [ratio]
    redundancy            deployments paid for each one in use: 1 alone, 2 with a hot spare  [ratio]
    """

    price_kind: str = "on demand"
    cpu_usd_per_hour: float = 0.0
    memory_usd_per_hour: float = 0.0
    network_usd_per_hour: float = 0.0
    storage_usd_per_hour: float = 0.0
    watts_per_gpu: float = 0.0
    usd_per_kwh: float = 0.0
    busy_share: float = 1.0
    redundancy: float = 1.0

    def __post_init__(self) -> None:
        if self.price_kind not in KINDS:
            raise InputError("price_kind", self.price_kind, "one of " + ", ".join(KINDS))
        for name in ("cpu_usd_per_hour", "memory_usd_per_hour", "network_usd_per_hour", "storage_usd_per_hour",
                     "watts_per_gpu", "usd_per_kwh"):  # fmt: skip
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(name, getattr(self, name), "a number, 0 or more")
        if not 0 < self.busy_share <= 1:
            raise InputError("busy_share", self.busy_share, "a ratio above 0 and at most 1")
        if not 1 <= self.redundancy < math.inf:
            raise InputError("redundancy", self.redundancy, "a ratio of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """What one hour of one deployment costs, by what it is paid for.

    devices  accelerators  [dollars]
    cpu      processors  [dollars]
    memory   main memory  [dollars]
    network  traffic and load balancing  [dollars]
    storage  disks  [dollars]
    power    electricity, where it is paid apart  [dollars]
    spare    the same again for what stands by  [dollars]
    """

    devices: float
    cpu: float
    memory: float
    network: float
    storage: float
    power: float
    spare: float

    @property
    def total(self) -> float:
        """Everything paid for  [dollars]."""
        return self.devices + self.cpu + self.memory + self.network + self.storage + self.power + self.spare


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a deployment costs under a load. The ranges are those of the speed; the price is taken as given.

    hour                           what an hour costs, by part
    usd_per_million_output_tokens  the decode share of the bill  [dollars/million tokens]
    usd_per_million_input_tokens   the prefill share of the bill  [dollars/million tokens]
    usd_per_request                the whole bill  [dollars/request]
    requests_per_month             served by one deployment in its busy hours  [requests/month]
    prefill_share                  of the bill charged to input tokens: the share of time  [ratio]
    """

    hour: Hour
    usd_per_million_output_tokens: Range
    usd_per_million_input_tokens: Range
    usd_per_request: Range
    requests_per_month: Range
    prefill_share: float

    @property
    def usd_per_hour(self) -> float:
        """Everything paid for in an hour  [dollars/hour]."""
        return self.hour.total

    @property
    def usd_per_month(self) -> float:
        """Paid for all hours, busy or not  [dollars/month]."""
        return self.hour.total * HOURS_A_MONTH


def hour(gpus: int, usd_per_gpu_hour: float, billing: Billing = Billing()) -> Hour:
    """One hour of a deployment on so many devices at this price each  [dollars].

    >>> hour(8, 2.0, Billing(cpu_usd_per_hour=1.0, watts_per_gpu=1000, usd_per_kwh=0.25, redundancy=1.5)).total
    28.5
    """
    power = gpus * billing.watts_per_gpu / 1000 * billing.usd_per_kwh
    parts = {
        "devices": gpus * usd_per_gpu_hour, "cpu": billing.cpu_usd_per_hour, "memory": billing.memory_usd_per_hour,
        "network": billing.network_usd_per_hour, "storage": billing.storage_usd_per_hour, "power": power,
    }  # fmt: skip
    return Hour(**parts, spare=(billing.redundancy - 1) * sum(parts.values()))


def cost(
    latency: Latency, workload: Workload, gpus: int, usd_per_gpu_hour: float, billing: Billing = Billing()
) -> Cost:
    """Dollars for the load at the predicted speed.

    gpus              devices of one deployment  [GPUs]
    usd_per_gpu_hour  price of one  [dollars/hour]

    Raises InputError for a price that is not a number of dollars.
    """
    if not 0 <= usd_per_gpu_hour < math.inf:
        raise InputError("usd_per_gpu_hour", usd_per_gpu_hour, "dollars an hour, 0 or more")
    paid = hour(gpus, usd_per_gpu_hour, billing)
    second = paid.total / SECONDS_AN_HOUR / billing.busy_share
    rate, share = latency.output_tokens_per_s, latency.prefill_share
    token = Range(second / rate.value, second / rate.high, second / rate.low)
    busy = billing.busy_share * SECONDS_AN_HOUR * HOURS_A_MONTH
    return Cost(
        hour=paid,
        usd_per_million_output_tokens=token.times(MILLION * (1 - share)),
        usd_per_million_input_tokens=token.times(MILLION * share * workload.output_tokens / workload.input_tokens),
        usd_per_request=token.times(workload.output_tokens),
        requests_per_month=rate.times(busy / workload.output_tokens),
        prefill_share=share,
    )
