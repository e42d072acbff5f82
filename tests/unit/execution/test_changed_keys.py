"""Processes whose `lock_key` differs, as while a deployment changes it.

A key is carried by the message that reserves it; a run is locked by the key of its own process.
"""

from __future__ import annotations

import pytest

from celery_redlock.config.options import Lifetime
from celery_redlock.messages.reservation import pending_slot_key
from tests.support.fakes.fleet import Fleet

RULES = [
    pytest.param("{tenant}", "t:7", "of-{tenant}", "t:of-7", id="template-another template"),
    pytest.param((), "t", "{tenant}", "t:7", id="task name-template"),
    pytest.param("{tenant}", "t:7", (), "t", id="template-task name"),
]
"""Rule and key of the producer, then those of the worker."""
LIFETIMES = [pytest.param(one, id=one.value) for one in Lifetime]


@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize(("rule", "key", "then", "next_key"), RULES)
def test_a_run_holds_the_key_of_its_worker_and_leaves_none(
    fleet: Fleet, lifetime: Lifetime, rule: object, key: str, then: object, next_key: str
) -> None:
    told = fleet.call(lifetime, rule)
    assert held(fleet) == reserved_by(lifetime, key)
    during: list[set[str]] = []
    fleet.at_start.append(lambda: during.append(held(fleet)))
    fleet.take(lifetime, then)
    assert fleet.runs == [told]
    [seen] = during
    lasting = {next_key} if lifetime.is_throttle else set()
    assert seen == ({next_key} if lifetime.holds_while_running else lasting)
    assert held(fleet) == lasting, "a key is left"
    assert fleet.queue == []


@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize(("rule", "key", "then", "next_key"), RULES)
def test_calls_by_both_rules_run_or_are_duplicates_and_leave_no_key(
    fleet: Fleet, lifetime: Lifetime, rule: object, key: str, then: object, next_key: str
) -> None:
    """At publish they don't exclude each other; the lock of the worker does."""
    told = [fleet.call(lifetime, rule), fleet.call(lifetime, then)]
    assert held(fleet) == reserved_by(lifetime, key) | reserved_by(lifetime, next_key)

    def overlap() -> None:
        while fleet.queue:
            fleet.take(lifetime, then)

    fleet.at_start.append(overlap)
    while fleet.queue:
        fleet.take(lifetime, then)
    assert all(fleet.has_run(task_id) for task_id in told)
    assert len(fleet.runs) == (1 if lifetime is not Lifetime.UNTIL_EXECUTING else 2)
    # Each call has reserved its own period, whatever becomes of its message.
    assert held(fleet) == ({key, next_key} if lifetime.is_throttle else set())


def held(fleet: Fleet) -> set[str]:
    """Return the keys that are held."""
    return {key for key in fleet.node.held if fleet.node.owner_of(key)}


def reserved_by(lifetime: Lifetime, key: str) -> set[str]:
    """Return the keys that a call reserves."""
    if lifetime.reserves_pending_slot:
        return {pending_slot_key(key)}
    return {key} if lifetime.reserves_at_publish else set()
