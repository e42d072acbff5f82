"""The known name that was probably meant by an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, or None if no name is similar."""
    return next(iter(difflib.get_close_matches(name, known)), None)
