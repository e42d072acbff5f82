"""Greenlets that Celery kills: whether their tasks have ended, or are executed again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kombu.utils.functional import maybe_list

from celery_redlock.messages.headers import message_headers
from celery_redlock.pools.interrupt import is_greenlet_exit, is_greenlet_timeout
from celery_redlock.pools.pool_process import is_wait_revoked

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

    from celery_redlock.messages.delivery import Delivery

_killed: deque[tuple[str, Callable[[], None]]] = deque(maxlen=1000)
"""Tasks whose greenlet was killed, each with the call that extends its run's done mark."""
_stored: deque[str] = deque(maxlen=1000)
"""Ids of tasks that Celery has ended, whose greenlet may have yet to end."""


def is_revoked(request: Context) -> bool:
    """Return whether somebody has revoked this task, as far as this worker knows."""
    # A pool process knows only what was revoked before it was forked.
    return _is_in_lists(request.id, message_headers(request)) or is_wait_revoked()


def is_received_and_revoked(label: str | None) -> bool:
    """In the main process: return whether a task that a worker has received is revoked.

    Args:
        label: Task id, as in an owner.
    """
    from celery.worker.state import requests  # noqa: PLC0415

    request = requests.get(label or "")
    return _is_in_lists(label, request.request_dict if request else {})


def _is_in_lists(task_id: str | None, headers: Mapping[str, Any]) -> bool:
    """Return whether a task was revoked by its id or by a stamp, as its worker was told."""
    # Only a worker has them, and this package's producers are to be light.
    from celery.worker.state import revoked, revoked_stamps  # noqa: PLC0415

    if task_id in revoked:
        return True
    stamps = headers.get("stamps") if revoked_stamps else None
    if not isinstance(stamps, Mapping):  # a publisher can write anything there
        return False
    names = _listed(headers.get("stamped_headers"))
    return any(
        value in _listed(revoked_stamps.get(name))
        for name, values in stamps.items()
        if name in names
        for value in _listed(values)
    )


def _listed(value: object) -> list[Any]:
    return list(maybe_list(value) or ())


def is_kill(error: BaseException) -> bool:
    """Return whether an exception ends a greenlet that Celery kills, and not the process."""
    return is_greenlet_exit(error) or is_greenlet_timeout(error)


def ends_task(delivery: Delivery, error: BaseException) -> bool:
    """Return whether Celery ends a task for good whose greenlet was killed by `error`.

    It does so for a revoked task, and at a time limit. When a worker is shut down or has lost the
    broker, the message comes again.
    """
    if is_greenlet_exit(error):
        return is_revoked(delivery.request)
    return is_greenlet_timeout(error) and not will_be_redelivered_on_timeout(delivery.task)


def will_be_redelivered_on_timeout(task: Task[Any, Any]) -> bool:
    """Return whether the message of a task that has exceeded its time limit comes again."""
    # Up to Celery 5.6, one attribute decides about both timeouts and failures.
    acks = getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout)
    return bool(task.acks_late and not acks)


def await_outcome(task_id: str, extend_mark: Callable[[], None]) -> None:
    """Extend a killed run's done mark as soon as Celery has stored how its task ended.

    Celery does not wait for a greenlet that it kills: either may be the first.
    """
    if task_id in _stored:
        _stored.remove(task_id)
        extend_mark()
    else:
        _killed.append((task_id, extend_mark))


def settle_killed(task_id: str) -> None:
    """Extend the done marks of a task's killed runs: its result is stored."""
    killed = [one for one in _killed if one[0] == task_id]
    for one in killed:
        _killed.remove(one)
        _, extend_mark = one
        extend_mark()
    if not killed:
        _stored.append(task_id)
