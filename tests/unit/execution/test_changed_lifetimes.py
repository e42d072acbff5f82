"""A lifetime that a rolling deploy changes: every ordered pair, beside each other in one fleet.

What holds for each pair: a call runs once, or is the duplicate of one that runs; and when all have
ended, the key is free, except for the period that a throttle has begun.
"""

from __future__ import annotations

import threading
from itertools import permutations

import pytest
from celery.exceptions import Retry

from celery_redlock.config.options import Lifetime
from celery_redlock.worker import signal_handlers
from tests.support.fakes.fleet import Fleet
from tests.support.fakes.forged import HOLDER, context_of
from tests.support.fakes.one_node import OneNode

PAIRS = [
    pytest.param(old, new, id=f"{old.value}-{new.value}") for old, new in permutations(Lifetime, 2)
]


@pytest.mark.parametrize(("sent", "taken"), PAIRS)
def test_a_message_of_another_lifetime_runs_and_frees_its_key(
    fleet: Fleet, sent: Lifetime, taken: Lifetime
) -> None:
    told = fleet.call(sent)
    fleet.take(taken)
    assert fleet.runs == [told]
    fleet.assert_free(taken)


@pytest.mark.parametrize(("sent", "taken"), PAIRS)
@pytest.mark.parametrize("ending", ["revoked", "not called"])
def test_a_message_that_never_runs_holds_no_longer_than_a_period(
    fleet: Fleet, ending: str, sent: Lifetime, taken: Lifetime
) -> None:
    fleet.call(sent)
    task, request = fleet.as_of(taken), context_of(fleet.queue.pop(), is_eager=False)
    if ending == "revoked":
        signal_handlers._on_revoked(task, request=request)
    else:
        task.request_stack.push(request)
        signal_handlers._on_postrun(task, state="FAILURE")
    fleet.assert_free(sent)


@pytest.mark.parametrize(("sent", "taken"), PAIRS)
def test_a_duplicate_of_another_lifetime_leaves_nothing_reserved(
    fleet: Fleet, node: OneNode, sent: Lifetime, taken: Lifetime
) -> None:
    fleet.call(sent)
    node.held["t"] = HOLDER, node.clock.now() + 1e9
    fleet.take(taken)
    assert node.held.pop("t")[0] == HOLDER
    assert len(fleet.runs) == (taken is Lifetime.UNTIL_EXECUTING and sent.reserves_at_publish)
    assert not fleet.queue
    fleet.assert_free()


@pytest.mark.parametrize(("first", "then"), PAIRS)
@pytest.mark.parametrize("is_early", [False, True])
def test_a_retry_runs_under_the_next_lifetime_and_frees_its_key(
    fleet: Fleet, is_early: bool, first: Lifetime, then: Lifetime
) -> None:
    """It may arrive before the run that published it has ended, and handed its lock over."""

    def retry() -> None:
        try:
            fleet.task.retry(countdown=0)
        except Retry:
            if is_early:
                other = threading.Thread(target=fleet.take, args=(then,))
                other.start()
                other.join()
            fleet.as_of(first)
            raise

    fleet.at_start.append(retry)
    told = fleet.call(first)
    fleet.take(first)
    fleet.drain([then])
    assert fleet.runs == [told, told]
    fleet.assert_free(first, then)


@pytest.mark.parametrize(("first", "then"), PAIRS)
def test_a_second_delivery_under_the_next_lifetime_frees_its_key(
    fleet: Fleet, first: Lifetime, then: Lifetime
) -> None:
    told = fleet.call(first)
    again = dict(fleet.queue[0], delivery_info={"redelivered": True})
    fleet.take(first)
    fleet.queue.append(again)
    fleet.drain([then])
    assert set(fleet.runs) == {told}
    if first.holds_while_running and then.holds_while_running:
        assert len(fleet.runs) == 1
    fleet.assert_free(first, then)


@pytest.mark.parametrize(("old", "new"), PAIRS)
@pytest.mark.parametrize("policy", ["skip", "coalesce"])
def test_calls_of_both_lifetimes_run_or_are_duplicates_of_runs(
    fleet: Fleet, policy: str, old: Lifetime, new: Lifetime
) -> None:
    fleet.policy = policy
    calls, workers = ([old, new], [new]) if policy == "skip" else ([new, old], [old, new])
    told = [fleet.call(lifetime) for lifetime in calls]
    fleet.at_start.append(lambda: told.append(fleet.call(calls[0])))
    fleet.drain(workers)
    assert len(told) == 3
    assert all(fleet.has_run(task_id) for task_id in told)
    assert len(set(fleet.runs)) == len(fleet.runs)
    fleet.assert_free(old, new)
