"""Records of the weight inventory: a matrix as one rank holds it, and how parallelism cuts it."""

from collections.abc import Iterator
from typing import NamedTuple

ATTENTION, MLP, EXPERTS, NORMS, EMBEDDING, HEAD, ENCODER, OTHER = (
    "attention", "mlp", "experts", "norms", "embedding", "head", "encoder", "other")  # fmt: skip
VOCABULARY_STEP = 64  # vLLM pads the vocabulary to this, then cuts it (layers/vocab_parallel_embedding.py)


class Weight(NamedTuple):
    """A matrix as one rank holds it, or a vector (one input).

    part     what it belongs to
    outputs  its rows  [elements]
    inputs   its columns  [elements]
    copies   how many alike there are (experts)  [matrices]
    bias     its bias, for each copy  [elements]
    dtype    "" for the model's own
    kind     linear, experts or head where a quantised checkpoint may store it otherwise, "" where it never does
    names    modules fused into it, as the checkpoint calls them, below `model.layers.N.`
    """

    part: str
    outputs: int
    inputs: int = 1
    copies: int = 1
    bias: int = 0
    dtype: str = ""
    kind: str = ""
    names: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return (self.outputs * self.inputs + self.bias) * self.copies


class Cut(NamedTuple):
    """How tensor and expert parallel divide a layer: one rank's share.

    ranks            tensor-parallel size  [GPUs]
    expert_ranks     ranks the experts are dealt out to, 1 where each expert is cut instead  [GPUs]
    expert_pieces    pieces each expert is cut into, 0 for as many as ranks  [pieces]
    expert_width     multiple the width of a cut expert is padded to  [elements]
    expert_hidden    multiple its input is padded to  [elements]
    """

    ranks: int = 1
    expert_ranks: int = 1
    expert_pieces: int = 0
    expert_width: int = 1
    expert_hidden: int = 1

    def share(self, width: int) -> int:
        """Outputs of a column-parallel or inputs of a row-parallel matrix."""
        return -(-width // self.ranks)

    def kv(self, heads: int) -> int:
        """KV heads, replicated where there are fewer than ranks."""
        return max(1, heads // self.ranks)

    def vocabulary(self, size: int) -> int:
        """Rows of the embedding or the head."""
        return self.share(-(-size // VOCABULARY_STEP) * VOCABULARY_STEP)


WHOLE = Cut()


def linear(part: str, outputs: int, inputs: int, *names: str, bias: bool = False) -> Weight:
    """A matrix that a quantised checkpoint may store otherwise."""
    return Weight(part, outputs, inputs, bias=outputs if bias else 0, kind="linear", names=names)


def vector(part: str, elements: int, dtype: str = "") -> Weight:
    """A scale, a bias, a state: never quantised."""
    return Weight(part, elements, dtype=dtype)


def feed_forward(part: str, width: int, hidden: int, gated: bool, name: str, bias: bool = False) -> Iterator[Weight]:
    """Up (with its gate beside it) and down projections of this width on the rank."""
    up = (f"{name}.gate_proj", f"{name}.up_proj") if gated else (f"{name}.up_proj",)
    yield linear(part, width * len(up), hidden, *up, bias=bias)
    yield linear(part, hidden, width, f"{name}.down_proj", bias=bias)
