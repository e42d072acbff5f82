"""Bugs that locks on Redis are known for, each as a change of this package and the test it fails.

Each has been seen in a published lock, or is warned of by the Redis page on locks or its critics.
"""

from __future__ import annotations

from typing import NamedTuple

_ROOM = "celery_redlock/redlock"
_LUA = f"{_ROOM}/protocol/lua"
_UNIT = "tests/unit/redlock"
_CONTRACT = "tests/contract/test_scripts.py"


class KnownBug(NamedTuple):
    """One bug.

    Attributes:
        name: The bug, in a few words.
        seen: Where locks have, or had, it.
        file: File of this package to change.
        old: Text in it, which is there once.
        new: The same with the bug.
        test: Test that fails then; a parametrized one without its parameters.
    """

    name: str
    seen: str
    file: str
    old: str
    new: str
    test: str


KNOWN_BUGS = (
    KnownBug(
        "release without a look at the owner",
        "SET NX with DEL; celery-once 3.0.1, celery-singleton 0.3.1",
        f"{_LUA}/release.lua",
        "local is_held, is_raised = holder == owner,",
        "local is_held, is_raised = not not holder,",
        f"{_CONTRACT}::test_another_s_lock_is_never_released",
    ),
    KnownBug(
        "extension without a look at the owner",
        "PEXPIRE as renewal",
        f"{_LUA}/extend.lua",
        "if holder == owner then",
        "if holder then",
        f"{_CONTRACT}::test_another_s_lock_is_not_touched_by_my_extension",
    ),
    KnownBug(
        "ttl in seconds where it is in milliseconds",
        "EX for PX",
        f"{_LUA}/grant.lua",
        "call, owner, ttl, supersedes = redis.call, ARGV[1], ARGV[2],",
        "call, owner, ttl, supersedes = redis.call, ARGV[1], ARGV[2] * 1000,",
        f"{_CONTRACT}::test_a_free_lock_is_granted_with_the_proposed_token",
    ),
    KnownBug(
        "token printed as a double",
        "Lua's tostring of a number above 2^43",
        f"{_LUA}/grant.lua",
        "digits = string.format('%.0f', token)",
        "digits = tostring(token)",
        f"{_CONTRACT}::test_tokens_keep_all_their_digits",
    ),
    KnownBug(
        "a grant that arrives twice confirms twice",
        "clients that repeat a command after a broken connection",
        f"{_LUA}/confirm.lua",
        "if tonumber(redis.call('GET', KEYS[2]) or '0') > token then",
        "if false then",
        f"{_CONTRACT}::test_a_higher_floor_is_not_confirmed_and_not_lowered",
    ),
    KnownBug(
        "token not raised at the release",
        "Redlock with healing: a late extension revives a released lock",
        f"{_LUA}/release.lua",
        "local is_held, is_raised = holder == owner, token == 0",
        "local is_held, is_raised = holder == owner, true",
        f"{_CONTRACT}::test_an_extension_after_the_release_does_not_heal",
    ),
    KnownBug(
        "healing revives a lock that others had meanwhile",
        "extensions that set a missing key again",
        f"{_LUA}/extend.lua",
        "if floor > token then",
        "if holder and floor > token then",
        f"{_CONTRACT}::test_a_released_lock_is_neither_healed_nor_extended",
    ),
    KnownBug(
        "validity counted from the end",
        "the Redis page warns of it: step 4 of the algorithm",
        f"{_ROOM}/acquisition.py",
        "deadline=started + validity_ms(attempt.ttl_ms, 0.0) / 1000,",
        "deadline=self._clock.now() + validity_ms(attempt.ttl_ms, 0.0) / 1000,",
        f"{_UNIT}/test_acquisition.py::test_the_deadline_counts_from_before_the_first_grant",
    ),
    KnownBug(
        "drift not subtracted",
        "the Redis page warns of it",
        f"{_ROOM}/protocol/quorum.py",
        "return ttl_ms - elapsed_ms - drift_ms(ttl_ms)",
        "return ttl_ms - elapsed_ms",
        f"{_UNIT}/protocol/test_quorum.py::test_the_validity_is_the_ttl_less_elapsed_time_and_drift",
    ),
    KnownBug(
        "quorum of N / 2",
        "integer division without + 1",
        f"{_ROOM}/protocol/quorum.py",
        "return nodes // 2 + 1",
        "return nodes // 2",
        f"{_UNIT}/protocol/test_quorum.py::test_any_two_majorities_share_a_node",
    ),
    KnownBug(
        "healing counted as a vote",
        "extensions that set a missing key again",
        f"{_ROOM}/protocol/quorum.py",
        "elif isinstance(reply, Extended):",
        'elif type(reply).__name__ in ("Extended", "Healed"):',
        f"{_UNIT}/protocol/test_quorum.py::test_an_extension_needs_a_majority_without_healed_nodes",
    ),
    KnownBug(
        "no confirmation",
        "tokens made of a counter on each node",
        f"{_ROOM}/acquisition.py",
        "if already >= self._quorum or self._confirm(channel, attempt, token, already, grants):",
        "if token:",
        f"{_UNIT}/test_acquisition.py::test_a_token_that_a_minority_confirms_is_no_lease",
    ),
    KnownBug(
        "a failed attempt leaves its grants behind",
        "an early return",
        f"{_ROOM}/acquisition.py",
        "        self._abandon(channel, attempt, grants)\n        return self._refusal(",
        "        return self._refusal(",
        f"{_UNIT}/test_acquisition.py::test_a_failed_attempt_is_released_where_it_was_granted",
    ),
    KnownBug(
        "no release where the grant is still on its way",
        "releases sent only to nodes that granted",
        f"{_ROOM}/acquisition.py",
        "among = [index for index in channel.everyone() if index not in free]",
        "among = [index for index in holding if index not in free]",
        f"{_UNIT}/test_acquisition.py::test_a_grant_under_way_is_followed_by_its_release",
    ),
    KnownBug(
        "stragglers are waited for",
        "one node after the other: redlock-py 1.0.8",
        f"{_ROOM}/transport/channel.py",
        "while not is_decided(replies):",
        "while None in replies:",
        f"{_UNIT}/transport/test_channel.py::test_nobody_is_waited_for_once_it_is_decided",
    ),
    KnownBug(
        "no timeout for a node that hangs",
        "redlock-py 1.0.8, as its README sets it up",
        f"{_ROOM}/transport/redis_py.py",
        'self._options.setdefault("socket_timeout", timeout)',
        'self._options.setdefault("socket_timeout", None)',
        f"{_UNIT}/transport/test_redis_py.py::test_a_url_without_timeouts_gets_those_of_the_lock",
    ),
    KnownBug(
        "a library repeats the grant",
        "redis-py 8 repeats a command 10 times by default",
        f"{_ROOM}/transport/redis_py.py",
        "connection = self._connection_class(**options, retry=Retry(NoBackoff(), 0))",
        "connection = self._connection_class(**options, retry=Retry(NoBackoff(), 3))",
        f"{_UNIT}/transport/test_redis_py.py::test_a_command_is_never_repeated_by_redis_py",
    ),
    KnownBug(
        "a late reply is taken for the next one",
        "connections that are used again after a timeout",
        f"{_ROOM}/transport/channel.py",
        "first[index] = connection.sent\n",
        "first[index] = connection.received\n",
        f"{_UNIT}/transport/test_channel.py::test_an_owed_reply_is_never_taken_for_the_next_one",
    ),
    KnownBug(
        "a restarted node votes at once",
        "every other Redlock client; the Redis page leaves it to the operator",
        f"{_ROOM}/transport/restart_guard.py",
        "return max(started + after_start, identity.replaced_at + self.guard_s)",
        "return max(started, identity.replaced_at)",
        f"{_UNIT}/transport/test_restart_guard.py::"
        "test_the_guard_is_counted_from_the_server_s_start",
    ),
    KnownBug(
        "expiry by the wall clock",
        "time.time() in a lock's validity",
        f"{_ROOM}/clock.py",
        "staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))",
        "staticmethod(time.time)",
        f"{_UNIT}/test_clock.py::test_leases_are_measured_on_the_clock_that_counts_suspend",
    ),
    KnownBug(
        "renewal dies with its first error",
        "threads that renew in a bare loop",
        f"{_ROOM}/keeper_thread.py",
        "                wakes_at = self._clock.now() + _AFTER_ERROR_S\n",
        "                return\n",
        f"{_UNIT}/test_keeper_thread.py::test_the_thread_goes_on_after_an_error_in_a_renewal",
    ),
    KnownBug(
        "renewal without an end",
        "a holder that hangs keeps its lock: the Redis page asks for a bound",
        f"{_ROOM}/lease.py",
        "return self.hold_until is not None and self.hold_until <= now",
        "return False",
        f"{_UNIT}/test_keeper.py::test_max_hold_ends_the_renewal_and_then_the_lease",
    ),
    KnownBug(
        "a lost lease is extended back to life",
        "extensions that look at the key only",
        f"{_ROOM}/extension.py",
        "        lease.backing.is_lost = True\n"
        "        return LeaseLost(lease.key, why_lost(lease))\n",
        "        return None\n",
        f"{_UNIT}/test_extension.py::test_an_extension_that_outlasts_the_lease_revives_nothing",
    ),
    KnownBug(
        "a loss is told to nobody",
        "locks that renew in the background",
        f"{_ROOM}/keeper.py",
        "for tell in (self._lose if kept.is_renewed else None, kept.on_lost):",
        "for tell in (self._lose if kept.is_renewed else None,):",
        f"{_UNIT}/test_hold.py::test_a_kept_lease_that_is_lost_is_told_once",
    ),
    KnownBug(
        "one owner for all attempts of a process, and of its forks",
        "a random value that is made when a module is imported",
        f"{_ROOM}/lease.py",
        "nonce = _random_bits()",
        'nonce = str(vars(new_owner).setdefault("once", _random_bits()))',
        f"{_UNIT}/test_lease.py::test_an_owner_is_never_used_twice",
    ),
    KnownBug(
        "re-entry by task id",
        "a second copy of a message that enters under the first one's lock",
        f"{_ROOM}/lease.py",
        "nonce = _random_bits()",
        'nonce = (label or "").encode().hex().ljust(32, "0")[:32]',
        f"{_UNIT}/test_lease.py::test_an_owner_is_never_used_twice",
    ),
    KnownBug(
        "a forked child renews its parent's leases",
        "threads and connections that are not forgotten after a fork",
        f"{_ROOM}/keeper.py",
        '        """Forget all leases and releases, as after a fork: they are the parent\'s."""\n'
        "        self._kept = {}\n",
        '        """Forget all releases."""\n',
        f"{_UNIT}/test_keeper.py::test_after_a_fork_the_parent_s_leases_are_the_parent_s",
    ),
    KnownBug(
        "retry without jitter",
        "clients that split the nodes again and again; the Redis page warns of it",
        f"{_ROOM}/backoff.py",
        "return least + random.uniform(0.0, longest)",
        "return least + longest",
        f"{_UNIT}/test_acquisition.py::test_pauses_are_never_twice_the_same",
    ),
    KnownBug(
        "a mutex that a signal handler waits for",
        "locks around a lock's own state: a handler runs on the thread that has it",
        f"{_ROOM}/unsettled.py",
        "        self._pending[release.owner] = release\n",
        '        mutex = vars(type(self)).get("mutex") or __import__("threading").Lock()\n'
        "        type(self).mutex = mutex\n"
        "        if not mutex.acquire(timeout=0.5):\n"
        '            raise RuntimeError("deadlock")\n'
        "        owner = release.owner\n"
        "        entry = release\n"
        "        self._pending[owner] = entry\n"
        "        mutex.release()\n",
        f"{_UNIT}/test_interrupts.py::test_a_handler_may_use_the_lock_at_any_line",
    ),
    KnownBug(
        "a lock is kept after its message was not published",
        "celery-once 3.0.1, celery-singleton 0.3.1: locked before the broker has the message",
        "celery_redlock/task/publication.py",
        "        except BaseException:\n"
        "            release_reservation(self.redlock, reservation)\n"
        "            raise\n",
        "        except BaseException:\n            raise\n",
        "tests/unit/task/test_publication.py::"
        "test_a_call_that_is_not_published_releases_its_reservation",
    ),
    KnownBug(
        "release in a signal after the task only",
        "celery-once 3.0.1: after_return; the next step of a chain finds the lock held",
        "celery_redlock/execution/execution.py",
        "            _insist(run.end, raised)\n        finally:",
        "            pass\n        finally:",
        "tests/unit/execution/test_execution.py::"
        "test_the_lock_is_released_before_the_result_is_stored",
    ),
    KnownBug(
        "a message frees the reservation of another task",
        "locks whose key comes with the message",
        "celery_redlock/messages/reservation.py",
        "if reservation and is_key_of(reservation.key.removesuffix(_NEXT), task_name):",
        "if reservation:",
        "tests/unit/messages/test_reservation.py::"
        "test_only_a_reservation_of_the_tasks_keys_is_its_own",
    ),
    KnownBug(
        "done although the message comes again",
        "marks that are written whatever the body's end",
        "celery_redlock/execution/run.py",
        "return mark if is_over and not comes_again else None",
        "return mark",
        "tests/unit/execution/test_run.py::test_no_mark_is_left_by_what_comes_again",
    ),
    KnownBug(
        "the waiting message is dropped without a quorum",
        "an error in the reservation of its place ends it",
        "celery_redlock/execution/outcomes.py",
        "            return conclude(message, error)\n",
        "            return store_skipped(message, refused)\n",
        "tests/unit/execution/test_coalesce.py::"
        "test_a_duplicate_without_a_quorum_for_its_slot_is_requeued",
    ),
)
