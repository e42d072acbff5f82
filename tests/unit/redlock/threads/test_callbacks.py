"""Whatever users' code raises on a thread of this package is logged, and the thread goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import greenlet
import pytest

from celery_redlock.redlock.threads import callbacks, dispatch

PATIENCE_S = 60.0
ANYTHING = pytest.mark.parametrize(
    "error", [ZeroDivisionError, SystemExit, KeyboardInterrupt, greenlet.GreenletExit]
)


def raising(error: type[BaseException]) -> Callable[..., None]:
    def function(*_: object, **__: object) -> None:
        raise error

    return function


class Handler(logging.Handler):
    """A handler of a user's that raises."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self._error


@ANYTHING
def test_whatever_a_callback_raises_is_one_log_line(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    callbacks.call(raising(error), 1, failed="it failed key=%s", about=("k",))
    [record] = caplog.records
    assert record.getMessage() == "it failed key=k"
    assert record.exc_info
    assert record.exc_info[0] is error


@ANYTHING
def test_a_log_handler_that_raises_does_not_end_the_thread(error: type[BaseException]) -> None:
    handler = Handler(error)
    callbacks.logger.addHandler(handler)
    try:
        callbacks.call(raising(error), failed="it failed")
    finally:
        callbacks.logger.removeHandler(handler)


@pytest.mark.parametrize("start", [dispatch.start_thread, dispatch.start_beside])
@ANYTHING
def test_a_log_that_raises_on_our_thread_is_survived(
    error: type[BaseException],
    start: Callable[[Callable[[], None], str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    went_on, log = threading.Event(), raising(error)

    def run() -> None:
        callbacks.tell(log, "line")
        went_on.set()

    start(run, "ours")
    assert went_on.wait(PATIENCE_S)
    [record] = caplog.records
    assert record.getMessage() == f"log or observers failed function={log!r}"
    assert record.exc_info
    assert record.exc_info[0] is error


@ANYTHING
def test_what_a_log_raises_on_a_user_s_thread_is_raised(error: type[BaseException]) -> None:
    with pytest.raises(error):
        callbacks.tell(raising(error))


def test_a_thread_is_ours_only_while_it_runs_our_work() -> None:
    seen: list[bool] = []

    def run() -> None:
        seen.append(dispatch.is_own_thread())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dispatch.run_as_own(run)
    assert seen == [True]
    assert not dispatch.is_own_thread()


def test_users_code_in_the_greenlets_thread_runs_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real thread beside greenlets has it called there."""
    called: list[Callable[[], object]] = []

    class Origin:
        def call(self, function: Callable[[], object]) -> None:
            called.append(function)

        def close(self) -> None:
            pass

    monkeypatch.setattr(dispatch, "_origins", {threading.get_ident(): Origin()})
    callbacks.tell(raising(SystemExit))
    assert len(called) == 1
    monkeypatch.setattr(dispatch, "_origins", {})
    called[0]()
