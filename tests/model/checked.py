"""What a checker says of a row, in whatever language the protocol is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checked:
    """What a checker found.

    Attributes:
        states: Distinct states seen. Spin counts each mirror image.
        is_whole: Whether no reachable state was left out.
        violation: The promise that broke, or None.
        said: All that it wrote.
    """

    states: int
    is_whole: bool
    violation: str | None
    said: str

    @property
    def holds(self) -> bool:
        """Return whether every reachable state was seen and none breaks a promise."""
        return self.is_whole and self.violation is None
