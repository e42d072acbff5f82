"""Equal calls have one key, in the producer and in the worker; different calls have others."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from inspect import Parameter, Signature, _ParameterKind
from typing import Any

import pytest
from celery import Celery
from hypothesis import assume, given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from celery_redlock.keys import KeyRule, accepts_token, bindable_signature, key_rule
from celery_redlock.keys.signature import binder
from celery_redlock.redlock.errors import ConfigurationError


def body(a: object, b: object = 2, *, c: object = None) -> None: ...


def anything(*args: object, **kwargs: object) -> None: ...


def account_task(account: Any, items: Any = (), when: Any = None) -> None: ...


def name(lock_key: object, *args: object, run: Callable[..., object] = body, **kw: object) -> str:
    return key_rule("proj.sync", run, lock_key).name_for(args, kwargs=kw)


def over_the_wire(value: Any) -> Any:
    return kombu_json.loads(kombu_json.dumps(value))


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


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    """Registers types with kombu until the end of the test."""
    encoders, decoders = dict(kombu_json._encoders), dict(kombu_json._decoders)  # type: ignore[attr-defined]
    yield kombu_json.register_type
    kombu_json._encoders.clear()  # type: ignore[attr-defined]
    kombu_json._encoders.update(encoders)  # type: ignore[attr-defined]
    kombu_json._decoders.clear()  # type: ignore[attr-defined]
    kombu_json._decoders.update(decoders)  # type: ignore[attr-defined]


# --- the same call --------------------------------------------------------------------------------


@given(values, values, values, st.integers(0, 2))
def test_positional_and_keyword_arguments_give_one_key(
    a: object, b: object, c: object, split: int
) -> None:
    by_name: dict[str, Any] = {"a": a, "b": b}
    positional = [by_name.pop(parameter) for parameter in list(by_name)[:split]]

    assert name(None, *positional, c=c, **by_name) == name(None, a=a, b=b, c=c)


@given(values)
def test_a_default_left_out_and_a_default_passed_give_one_key(a: object) -> None:
    assert name(None, a) == name(None, a, 2) == name(None, a, b=2, c=None)


@given(values, st.dictionaries(st.text(max_size=3), values, max_size=3))
def test_the_worker_computes_the_key_of_the_producer(value: object, extra: dict[str, Any]) -> None:
    for lock_key in (None, ["args"], lambda *args, **kwargs: [args, kwargs]):
        rule = key_rule("proj.sync", anything, lock_key)

        sent = rule.name_for((value, 1), extra)

        assert rule.name_for(over_the_wire([value, 1]), over_the_wire(extra)) == sent


@given(values)
def test_the_worker_computes_the_readable_key_of_the_producer(value: object) -> None:
    assert name("{a}-{a!r}", value) == name("{a}-{a!r}", over_the_wire(value))


@given(st.dictionaries(dict_keys, values, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_a_dict_does_not_matter(value: dict[Any, Any], random: Any) -> None:
    # Of two keys that JSON writes alike (1 and "1") the last one wins: keep to distinct ones.
    items = list({json.dumps([key]): (key, item) for key, item in value.items()}.values())
    items = [(key, item) for key, item in items if isinstance(key, str)]
    shuffled = random.sample(items, len(items))

    assert name(None, dict(items)) == name(None, dict(shuffled))
    assert name("{a}", dict(items)) == name("{a}", dict(shuffled))


def test_a_method_and_a_function_bind_the_same_arguments() -> None:
    class Task:
        def run(self, a: int, b: int = 2, *, c: object = None) -> None: ...

    assert name(None, 1, run=Task().run) == name(None, 1)


def test_a_decorated_body_is_seen_through_its_wrapper() -> None:
    @functools.wraps(body)
    def wrapper(*args: object, **kwargs: object) -> None: ...

    assert bindable_signature(wrapper) == bindable_signature(body)


def test_a_decorator_may_pass_arguments_of_its_own_and_keep_some_from_the_body() -> None:
    def with_session(a: object, session: object) -> None: ...

    @functools.wraps(with_session)
    def run(*args: object, **kwargs: object) -> None: ...

    assert name("{a}", 7, run=run) == name("{a}", a=7, run=run) == "proj.sync:7"
    assert name(None, 7, run=run) == name(None, a=7, run=run) != name(None, 8, run=run)
    assert name(None, 7, run=run, trace=1) != name(None, 7, run=run, trace=2)
    for lock_key in ("{a}{session}", ["a", "session"]):
        with pytest.raises(ConfigurationError, match="'session', which this call leaves to a deco"):
            name(lock_key, 7, run=run)


def test_a_decorator_with_parameters_of_its_own_says_what_callers_pass() -> None:
    @functools.wraps(body)
    def wrapper(number: int) -> None: ...

    assert list(bindable_signature(wrapper).parameters) == ["number"]
    assert name("{number}", 7, run=wrapper) == name("{number}", number=7, run=wrapper)


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (OSError,)}])
def test_bound_and_unbound_celery_tasks_have_one_key(options: dict[str, Any]) -> None:
    app = Celery("proj", set_as_current=False)

    @app.task(bind=True, shared=False, **options)
    def bound(self: object, a: int, b: int = 2, *, c: object = None) -> None: ...

    @app.task(shared=False, **options)
    def unbound(a: int, b: int = 2, *, c: object = None) -> None: ...

    assert name(None, 1, run=bound.run) == name(None, a=1, b=2, run=unbound.run)


def test_a_key_is_the_same_in_another_process_with_another_hash_seed() -> None:
    program = (
        "from celery_redlock.keys import key_rule\n"
        "def run(a): ...\n"
        "value = {'tags': {'a', 'b', 'c', 'd'}, 'pair': (1, 2.5)}\n"
        "for lock_key in (None, '{a}'):\n"
        "    print(key_rule('t', run, lock_key).name_for([value], {}))\n"
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


# --- different calls ------------------------------------------------------------------------------


def wire_text(value: object) -> str:
    """Return what JSON sends, in one order: an independent idea of when two calls are equal."""
    received = json.loads(kombu_json.dumps(value), parse_float=lambda text: float(text) + 0.0)
    return json.dumps(received, sort_keys=True)


@given(values, values)
def test_keys_are_equal_exactly_when_the_messages_are(one: object, other: object) -> None:
    assert (name(None, one) == name(None, other)) == (wire_text(one) == wire_text(other))


small = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 0.0, 1.0, "", "1", "None", b"1", Decimal(1)]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab1"), inner),
    max_leaves=3,
)


@given(small, small)
def test_values_that_look_alike_have_different_keys(one: object, other: object) -> None:
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


def test_tasks_do_not_share_keys() -> None:
    one = key_rule("a:b", body, "{a}")
    other = key_rule("a", body, "b:{a}")

    assert one.name_for(["c"], {}) != other.name_for(["c"], {})


# --- lock_key -------------------------------------------------------------------------------------


def test_an_empty_list_is_one_lock_for_the_whole_task() -> None:
    assert name([], 1) == name((), 2, c=3) == "proj.sync"


def test_a_list_looks_at_the_listed_parameters_only() -> None:
    assert name(["a"], 1, c=5) == name(["a"], 1, c=6)
    assert name(["a"], 1) != name(["a"], 2)
    assert name(["a", "b"], 1, 2) == name(("b", "a", "a"), 1, 2)


def test_a_format_string_stays_readable() -> None:
    assert name("{a}/{b!r}/{c:>4}", "x", "y", c=7) == "proj.sync:x/'y'/   7"


def test_a_format_string_walks_attributes_indexes_and_formats() -> None:
    when = datetime(2024, 5, 6, tzinfo=timezone.utc)
    text = "{account.id}-{items[0]}-{items[1][key]}-{when:%Y-%m}"

    found = name(text, Plain(), ["x", {"key": "y"}], when, run=account_task)

    assert found == "proj.sync:7-x-y-2024-05"


@pytest.mark.parametrize("items", [{1: "x"}, {"1": "x"}])
def test_a_number_in_brackets_finds_a_dict_key_before_and_after_json(items: object) -> None:
    assert name("{items[1]}", None, items, run=account_task) == "proj.sync:x"


def test_a_function_is_called_as_the_task_is_with_defaults() -> None:
    calls = []

    def choose(*args: object, **kwargs: object) -> str:
        calls.append((args, kwargs))
        return "chosen"

    assert name(choose, 1) == "proj.sync:chosen"
    assert name(choose, b=3, a=1, c=4) == "proj.sync:chosen"
    assert calls == [((1, 2), {"c": None}), ((1, 3), {"c": 4})]


def test_what_a_function_returns_is_encoded_unless_it_is_text() -> None:
    def returning(value: object) -> str:
        return name(lambda *args, **kwargs: value, 1)

    assert returning((1, "2")) == returning([1, "2"]) != returning(["1", 2])
    assert returning(1) != returning("1")
    assert returning(Colour.RED) == "proj.sync:red"


def test_a_function_that_fails_fails_as_itself() -> None:
    with pytest.raises(ZeroDivisionError):
        name(lambda *args, **kwargs: 1 / 0, 1)


@pytest.mark.parametrize(
    ("lock_key", "expected"),
    [
        ("{acount}", ["'acount'", "did you mean 'account'?"]),
        ("{zzz}", ["'zzz'", "parameters: account, items, when"]),
        ("{self}", ["'self'"]),
        ("{fencing_token}", ["'fencing_token'"]),
        ("{}", ["without a name"]),
        ("{0}", ["{0}", "without a name"]),
        ("{.id}", ["without a name"]),
        ("{account", ["is no format string"]),
        ("account}", ["is no format string"]),
        ("{account[}", ["is no format string", "can't be read"]),
        ("{account..id}", ["can't be read"]),
        ("{account!x}", ["can't be read"]),
        ("{account:{when}}", ["can't be read"]),
        ("global", ["names no parameter", "lock_key=[]"]),
        ("", ["names no parameter", "lock_key=[]"]),
        ("{{account}}", ["names no parameter"]),
        ("account", ['did you mean "{account}"?']),
        (["acount"], ["did you mean 'account'?"]),
        (["account", 3], ["lists 3"]),
        ([None], ["lists None"]),
        (7, ["type int", "a list of parameter names"]),
        (b"{account}", ["type bytes"]),
        ({"account"}, ["type set"]),
        (True, ["type bool"]),
        (lambda: "x", ["can't be called as the task is"]),
        (lambda account: "x", ["can't be called as the task is"]),
        (lambda a, b, c, d: "x", ["can't be called as the task is", "'d'"]),
    ],
)
def test_a_lock_key_that_can_not_work_is_refused_at_definition(
    lock_key: object, expected: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        key_rule("proj.sync", account_task, lock_key)

    message = str(caught.value)
    assert "task 'proj.sync'" in message
    assert f"lock_key={lock_key!r}" in message
    assert "parameters: account, items, when" in message
    assert any(part in message for part in expected)


@given(st.one_of(st.text("ab{}[]!:.0r*", max_size=8), values, st.lists(st.text(max_size=2))))
def test_a_definition_either_works_or_is_a_configuration_error(lock_key: object) -> None:
    try:
        rule = key_rule("proj.sync", body, lock_key)
    except ConfigurationError as exc:
        assert "lock_key" in str(exc)  # noqa: PT017 - not raising is fine, too
        return
    try:
        assert rule.name_for([1], {}).startswith("proj.sync")
    except ConfigurationError as exc:
        assert "lock_key" in str(exc)  # noqa: PT017


def test_a_builtin_that_hides_its_signature_is_taken_as_it_is() -> None:
    def one(a: object) -> None: ...

    assert name(str, 5, run=one) == "proj.sync:5"


def test_a_function_that_returns_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"returned None.*lock_key=\[\]"):
        name(lambda *args, **kwargs: None, 1)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("{account.id}", [{"id": 1}]),
        ("{account.id}", [None]),
        ("{items[3]}", [1, [1]]),
        ("{items[key]}", [1, [1]]),
        ("{items[key]}", [1, {}]),
        ("{account:d}", ["text"]),
        ("{items:>9}", [1, []]),
    ],
)
def test_a_field_that_does_not_fit_a_call_is_named(text: str, arguments: list[object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        name(text, *arguments, run=account_task)

    assert "task 'proj.sync': lock_key's field {" + text[1:5] in str(caught.value)


# --- what can't be encoded ------------------------------------------------------------------------


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
        (Plain(), "a is", "Plain"),
        ({"lines": [1, 2, 3, Plain()]}, "a['lines'][3] is", "Plain"),
        ({1: (Plain(),)}, "a['1'][0] is", "Plain"),
        ({Plain()}, "a member of a is", "Plain"),
        ({(1, 2): 3}, "a has a key", "tuple"),
        (iter([1]), "a is", "list_iterator"),
        (bytearray(b"x"), "a is", "bytearray"),
        (1j, "a is", "complex"),
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


@pytest.mark.parametrize("lock_key", [None, "{a}"])
def test_a_proxy_is_refused_by_its_own_type_as_json_does(lock_key: object) -> None:
    with pytest.raises(ConfigurationError, match=r"a is of type .*Claims"):
        name(lock_key, Claims())


def test_arguments_in_stars_are_named_by_their_place() -> None:
    with pytest.raises(ConfigurationError, match=r": args\[1\] is of type"):
        name(None, 1, Plain(), run=anything)
    with pytest.raises(ConfigurationError, match=r": kwargs\['x'\] is of type"):
        name(None, x=Plain(), run=anything)


def test_what_a_function_returns_must_have_a_stable_form() -> None:
    with pytest.raises(ConfigurationError, match="what lock_key returned"):
        name(lambda *args, **kwargs: Plain(), 1)


@pytest.mark.parametrize(
    ("lock_key", "value"),
    [
        ("{a}", Plain()),
        ("{a}", [Plain()]),
        ("{a!r}", Plain()),
        (lambda a, *args, **kwargs: str(a), Plain()),
        (lambda a, *args, **kwargs: f"{[a]}", Plain()),
        (None, Plain()),
        (["a"], Plain()),
    ],
)
def test_no_key_holds_a_memory_address(lock_key: object, value: object) -> None:
    with pytest.raises(ConfigurationError, match="lock_key"):
        name(lock_key, value)


def test_text_that_only_looks_like_an_address_is_an_argument_like_any_other() -> None:
    assert name("{a}", "<log at 0xdeadbeef>") == "proj.sync:<log at 0xdeadbeef>"


def test_types_registered_with_kombu_are_encoded_through_it(
    registered: Callable[..., None],
) -> None:
    registered(Plain, "plain", lambda value: {"id": value.id}, lambda _: Plain())

    assert name(None, Plain()) == name(None, over_the_wire(Plain()))


def test_a_type_registered_as_a_pure_transformation_is_what_the_worker_gets(
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

    registered(frozenset, "frozen", list, frozenset)
    one, other = frozenset([0, 8]), frozenset([8, 0])
    assert list(one) != list(other), "no two orders to test with"
    assert name(None, one) == name(None, other) == name(None, over_the_wire(one))


def test_objects_with_a_json_method_are_what_it_returns() -> None:
    class Account:
        def __json__(self) -> object:
            return {"id": 5, "tags": ("a",)}

    assert name(None, Account()) == name(None, over_the_wire(Account()))
    assert name("{a}", Account()) == name("{a}", over_the_wire(Account()))


# --- the body -------------------------------------------------------------------------------------


def with_token(a: int, *, fencing_token: int) -> None: ...
def with_optional_token(a: int, fencing_token: int | None = None) -> None: ...
def with_token_and_more(a: int, *, fencing_token: int, **more: object) -> None: ...


def token_first(fencing_token: int, a: int) -> None: ...
def token_positional(a: int, fencing_token: int, /) -> None: ...
def token_before_star(a: int, fencing_token: int, *more: object) -> None: ...
def token_star(a: int, *fencing_token: int) -> None: ...
def token_double_star(a: int, **fencing_token: int) -> None: ...


@pytest.mark.parametrize("run", [with_token, with_optional_token, with_token_and_more])
def test_the_token_is_no_part_of_the_call(run: Callable[..., object]) -> None:
    assert accepts_token(run)
    assert "fencing_token" not in bindable_signature(run).parameters
    assert key_rule("t", run, "{a}").name_for([1], {}) == "t:1"


@pytest.mark.parametrize("run", [with_token, with_optional_token, with_token_and_more])
def test_a_caller_may_not_pass_the_token(run: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'fencing_token'"):
        key_rule("t", run, None).name_for([1], {"fencing_token": 5})


@pytest.mark.parametrize("run", [body, anything, token_positional, token_star])
def test_a_body_without_a_token_by_name_does_not_accept_one(run: Callable[..., object]) -> None:
    assert not accepts_token(run)


@pytest.mark.parametrize(
    "run", [token_first, token_positional, token_before_star, token_star, token_double_star]
)
def test_a_token_that_an_argument_could_land_in_is_refused(run: Callable[..., object]) -> None:
    with pytest.raises(ConfigurationError, match=r"fencing_token.*after a `\*`"):
        key_rule("t", run, None)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [([], {}), ([1, 2, 3], {}), ([1], {"a": 1}), ([1], {"d": 1})],
)
@pytest.mark.parametrize("lock_key", [None, [], ["a"], "{a}", lambda *args, **kwargs: "x"])
def test_a_wrong_call_is_the_type_error_of_the_signature(
    lock_key: object, args: list[object], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError) as expected:
        bindable_signature(body).bind(*args, **kwargs)

    with pytest.raises(TypeError) as caught:
        name(lock_key, *args, **kwargs)

    assert caught.value.args == expected.value.args
    assert "lambda" not in str(caught.value.__context__)


DEFAULTS = st.sampled_from([[], "'quoted'", object(), None, 1.5])


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    """Draw a signature with parameters of any kind, some of them with the names of builtins."""
    names = draw(st.permutations(["a", "defaults", "self", "list", "ä", "args"]))
    kinds = sorted(draw(st.lists(st.sampled_from(list(_ParameterKind)), max_size=6)))
    parameters: list[Parameter] = []
    has_default = False
    for parameter_name, kind in zip(names, kinds, strict=False):
        is_starred = kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
        if is_starred and any(p.kind is kind for p in parameters):
            continue
        is_by_position = kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
        has_default = draw(st.booleans()) or (has_default and is_by_position)
        default = draw(DEFAULTS) if has_default and not is_starred else Parameter.empty
        parameters.append(Parameter(parameter_name, kind, default=default, annotation="Missing"))
    return Signature(parameters, return_annotation="Missing")


@given(signatures(), st.lists(st.integers(), max_size=4), st.data())
def test_the_interpreter_binds_a_call_as_its_signature_does(
    signature: Signature, args: list[int], data: st.DataObject
) -> None:
    known = st.sampled_from([*signature.parameters, "unknown"])
    kwargs = data.draw(st.dictionaries(known, st.integers(), max_size=3))
    # There the interpreter is right: `**kwargs` takes it. Signatures of Python 3.11 refuse it.
    assume(
        not any(
            p.kind is p.POSITIONAL_ONLY for p in signature.parameters.values() if p.name in kwargs
        )
    )
    arguments_of = binder(signature)

    try:
        expected = signature.bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            arguments_of(*args, **kwargs)
    else:
        expected.apply_defaults()
        assert arguments_of(*args, **kwargs) == expected.arguments


def test_a_name_that_is_taken_by_position_only_may_be_among_the_others() -> None:
    def run(a: int, /, **others: int) -> None: ...

    assert name("{a}", 1, run=run, a=2) == "proj.sync:1"
    assert name(None, 1, run=run, a=2) != name(None, 1, run=run, a=3)


# --- the text -------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=()), max_size=300), st.sampled_from(["t", "a{b}c"]))
def test_a_name_never_ends_its_hash_tag_or_its_line(text: str, task_name: str) -> None:
    found = key_rule(task_name, body, "{a}").name_for([text], {})

    assert not set("{}") & set(found)
    assert len(found.splitlines()) == 1
    assert not any(ord(character) < 32 for character in found)
    assert len(found) < 300
    found.encode()


@given(tricky_text, tricky_text)
def test_escaping_keeps_different_texts_apart(one: str, other: str) -> None:
    assert (name("{a}", one) == name("{a}", other)) == (wire_text(one) == wire_text(other))


def test_a_brace_is_written_as_its_percent_escape() -> None:
    assert name("{{{a}}}%", "x") == "proj.sync:%7Bx%7D%25"


def test_long_texts_that_begin_alike_stay_apart_and_are_cut() -> None:
    one, other = name("{a}", "x" * 5000 + "1"), name("{a}", "x" * 5000 + "2")

    assert one != other
    assert len(one) == len(other) == len("proj.sync:") + 200 + 1 + 32
    assert name("{a}", "x" * 200) == "proj.sync:" + "x" * 200


def test_no_short_text_is_taken_for_a_long_one() -> None:
    cut = name("{a}", "x" * 5000).removeprefix("proj.sync:")

    assert name("{a}", cut) != name("{a}", "x" * 5000)


def test_a_rule_can_not_be_changed() -> None:
    rule: KeyRule = key_rule("t", body, None)

    with pytest.raises(AttributeError):
        rule.task_name = "other"  # type: ignore[misc]
