"""One stable form for equal arguments, the same in the producer and in the worker.

A message carries arguments as JSON, which changes them: a tuple arrives as a list, the key 1 of a
dict as "1", a member of a str enum as a plain string. So a value is first reduced to what is left
of it on the other side (`plain`), then packed into bytes that no other value has (`pack`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from kombu.utils import json as kombu_json

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""Values of JSON, in exact types."""

_DEEPEST = 200
"""Nesting that is refused. Python's own limit depends on how deep the caller is already, and a key
must not: the producer and the worker would disagree."""

_PLAIN_TYPES = (str, int, float, list, tuple, dict, set, frozenset, type(None))


class Unencodable(Exception):
    """A value has no stable form.

    Attributes:
        where: Its path in the arguments, such as `order[…][3]`: a dict's keys are arguments, too.
        problem: What is wrong with it. It names a type, never a value.
    """

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        self.problem = problem


def plain(value: object, where: str, depth: int = 0) -> Plain:
    """Return what is left of `value` after its journey through JSON, keys of dicts in order.

    1, "1", 1.0, True and b"1" stay different; list and tuple become the same, as do -0.0 and 0.0,
    and dict keys that JSON writes alike. A set, which JSON has no form for, is listed in order.

    Args:
        value: An argument, or part of one.
        where: Its path, for the error.
        depth: How many containers it sits in.

    Raises:
        Unencodable: Neither JSON nor kombu's registered types know the type; or the value is
            nested more than 200 deep, which one that contains itself is.
    """
    if depth > _DEEPEST:
        raise Unencodable(where.partition("[")[0], f"is nested more than {_DEEPEST} deep")
    if value.__class__ is not type(value):
        # A proxy claims to be what it stands for, and JSON does not believe it.
        return _as_sent(value, where, depth)
    match value:
        case None | bool():
            result: Plain = value
        case str():
            result = _joined(value)
        case int():
            result = int.__int__(value)
        case float():
            result = float.__float__(value) + 0.0
        case list() | tuple():
            result = [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
        case dict():
            result = _mapping(value, where, depth)
        case set() | frozenset():
            result = _unordered(value, where, depth)
        case _:
            result = _as_sent(value, where, depth)
    return result


def pack(value: Plain) -> bytes:
    """Return bytes that no other plain value has: each piece is tagged and tells its own end."""
    return _PACKED[type(value)](value)


def _packed_text(value: str) -> bytes:
    data = value.encode(errors="surrogatepass")
    return b"s%d:%b" % (len(data), data)


def _packed_mapping(value: dict[str, Plain]) -> bytes:
    items = sorted([_packed_text(key) + pack(item) for key, item in value.items()])
    return b"m%d:%b" % (len(items), b"".join(items))


_PACKED: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"n",
    bool: lambda value: b"t" if value else b"f",
    # Hexadecimal, because Python limits the length of decimal conversions.
    int: lambda value: b"i%x;" % value,
    float: lambda value: b"d%b;" % repr(value).encode(),
    str: _packed_text,
    list: lambda value: b"l%d:%b" % (len(value), b"".join(map(pack, value))),
    dict: _packed_mapping,
}


def digest(value: Plain) -> str:
    """Return 128 bits of `value` as 32 hexadecimal digits, the same on every machine."""
    return hashlib.blake2b(pack(value), digest_size=16).hexdigest()


def as_received(value: object, where: str) -> object:
    """Return the object that the worker would get for `value`, to be shown to people.

    What kombu restores (a datetime, a UUID) comes back as itself; what it can't send is returned
    as it is, because then only a pickled message carries it.

    Raises:
        Unencodable: A container with something in it that has no stable form.
    """
    if not is_plain(value):
        try:
            value = kombu_json.loads(kombu_json.dumps(value))
        except Exception:  # noqa: BLE001 - the user's own encoder may raise anything
            return value
    return plain(value, where) if is_plain(value) else value


def of_json_type(value: object) -> object:
    """Return a value of a type that JSON knows without what its subclass adds; others as is."""
    if value.__class__ is not type(value):
        return value  # a proxy
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case tuple():
            return list(value)
        case dict():
            return dict(value)
        case _:
            return value


def is_plain(value: object) -> bool:
    """Return whether `value` is of a type that JSON knows, so that its text is data alone."""
    return isinstance(value, _PLAIN_TYPES)


def _joined(value: str) -> str:
    """Return `value` as a plain str, with halves of surrogate pairs joined, as JSON joins them."""
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def _mapping(value: dict[object, object], where: str, depth: int) -> Plain:
    """Return `value` with the keys that JSON gives it, in order; of two alike the last counts."""
    items: dict[str, Plain] = {}
    for key, item in value.items():
        if isinstance(key, str):
            name = _joined(key)
        elif key is None or isinstance(key, (int, float)):
            name = json.dumps(key)
        else:
            raise Unencodable(where, f"has a key of type {_type_name(key)}, which JSON can't write")
        items[name] = plain(item, f"{where}[…]", depth + 1)
    return dict(sorted(items.items()))


def _unordered(value: set[object] | frozenset[object], where: str, depth: int) -> Plain:
    try:
        sent = kombu_json.JSONEncoder().default(value)
    except TypeError:
        pass
    else:
        # Registered as a pure transformation: the worker gets this, and no set.
        if not _is_envelope(sent):
            return plain(sent, where, depth + 1)
    # A member sits in a dict and in a list.
    members = [plain(item, f"a member of {where}", depth + 2) for item in value]
    return {"__type__": "set", "__value__": sorted(members, key=pack)}


def _as_sent(value: object, where: str, depth: int) -> Plain:
    for encode in (kombu_json.JSONEncoder().default, _dumped_model):
        try:
            sent = encode(value)
        except Exception:  # noqa: BLE001, S112 - the user's own encoder may raise anything
            continue
        return plain(sent, where, depth + 1)
    # What the encoders say may hold the value, so the error is not chained.
    problem = f"is of type {_type_name(value)}, which JSON can't write"
    raise Unencodable(where, problem)


def _dumped_model(value: Any) -> object:
    """Return what Celery sends for a pydantic model: one is here as the default of a parameter."""
    return type(value).model_dump(value, mode="json")


def _is_envelope(sent: object) -> bool:
    return isinstance(sent, dict) and sent.keys() == {"__type__", "__value__"}


def _type_name(value: object) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__
