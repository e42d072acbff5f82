"""Canvases of singleton tasks: as Celery's own, and with a duplicate in them nothing hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("canvas")
    # More processes than tasks that wait at a gate or for a lock.
    project.start_worker(concurrency=6)
    return project


class Keys:
    """Keys for the calls of one test, each a new one."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"{self.prefix}-{self.count}"


def end_of(result: Any) -> Any:
    """Return what `get()` returns or raises, as soon as it does."""
    try:
        return result.get(timeout=PATIENCE)
    except Exception as error:  # noqa: BLE001 - it is what was asked for
        return error


# --- with a key of its own for each call, all is as without a lock --------------------------------

Form = Callable[[Any, Keys], Any]
FORMS: dict[str, tuple[Form, Any]] = {
    "chain": (lambda t, k: chain(t.skip.s(1, 1, key=k()), t.skip.s(1, key=k())), 3),
    "chain of immutables": (
        lambda t, k: chain(t.skip.si(1, 1, key=k()), t.skip.si(5, 5, key=k())), 10,
    ),
    "group": (lambda t, k: group(t.skip.s(i, i, key=k()) for i in range(4)), [0, 2, 4, 6]),
    "chord": (
        lambda t, k: chord([t.skip.s(i, i, key=k()) for i in range(4)], t.total.s(key=k())), 12,
    ),
    "group in a chain": (
        lambda t, k: chain(
            t.skip.s(1, 1, key=k()),
            group(t.skip.s(i, key=k()) for i in range(3)),
            t.total.s(key=k()),
        ),
        9,
    ),
    "chain in a group": (
        lambda t, k: group(
            chain(t.skip.s(i, 1, key=k()), t.skip.s(1, key=k())) for i in range(3)
        ),
        [2, 3, 4],
    ),
    "chord in a chain": (
        lambda t, k: chain(
            t.skip.s(1, 1, key=k()),
            chord([t.skip.s(i, key=k()) for i in range(3)], t.total.s(key=k())),
            t.skip.s(1, key=k()),
        ),
        10,
    ),
    "chord in a chord": (
        lambda t, k: chord(
            [
                chord([t.skip.s(i, 1, key=k()) for i in range(2)], t.total.s(key=k()))
                for _ in range(2)
            ],
            t.total.s(key=k()),
        ),
        6,
    ),
    "chord of one": (lambda t, k: chord([t.skip.s(3, 4, key=k())], t.total.s(key=k())), 7),
    "replaced": (lambda t, k: t.becomes.s(4, key=k()), 5),
    "replaced in a chain": (lambda t, k: chain(t.becomes.s(4, key=k()), t.skip.s(1, key=k())), 6),
    "retried in a chain": (
        lambda t, k: chain(t.at_third.s(4, key=k()), t.skip.s(1, key=k())), 5,
    ),
    "retried in a chord": (
        lambda t, k: chord([t.at_third.s(i, key=k()) for i in range(3)], t.total.s(key=k())), 3,
    ),
    "map": (lambda t, _: t.double.map([1, 2, 3]), [2, 4, 6]),
    "starmap": (lambda t, _: t.multiply.starmap([(1, 2), (3, 4)]), [2, 12]),
    "chunks": (
        lambda t, _: t.multiply.chunks([(1, 2), (3, 4), (5, 6)], 2).group(), [[2, 12], [30]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_canvas_of_singleton_tasks_ends_as_one_of_others(
    project: Project, key: str, form: str
) -> None:
    make, expected = FORMS[form]
    assert end_of(make(project.tasks, Keys(key)).apply_async()) == expected
    eventually(lambda: not project.holds(key))


def test_callbacks_and_errbacks_are_called(project: Project, key: str) -> None:
    tasks, keys = project.tasks, Keys(key)
    linked = tasks.skip.s(1, 1, key=keys()).on_error(tasks.note.s(key=f"{key}-errback"))
    linked.link(tasks.note.s(key=f"{key}-callback"))
    assert end_of(linked.apply_async()) == 2
    project.wait_for_note("end", key=f"{key}-callback")
    failing = tasks.fail.s(key=keys())
    failing.link_error(tasks.note.si(key=f"{key}-errback"))
    assert isinstance(end_of(failing.apply_async()), Exception)
    project.wait_for_note("end", key=f"{key}-errback")
    assert len(project.notes("end", key=f"{key}-errback")) == 1


# --- with a duplicate in it, nothing hangs --------------------------------------------------------

POLICIES = ["skip", "complete", "raise_", "reschedule", "wait", "coalesce"]
IN_THE_END = {"reschedule", "wait", "coalesce"}
"""Policies with which the duplicate runs after the holder."""


def one(duplicate: Any, _tasks: Any, _keys: Keys) -> Any:
    return duplicate


def head(duplicate: Any, tasks: Any, keys: Keys) -> Any:
    return chain(duplicate, tasks.skip.s(1, key=keys()))


def middle(duplicate: Any, tasks: Any, keys: Keys) -> Any:
    return chain(tasks.skip.s(1, 1, key=keys()), duplicate, tasks.skip.s(1, key=keys()))


def tail(duplicate: Any, tasks: Any, keys: Keys) -> Any:
    return chain(tasks.skip.s(1, 1, key=keys()), duplicate)


def member(duplicate: Any, tasks: Any, keys: Keys) -> Any:
    return group(tasks.skip.s(1, 1, key=keys()), duplicate)


def header(duplicate: Any, tasks: Any, keys: Keys) -> Any:
    return chord([tasks.skip.s(1, 1, key=keys()), duplicate], tasks.total.s(key=keys()))


def header_chain(duplicate: Any, tasks: Any, keys: Keys) -> Any:
    return chord(
        [tasks.skip.s(1, 1, key=keys()), chain(duplicate, tasks.skip.s(1, key=keys()))],
        tasks.total.s(key=keys()),
    )


def inner_chord(duplicate: Any, tasks: Any, keys: Keys) -> Any:
    return chain(
        tasks.skip.s(1, 1, key=keys()),
        chord([tasks.skip.s(1, key=keys()), duplicate], tasks.total.s(key=keys())),
        tasks.skip.s(1, key=keys()),
    )


# What comes of it when the duplicate's own result is 2 + 3, or 3 more than what it is given.
POSITIONS: dict[Callable[..., Any], tuple[bool, Callable[[int], Any]]] = {
    one: (False, lambda own: own),
    head: (False, lambda own: own + 1),
    middle: (True, lambda own: own + 1),
    tail: (True, lambda own: own),
    member: (False, lambda own: [2, own]),
    header: (False, lambda own: 2 + own),
    header_chain: (False, lambda own: 2 + own + 1),
    inner_chord: (True, lambda own: 3 + own + 1),
}


@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: position.__name__)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_canvas_with_a_duplicate_ends(
    project: Project, key: str, policy: str, position: Callable[..., Any]
) -> None:
    tasks = project.tasks
    task = getattr(tasks, policy)
    holder = task.delay(0, key=key, gate=key)
    project.run_of(holder.id)
    is_given, expected = POSITIONS[position]
    duplicate = task.s(3, key=key) if is_given else task.s(2, 3, key=key)
    result = position(duplicate, tasks, Keys(key)).apply_async()
    if policy in IN_THE_END:
        project.open(key)
        assert end_of(result) == expected(5)
    elif policy == "complete":
        assert end_of(result) == expected(tasks.TAKEN)
    else:
        error = end_of(result)
        assert isinstance(error, Exception), error
        wanted = "DuplicateTask" if policy == "skip" else "LockHeld"
        assert wanted in f"{type(error).__name__}: {error!r}"
    project.open(key)
    assert end_of(holder) == 0
    eventually(lambda: not project.holds(key))


@pytest.mark.parametrize("policy", ["skip", "raise_"])
def test_what_comes_after_a_duplicate_in_a_chain_ends_with_it(
    project: Project, key: str, policy: str
) -> None:
    tasks, keys = project.tasks, Keys(key)
    task = getattr(tasks, policy)
    project.run_of(task.delay(0, key=key, gate=key).id)
    result: Any = chain(
        tasks.skip.s(1, 1, key=keys()), task.s(3, key=key), tasks.skip.s(1, key=keys())
    ).apply_async()
    assert isinstance(end_of(result), Exception)
    state = {"skip": "REVOKED", "raise_": "FAILURE"}[policy]
    eventually(lambda: (result.state, result.parent.state) == (state, state))
    eventually(lambda: result.parent.parent.state == "SUCCESS")


@pytest.mark.parametrize("policy", ["skip", "raise_"])
def test_the_body_of_a_chord_with_a_duplicate_fails(
    project: Project, key: str, policy: str
) -> None:
    tasks, keys = project.tasks, Keys(key)
    task = getattr(tasks, policy)
    project.run_of(task.delay(0, key=key, gate=key).id)
    body = tasks.total.s(key=keys()).on_error(tasks.note.si(key=f"{key}-errback"))
    result = chord([tasks.skip.s(1, 1, key=keys()), task.s(2, 3, key=key)], body).apply_async()
    assert isinstance(end_of(result), Exception)
    eventually(lambda: result.state == "FAILURE")
    project.wait_for_note("end", key=f"{key}-errback")


def test_no_callback_or_errback_of_a_skipped_task_is_called(project: Project, key: str) -> None:
    tasks = project.tasks
    project.run_of(tasks.skip.delay(0, key=key, gate=key).id)
    linked = tasks.skip.s(1, key=key)
    linked.link(tasks.note.s(key=f"{key}-callback"))
    linked.link_error(tasks.note.si(key=f"{key}-errback"))
    assert isinstance(end_of(linked.apply_async()), Exception)
    # Sent after them by the same process would be run after them, or beside.
    assert end_of(tasks.double.delay(1)) == 2
    assert not project.notes("begin", key=f"{key}-callback")
    assert not project.notes("begin", key=f"{key}-errback")


@pytest.mark.parametrize("policy", ["skip", "complete", "raise_"])
def test_a_chord_whose_body_is_a_duplicate_ends(project: Project, key: str, policy: str) -> None:
    tasks, keys = project.tasks, Keys(key)
    task = getattr(tasks, policy)
    project.run_of(task.delay(0, key=key, gate=key).id)
    header = [tasks.skip.s(1, 1, key=keys())]
    end = end_of(chord(header, task.si(2, 3, key=key)).apply_async())
    assert end == tasks.TAKEN if policy == "complete" else isinstance(end, Exception)
