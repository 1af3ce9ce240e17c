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
