"""What two versions of this package share while workers are replaced one by one.

Keys and values on the nodes, and headers of messages, in the forms that they have had since version
0.1. Another form is a breaking change: let the new version read both, or say in CHANGELOG.md that
it can't run beside the one before it.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid

import pytest
import redis
from celery.beat import ScheduleEntry

from celery_redlock.beat.ticks import Tick
from celery_redlock.messages import headers
from celery_redlock.messages.reservation import Reservation, pending_slot_key, reservation_in
from celery_redlock.redlock.lease import host_of, is_period, is_reservation, publication_of, task_of
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.fakes.forged import context_of, delivery_of

KEY = "bank.sync:42"
NONCE = "0123456789abcdef" * 2
PERIOD = f"{NONCE[:24]}decade00"
OWNER = f"{NONCE}.{'f' * 16}:task-1@host-1"
RESERVATION = f"{NONCE}.{'f' * 16}~:task-1@host-1"


def wait_until_stored(five: Servers, expected: dict[str, str]) -> None:
    """Wait until each node stores this and nothing else; slow ones are not waited for by rounds."""
    for server in five:
        with server.client(decode_responses=True) as client:
            eventually(lambda: _stored(client) == expected, f"{server} stores {expected}")


def _stored(client: redis.Redis) -> dict[str, str]:
    return {str(key): str(client.get(key)) for key in client.scan_iter()}


def test_a_held_lock_is_an_owner_and_a_floor(five: Servers, new_redlock: NewRedlock) -> None:
    lease = new_redlock(five.urls).acquire(KEY, 30, label="task-1")
    new_redlock(five.urls).extend(lease)
    floor = {"redlock:{bank.sync:42}:floor": str(lease.token)}
    wait_until_stored(five, {"redlock:{bank.sync:42}": lease.owner} | floor)
    assert re.fullmatch(r"[0-9a-f]{32}:task-1@[^@]+", lease.owner)


def test_a_released_lock_leaves_the_raised_floor(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock(five.urls)
    lease = redlock.acquire(KEY, 30)
    redlock.release(lease)
    redlock.mark_done(KEY, "task-1/0/f")
    floor = {"redlock:{bank.sync:42}:floor": str(lease.token + 1)}
    wait_until_stored(five, {"redlock:{bank.sync:42}:done:task-1/0/f": "1"} | floor)


def test_a_reservation_says_so_before_the_colon(five: Servers, new_redlock: NewRedlock) -> None:
    reserved = new_redlock(five.urls).reserve(KEY, 30, label="task-1", publication="f" * 16)
    wait_until_stored(five, {"redlock:{bank.sync:42}": reserved.owner})
    assert re.fullmatch(rf"[0-9a-f]{{32}}\.{'f' * 16}~:task-1@[^@]+", reserved.owner)


def test_a_period_says_so_in_its_last_32_bits(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock(five.urls)
    reserved = redlock.reserve(KEY, 30, label="task-1", publication="f" * 16, is_period=True)
    wait_until_stored(five, {"redlock:{bank.sync:42}": reserved.owner})
    assert re.fullmatch(rf"[0-9a-f]{{24}}decade00\.{'f' * 16}~:task-1@[^@]+", reserved.owner)


def test_an_owner_that_another_version_stored_holds_the_lock(
    five: Servers, new_redlock: NewRedlock
) -> None:
    for server in five:
        with server.client() as client:
            client.set("redlock:{bank.sync:42}", OWNER, px=30_000)
            client.set("redlock:{bank.sync:42}:floor", 1_700_000_000_000_000, px=60_000)
    holder = new_redlock(five.urls).holder(KEY)
    assert holder is not None
    assert (holder.label, holder.hostname) == ("task-1", "host-1")
    assert holder.held_since == pytest.approx(1.7e9, abs=60)


@pytest.mark.parametrize(
    ("owner", "reserves", "lasts"),
    [
        (OWNER, False, False),
        (RESERVATION, True, False),
        (f"{PERIOD}.{'f' * 16}:task-1@host-1", False, True),
        (f"{PERIOD}.{'f' * 16}~:task-1@host-1", True, True),
    ],
)
def test_the_parts_of_an_owner_are_read(owner: str, *, reserves: bool, lasts: bool) -> None:
    assert (task_of(owner), host_of(owner)) == ("task-1", "host-1")
    assert publication_of(owner) == "f" * 16
    assert (is_reservation(owner), is_period(owner)) == (reserves, lasts)


def test_a_reservation_travels_as_key_and_owner() -> None:
    header = {"redlock_reservation": [KEY, RESERVATION]}
    assert Reservation(KEY, RESERVATION).header == header
    assert reservation_in(header) == Reservation(KEY, RESERVATION)


def test_a_message_is_known_by_its_headers() -> None:
    assert headers.PUBLICATION_HEADER == "redlock_publication"
    assert headers.TICK_HEADER == "redlock_tick"
    assert headers.COPY_HEADER == "redlock_copy"
    assert headers.DELIVERIES_HEADER == "redlock_deliveries"
    assert headers.REDELIVERED == "redelivered"
    request = context_of(id="task-1", retries=2, headers={"redlock_publication": "f" * 16})
    assert headers.publication_of(request) == "f" * 16
    assert delivery_of(request).done_label == f"task-1/2/{'f' * 16}"
    published = headers.headers_to_publish("task-1", {}, None)
    assert re.fullmatch("[0-9a-f]{16}", published["redlock_publication"])


def test_a_pending_slot_and_a_tick_have_these_keys() -> None:
    assert pending_slot_key(KEY) == "bank.sync:42%next"
    entry = ScheduleEntry("close day", "bank.close", last_run_at=dt.datetime.now(dt.timezone.utc))
    tick = Tick(entry, dt.datetime(2026, 1, 31, 3, tzinfo=dt.timezone.utc), "bank@0123456789ab")
    assert tick.key == "%beat:bank@0123456789ab:close%20day:2026-01-31T03:00:00Z"
    assert tick.task_id == str(
        uuid.uuid5(uuid.UUID("6f1c6f0e-4f0b-5d0e-9c39-2a2f3f7d7a11"), tick.key)
    )
