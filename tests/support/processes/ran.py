"""A command that has run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has run.

    Attributes:
        exit_code: Its exit status.
        output: What it has written.
    """

    exit_code: int
    output: str

    @property
    def json(self) -> Any:
        """Its output, read as JSON."""
        return json.loads(self.output)


Run = Callable[..., Ran]
"""Runs a command with words, and returns what came of it."""
