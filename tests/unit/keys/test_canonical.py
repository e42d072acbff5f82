"""Equal arguments have one stable form, in the producer and in the worker; others have others."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import traceback
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from celery_redlock.keys import key_rule
from celery_redlock.keys.canonical import Unencodable, plain
from celery_redlock.redlock.errors import ConfigurationError
from tests.support.calls import (
    Colour,
    Level,
    Plain,
    Point,
    anything,
    dict_keys,
    name,
    over_the_wire,
    values,
    wire_text,
)
from tests.support.evidence import HostileInputs, hostile_inputs


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    """Registers types with kombu until the end of the test."""
    encoders, decoders = dict(kombu_json._encoders), dict(kombu_json._decoders)  # type: ignore[attr-defined]
    yield kombu_json.register_type
    kombu_json._encoders.clear()  # type: ignore[attr-defined]
    kombu_json._encoders.update(encoders)  # type: ignore[attr-defined]
    kombu_json._decoders.clear()  # type: ignore[attr-defined]
    kombu_json._decoders.update(decoders)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def tried(request: pytest.FixtureRequest) -> Iterator[HostileInputs]:
    """Count what was tried."""
    with hostile_inputs("arguments", request.session) as counts:
        yield counts


@given(values, st.dictionaries(st.text(max_size=3), values, max_size=3))
def test_the_worker_computes_the_key_of_the_producer(
    tried: HostileInputs, value: object, extra: dict[str, Any]
) -> None:
    tried.tried += 1
    for lock_key in (None, ["args"], lambda *args, **kwargs: [args, kwargs]):
        rule = key_rule("proj.sync", anything, lock_key)

        sent = rule.key_for((value, 1), extra)

        assert rule.key_for(over_the_wire([value, 1]), over_the_wire(extra)) == sent


@given(st.dictionaries(dict_keys, values, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_a_dict_does_not_matter(value: dict[Any, Any], random: Any) -> None:
    # Of two keys that JSON writes alike (1 and "1") the last one wins: keep to distinct ones.
    items = list({json.dumps([key]): (key, item) for key, item in value.items()}.values())
    items = [(key, item) for key, item in items if isinstance(key, str)]
    shuffled = random.sample(items, len(items))

    assert name(None, dict(items)) == name(None, dict(shuffled))
    assert name("{a}", dict(items)) == name("{a}", dict(shuffled))


def test_a_key_is_the_same_under_another_hash_seed() -> None:
    program = (
        "from celery_redlock.keys import key_rule\n"
        "def run(a): ...\n"
        "value = {'tags': {'a', 'b', 'c', 'd'}, 'pair': (1, 2.5)}\n"
        "for lock_key in (None, '{a}'):\n"
        "    print(key_rule('t', run, lock_key).key_for([value], {}))\n"
    )

    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(outputs) == 1


def test_the_digest_is_stable_across_releases() -> None:
    # Another digest would let two versions of a deployment run the same task at once.
    assert name(None, 1, {"z": [True, None, "é", 1.5], "a": b"x"}) == (
        "proj.sync:82794dadb3d95c846ec968ae198eed3a"
    )
    assert name(None, {3, "a", (1, 2)}) == "proj.sync:a6f937e1ecae067847bbc8dad4cbd9cd"


@given(values, values)
def test_keys_are_equal_exactly_when_the_messages_are(
    tried: HostileInputs, one: object, other: object
) -> None:
    tried.tried += 1
    assert (name(None, one) == name(None, other)) == (wire_text(one) == wire_text(other))


small = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 0.0, 1.0, "", "1", "None", b"1", Decimal(1)]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab1"), inner),
    max_leaves=3,
)


@given(small, small)
def test_values_that_look_alike_have_different_keys(
    tried: HostileInputs, one: object, other: object
) -> None:
    tried.tried += 1
    assert (name(None, one) == name(None, other)) == (wire_text(one) == wire_text(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, 1.0),
        (1, True),
        (0, False),
        (None, "None"),
        ("1", b"1"),
        ({"a": "1_b-2"}, {"a": "1", "b": "2"}),
        (["a", "b"], ["ab"]),
        ([["a"], "b"], [["a", "b"]]),
        ([], {}),
        ([], None),
        (Decimal("1.0"), 1.0),
        (Decimal("1.0"), "1.0"),
        (datetime(2024, 1, 1), date(2024, 1, 1)),  # noqa: DTZ001 - a naive one is an argument, too
        ({1, 2}, [1, 2]),
    ],
    ids=repr,
)
def test_these_calls_are_different(one: object, other: object) -> None:
    assert name(None, one) != name(None, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        ({2: "a", None: "b", True: "c"}, {"2": "a", "null": "b", "true": "c"}),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        ({Level.HIGH: 1, Colour.RED: 2}, {"3": 1, "red": 2}),
        (-0.0, 0.0),
        (math.nan, -math.nan),
        ("\ud83d\ude00", "\U0001f600"),
        ({"\ud83d\ude00": 1}, {"\U0001f600": 1}),
        ({1, 2, 3}, frozenset({3, 2, 1})),
        ({(1, 2), (3, 4)}, {(3, 4), (1, 2)}),
        (uuid.UUID(int=5), uuid.UUID(int=5)),
        (time(1, 2), time(1, 2, 0)),
    ],
    ids=repr,
)
def test_these_calls_are_the_same(one: object, other: object) -> None:
    assert name(None, one) == name(None, other)


class Hostile:
    def __json__(self) -> object:
        raise RuntimeError("not today")


class Endless:
    def __json__(self) -> object:
        return self


class Claims:
    """Says it is a str, as lazy proxies do."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return str


endless_list: list[object] = []
endless_list.append(endless_list)


@pytest.mark.parametrize(
    ("value", "where", "kind"),
    [
        (Plain(), "a is", "of type tests.support.calls.Plain,"),
        ({"lines": [1, 2, 3, Plain()]}, "a[…][3] is", "Plain"),
        ({1: (Plain(),)}, "a[…][0] is", "Plain"),
        ({Plain()}, "a member of a is", "Plain"),
        ({(1, 2): 3}, "a has a key", "tuple"),
        (iter([1]), "a is", "list_iterator"),
        (bytearray(b"x"), "a is", "bytearray"),
        (1j, "a is", "of type complex,"),
        (object(), "a is", "object"),
        (Hostile(), "a is", "Hostile"),
        (Endless(), "a is nested", "200"),
        (endless_list, "a is nested", "200"),
    ],
)
@pytest.mark.parametrize("lock_key", [None, ["a"]])
def test_what_has_no_stable_form_is_refused_by_path_and_type(
    lock_key: object, value: object, where: str, kind: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        name(lock_key, value)

    message = str(caught.value)
    assert message.startswith("task 'proj.sync': ")
    assert where in message
    assert kind in message
    assert "lock_key" in message
    assert "0x" not in message


class Wrapped:
    """What kombu sends as its content."""

    def __init__(self, content: object) -> None:
        self._content = content

    def __json__(self) -> object:
        return self._content


@pytest.mark.parametrize(
    ("wrap", "deepest"),
    [
        (lambda x: [x], 200),
        (lambda x: (x,), 200),
        (lambda x: {"k": x}, 200),
        # Sent as a list in a dict.
        (lambda x: frozenset([x]), 100),
        (Wrapped, 200),
    ],
    ids=["list", "tuple", "dict", "set", "wrapped"],
)
def test_arguments_may_be_nested_as_deep_as_json_of_200_levels(
    wrap: Callable[[object], object], deepest: int
) -> None:
    value: object = 1
    for _ in range(deepest):
        value = wrap(value)
    plain(value, "a")
    with pytest.raises(Unencodable):
        plain(wrap(value), "a")


@pytest.mark.parametrize("lock_key", [None, "{a}"])
def test_a_proxy_is_refused_by_its_own_type_as_json_does(lock_key: object) -> None:
    with pytest.raises(ConfigurationError, match=r"a is of type .*Claims"):
        name(lock_key, Claims())


@pytest.mark.parametrize("lock_key", [None, "{a}"])
def test_a_proxy_that_json_can_write_is_what_json_writes(lock_key: object) -> None:
    class Told(Claims):
        def __json__(self) -> object:
            return {"id": 5}

    [sent] = over_the_wire([Told()])
    assert name(lock_key, Told()) == name(lock_key, sent) == name(lock_key, {"id": 5})


def test_arguments_in_stars_are_named_by_their_place() -> None:
    with pytest.raises(ConfigurationError, match=r": args\[1\] is of type"):
        name(None, 1, Plain(), run=anything)
    with pytest.raises(ConfigurationError, match=r": kwargs\[…\] is of type"):
        name(None, x=Plain(), run=anything)


def test_what_a_registered_encoder_raises_is_not_shown(registered: Callable[..., None]) -> None:
    def fail(value: object) -> object:
        raise RuntimeError("sesame")

    registered(Plain, "plain", fail, lambda _: Plain())
    with pytest.raises(ConfigurationError) as caught:
        name(None, Plain())
    assert "sesame" not in "".join(traceback.format_exception(caught.value))


def test_types_registered_with_kombu_are_encoded_through_it(
    registered: Callable[..., None],
) -> None:
    registered(Plain, "plain", lambda value: {"id": value.id}, lambda _: Plain())

    assert name(None, Plain()) == name(None, over_the_wire(Plain()))


def test_a_type_kombu_transforms_is_keyed_as_the_worker_gets_it(
    registered: Callable[..., None],
) -> None:
    registered(Plain, None, lambda value: {"z": 1, "id": value.id})

    assert name(None, Plain()) == name(None, {"id": 7, "z": 1})
    assert name("{a}", Plain()) == name("{a}", {"id": 7, "z": 1})


def test_registered_sets_keep_the_key_that_the_worker_computes(
    registered: Callable[..., None],
) -> None:
    registered(set, None, sorted)
    assert name(None, {3, 1}) == name(None, over_the_wire({3, 1})) == name(None, [1, 3])

    registered(set, None, lambda members: {"members": sorted(members)})
    assert name(None, {3, 1}) == name(None, over_the_wire({3, 1}))

    registered(frozenset, "frozen", list, frozenset)
    one, other = frozenset([0, 8]), frozenset([8, 0])
    assert list(one) != list(other), "no two orders to test with"
    assert name(None, one) == name(None, other) == name(None, over_the_wire(one))


def test_a_registered_set_is_checked_as_what_it_is_sent_as(
    registered: Callable[..., None],
) -> None:
    registered(frozenset, None, list)
    value: object = 1
    for _ in range(100):
        value = frozenset([value])
    plain(value, "a")
    with pytest.raises(Unencodable):
        plain(frozenset([value]), "a")
    with pytest.raises(ConfigurationError, match=r": can't derive the lock key: a\[0\] is of type"):
        name(None, frozenset([Plain()]))


def test_objects_with_a_json_method_are_what_it_returns() -> None:
    class Account:
        def __json__(self) -> object:
            return {"id": 5, "tags": ("a",)}

    assert name(None, Account()) == name(None, over_the_wire(Account()))
    assert name("{a}", Account()) == name("{a}", over_the_wire(Account()))
