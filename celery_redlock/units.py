"""Durations, sizes, numbers and long names as text, for terminals and pages."""

from __future__ import annotations

_UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


def seconds(value: float | None) -> str:
    """Return a duration in the unit that fits; '-' for None."""
    if value is None:
        return "-"
    for name, unit in _UNITS:
        # Two of a unit say more than one of the next.
        if abs(value) >= 2 * unit:
            return f"{value / unit:.0f} {name}"
    return f"{value:.1f} s"


def milliseconds(value: float | None, *, sign: str = "") -> str:
    """Return a duration in ms, or from a second on in s; '-' for None."""
    if value is None:
        return "-"
    return f"{value:{sign}.2f} s" if abs(value) >= 1 else f"{value * 1000:{sign}.1f} ms"


def size(value: int | None) -> str:
    """Return a number of bytes in MB; '-' for None."""
    return "-" if value is None else f"{value / 1e6:.1f} MB"


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def middle(text: str, most: int) -> str:
    """Return a text, or its beginning and its end: at most `most` characters, at least 3."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"
