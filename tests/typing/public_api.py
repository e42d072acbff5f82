"""What type checkers say of code that uses this package; `make types` and test_typing.py run them.

`assert_type` demands a type, a ``type: ignore`` an error: strict mypy and pyright take none for
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import Celery, Task

from celery_redlock import (
    Acquired,
    AlreadyDone,
    ConfigurationError,
    DuplicateTask,
    Event,
    Holder,
    Lease,
    LeaseLost,
    LockHeld,
    Lost,
    NodeDown,
    NodeRefuses,
    NodeUp,
    Observer,
    QuorumUnavailable,
    Redlock,
    RedlockError,
    Refused,
    Released,
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
from celery_redlock.contrib.guards import Effect, psycopg

if TYPE_CHECKING:
    from celery.canvas import Signature
    from celery.result import AsyncResult
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


class TypedReport(SingletonTask[[int], str]):
    name = "typed report"

    def run(self, tenant: int) -> str:
        return f"{tenant} {self.fencing_token}"


class CompanyTask(SingletonTask):
    abstract = True
    lock_on_conflict = "reschedule"


@singleton_task(app=app, lock_on_conflict="wait", lock_wait=5, lock_lifetime="while_executing")
def keeps(tenant: int, mode: str = "all") -> bool:
    return mode == f"{tenant}"


@singleton_task(bind=True, base=CompanyTask, lock_key=["tenant"], autoretry_for=(OSError,))
def bound(self: CompanyTask, tenant: int, *, dry: bool = False) -> float:
    return (self.fencing_token or 0) + tenant + dry


def key_of(tenant: int) -> str:
    return f"{tenant}"


@singleton_task(lock_key=key_of, pydantic=True)
def takes_token(tenant: int, *, fencing_token: int) -> float:
    return tenant + fencing_token


@singleton_task
def takes_token_by_default(*, tenant: int, fencing_token: int | None = None) -> float:
    return tenant + (fencing_token or 0)


def uses_tasks() -> None:
    assert_type(bare.delay(1), AsyncResult[None])
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


def keeps_parameters_and_results() -> None:
    assert_type(keeps(1, mode="new"), bool)
    assert_type(keeps.delay(1), AsyncResult[bool])
    assert_type(keeps.apply_async((1,), {"mode": "new"}), AsyncResult[bool])
    assert_type(keeps.apply((1,)).get(), bool)
    assert_type(keeps.s(1), Signature[bool])
    assert_type(bound.delay(1, dry=True), AsyncResult[float])
    assert_type(TypedReport().delay(1), AsyncResult[str])
    takes_token.delay(1)  # the token is not the caller's
    with_options.delay(1)
    takes_token_by_default.delay(tenant=1)
    keeps()  # type: ignore[call-arg]
    keeps("1")  # type: ignore[arg-type]
    keeps.delay("1")  # type: ignore[arg-type]
    keeps.delay(1, "all", 3)  # type: ignore[call-arg]
    keeps.delay(1, colour="red")  # type: ignore[call-arg]
    keeps.s("1")  # type: ignore[arg-type]
    bound.delay(1, dry="yes")  # type: ignore[arg-type]
    bound.delay(bound, 1)  # type: ignore[call-arg, arg-type]
    TypedReport().delay("1")  # type: ignore[arg-type]
    keeps.delay(1).get().upper()  # type: ignore[attr-defined]


def options_are_checked() -> None:
    singleton_task(lock_ttl="30")  # type: ignore[call-overload]
    singleton_task(lock_tll=30)  # type: ignore[call-overload]
    singleton_task(lock_on_conflict="skp")  # type: ignore[call-overload]
    singleton_task(lock_lifetime="until_done")  # type: ignore[call-overload]
    singleton_task(lock_on_unavailable="wait")  # type: ignore[call-overload]
    singleton_task(lock_on_lost="raise")  # type: ignore[call-overload]
    singleton_task(lock_key=5)  # type: ignore[call-overload]
    singleton_task(max_retries="3")  # type: ignore[call-overload]


def may_be_applied_to_any_function(body: Callable[..., Any]) -> SingletonTask:
    return singleton_task(name="any")(body)


# --- the lock alone -------------------------------------------------------------------------------


def forget(lease: Lease) -> None: ...


def observes(event: Event) -> None:
    match event:
        case Acquired(lease, elapsed, rounds):
            assert_type((lease, elapsed, rounds), tuple[Lease, float, int])
        case Released(lease, seconds):
            assert_type((lease, seconds), tuple[Lease, float])
        case Refused(_, error):
            assert_type(error, Exception)
        case Lost(_, reason):
            assert_type(reason, str)
        case NodeDown(node, why) | NodeRefuses(node, why):
            assert_type((node, why), tuple[str, str])
        case NodeUp(_, votes_in):
            assert_type(votes_in, float)


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
    with redlock.acquire("invoice:42", renew=True, on_lost=forget) as kept:
        assert_type(kept, Lease)
        kept.extend()
        kept.release()
    holder = redlock.holder("invoice:42")
    assert_type(holder, Holder | None)
    assert_type(redlock.locked("invoice:42"), bool)
    assert_type(redlock.drop("invoice:42"), bool)
    redlock.lock("invoice:42", on_lost=str.upper)  # type: ignore[arg-type]
    redlock.reserve("invoice:42", 5)  # type: ignore[attr-defined]
    redlock.mark_done("invoice:42", "a")  # type: ignore[attr-defined]
    redlock.lock("invoice:42", ttl="30")  # type: ignore[arg-type]
    redlock.lock(42)  # type: ignore[arg-type]
    redlock.acquire()  # type: ignore[call-arg]
    redlock.acquire("invoice:42", blocking=True)  # type: ignore[call-arg]
    redlock.release("invoice:42")  # type: ignore[arg-type]
    Redlock("redis://a", ttl=5)  # type: ignore[call-arg]
    observer: Observer = observes
    Redlock(["redis://a"], observers=[observer])
    Redlock([1])  # type: ignore[list-item]


# --- effects that are done once -------------------------------------------------------------------


def has_an_effect_once(connection: Any, token: int | None) -> None:
    effect = psycopg.once(connection, "invoice:42", token)
    assert_type(effect, Effect)
    assert_type(effect.is_new, bool)
    assert_type(effect.store({"sent": True}), None)
    psycopg.once(connection, 42, token)  # type: ignore[arg-type]
    psycopg.once(connection, "invoice:42")  # type: ignore[call-arg]


# --- what is raised and sent ----------------------------------------------------------------------


def handles_errors(redlock: Redlock) -> None:
    try:
        redlock.acquire("invoice:42")
    except LockHeld as held:
        assert_type(held.key, str)
        assert_type(held.holder, str | None)
        assert_type(held.remaining, float)
        assert_type(held.contended, bool)
        assert_type(held.task_id, str | None)
        assert_type(held.task_name, str | None)
        assert_type(held.hostname, str | None)
        assert_type(held.held_since, float | None)
    except QuorumUnavailable as error:
        assert_type(error.errors, dict[str, str])
        assert_type(error.nodes, int)
    except LeaseLost as lost:
        assert_type(lost.key, str)
        assert_type(lost.reason, str)
    except DuplicateTask as duplicate:
        assert_type(duplicate.holder, str | None)
        assert_type(duplicate.task_id, str | None)
        assert_type(duplicate.task_name, str | None)
        assert_type(duplicate.hostname, str | None)
        assert_type(duplicate.held_since, float | None)
        str(duplicate.worker)  # type: ignore[attr-defined]
    except AlreadyDone as done:
        assert_type(done.remaining, float)
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
