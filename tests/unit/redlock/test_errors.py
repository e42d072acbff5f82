"""The exceptions: what they say, and that they arrive whole through pickle and JSON."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from celery import Celery
from celery.exceptions import ChordError

from celery_redlock.redlock.errors import (
    AlreadyDone,
    ConfigurationError,
    DuplicateTask,
    LeaseLost,
    LockHeld,
    QuorumUnavailable,
    RedlockError,
    shown,
)

HOLDER = "task-1@host"
DOWN = {"redis-c:6379": "timed out after 50 ms", "redis-d:6379": "Connection refused"}

ERRORS: list[tuple[RedlockError, str]] = [
    (ConfigurationError("2 nodes: an odd number is needed"), "2 nodes: an odd number is needed"),
    (
        LockHeld("invoice:42", HOLDER, 12.3456),
        "cannot lock 'invoice:42': held by task-1@host, set to expire in 12.346 s",
    ),
    (
        LockHeld("k", HOLDER, 1.0, held_since=99.5, task_name="bank.sync"),
        (
            "cannot lock 'k': held by task-1@host since 1970-01-01 00:01:39 UTC; "
            "it expires in 1.000 s unless its holder renews it"
        ),
    ),
    (
        LockHeld("k", HOLDER, held_since=99.5),
        "cannot lock 'k': held by task-1@host since 1970-01-01 00:01:39 UTC",
    ),
    (LockHeld("k"), "cannot lock 'k': held by others"),
    (
        LockHeld("k", HOLDER, 1.0, contended=True),
        "cannot lock 'k': the nodes are split between attempts, task-1@host leads",
    ),
    (
        QuorumUnavailable("invoice:42", DOWN | {"e:1": "x"}, 5),
        (
            "cannot lock 'invoice:42': 2 of 5 nodes answered, 3 are needed "
            "(redis-c:6379: timed out after 50 ms; redis-d:6379: Connection refused; e:1: x)"
        ),
    ),
    (
        QuorumUnavailable("k", {"a:1": "wait", "b:1": "wait", "c:1": "down"}, 3, guarded=2),
        (
            "cannot lock 'k': 2 of 3 nodes answered, 0 may vote yet, 2 are needed "
            "(a:1: wait; b:1: wait; c:1: down)"
        ),
    ),
    (
        QuorumUnavailable("k", {"a:1": "x"}, 1, "release"),
        "cannot release 'k': 0 of 1 nodes answered, 1 is needed (a:1: x)",
    ),
    (
        QuorumUnavailable("k", {"a:1": "another's", "b:1": "down"}, 3, "extend", 0, 1),
        (
            "cannot extend 'k': 2 of 3 nodes answered, 1 of them as needed, 2 are needed "
            "(a:1: another's; b:1: down)"
        ),
    ),
    (
        QuorumUnavailable("k", {"a:1": "down", "b:1": "down"}, 3, unheard=1),
        (
            "cannot lock 'k': 0 of 3 nodes answered, 1 not waited for, 2 are needed "
            "(a:1: down; b:1: down)"
        ),
    ),
    (
        QuorumUnavailable("k", {f"{node}:1": "wait" for node in "abc"}, 5, "lock", 3, 0, 2),
        (
            "cannot lock 'k': 3 of 5 nodes answered, 2 may vote yet, 2 not waited for, "
            "3 are needed (a:1: wait; b:1: wait; c:1: wait)"
        ),
    ),
    (LeaseLost("k"), "the lease on 'k' is lost: it could not be renewed in time"),
    (LeaseLost("k", "it was released"), "the lease on 'k' is lost: it was released"),
    (DuplicateTask("k", "task-1", 2.5), "not run: task task-1 holds 'k', set to expire in 2.500 s"),
    (
        DuplicateTask("k", "task-1", 2.5, "bank.sync", "host", 99.5),
        (
            "not run: task task-1 has held 'k' since 1970-01-01 00:01:39 UTC; "
            "it expires in 2.500 s unless its holder renews it"
        ),
    ),
    (DuplicateTask("k"), "not run: task unknown holds 'k'"),
    (AlreadyDone("k"), "not run again: the task has already run under 'k'"),
]
every_error = pytest.mark.parametrize(
    "error",
    [
        pytest.param(error, id=f"{type(error).__name__}-{number}")
        for number, (error, _) in enumerate(ERRORS)
    ],
)


def assert_same(one: BaseException, other: BaseException) -> None:
    assert type(one) is type(other)
    assert str(one) == str(other)
    assert one.args == other.args
    assert vars(one) == vars(other)


@pytest.mark.parametrize(("error", "message"), ERRORS)
def test_an_error_says(error: RedlockError, message: str) -> None:
    assert str(error) == message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x" * 200, "x" * 200),
        ("x" * 201, f"{'x' * 200}… (201 characters)"),
        ("a\x1b[2Jé\n\u202e", "a\\x1b[2Jé\\n\\u202e"),
        ("\n" * 201, "\\n" * 200 + "… (201 characters)"),
        ("C:\\\n", "C:\\\\n"),
        (5, "5"),
    ],
    ids=["200", "201", "control", "long-control", "backslash", "int"],
)
def test_a_message_repeats_a_text_on_one_line(text: object, line: str) -> None:
    assert shown(text) == line


@every_error
def test_an_error_shows_its_message_in_a_chord_s(error: RedlockError) -> None:
    assert str(error) in str(ChordError(f"Dependency id raised {error!r}")).replace("\\'", "'")
    assert repr(error).startswith(f"{type(error).__name__}(")


@pytest.mark.parametrize(
    ("kind", "keywords", "arguments"),
    [
        (LockHeld, {"key": "k"}, ("k", None, 0.0, False, None, None)),
        (QuorumUnavailable, {"key": "k"}, ("k", {}, 0, "lock", 0)),
        (LeaseLost, {}, ("", "it could not be renewed in time")),
        (DuplicateTask, {"key": "k"}, ("k", None, 0.0, None, None, None)),
        (AlreadyDone, {"key": "k"}, ("k", 0.0)),
    ],
)
def test_an_error_has_all_its_data_as_arguments(
    kind: type[RedlockError], keywords: dict[str, str], arguments: tuple[object, ...]
) -> None:
    error = kind(**keywords)
    assert error.args == arguments
    assert_same(kind(*arguments), error)


@every_error
def test_an_error_survives_pickle_and_copy(error: RedlockError) -> None:
    assert_same(pickle.loads(pickle.dumps(error)), error)  # noqa: S301
    assert_same(copy.copy(error), error)


@every_error
def test_an_error_is_rebuilt_from_its_json_arguments(error: RedlockError) -> None:
    assert_same(type(error)(*json.loads(json.dumps(error.args))), error)


@every_error
def test_an_error_survives_celery_s_result_backend(error: RedlockError) -> None:
    with Celery("test", backend="cache+memory://", set_as_current=False) as app:
        stored = json.loads(json.dumps(app.backend.prepare_exception(error, "json")))
        restored = app.backend.exception_to_python(stored)
    assert isinstance(restored, RedlockError)
    assert_same(restored, error)


@every_error
def test_every_error_is_of_one_tree(error: RedlockError) -> None:
    assert isinstance(error, RedlockError)
    assert isinstance(error, Exception)


def test_the_owner_of_a_held_lock_stays_in_the_process() -> None:
    owner = f"{'5ec2e7' * 5}ab:task-1@host"
    held = LockHeld("k", "task-1@host", 1.0, owner=owner, age=2.0)
    assert (held.owner, held.age) == (owner, 2.0)
    with Celery("test", backend="cache+memory://", set_as_current=False) as app:
        stored = app.backend.prepare_exception(held, "json")
    told = [str(held), repr(held), repr(held.args), repr(vars(held)), repr(stored)]
    told += [pickle.dumps(held).decode("latin-1"), pickle.dumps(copy.copy(held)).decode("latin-1")]
    assert not [text for text in told if "5ec2e7" in text]
    sent = pickle.loads(pickle.dumps(held))  # noqa: S301
    assert (sent.owner, sent.age) == (None, None)


def test_a_held_lock_names_task_and_host_of_its_holder() -> None:
    held = LockHeld("k", "a@b@host", 1.0, held_since=99.5)
    assert (held.task_id, held.hostname, held.held_since, held.task_name) == (
        "a@b", "host", 99.5, None,
    )  # fmt: skip
    nobody = LockHeld("k")
    assert (nobody.task_id, nobody.hostname, nobody.held_since) == (None, None, None)


def test_the_name_of_a_holder_s_task_travels_once_it_is_known() -> None:
    held = LockHeld("k", "a@host", 1.0)
    held.name_task("bank.sync")
    held.name_task("bank.sync")
    assert held.task_name == "bank.sync"
    assert_same(pickle.loads(pickle.dumps(held)), held)  # noqa: S301
    assert type(held)(*held.args).task_name == "bank.sync"


def test_a_duplicate_names_the_task_that_holds_the_lock() -> None:
    duplicate = DuplicateTask("k", "task-1", 2.5, "bank.sync", "host", 99.5)
    assert (duplicate.task_id, duplicate.task_name) == ("task-1", "bank.sync")
    assert (duplicate.hostname, duplicate.held_since) == ("host", 99.5)


LONG = "x" * 1_048_576
LONG_ERRORS: list[RedlockError] = [
    LockHeld(LONG, LONG, 1.0),
    QuorumUnavailable(LONG, {f"{node}:1": LONG for node in "abc"}, 3),
    LeaseLost(LONG, LONG),
    DuplicateTask(LONG, LONG, 1.0),
    AlreadyDone(LONG),
]


@pytest.mark.parametrize("error", LONG_ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_repeats_the_beginning_of_a_long_key(error: RedlockError) -> None:
    assert f"'{'x' * 200}… (1048576 characters)'" in str(error)
    assert len(str(error)) < 10_000
    assert error.args[0] == LONG, "the whole is there for a program"


@pytest.mark.parametrize(
    ("kind", "data", "most"),
    [(QuorumUnavailable, {"a:1": LONG}, 500), (LeaseLost, LONG, 5000)],
    ids=["node", "lease"],
)
def test_a_reason_is_repeated_at_length(kind: type[RedlockError], data: object, most: int) -> None:
    message = str(kind("k", data))
    assert f": {'x' * most}… (1048576 characters)" in message


def test_earlier_versions_read_an_error_without_refusals() -> None:
    assert len(QuorumUnavailable("k", DOWN, 5).args) == 5


def test_the_errors_by_node_are_a_copy() -> None:
    mine = dict(DOWN)
    error = QuorumUnavailable("k", mine, 5)
    mine.clear()
    assert error.errors == DOWN
