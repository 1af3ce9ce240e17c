"""Units: the constants and the only formatters. Memory is binary (GiB), bandwidth and datasheets are decimal (GB)."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

Formatter = Callable[[float], str]

KIB, MIB, GIB = 2**10, 2**20, 2**30
GB, TB = 10**9, 10**12


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent.

    >>> [_three_digits(v) for v in (0.0123456, 1.5, 12.345, 1234.5)]
    ['0.0123', '1.5', '12.3', '1,234']
    """
    if not isfinite(value):
        return "∞" if value > 0 else "unknown"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    decimals = max(0, 2 - _exponent(value))
    return f"{value:,.{decimals}f}".rstrip("0").rstrip(".") if decimals else f"{value:,.0f}"


def _exponent(value: float) -> int:
    return int(f"{abs(value):e}".partition("e")[2])


def _scaled(value: float, unit: str, steps: tuple[tuple[float, str], ...]) -> str:
    for size, prefix in steps:
        if abs(value) >= size:
            return f"{_three_digits(value / size)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def memory(size: float) -> str:
    """Bytes as binary memory.

    >>> memory(17_179_869_184), memory(131_072), memory(70_272), memory(512)
    ('16 GiB', '128 KiB', '68.6 KiB', '512 B')
    """
    return _scaled(size, "B", ((2**40, "Ti"), (GIB, "Gi"), (MIB, "Mi"), (KIB, "Ki")))


def bandwidth(rate: float) -> str:
    """Bytes a second as decimal bandwidth.

    >>> bandwidth(2.039e12), bandwidth(300e9)
    ('2.04 TB/s', '300 GB/s')
    """
    return _scaled(rate, "B/s", ((1e12, "T"), (1e9, "G"), (1e6, "M")))


def flops(rate: float) -> str:
    """FLOP a second.

    >>> flops(312e12)
    '312 TFLOP/s'
    """
    return _scaled(rate, "FLOP/s", ((1e15, "P"), (1e12, "T"), (1e9, "G")))


def duration(seconds: float) -> str:
    """Seconds, as ms below one second and as minutes, hours or days when long.

    >>> duration(0.0123), duration(1.5), duration(7200)
    ('12.3 ms', '1.5 s', '2 h')
    """
    if not isfinite(seconds):
        return _three_digits(seconds)
    if abs(seconds) < 1e-3:
        return f"{_three_digits(seconds * 1e6)} µs"
    if abs(seconds) < 1:
        return f"{_three_digits(seconds * 1e3)} ms"
    return _scaled(seconds, "s", ()) if abs(seconds) < 120 else _long(seconds)


def _long(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds)} s"


def count(number: float, noun: str = "") -> str:
    """A whole number with separators and, when given, its noun.

    >>> count(524288, "tokens"), count(4096)
    ('524,288 tokens', '4,096')
    """
    return f"{number:,.0f} {noun}".rstrip() if isfinite(number) else f"{_three_digits(number)} {noun}".rstrip()


def rate(number: float, noun: str) -> str:
    """How much a second, or of what else the noun says.

    >>> rate(1234.5, "tokens/s"), rate(0.0333, "requests/s")
    ('1,234 tokens/s', '0.0333 requests/s')
    """
    return f"{_three_digits(number)} {noun}"


def share(ratio: float) -> str:
    """A ratio as percent.

    >>> share(0.875), share(0.00123)
    ('87.5 %', '0.123 %')
    """
    return f"{_three_digits(ratio * 100)} %"


def usd(amount: float) -> str:
    """Dollars: cents above a dollar, three significant digits below.

    >>> usd(4), usd(0.0283), usd(1234.5)
    ('$4.00', '$0.0283', '$1,234.50')
    """
    return f"${amount:,.2f}" if abs(amount) >= 1 else f"${_three_digits(amount)}"


def finite(value: Any) -> Any:
    """A value that JSON can hold: plain containers, and None where a number is infinite or not a number.

    >>> finite({"time_step_limit": (0.0, float("inf"))})
    {'time_step_limit': [0.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
