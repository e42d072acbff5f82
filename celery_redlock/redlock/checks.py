"""What is wrong with an argument, said before anything is done with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .errors import ConfigurationError

SHORTEST_TTL_S = 0.01
"""A lease has to outlast the round that gets it."""


def check_seconds(
    name: str, value: object, *, above_zero: bool = False, endless: bool = False
) -> None:
    """Refuse what is not a number of seconds, >= 0, or > 0 if `above_zero`; inf only if `endless`.

    Raises:
        ConfigurationError: It names the argument, its value and what is needed.
    """
    wanted = "a number of seconds > 0" if above_zero else "a number of seconds >= 0"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name}={value!r}: {wanted} is needed")
    is_out = not (0 <= value < math.inf or (endless and value == math.inf))
    if is_out or (above_zero and value == 0):
        raise ConfigurationError(f"{name}={value!r}: {wanted} is needed")


def check_nodes(nodes: object) -> list[str]:
    """Return the nodes' URLs.

    Raises:
        ConfigurationError: Not a list of strings, an even number of them, or one twice.
    """
    if not isinstance(nodes, Sequence) or isinstance(nodes, str | bytes):
        raise ConfigurationError(f"nodes={type(nodes).__name__}: a list of URLs is needed")
    if not all(isinstance(url, str) for url in nodes):
        raise ConfigurationError("nodes: each must be a URL, as redis://host:6379")
    if len(nodes) % 2 == 0:
        raise ConfigurationError(
            f"{len(nodes)} nodes: an odd number is needed (1, 3, 5 …); with an even one no more "
            "nodes may fail than with one less"
        )
    for url in nodes:
        if list(nodes).count(url) > 1:
            # What stands before the @ or after the ? may be a password.
            name = url.rpartition("@")[2].partition("?")[0]
            raise ConfigurationError(
                f"node {name} is named twice: it would vote twice; name each once"
            )
    return list(nodes)
