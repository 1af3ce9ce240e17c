"""The one error that malformed input raises."""


class InputError(ValueError):
    """An input that cannot be used: which field, what was found there, and what is accepted.

    >>> print(InputError("tensor_parallel_size", 3, "a divisor of the 32 attention heads"))
    tensor_parallel_size: found 3, accepted: a divisor of the 32 attention heads
    """

    def __init__(self, field: str, found: object, accepted: str) -> None:
        self.field, self.found, self.accepted = field, found, accepted
        super().__init__(f"{field}: found {found!r}, accepted: {accepted}")


class Refusal(ValueError):
    """A well-formed deployment that vLLM itself would refuse to start, with the reason in our words."""


LARGEST = 10**9
"""More tokens, requests or blocks than any deployment has; beyond it a number is a typing error."""
_SHOWN = 10**20
"""From here on a number is not worth its digits in a message; Python itself refuses to write those of the longest."""


def whole_number(field: str, value: object, least: int = 1, most: int = LARGEST, is_optional: bool = True) -> None:
    """Accepts None, where it is optional, and integers from `least` to `most`; raises InputError for all else.

    >>> whole_number("block_size", 16)
    """
    if value is None and is_optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        is_huge = isinstance(value, int) and abs(value) >= _SHOWN
        raise InputError(field, "a huge number" if is_huge else value, f"an integer from {least:,} to {most:,}")
