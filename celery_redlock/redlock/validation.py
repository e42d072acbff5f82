"""Checks of arguments, before anything is done with them."""

from __future__ import annotations

import inspect
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
    longest: float = sys.float_info.max,
) -> None:
    """Raise an error unless `value` is seconds >= 0 (> 0 if `above_zero`; inf if `endless`).

    More than `longest` is an error, too.

    Raises:
        ConfigurationError: The message names the argument, its value and the range.
    """
    if _is_number(value) and value >= 0 and (value or not above_zero):
        if value <= longest or (endless and value == math.inf):
            return
        # An int may be more than any float.
        if value < math.inf:
            got = _text_of(value)
            raise ConfigurationError(f"{name} must be at most {longest:.10g} seconds, got {got}")
    wanted = "a number of seconds > 0" if above_zero else "a number of seconds >= 0"
    raise ConfigurationError(f"{name} must be {wanted}, got {_text_of(value)}")


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


def check_flag(name: str, value: object) -> None:
    """Raise an error unless `value` is True or False.

    Raises:
        ConfigurationError: The message names the argument and its value.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, got {_text_of(value)}")


def check_clock(clock: object) -> None:
    """Raise an error unless `clock` has the methods of `Clock`.

    Raises:
        ConfigurationError: The message names a method that it lacks.
    """
    for name in ("now", "wall_us", "sleep"):
        if not callable(getattr(clock, name, None)):
            kind = type(clock).__name__
            raise ConfigurationError(f"clock must have the method {name}(), which {kind} lacks")


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
    """Raise an error unless `observers` is a list of callables, none of them async.

    Raises:
        ConfigurationError: The message says what is not.
    """
    if not isinstance(observers, Sequence):
        kind = type(observers).__name__
        raise ConfigurationError(f"observers must be a list of callables, got {kind}")
    for one in observers:
        check_callback("each of observers", one)


def check_callback(name: str, value: object) -> None:
    """Raise an error unless `value`, the argument `name`, can be called back.

    Raises:
        ConfigurationError: It can't be called, or is an async function.
    """
    if not callable(value):
        raise ConfigurationError(f"{name} must be a callable, got {type(value).__name__}")
    if inspect.iscoroutinefunction(value):
        raise ConfigurationError(
            f"{name} must be a plain function: an async one would never be awaited; have it "
            "schedule the coroutine, with asyncio.run_coroutine_threadsafe(…)"
        )


def check_key(key: object, *, may_exist: bool = False) -> str:
    """Return the key of a lock as a plain `str`, checked.

    Args:
        key: The key.
        may_exist: Whether it is that of a lock to release, which may be of any length: an older
            version, or anybody else, may have written it.

    Raises:
        ConfigurationError: `key` is not a string, is empty, can't be encoded as UTF-8, or is too
            long.
    """
    most = math.inf if may_exist else KEY_BYTES
    text = _plain_text("key", key, most, "shorten it, or end it with a digest of the rest")
    if not text:
        raise ConfigurationError("key must not be empty; give one such as 'invoice:42'")
    return text


def check_prefix(prefix: object) -> str:
    """Return the start of keys as a plain `str`, checked.

    Raises:
        ConfigurationError: `prefix` is not a string, can't be encoded as UTF-8, or is too long.
    """
    return _plain_text("key_prefix", prefix, PREFIX_BYTES, "shorten it")


def check_label(label: object) -> None:
    """Raise an error unless `label`, as text, can name a holder on the nodes.

    Raises:
        ConfigurationError: `label` can't be encoded as UTF-8, or is too long.
    """
    remedy = "it only names the holder, so choose a shorter one"
    _plain_text("label", text_of(label), LABEL_BYTES, remedy)


def _plain_text(name: str, value: object, most: float, remedy: str) -> str:
    """Return a string as a plain `str` of at most `most` bytes.

    A subclass, such as a str enum, is equal to its data and may format another text: two holders
    would have locks for equal keys.

    Args:
        name: The argument, for the message of an error.
        value: The string.
        most: Bytes that it may have as UTF-8.
        remedy: For the message, if it has more.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a string, got {type(value).__name__}")
    text = str.__str__(value)
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{name} '{shown(text)}' can't be encoded as UTF-8; replace its lone surrogates"
        ) from error
    if length > most:
        raise ConfigurationError(
            f"{name} must be at most {most} bytes long, got {length}: '{shown(text)}'; {remedy}"
        )
    return text


def check_nodes(nodes: object) -> list[str]:
    """Return the nodes' URLs.

    Raises:
        ConfigurationError: Not a list of strings, an even number of them, a duplicate, or one that
            can't be read.
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
        address = address_of(url)
        if list(nodes).count(url) > 1:
            raise ConfigurationError(
                f"node {address} is named twice: it would vote twice; name each once"
            )
    return list(map(str.__str__, nodes))


def address_of(url: str) -> str:
    """Return the address in a node's URL, without its password: the node's name in all logs.

    Raises:
        ConfigurationError: The URL can't be parsed or encoded, or its port is 0, for which redis-py
            would take 6379. It is not shown: it may hold a password.
    """
    try:
        url.encode()
        parts = urlsplit(url)
        # An @ behind the host comes from a password with a / ? or # in it.
        is_at_allowed = "password=" in parts.query
        is_cut = "@" in parts.path + parts.fragment or ("@" in parts.query and not is_at_allowed)
        is_path = parts.path.startswith("/") and not parts.hostname
        if not is_cut and parts.scheme == "unix" and is_path:
            return f"unix:{parts.path}"
        if not is_cut and parts.scheme != "unix" and parts.port != 0:
            return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        # What the parser takes for a bad port may be a password, so its words are not passed on.
        pass
    raise ConfigurationError(
        "a node's URL can't be read (it may hold a password, so it is not shown): write "
        "redis://user:password@host:6379/0 or unix://user:password@/path, with / ? # @ : in a "
        "password as %2F %3F %23 %40 %3A, each byte that is not UTF-8 as %XX, and a port of 1 to "
        "65535"
    )
