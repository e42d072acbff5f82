"""Calls to derive keys from: bodies, arguments as given, and as they arrive."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from collections.abc import Callable
from datetime import timedelta, timezone
from enum import Enum, IntEnum
from typing import Any

from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from celery_redlock.keys import key_rule


def body(a: object, b: object = 2, *, c: object = None) -> None: ...


def anything(*args: object, **kwargs: object) -> None: ...


def account_task(account: Any, items: Any = (), when: Any = None) -> None: ...


def name(lock_key: object, *args: object, run: Callable[..., object] = body, **kw: object) -> str:
    return key_rule("proj.sync", run, lock_key).key_for(args, kwargs=kw)


def over_the_wire(value: Any) -> Any:
    return kombu_json.loads(kombu_json.dumps(value))


class Misnamed(str):
    """Text that is written otherwise than it is stored, with a lone surrogate."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another\udc80"

    def __format__(self, spec: str) -> str:
        return str(self)


class Colour(str, Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Plain:
    """An object that only pickle can carry."""

    id = 7


Point = namedtuple("Point", "x y")  # noqa: PYI024 - a task's argument may be one

tricky_text = st.text("1a_-:{}%\"' \x00é\ud83d\ude00😀", max_size=4)
zones = st.sampled_from([None, timezone.utc, timezone(timedelta(hours=5, minutes=45))])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.integers(),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, math.inf, math.nan]),
    st.floats(),
    tricky_text,
    st.text(st.characters(exclude_categories=())),
    st.binary(max_size=4),
    st.sampled_from([Colour.RED, Level.HIGH]),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(timezones=zones),
    st.decimals(),
    st.uuids(),
)
dict_keys = st.one_of(tricky_text, st.integers(-3, 12), st.floats(), st.booleans(), st.none())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(dict_keys, inner, max_size=3),
    ),
    max_leaves=8,
)


def wire_text(value: object) -> str:
    """Return what JSON sends, in one order: an independent idea of when two calls are equal."""
    received = json.loads(kombu_json.dumps(value), parse_float=lambda text: float(text) + 0.0)
    return json.dumps(received, sort_keys=True)
