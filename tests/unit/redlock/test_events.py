"""Observers can never break the lock, and the log says what an operator must know."""

from __future__ import annotations

import logging

import pytest
from greenlet import GreenletExit

from celery_redlock.redlock.errors import LockHeld
from celery_redlock.redlock.events import (
    Acquired,
    Event,
    Lost,
    NodeDown,
    NodeRefuses,
    NodeUp,
    Refused,
    Released,
    is_logged,
    log_event,
    log_event_of_leases,
    notify,
)
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.threads import dispatch
from tests.support.fakes.fake_clock import FakeClock

LEASE = Lease("k", "nonce:task@host", 7, 10_000, deadline=10.0, clock=FakeClock())
HUGE = Lease("k" * 1_000_000, LEASE.owner, 7, 10_000, deadline=10.0, clock=FakeClock())
LOG = "celery_redlock.redlock.events"


def test_every_observer_is_told_though_one_raises(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    event = NodeDown("a:1", "Connection refused")
    notify([seen.append, broken, seen.append], event)
    assert seen == [event, event]
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == f"observer failed observer={broken!r} event=NodeDown"
    assert record.exc_info
    assert record.exc_info[0] is ZeroDivisionError


ENDING = pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GreenletExit])


@ENDING
def test_what_must_end_the_process_is_not_held_up(error: type[BaseException]) -> None:
    """On a thread of the user's, for instance in `acquire`."""

    def interrupted(event: Event) -> None:
        raise error

    with pytest.raises(error):
        notify([interrupted], NodeUp("a:1", 0.0))


@ENDING
def test_no_observer_ends_a_thread_of_ours(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    def interrupted(event: Event) -> None:
        raise error

    dispatch.run_as_own(lambda: notify([interrupted, seen.append], NodeUp("a:1", 0.0)))
    assert seen == [NodeUp("a:1", 0.0)], "the others are told as well"
    [record] = caplog.records
    assert record.getMessage().startswith("observer failed observer=")


@pytest.mark.parametrize(
    ("event", "level", "line"),
    [
        (
            Lost(LEASE, "it could not be renewed in time"),
            logging.ERROR,
            "lease lost key=k holder=task@host reason=it could not be renewed in time",
        ),
        (NodeDown("a:1", "refused"), logging.WARNING, "node down node=a:1 error=refused"),
        (
            NodeDown("a:1", "a replica", is_unfit=True),
            logging.ERROR,
            "node down node=a:1 error=a replica",
        ),
        (NodeUp("a:1", 0.5), logging.WARNING, "node guarded node=a:1 votes_in_s=0.5"),
        (NodeUp("a:1", 12.34), logging.WARNING, "node guarded node=a:1 votes_in_s=12.3"),
        (
            NodeRefuses("a:1", "OOM command not allowed"),
            logging.WARNING,
            "node refuses writes node=a:1 error=OOM command not allowed",
        ),
        (NodeUp("a:1", 0.0), logging.DEBUG, "node up node=a:1"),
        (
            Acquired(LEASE, 0.0012345, 2),
            logging.DEBUG,
            "lock acquired key=k holder=task@host token=7 elapsed_s=0.001234 rounds=2",
        ),
        (
            Released(LEASE, 1.5),
            logging.DEBUG,
            "lock released key=k holder=task@host held_s=1.500",
        ),
        (
            Refused("k", LockHeld("k", "x", 1.0)),
            logging.DEBUG,
            "lock refused key=k error=cannot lock 'k': held by x, set to expire in 1.000 s",
        ),
    ],
    ids=[
        "lost",
        "down",
        "unfit",
        "guarded-soon",
        "guarded",
        "refuses",
        "up",
        "acquired",
        "released",
        "refused",
    ],
)
def test_the_log_has_one_line_for_each_event(
    event: Event, level: int, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, LOG):
        log_event(event)
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [(level, line)]


@pytest.mark.parametrize(
    ("event", "level", "line"),
    [
        (
            NodeDown("a:1", "refused"),
            logging.DEBUG,
            "node seen here, too event=NodeDown(node='a:1', error='refused', is_unfit=False)",
        ),
        (Lost(LEASE, "x"), logging.ERROR, "lease lost key=k holder=task@host reason=x"),
    ],
    ids=["node", "lease"],
)
def test_a_second_log_tells_of_nodes_at_debug_only(
    event: Event, level: int, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, LOG):
        log_event_of_leases(event)
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [(level, line)]


@pytest.mark.parametrize(
    "event",
    [
        Lost(HUGE, "x"),
        Acquired(HUGE, 0.1, 1),
        Released(HUGE, 0.1),
        Refused(HUGE.key, LockHeld("k")),
    ],
    ids=["lost", "acquired", "released", "refused"],
)
def test_a_line_repeats_the_beginning_of_a_long_key(
    event: Event, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, LOG):
        log_event(event)
    [record] = caplog.records
    assert f"key={'k' * 200}… (1000000 characters) " in record.getMessage()
    assert len(record.getMessage()) < 1000


@pytest.mark.parametrize(("level", "routine"), [(logging.INFO, False), (logging.DEBUG, True)])
def test_routine_is_not_logged_unless_it_is_asked_for(
    level: int, routine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level, LOG):
        for event in (Acquired(LEASE, 0.1, 1), Released(LEASE, 1.0), Refused("k", LockHeld("k"))):
            assert is_logged(event) is routine
        assert is_logged(Lost(LEASE, "x"))
