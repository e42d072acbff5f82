"""Threads that are started run, whatever is raised in the thread that starts them."""

from __future__ import annotations

import _thread
import ctypes
import select
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_redlock.redlock.threads import dispatch
from tests.support.eventually import eventually

Start = Callable[[Callable[..., object], tuple[Any, ...]], object]
PATIENCE_S = 60.0
WAYS = pytest.mark.parametrize("start", [dispatch.start_thread, dispatch.start_beside])
start_new_thread = _thread.start_new_thread


class StruckError(Exception):
    """Raised from outside."""


@pytest.fixture
def _raised_unseen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ignore what threads raise, until the last of them has ended: that is after its `run`."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before = _thread._count()
    yield
    eventually(lambda: _thread._count() <= before, "the threads have ended")


def start_killed(function: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Start a thread that dies before its first line, and lets go of what it was given."""
    start_new_thread(lambda *_: None, args)


def first(odd: Start) -> Start:
    """Return a function that starts the first thread oddly, the others well."""
    ways = [odd]

    def start(function: Callable[..., object], args: tuple[Any, ...]) -> object:
        return (ways.pop() if ways else start_new_thread)(function, args)

    return start


@WAYS
def test_a_thread_that_dies_as_it_starts_is_replaced(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., None]
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", first(start_killed))
    has_run = threading.Event()
    start(has_run.set, "a thread")
    assert has_run.wait(PATIENCE_S)


@WAYS
def test_threads_that_all_die_as_they_start_are_an_error(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., None]
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", start_killed)
    with pytest.raises(RuntimeError, match="end before they begin"):
        start(pytest.fail, "a thread")


@WAYS
def test_a_thread_that_is_slow_to_begin_runs_once(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., None]
) -> None:
    slow: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *args: slow.append(args))
    monkeypatch.setattr(dispatch, "_BEGINS_WITHIN_S", 0.0)
    runs: list[str] = []
    start(lambda: runs.append(threading.current_thread().name), "a thread")
    assert runs == [], "it is not waited for without end"
    assert len(slow) > 1, "another one was started in its place"
    before = threading.current_thread().name
    try:
        for function, args in slow:
            function(*args)
    finally:
        threading.current_thread().name = before
    assert runs == ["a thread"]


@WAYS
@pytest.mark.usefixtures("_raised_unseen")
def test_a_strike_at_the_starter_prevents_no_thread(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., None]
) -> None:
    def start_and_strike(function: Callable[..., object], args: tuple[Any, ...]) -> None:
        start_new_thread(function, args)
        # Up to Python 3.11 it is the new thread that is hit.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threading.get_ident()), ctypes.py_object(StruckError)
        )

    for _ in range(100):
        has_run = threading.Event()
        monkeypatch.setattr(_thread, "start_new_thread", first(start_and_strike))
        try:
            start(has_run.set, "a thread")
        except StruckError:
            continue
        assert has_run.wait(PATIENCE_S)


@WAYS
@pytest.mark.usefixtures("_raised_unseen")
def test_a_thread_without_memory_for_its_name_runs(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., None]
) -> None:
    def current_thread() -> threading.Thread:
        raise MemoryError

    refusing = SimpleNamespace(
        current_thread=current_thread, _active={}, _DummyThread=threading.Thread
    )
    monkeypatch.setattr(dispatch, "threading", refusing)
    has_run = threading.Event()
    start(has_run.set, "a thread")
    assert has_run.wait(PATIENCE_S)


@WAYS
@pytest.mark.usefixtures("_raised_unseen")
def test_a_thread_without_memory_to_tell_that_it_begins_runs(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., None]
) -> None:
    class Awaited(dispatch._Beginning):
        def tell(self) -> None:
            raise MemoryError

    monkeypatch.setattr(dispatch, "_Beginning", Awaited)
    has_run = threading.Event()
    start(has_run.set, "a thread")
    assert has_run.wait(PATIENCE_S)


@WAYS
def test_a_thread_that_has_ended_is_listed_no_more(start: Callable[..., None]) -> None:
    names: list[str] = []
    start(lambda: names.append(threading.current_thread().name), "a listed thread")
    eventually(lambda: names == ["a listed thread"])
    eventually(lambda: "a listed thread" not in [one.name for one in threading.enumerate()])


def test_a_thread_that_threading_has_started_stays_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests, and perhaps tools, have the function run on the thread that starts it."""
    monkeypatch.setattr(dispatch, "_start_and_wait", lambda run: run())
    thread = threading.current_thread()
    monkeypatch.setattr(thread, "name", thread.name)
    dispatch.start_thread(lambda: None, "not a thread of its own")
    assert threading.current_thread() is thread


@pytest.fixture(params=["gevent", "eventlet"])
def _greenlets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either library, whose greenlets are threads that bear its name."""

    def spawn(function: Callable[[], object]) -> None:
        threading.Thread(target=function, name=request.param).start()

    def call_soon(
        spawn: Callable[[Callable[[], object]], None], call: Callable[[], object]
    ) -> None:
        spawn(call)

    def trampoline(fd: int, *, read: bool) -> None:
        assert read
        assert select.select([fd], [], [], PATIENCE_S)[0]

    loop = SimpleNamespace(run_callback_threadsafe=call_soon)
    libraries = {
        "gevent": SimpleNamespace(get_hub=lambda: SimpleNamespace(loop=loop), spawn=spawn),
        "eventlet": SimpleNamespace(spawn_n=spawn, hubs=SimpleNamespace(trampoline=trampoline)),
    }
    monkeypatch.setitem(sys.modules, request.param, libraries[request.param])
    nothing = SimpleNamespace(is_module_patched=lambda _: False)
    monkeypatch.delitem(sys.modules, "gevent.monkey", raising=False)
    monkeypatch.delitem(sys.modules, "eventlet.patcher", raising=False)
    if request.param == "gevent":
        monkeypatch.setitem(sys.modules, "gevent.monkey", nothing)
    monkeypatch.setattr(dispatch, "is_green", lambda: True)


@pytest.mark.usefixtures("_greenlets")
def test_a_thread_beside_greenlets_has_users_code_called_among_them(
    request: pytest.FixtureRequest,
) -> None:
    seen: list[tuple[object, ...]] = []
    two_calls = threading.Semaphore(0)

    def log(*args: object, **kwargs: object) -> None:
        seen.append((threading.current_thread().name, dispatch.is_own_thread(), args, kwargs))
        two_calls.release()

    def run() -> None:
        for number in range(2):
            dispatch.run_in_origin_thread(log, number, key="k")
            assert two_calls.acquire(timeout=PATIENCE_S)
        seen.append((dispatch.is_own_thread(),))

    dispatch.start_thread(run, "ours")
    library = request.node.callspec.params["_greenlets"]
    calls = [(library, True, (number,), {"key": "k"}) for number in range(2)]
    eventually(lambda: seen == [*calls, (True,)], "the calls, and then the thread, have ended")
    eventually(lambda: library not in [one.name for one in threading.enumerate()], "all have ended")
    eventually(lambda: not dispatch._origins, "its origin is forgotten")


@pytest.mark.usefixtures("_greenlets")
def test_work_beside_greenlets_may_be_a_greenlet() -> None:
    seen: list[tuple[bool, bool]] = []

    def run() -> None:
        seen.append((dispatch.is_own_thread(), threading.current_thread().name == "ours"))

    dispatch.start_beside(run, "ours")
    eventually(lambda: seen == [(True, False)], "it runs, without a thread that has a name")


@pytest.mark.parametrize("green", [False, True])
def test_a_child_does_not_know_the_threads_of_its_parent(
    monkeypatch: pytest.MonkeyPatch, green: bool
) -> None:
    """Its new threads may have their numbers; greenlets go on in the child."""
    here = threading.get_ident()
    own, origins = {here, -1}, {-1: cast(Any, object())}
    monkeypatch.setattr(dispatch, "_own", own)
    monkeypatch.setattr(dispatch, "_origins", origins)
    monkeypatch.setattr(dispatch, "is_green", lambda: green)
    dispatch.after_fork()
    assert own == ({here, -1} if green else {here})
    assert bool(origins) == green
