"""Uploaded config.json files, kept while the server runs, so that an address with one works for colleagues too."""

import hashlib
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

from planner.errors import InputError
from planner.model import ModelSpec

PREFIX = "upload/"


class Uploads:
    """The latest uploads by reference: `upload/<name>-<8 digits of the content's SHA-256>`. Safe between threads."""

    def __init__(self, read: Callable[[bytes], ModelSpec], kept: int = 64) -> None:
        self._read, self._kept = read, kept
        self._specs: dict[str, ModelSpec] = {}
        self._lock = threading.Lock()

    def keep(self, filename: str, content: bytes) -> str:
        """The reference of this content from now on; the oldest upload goes where there are too many.

        Raises InputError where it is no config.json.
        """
        reference = f"{PREFIX}{_name(filename)}-{hashlib.sha256(content).hexdigest()[:8]}"
        spec = replace(self._read(content), name=reference)
        with self._lock:
            self._specs.setdefault(reference, spec)
            while len(self._specs) > self._kept:
                self._specs.pop(next(iter(self._specs)))
        return reference

    def references(self) -> tuple[str, ...]:
        """Every upload there is, the latest first."""
        with self._lock:
            return tuple(reversed(self._specs))

    def named(self, reference: str) -> ModelSpec:
        """The uploaded model. Raises InputError where the server no longer has it."""
        with self._lock:
            spec = self._specs.get(reference)
        if spec is None:
            raise InputError("model", reference, "an upload that this server still has; upload its config.json again")
        return spec


def _name(filename: str) -> str:
    """A file's name as part of an address; config.json itself says nothing.

    >>> _name("My Model (v2).json"), _name("config.json")
    ('my-model-v2', 'config')
    """
    return re.sub(r"[^a-z0-9.]+", "-", PurePath(filename).stem.lower()).strip("-.")[:40] or "config"
