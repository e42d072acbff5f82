"""What becomes of an execution that does not get its lock.

Each function ends the execution: it returns the task's result, or raises what Celery's tracer
takes for an ending.
"""

from __future__ import annotations

import logging
import math
import random
import time
from typing import TYPE_CHECKING, Any, NoReturn

from celery import states
from celery.exceptions import Ignore, Reject, Retry

from .publish import seconds_until
from .redlock.errors import DuplicateTask, LockHeld, QuorumUnavailable
from .redlock.lease import host_of, task_of
from .run import COPY_HEADER, SERIALIZER, is_copy
from .signals import lock_conflict

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

logger = logging.getLogger(__name__)
_SHORTEST_COUNTDOWN_S = 0.1
_BEFORE_EXPIRY_S = 1.0
_VISIBILITY_TIMEOUT_S = 3600.0
"""A Redis broker's unless it is told otherwise. Source: kombu, transport/redis.py."""
_QUIET_S = 30.0
_quiet_until = 0.0
NO_QUORUM_PAUSE_S = 5.0
"""After this long an execution that got no quorum is tried again."""


class Skipped(Ignore):
    """Ends an execution whose result is stored already: `duplicate` says why."""

    def __init__(self, duplicate: DuplicateTask) -> None:
        super().__init__(str(duplicate))
        self.duplicate = duplicate


def announce(task: Task[Any, Any], request: Context, held: LockHeld, becomes: str) -> None:
    """Tell people, receivers and monitors of an execution that met its lock held."""
    holder = task_of(held.holder)
    logger.info(
        "lock conflict key=%s task=%s task_id=%s holder_task_id=%s holder_host=%s remaining_s=%.3f "
        "becomes=%s",
        held.key, task.name, request.id, holder, host_of(held.holder), held.remaining, becomes,
    )  # fmt: skip
    lock_conflict.send(sender=task, task_id=request.id, error=held, becomes=becomes)
    if request.is_eager:
        return
    try:
        task.send_event(
            "task-deduplicated", retry=False, key=held.key, holder=holder, becomes=becomes
        )
    except Exception:
        # A monitor that misses something is no reason to fail a task.
        logger.warning("event not sent task_id=%s", request.id, exc_info=True)


def announce_unavailable(
    task: Task[Any, Any], request: Context, error: QuorumUnavailable, becomes: str
) -> None:
    """Say that there is no quorum: once in a while, not for each of the tasks that meet it."""
    global _quiet_until  # noqa: PLW0603  # one outage a process
    now = time.monotonic()
    level = logging.DEBUG if now < _quiet_until else logging.ERROR
    if level == logging.ERROR:
        _quiet_until = now + _QUIET_S
    logger.log(
        level, "no quorum key=%s task=%s task_id=%s becomes=%s error=%s",
        error.key, task.name, request.id, becomes, error,
    )  # fmt: skip


def skip(task: Task[Any, Any], request: Context, held: LockHeld) -> NoReturn:
    """End without running: REVOKED, with DuplicateTask for whoever asks for the result.

    Ignore alone would leave `get()`, chords and chains waiting for ever.
    """
    duplicate = DuplicateTask(held.key, task_of(held.holder), held.remaining)
    if not request.is_eager or task.store_eager_result:
        task.backend.mark_as_failure(
            str(request.id),
            duplicate,
            request=request,
            store_result=not is_result_ignored(task, request),
            call_errbacks=False,
            state=states.REVOKED,
        )
    raise Skipped(duplicate) from held


def is_result_ignored(task: Task[Any, Any], request: Context) -> bool:
    """Tell whether nobody is to see how this execution ends."""
    # The call's word counts more than the task's; that of the class Context is nobody's.
    given = vars(request).get("ignore_result")
    return bool(task.ignore_result if given is None else given)


def reschedule(
    task: Task[Any, Any],
    request: Context,
    reason: Exception,
    after: float,
    headers: dict[str, Any],
) -> NoReturn:
    """Publish the same message again, to run in about `after` seconds; `max_retries` is not used.

    Raises:
        Retry: Done; the state is RETRY until then.
    """
    countdown: Any = _publish_again(task, request, after, headers, expires=request.expires)
    raise Retry(exc=reason, when=countdown) from reason


def park(task: Task[Any, Any], request: Context, reason: Exception, after: float) -> NoReturn:
    """Put off a second copy of a message whose first copy is running, its result untouched.

    It is a message of its own from now on. With Redis as broker both copies share one delivery tag:
    to acknowledge this one removes what would bring the task back if the first one's worker dies.
    It does not expire: the first copy began in time, and Celery would store that it was revoked.
    """
    _publish_again(task, request, after, {COPY_HEADER: True}, expires=None)
    raise Ignore from reason


def end_copy(task: Task[Any, Any], request: Context, key: str) -> NoReturn:
    """End a second copy of a message whose first copy has run: silently, its result untouched."""
    logger.info("copy of a finished message key=%s task=%s task_id=%s", key, task.name, request.id)
    raise Ignore


def _publish_again(
    task: Task[Any, Any],
    request: Context,
    after: float,
    headers: dict[str, Any],
    *,
    expires: Any,
) -> float:
    left = seconds_until(expires)
    countdown = min(
        after * random.uniform(0.9, 1.1),
        _longest_countdown(task),
        math.inf if left is None else left - _BEFORE_EXPIRY_S,
    )
    # Also when it is about to expire: with no countdown at all it would come back at once.
    countdown = max(_SHORTEST_COUNTDOWN_S, countdown)
    headers = {**(request.headers or {}), **headers}
    if is_copy(request):
        # The broker's own flag stays with the message that this one is acknowledged for.
        headers[COPY_HEADER] = True
    serializer = request.get(SERIALIZER)
    signature = task.signature_from_request(
        request,
        countdown=countdown,
        retries=request.retries,
        headers=headers,
        expires=expires,
        # The caller's, who may have hidden from logs and monitors what is in them.
        argsrepr=request.get("argsrepr"),
        kwargsrepr=request.get("kwargsrepr"),
        **({"serializer": serializer} if serializer else {}),
    )
    try:
        signature.apply_async()
    except Exception as error:
        if task.acks_late:
            raise Reject(error, requeue=True) from error
        raise
    return countdown


def _longest_countdown(task: Task[Any, Any]) -> float:
    """Return how long a message may wait in a worker before the broker takes it for lost."""
    options = task.app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout", _VISIBILITY_TIMEOUT_S)) / 2
