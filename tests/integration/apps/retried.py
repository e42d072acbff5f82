"""Tasks that retry, or go back to the queue, while the test keeps the broker from taking it."""

from __future__ import annotations

from typing import Any

from celery.signals import after_task_publish, before_task_publish, celeryd_init

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.config.options import Lifetime
from celery_redlock.messages import broker
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app


@celeryd_init.connect
def on_worker_init(**_: Any) -> None:
    broker.ANSWER_WITHIN_S = 5.0  # a test waits for it several times, another writes meanwhile


@before_task_publish.connect
def on_publishing(headers: dict[str, Any], **_: Any) -> None:
    inside.note("publishing", published=headers["id"])


@after_task_publish.connect
def on_published(headers: dict[str, Any], **_: Any) -> None:
    inside.note("published", published=headers["id"])


def make(lifetime: Lifetime, *, acks_late: bool) -> Any:
    @singleton_task(
        app=app, name=f"{__name__}.{lifetime.value}.{acks_late}", lock_key="{key}",
        lock_lifetime=lifetime.value, acks_late=acks_late, bind=True, max_retries=2,
    )  # fmt: skip
    def body(
        self: SingletonTask, key: str, gates: list[str | None], options: dict[str, Any]
    ) -> int:
        """Wait at each try's gate, and retry, until there are no more gates."""
        retries = self.request.retries
        if retries == len(gates):
            inside.run(key=key, retries=retries)
            return int(retries)
        inside.run(gates[retries], key=key, retries=retries)
        raise self.retry(countdown=0, **(options if retries else {}))

    return body


LIFETIMES = (
    Lifetime.WHILE_EXECUTING,
    Lifetime.UNTIL_EXECUTED,
    Lifetime.UNTIL_AND_WHILE_EXECUTING,
)
tasks: dict[tuple[Lifetime, bool], Any] = {
    (lifetime, acks_late): make(lifetime, acks_late=acks_late)
    for lifetime in LIFETIMES
    for acks_late in (False, True)
}


def make_rescheduling(*, acks_late: bool) -> Any:
    # It comes back each second, for that is its ttl. A slow machine may lose such a lease.
    # The event of a conflict goes to the broker, too: a fault would meet that, not the message.
    silent: Any = {"send_event": staticmethod(lambda *_, **__: None)}

    @singleton_task(  # type: ignore[untyped-decorator]
        app=app, name=f"{__name__}.rescheduling.{acks_late}", lock_key="{key}", lock_ttl=1,
        lock_on_conflict="reschedule", lock_on_lost="continue", acks_late=acks_late, **silent,
    )  # fmt: skip
    def body(key: str) -> int | None:
        return inside.run(key=key)

    return body


rescheduling: dict[str, Any] = {
    "early": make_rescheduling(acks_late=False),
    "late": make_rescheduling(acks_late=True),
}
