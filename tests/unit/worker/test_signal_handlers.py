"""Handlers of Celery's signals are connected once, with whatever locks tasks."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import celery.signals
import pytest
from celery import Celery
from celery.exceptions import Retry
from celery.utils.dispatch import Signal

from celery_redlock.worker import signal_handlers, steps

CONNECTED = {
    "task_failure": 1,
    "task_postrun": 1,
    "task_received": 1,
    "task_rejected": 1,
    "task_retry": 1,
    "task_revoked": 2,
    "task_unknown": 1,
    "worker_process_init": 1,
    "worker_shutting_down": 1,
}


def handlers_of(name: str) -> list[Any]:
    """Return the receivers of a signal of Celery's that are functions of this package's worker."""
    signal = getattr(celery.signals, name)
    receivers = signal._live_receivers(None)
    return [one for one in receivers if inspect.getmodule(one) is signal_handlers]


@pytest.mark.parametrize(("name", "count"), CONNECTED.items())
def test_each_handler_is_connected_once_for_all_apps(name: str, count: int) -> None:
    for _ in range(2):
        steps.install(Celery("bank", set_as_current=False))
    gc.collect()
    assert len(handlers_of(name)) == count


def test_no_other_signal_has_a_handler() -> None:
    signals = [name for name, value in vars(celery.signals).items() if isinstance(value, Signal)]
    assert {name for name in signals if handlers_of(name)} == set(CONNECTED)


def test_a_locked_task_is_enough_to_connect_handlers() -> None:
    script = (
        "from celery_redlock import SingletonTask\n"
        "from celery.signals import task_postrun\n"
        "[one] = task_postrun._live_receivers(None)\n"
        "print(one.__module__)"
    )
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == signal_handlers.__name__


@pytest.mark.parametrize(
    ("acks_late", "reason", "heard"),
    [
        # Cancelled, for a lost connection or a shutdown: it is put back, unless it is acked.
        (True, None, [("task-1", True)]),
        (False, None, []),
        # Its process died, and a retry of it was published.
        (True, Retry(), [("task-1", False)]),
    ],
)
def test_only_a_cancelled_late_acked_message_comes_again(
    outcomes: list[tuple[str, bool]], acks_late: bool, reason: Retry | None, heard: list[Any]
) -> None:
    task: Any = SimpleNamespace(acks_late=acks_late)
    request = SimpleNamespace(id="task-1")
    signal_handlers._on_retry(
        task, request=request, einfo=None, **({"reason": reason} if reason else {})
    )
    assert outcomes == heard
