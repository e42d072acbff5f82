"""Reports of tests that pytest-xdist can send to the process that prints them."""

from __future__ import annotations

from typing import Any


def encodable(data: Any) -> Any:
    """Return the data of a report with an escape for each lone surrogate in its texts.

    Tests of hostile input log them, and none of a report's texts could be encoded then.
    """
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, dict):
        return {encodable(key): encodable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(encodable(one) for one in data)
    return data
