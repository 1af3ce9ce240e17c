"""Vision and audio encoders of multimodal models, with the projectors that hand their output to the language model."""

from collections.abc import Iterator

from planner.matrices import WHOLE, Cut, Weight
from planner.model import ModelSpec


def encoder_weights(model: ModelSpec, cut: Cut = WHOLE) -> Iterator[Weight]:
    """Every weight of a model's encoders on one rank; nothing for a text model."""
    return iter(())
