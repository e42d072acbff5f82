"""A tick is named after its app, entry and slot alone, and goes out with its entry's options."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from celery.beat import ScheduleEntry

from celery_redlock.beat.slots import EPOCH
from celery_redlock.beat.ticks import CLAIM_S, Claims, Tick
from celery_redlock.redlock.lease import task_of
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_redlock import FakeNodes

HOUR = dt.timedelta(hours=1)


def entry(name: str = "nightly", **options: Any) -> ScheduleEntry:
    return ScheduleEntry(name, "task", last_run_at=EPOCH, args=(1,), options=options)


def test_what_names_a_tick_is_the_same_at_every_replica() -> None:
    in_delhi = EPOCH.astimezone(dt.timezone(dt.timedelta(hours=5.5)))
    one, other = Tick(entry(), EPOCH, "shop@1"), Tick(entry(queue="q"), in_delhi, "shop@1", at=5.0)
    assert one.key == other.key == "%beat:shop@1:nightly:1970-01-01T00:00:00Z"
    assert one.task_id == other.task_id
    assert uuid.UUID(one.task_id).version == 5


@pytest.mark.parametrize(
    "other",
    [
        Tick(entry("hourly"), EPOCH, "shop"),
        Tick(entry(), EPOCH + HOUR, "shop"),
        Tick(entry(), EPOCH + dt.timedelta(microseconds=1), "shop"),
        # Of celery.backend_cleanup each app has one.
        Tick(entry(), EPOCH, "bank"),
        Tick(entry("%beat:shop:nightly"), EPOCH, ""),
    ],
    ids=lambda tick: tick.key,
)
def test_different_ticks_have_different_names(other: Tick) -> None:
    tick = Tick(entry(), EPOCH, "shop")
    assert (tick.key == other.key, tick.task_id == other.task_id) == (False, False)


def test_no_entrys_name_disturbs_the_names_of_the_keys() -> None:
    key = Tick(entry("every {tenant}:\n night"), EPOCH, "shop").key
    assert set(key).isdisjoint("{} \n")
    assert key.count(":") == Tick(entry("night"), EPOCH, "shop").key.count(":")


def test_a_very_long_name_makes_no_very_long_key() -> None:
    ticks = [Tick(entry("n" * 9000 + end), EPOCH, "shop") for end in ("a", "b")]
    assert max(len(tick.key) for tick in ticks) < 600
    assert len({tick.entry_to_publish({}).options["task_id"] for tick in ticks}) == 2


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes(FakeClock())


SKEW = 5.0


@pytest.fixture
def claims(nodes: FakeNodes) -> Claims:
    redlock: Any = nodes.redlock()
    return Claims(redlock, SKEW)


def test_a_claim_tells_the_id_of_its_message(claims: Claims, nodes: FakeNodes) -> None:
    tick = Tick(entry(), EPOCH, "shop")
    claims.acquire(tick)
    [(owner, _)] = nodes.held.values()
    assert task_of(owner) == tick.task_id


def test_a_mark_outlasts_the_last_look_for_it_by_a_minute(claims: Claims, nodes: FakeNodes) -> None:
    tick = Tick(entry(), EPOCH, "shop", kept=100.0)
    claims.mark_published(claims.acquire(tick), tick)
    [(_, ends)] = nodes.held.values()
    last_look = 100.0 + 2 * SKEW + CLAIM_S
    assert ends == nodes.clock.now() + last_look + 60.0


@pytest.mark.parametrize(
    ("age_s", "contended", "is_published"),
    [(0.0, False, True), (169.9, False, True), (170.0, False, False), (0.0, True, False)],
)
def test_a_claim_that_lasts_is_the_mark_of_a_published_tick(
    claims: Claims,
    nodes: FakeNodes,
    monkeypatch: pytest.MonkeyPatch,
    age_s: float,
    contended: bool,
    is_published: bool,
) -> None:
    tick = Tick(entry(), EPOCH, "shop", kept=100.0)
    claims.mark_published(claims.acquire(tick), tick)
    nodes.clock.move(age_s)
    found: Any = claims.redlock.read_holder(tick.key)
    found.contended = contended
    monkeypatch.setattr(claims.redlock, "read_holder", {tick.key: found}.__getitem__)
    assert claims.is_published(tick) is is_published


def test_without_a_mark_or_a_quorum_a_tick_counts_as_unpublished(
    claims: Claims, nodes: FakeNodes
) -> None:
    tick = Tick(entry(), EPOCH, "shop", kept=100.0)
    assert claims.is_published(tick) is False
    claims.mark_published(claims.acquire(tick), tick)
    nodes.is_up = False
    assert claims.is_published(tick) is False


def test_its_message_has_the_entrys_options_and_its_own_id() -> None:
    own = {"redlock_beat_misfire_grace_time": 90}
    nightly = entry(queue="slow", headers={"tenant": 3, **own})
    sent = Tick(nightly, EPOCH, "shop").entry_to_publish({})
    assert sent.options == {
        "queue": "slow",
        "task_id": Tick(nightly, EPOCH, "shop").task_id,
        "headers": {
            "tenant": 3,
            "redlock_tick": "1970-01-01T00:00:00Z",
            "celery_beat_task": True,
        },
    }
    assert (sent.name, sent.task, sent.args) == ("nightly", "task", (1,))
    assert nightly.options == {"queue": "slow", "headers": {"tenant": 3, **own}}


def test_an_entry_need_not_survive_copy() -> None:
    class FromARow(ScheduleEntry):
        """As django-celery-beat's: it can't be made of what its base is made of."""

        def __init__(self, row: dict[str, Any]) -> None:
            super().__init__(row["name"], "task", last_run_at=EPOCH)
            self.model = row

    from_a_row = FromARow({"name": "nightly"})
    sent = Tick(from_a_row, EPOCH, "shop").entry_to_publish({})
    assert type(sent) is FromARow
    assert sent.model is from_a_row.model
