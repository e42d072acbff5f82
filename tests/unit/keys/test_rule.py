"""Equal calls have one key; a rule that can't work is refused when it is made."""

from __future__ import annotations

import traceback
from enum import Enum
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.keys import KeyRule, is_key_of, key_rule
from celery_redlock.redlock.errors import ConfigurationError
from tests.support.calls import (
    Colour,
    Misnamed,
    Plain,
    account_task,
    body,
    name,
    tricky_text,
    values,
    wire_text,
)


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


UNWRITABLE = Plain()


def test_parameters_may_be_named_by_a_str_enum() -> None:
    class Parameter(str, Enum):
        A = "a"

    assert name([Parameter.A], 1) == name(["a"], 1) != name(["a"], 2)


@pytest.mark.parametrize("member", [Colour.RED, Misnamed("data")])
@pytest.mark.parametrize("lock_key", [None, ["a"], "{a}", "{a!s:.9}", "{a!r}", lambda a, b, c: a])
def test_a_str_enum_has_the_key_of_its_data(lock_key: object, member: str) -> None:
    text = str.__str__(member)
    assert name(lock_key, member) == name(lock_key, text)
    assert name(lock_key, {member: [member]}) == name(lock_key, {text: [text]})


@pytest.mark.parametrize("lock_key", [None, ["a", "mode"]])
@pytest.mark.parametrize("default", [UNWRITABLE, [UNWRITABLE], {(1, 2): 3}, Plain])
def test_a_default_that_json_can_not_write_is_in_no_key(lock_key: object, default: object) -> None:
    def rule_of(default: object) -> KeyRule:
        def run(a: object, mode: object = default) -> None: ...

        return key_rule("proj.sync", run, lock_key)

    rule, elsewhere = rule_of(default), rule_of(Plain())
    assert rule.key_for([1], {}) == elsewhere.key_for([1], {}) == rule.key_for([1, default], {})
    assert rule.key_for([1], {}) != rule.key_for([2], {})
    others: list[object] = [None, "", {}]
    assert rule.key_for([1], {}) not in {rule.key_for([1, other], {}) for other in others}
    with pytest.raises(ConfigurationError, match="mode is of type"):
        rule.key_for([1, Plain()], {})


def test_tasks_do_not_share_keys() -> None:
    one = key_rule("a:b", body, "{a}")
    other = key_rule("a", body, "b:{a}")

    assert one.key_for(["c"], {}) != other.key_for(["c"], {})


def test_an_empty_list_is_one_lock_for_the_whole_task() -> None:
    assert name([], 1) == name((), 2, c=3) == "proj.sync"


def test_a_list_looks_at_the_listed_parameters_only() -> None:
    assert name(["a"], 1, c=5) == name(["a"], 1, c=6)
    assert name(["a"], 1) != name(["a"], 2)
    assert name(["a", "b"], 1, 2) == name(("b", "a", "a"), 1, 2)


def test_a_function_is_called_as_the_task_is_with_defaults() -> None:
    calls = []

    def choose(*args: object, **kwargs: object) -> str:
        calls.append((args, kwargs))
        return "chosen"

    assert name(choose, 1) == "proj.sync:chosen"
    assert name(choose, b=3, a=1, c=4) == "proj.sync:chosen"
    assert calls == [((1, 2), {"c": None}), ((1, 3), {"c": 4})]


def test_a_function_gets_keyword_only_parameters_by_name() -> None:
    assert name(lambda a, b, *, c: f"{a}{b}{c}", 1, c=3) == "proj.sync:123"
    with pytest.raises(ConfigurationError, match="can't be called as the task is"):
        name(lambda a, b: "x", 1)


def test_a_task_without_parameters_has_none_to_name() -> None:
    def run() -> None: ...

    with pytest.raises(ConfigurationError, match=r"\(parameters: none\)"):
        key_rule("t", run, "{a}")


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
        ("{zzz}", ["'zzz'", "name a parameter of the task"]),
        ("{self}", ["'self'"]),
        ("{fencing_token}", ["'fencing_token'"]),
        ("{}", ["without a name", "name the parameter"]),
        ("{0}", ["{0}", "without a name"]),
        ("{.id}", ["without a name"]),
        ("{account", ["is not a format string"]),
        ("account}", ["is not a format string", "double a brace that is text"]),
        ("{account[}", []),
        ("{account..id}", ["can't be read", 'write it as "{parameter}"']),
        ("{account!x}", ["can't be read"]),
        ("{account:{when}}", ["can't be read"]),
        ("global", ["names no parameter", "lock_key=[]"]),
        ("", ["names no parameter", "lock_key=[]"]),
        ("{{account}}", ["names no parameter"]),
        ("account", ["names no parameter", 'did you mean "{account}"?']),
        (["acount"], ["did you mean 'account'?"]),
        (["account", 3], ["lists 3", "list parameter names"]),
        ([None], ["lists None"]),
        (7, ["type int", "a list of parameter names"]),
        (b"{account}", ["type bytes"]),
        ({"account"}, ["type set"]),
        (True, ["type bool"]),
        (lambda: "x", ["can't be called as the task is", "give it the task's own parameters"]),
        (lambda account: "x", ["can't be called as the task is"]),
        (lambda args, kwargs: "x", ["celery-heimdall", "the task's own parameters"]),
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
    assert all(part in message for part in expected)


@given(st.one_of(st.text("ab{}[]!:.0r*", max_size=8), values, st.lists(st.text(max_size=2))))
def test_a_definition_either_works_or_is_a_configuration_error(lock_key: object) -> None:
    try:
        rule = key_rule("proj.sync", body, lock_key)
    except ConfigurationError as exc:
        assert "lock_key" in str(exc)  # noqa: PT017 - not raising is fine, too
        return
    try:
        assert rule.key_for([1], {}).startswith("proj.sync")
    except ConfigurationError as exc:
        assert "lock_key" in str(exc)  # noqa: PT017


def test_a_builtin_that_hides_its_signature_is_taken_as_it_is() -> None:
    def one(a: object) -> None: ...

    assert name(str, 5, run=one) == "proj.sync:5"


def test_a_function_that_returns_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"returned None.*lock_key=\[\]"):
        name(lambda *args, **kwargs: None, 1)


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


def test_a_memory_address_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"memory address.*return an attribute"):
        name(lambda a, *args, **kwargs: str(a), Plain())


def test_whether_a_call_is_accepted_is_known_without_its_key() -> None:
    rule = key_rule("t", body, "{a.id}")
    assert rule.accepts([1], {"c": 3})
    assert not rule.accepts([], {"c": 3})
    assert not rule.accepts([1], {"d": 3})


def test_text_that_a_function_returns_may_hold_a_number_after_at() -> None:
    assert name(lambda a, *args, **kwargs: a, "fault at 0x1f") == "proj.sync:fault at 0x1f"
    assert name(lambda a, *args, **kwargs: a, "at 0x7f2b6e7a0710") == "proj.sync:at 0x7f2b6e7a0710"


class Telltale:
    """What it raises, and so what an error could show, is the argument itself."""

    def __getattr__(self, attribute: str) -> Any:
        raise AttributeError("sesame")

    def __format__(self, spec: str) -> str:
        raise ValueError("sesame")

    def __iter__(self) -> Any:
        raise TypeError("sesame")


@pytest.mark.parametrize(
    "lock_key", [None, ["a"], "{a}", "{a.b}", "{a[b]}", "{a[sesame]}", "{a:d}"]
)
@pytest.mark.parametrize("value", [{"sesame": Telltale()}, Telltale(), [{"sesame": {1j: 1}}]])
def test_no_error_shows_a_value_a_dicts_key_or_what_was_raised(
    lock_key: object, value: object
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        name(lock_key, value)
    shown = "".join(traceback.format_exception(caught.value))
    if lock_key == "{a[sesame]}":
        shown = shown.replace("a[sesame]", "")
    assert "sesame" not in shown


@given(st.text(st.characters(exclude_categories=()), max_size=300), st.sampled_from(["t", "a{b}c"]))
def test_a_name_never_ends_its_hash_tag_or_its_line(text: str, task_name: str) -> None:
    found = key_rule(task_name, body, "{a}").key_for([text], {})

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
    assert name("{a}", "\u2028") == "proj.sync:%E2%80%A8"


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


@pytest.mark.parametrize(
    ("key", "expected"),
    [("a:b", False), ("a%3Ab", True), ("a%3Ab:1", True), ("a%3Abc:1", False), ("a", False)],
)
def test_the_keys_of_a_task_are_told_from_those_of_others(key: str, expected: bool) -> None:
    assert is_key_of(key, "a:b") is expected


def test_names_that_messages_bring_are_not_kept_for_ever() -> None:
    class Name(str):
        """Text whose end can be seen."""

        __slots__ = ("__weakref__",)

    kept = WeakSet[Name]()
    for number in range(5000):
        sent = Name(f"unknown.task.{number}")
        kept.add(sent)
        assert not is_key_of("proj.sync:1", sent)

    assert len(kept) < 2000


def test_a_key_of_heimdalls_is_refused_for_two_parameters() -> None:
    def sync(account: int, full: bool) -> None: ...

    with pytest.raises(ConfigurationError, match="as celery-heimdall's key does"):
        key_rule("sync", sync, lambda args, kwargs: args[0])

    def annotated(args: Any, kwargs: Any) -> object: ...

    with pytest.raises(ConfigurationError, match="as celery-heimdall's key does"):
        key_rule("sync", sync, annotated)

    def forward(args: Any, kwargs: Any) -> None: ...

    assert key_rule("forward", forward, lambda args, kwargs: "x").key_for([1, 2], {}) == "forward:x"
    variadic = key_rule("sync", sync, lambda *args, **kwargs: f"{args[0]}")
    assert variadic.key_for([1, True], {}) == "sync:1"
