"""Durations that tests measure, as a table."""

from __future__ import annotations

import statistics


class Figures:
    """Durations, by what was measured; `str` of it is the table."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def add(self, what: str, seconds: float) -> None:
        """Take down one duration."""
        self._seconds.setdefault(what, []).append(seconds)

    def __str__(self) -> str:
        width = max(map(len, self._seconds), default=0)
        lines = [f"{'':{width}}     n  median ms  longest ms"]
        for what, seconds in self._seconds.items():
            median, longest = statistics.median(seconds) * 1000, max(seconds) * 1000
            lines.append(f"{what:{width}} {len(seconds):5} {median:10.1f} {longest:11.1f}")
        return "\n".join(lines)
