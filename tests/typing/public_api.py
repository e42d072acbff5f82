"""What type checkers say of code that uses this package; `make types` and test_typing.py run them.

`assert_type` demands a type, a ``type: ignore`` an error: strict mypy and pyright take none for
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import Celery, Task

from celery_redlock import (
    ConfigurationError,
    DuplicateTask,
    Lease,
    LeaseLost,
    LockHeld,
    QuorumUnavailable,
    Redlock,
    RedlockError,
    SingletonTask,
    current_lease,
    lock_acquired,
    lock_conflict,
    lock_lost,
    lock_released,
    lock_unavailable,
    lock_wait_began,
    lock_wait_ended,
    node_down,
    node_up,
    nodes_checked,
    quorum_degraded,
    singleton_task,
    tick_processed,
)

if TYPE_CHECKING:
    from typing_extensions import assert_type

app = Celery("shop")


# --- tasks ----------------------------------------------------------------------------------------


@singleton_task
def bare(tenant: int) -> None: ...


@singleton_task(app=app, bind=True, lock_ttl=30, lock_key="{tenant}", max_retries=3)
def with_options(self: SingletonTask, tenant: int, *, fencing_token: int) -> str:
    assert_type(self.lease, Lease | None)
    assert_type(self.fencing_token, int | None)
    if self.lease:
        self.lease.ensure()
    return f"{fencing_token}"


@singleton_task(base=Task)
def on_a_base(tenant: int) -> None: ...


@app.task(base=SingletonTask, lock_ttl=60)
def by_base() -> None: ...


class Report(SingletonTask):
    name = "report"
    lock_ttl = 5
    lock_key = "{tenant}"

    def run(self, tenant: int) -> int | None:
        return self.fencing_token


def uses_tasks() -> None:
    assert_type(bare, SingletonTask)
    assert_type(with_options, SingletonTask)
    assert_type(on_a_base, SingletonTask)
    assert_type(bare.fencing_token, int | None)
    assert_type(current_lease(), Lease | None)
    bare.delay(1)
    bare.apply_async((1,), countdown=3, task_id="an-id")
    bare(1)
    bare.s(1)
    app.register_task(Report())
    singleton_task(5)  # type: ignore[call-overload]
    singleton_task(app="shop")  # type: ignore[call-overload]
    bare.lease = None  # type: ignore[misc]
    str(current_lease().token)  # type: ignore[union-attr]
    current_lease(1)  # type: ignore[call-arg]


def may_be_applied_to_any_function(body: Callable[..., Any]) -> SingletonTask:
    return singleton_task(name="any")(body)


# --- the lock alone -------------------------------------------------------------------------------


def uses_the_lock() -> None:
    redlock = Redlock(["redis://a", "redis://b", "redis://c"], node_timeout=0.1)
    with redlock.lock("invoice:42", ttl=30, wait=5) as lease:
        assert_type(lease, Lease)
        assert_type(lease.token, int)
        assert_type(lease.key, str)
        assert_type(lease.owner, str)
        assert_type(lease.remaining(), float)
        assert_type(lease.lost, bool)
        assert_type(lease.ensure(), None)
    held = redlock.acquire("invoice:42", ttl=30)
    assert_type(held, Lease)
    redlock.extend(held)
    redlock.release(held)
    redlock.lock("invoice:42", ttl="30")  # type: ignore[arg-type]
    redlock.lock(42)  # type: ignore[arg-type]
    redlock.acquire()  # type: ignore[call-arg]
    redlock.acquire("invoice:42", blocking=True)  # type: ignore[call-arg]
    redlock.release("invoice:42")  # type: ignore[arg-type]
    Redlock("redis://a", ttl=5)  # type: ignore[call-arg]
    Redlock([1])  # type: ignore[list-item]


# --- what is raised and sent ----------------------------------------------------------------------


def handles_errors(redlock: Redlock) -> None:
    try:
        redlock.acquire("invoice:42")
    except LockHeld as held:
        assert_type(held.key, str)
        assert_type(held.holder, str | None)
        assert_type(held.remaining, float)
        assert_type(held.contended, bool)
    except QuorumUnavailable as error:
        assert_type(error.errors, dict[str, str])
        assert_type(error.nodes, int)
    except LeaseLost as lost:
        assert_type(lost.key, str)
        assert_type(lost.reason, str)
    except DuplicateTask as duplicate:
        assert_type(duplicate.holder, str | None)
        str(duplicate.task_id)  # type: ignore[attr-defined]
    except (ConfigurationError, RedlockError) as error:
        assert_type(str(error), str)


def hears(**told: Any) -> None: ...


def listens() -> None:
    for signal in (lock_acquired, lock_conflict, lock_lost, lock_released, lock_unavailable):
        signal.connect(hears)
    for signal in (lock_wait_began, lock_wait_ended, tick_processed):
        signal.connect(hears)
    for signal in (node_down, node_up, nodes_checked, quorum_degraded):
        signal.connect(hears)
