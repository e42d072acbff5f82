"""Checks of arguments, before anything is done with them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeGuard
from urllib.parse import urlsplit

from .errors import ConfigurationError, shown
from .labels import LABEL_BYTES, text_of

SHORTEST_TTL_S = 0.01
"""A lease must outlast the round that acquires it."""
SHORTEST_S = 0.001
"""Redis counts in milliseconds; less than one would be an expiry of none."""
KEY_BYTES = 1024
PREFIX_BYTES = 256
"""With the longest key and label, a list of many locks is shorter than a reply may be."""
LONGEST_S = 10 * 365 * 86_400.0
"""Ten years. More is a mistaken unit, and far more overflows what Redis can count."""


def check_seconds(
    name: str,
    value: object,
    *,
    above_zero: bool = False,
    endless: bool = False,
    longest: float = math.inf,
) -> None:
    """Raise an error unless `value` is seconds >= 0 (> 0 if `above_zero`; inf if `endless`).

    More than `longest` is an error, too.

    Raises:
        ConfigurationError: The message names the argument, its value and the range.
    """
    # Mostly.
    if type(value) is float and 0 <= value < longest and (value or not above_zero):
        return
    wanted = "a number of seconds > 0" if above_zero else "a number of seconds >= 0"
    if not _is_number(value):
        raise ConfigurationError(f"{name} must be {wanted}, got {_text_of(value)}")
    is_endless = endless and value == math.inf
    if not (is_endless or 0 <= value < math.inf) or (above_zero and value == 0):
        raise ConfigurationError(f"{name} must be {wanted}, got {_text_of(value)}")
    # An int may be more than any float.
    most = min(longest, sys.float_info.max)
    if value > most and not is_endless:
        got = _text_of(value)
        raise ConfigurationError(f"{name} must be at most {most:.10g} seconds, got {got}")


def _text_of(value: object) -> str:
    """Return a value as a message shows it."""
    try:
        return shown(repr(value))
    except ValueError:
        return "an int that Python refuses to write, since it has too many digits"


def check_count(name: str, value: object) -> None:
    """Raise an error unless `value` is a whole number >= 1.

    Raises:
        ConfigurationError: The message names the argument, its value and the range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number >= 1, got {_text_of(value)}")


def seconds_given(
    value: object, refuse: Callable[[str, str], NoReturn], least: float = SHORTEST_S
) -> float:
    """Return a number of seconds that a user has configured, checked.

    Args:
        value: The number.
        refuse: Raises, given the problem and the remedy.
        least: Smallest valid number, seconds; the largest is ten years.
    """
    if not _is_number(value):
        remedy = "write it without quotes" if isinstance(value, str) else "give seconds"
        refuse(f"is of type {type(value).__name__}, not a number", remedy)
    # A comparison with NaN is never true.
    if not least <= value <= LONGEST_S:
        limits = f"at least {least:g} and at most {LONGEST_S:.0f} (ten years)"
        refuse("is out of range", f"give seconds, {limits}")
    return float(value)


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def lease_times_ms(key: str, ttl: float, lock_delay: float, max_ttl: float) -> tuple[int, int]:
    """Return the ttl and the lock delay of a lease in ms.

    Args:
        key: Key of the lock.
        ttl: The ttl, seconds.
        lock_delay: The lock delay, seconds.
        max_ttl: Longest valid sum of both, seconds.

    Raises:
        ConfigurationError: One of them is not a number, or negative; `ttl` is too short; or both
            together are longer than `max_ttl`.
    """
    check_seconds("ttl", ttl, above_zero=True)
    if not SHORTEST_TTL_S <= ttl <= max_ttl:
        raise ConfigurationError(
            f"cannot lock '{shown(key)}' with ttl={ttl!r} s: it must be {SHORTEST_TTL_S} to "
            f"max_ttl={max_ttl!r} s; choose another, or set max_ttl for all users of these nodes"
        )
    check_seconds("lock_delay", lock_delay)
    if ttl + lock_delay > max_ttl:
        raise ConfigurationError(
            f"cannot lock '{shown(key)}' with ttl={ttl!r} s and lock_delay={lock_delay!r} s: the "
            f"nodes keep it for both together, at most max_ttl={max_ttl!r} s; choose a shorter "
            "one, or set max_ttl for all users of these nodes"
        )
    return round(ttl * 1000), round(lock_delay * 1000)


def check_observers(observers: object) -> None:
    """Raise an error unless `observers` is a list of callables.

    Raises:
        ConfigurationError: The message names the type of what is not.
    """
    if not isinstance(observers, Sequence):
        kind = type(observers).__name__
        raise ConfigurationError(f"observers must be a list of callables, got {kind}")
    for one in observers:
        if not callable(one):
            kind = type(one).__name__
            raise ConfigurationError(f"each of observers must be a callable, got {kind}")


def check_key(key: object, *, may_exist: bool = False) -> str:
    """Return the key of a lock as a plain `str`, checked.

    A subclass, such as a str enum, is equal to its data and may format another text: two holders
    would have locks for equal keys.

    Args:
        key: The key.
        may_exist: Whether it is that of a lock to release, which may be of any length: an older
            version, or anybody else, may have written it.

    Raises:
        ConfigurationError: `key` is not a string, is empty, can't be encoded as UTF-8, or is too
            long.
    """
    if not isinstance(key, str):
        raise ConfigurationError(f"key must be a string, got {type(key).__name__}")
    key = str.__str__(key)
    if not key:
        raise ConfigurationError("key must not be empty; give one such as 'invoice:42'")
    try:
        length = len(key.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"key '{shown(key)}' can't be encoded as UTF-8; replace its lone surrogates"
        ) from error
    if length > KEY_BYTES and not may_exist:
        raise ConfigurationError(
            f"key must be at most {KEY_BYTES} bytes long, got {length}: '{shown(key)}'; shorten "
            "it, or end it with a digest of the rest"
        )
    return key


def check_prefix(prefix: object) -> str:
    """Return the start of keys as a plain `str`, checked.

    Raises:
        ConfigurationError: `prefix` is not a string, can't be encoded as UTF-8, or is too long.
    """
    if not isinstance(prefix, str):
        raise ConfigurationError(f"key_prefix must be a string, got {type(prefix).__name__}")
    prefix = str.__str__(prefix)
    try:
        length = len(prefix.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"key_prefix '{shown(prefix)}' can't be encoded as UTF-8; replace its lone surrogates"
        ) from error
    if length > PREFIX_BYTES:
        raise ConfigurationError(
            f"key_prefix must be at most {PREFIX_BYTES} bytes long, got {length}: "
            f"'{shown(prefix)}'; shorten it"
        )
    return prefix


def check_label(label: object) -> None:
    """Raise an error unless `label`, as text, can name a holder on the nodes.

    Raises:
        ConfigurationError: `label` can't be encoded as UTF-8, or is too long.
    """
    if label is None:
        return
    text = text_of(label)
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"label '{shown(text)}' can't be encoded as UTF-8; replace its lone surrogates"
        ) from error
    if length > LABEL_BYTES:
        raise ConfigurationError(
            f"label must be at most {LABEL_BYTES} bytes long, got {length}: '{shown(text)}'; it "
            "only names the holder, so choose a shorter one"
        )


def check_nodes(nodes: object) -> list[str]:
    """Return the nodes' URLs.

    Raises:
        ConfigurationError: Not a list of strings, an even number of them, or a duplicate.
    """
    if not isinstance(nodes, Sequence) or isinstance(nodes, str | bytes):
        raise ConfigurationError(f"nodes must be a list of URLs, got {type(nodes).__name__}")
    if not all(isinstance(url, str) for url in nodes):
        raise ConfigurationError("each of nodes must be a URL such as redis://host:6379")
    if len(nodes) % 2 == 0:
        raise ConfigurationError(
            f"the number of nodes must be odd (1, 3, 5 …), got {len(nodes)}; an even number "
            "tolerates no more failures than one node less"
        )
    for url in nodes:
        if not _is_encodable(url):
            raise ConfigurationError(
                "a node's URL can't be encoded as UTF-8 (it may hold a password, so it is not "
                "shown): write each byte of its lone surrogates as %XX"
            )
        address = address_of(url)
        if list(nodes).count(url) > 1:
            raise ConfigurationError(
                f"node {address} is named twice: it would vote twice; name each once"
            )
    return list(map(str.__str__, nodes))


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def address_of(url: str) -> str:
    """Return the address in a node's URL, without its password: the node's name in all logs.

    Raises:
        ConfigurationError: The URL can't be parsed, or its port is 0, for which redis-py would take
            6379. It is not shown: it may hold a password.
    """
    try:
        parts = urlsplit(url)
        is_password_given = "password=" in parts.query
        after = parts.path + parts.fragment + ("" if is_password_given else parts.query)
        # An @ behind the host comes from a password with a / ? or # in it.
        if "@" not in after and parts.scheme == "unix" and parts.path.startswith("/"):
            return f"unix:{parts.path}"
        if "@" not in after and parts.scheme != "unix" and parts.port != 0:
            return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        # What the parser takes for a bad port may be a password, so its words are not passed on.
        pass
    raise ConfigurationError(
        "a node's URL can't be read (it may hold a password, so it is not shown): write "
        "redis://user:password@host:6379/0 or unix://user:password@/path, with / ? # @ : in a "
        "password as %2F %3F %23 %40 %3A, and a port of 1 to 65535"
    )
