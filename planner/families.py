"""config.json -> ModelSpec: which layers each family of architectures is made of."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.model import Attention, Layer, Mlp, ModelSpec

