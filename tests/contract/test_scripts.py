"""Each script, and what goes without one, against each real server there is.

They are run by a user who has the documented rights and no others; the tests look at the server as
its administrator. The in-memory node, on which the fast tests of the lock stand, is asked the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from celery_redlock.redlock.protocol.replies import (
    Acknowledged,
    AckReply,
    Busy,
    Declined,
    Done,
    Extended,
    ExtendReply,
    Failed,
    Granted,
    GrantReply,
    Healed,
    Occupied,
    Superseded,
)
from celery_redlock.redlock.protocol.scripts import (
    ALL,
    CONFIRM,
    EXTEND,
    GRANT,
    RELEASE,
    Script,
    as_ack,
    as_extend,
    as_grant,
    as_release,
    as_reserved,
    evalsha,
    reserving,
)
from celery_redlock.testing import MemoryServer, Server
from tests.support.requirements import REDIS_BINARIES
from tests.support.rights import give_rights

IN_MEMORY = Path("in-memory")
pytestmark = pytest.mark.parametrize(
    "redis_binary", [*REDIS_BINARIES, pytest.param(IN_MEMORY, id="in-memory")], indirect=True
)

LOCK, FLOOR, DONE = "redlock:{k}", "redlock:{k}:floor", "redlock:{k}:done:task"
TTL, FLOOR_TTL, DONE_TTL = 30_000, 3_600_000, 900_000
SECOND_US = 1_000_000
NO_CLAMP = 10**16
"""A skew that lets every proposal pass."""
T = 1_695_123_456_789_012
"""In the past: a floor ahead of the node's clock lasts longer."""


class Node:
    """One server, asked as a client of the lock asks it.

    Args:
        client: An administrator.
        locker: The lock's user.
    """

    def __init__(self, client: redis.Redis, locker: redis.Redis) -> None:
        self.client = client
        self.locker = locker

    def grant(
        self,
        owner: str = "me",
        proposed: int = T,
        *,
        ttl: int = TTL,
        skew: int = NO_CLAMP,
        supersedes: str = "",
        highest_floor: int | None = None,
        heeds_done: bool = False,
    ) -> GrantReply:
        keys = (LOCK, FLOOR, DONE) if heeds_done else (LOCK, FLOOR)
        argv = (owner, ttl, proposed, skew, FLOOR_TTL, supersedes)
        optional = () if highest_floor is None else (highest_floor,)
        return as_grant(self._run(GRANT, keys, *argv, *optional))

    def reserve(self, owner: str = "me", ttl: int = TTL) -> GrantReply:
        commands = reserving(LOCK, owner, ttl)
        pipeline = self.locker.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return as_reserved(owner.encode(), pipeline.execute(raise_on_error=False))

    def confirm(self, owner: str = "me", token: int = T) -> AckReply:
        return as_ack(self._run(CONFIRM, (LOCK, FLOOR), owner, token, TTL, FLOOR_TTL))

    def extend(self, owner: str = "me", token: int = T, ttl: int = TTL) -> ExtendReply:
        return as_extend(self._run(EXTEND, (LOCK, FLOOR), owner, token, ttl, FLOOR_TTL))

    def release(
        self, owner: str = "me", token: int = T, *, keep: int = 0, marks_done: bool = False
    ) -> AckReply:
        return as_release(self.raw_release(owner, token, keep=keep, marks_done=marks_done))

    def raw_release(
        self,
        owner: str = "me",
        token: int = T,
        *,
        keep: int = 0,
        marks_done: bool = False,
        superseded: str = "",
    ) -> object:
        keys = (LOCK, FLOOR, DONE) if marks_done else (LOCK, FLOOR)
        return self._run(RELEASE, keys, owner, token, FLOOR_TTL, keep, DONE_TTL, superseded)

    def _run(self, script: Script, keys: tuple[str, ...], *argv: str | int) -> object:
        return self.locker.execute_command(*evalsha(script, keys, *argv))

    def set_holder(self, owner: str, ttl: int = TTL) -> None:
        self.client.set(LOCK, owner, px=ttl)

    def set_floor(self, floor: int, ttl: int = FLOOR_TTL) -> None:
        self.client.set(FLOOR, floor, px=ttl)

    @property
    def holder(self) -> str | None:
        value = self.client.get(LOCK)
        return value.decode() if isinstance(value, bytes) else None

    @property
    def floor(self) -> str | None:
        """As the server stores it, digit by digit."""
        value = self.client.get(FLOOR)
        return value.decode() if isinstance(value, bytes) else None

    def left(self, key: str) -> int:
        """How long the key lives, ms; -1: for ever, -2: there is none."""
        left = self.client.pttl(key)
        assert isinstance(left, int)
        return left

    def now_us(self) -> int:
        seconds, microseconds = self.client.time()
        return int(seconds) * SECOND_US + int(microseconds)


@pytest.fixture(scope="module")
def server_of() -> Iterator[Callable[[Path], Server | MemoryServer]]:
    with ExitStack() as stack:
        started: dict[Path, Server | MemoryServer] = {}

        def of(binary: Path) -> Server | MemoryServer:
            if binary not in started and binary == IN_MEMORY:
                started[binary] = stack.enter_context(MemoryServer())
            elif binary not in started:
                started[binary] = stack.enter_context(Server(binary=binary))
            return started[binary]

        yield of


@pytest.fixture
def node(redis_binary: Path, server_of: Callable[[Path], Server | MemoryServer]) -> Iterator[Node]:
    server = server_of(redis_binary)
    with ExitStack() as stack:
        client = locker = stack.enter_context(server.client())
        # An in-memory node has no users.
        if redis_binary != IN_MEMORY:
            locker = stack.enter_context(server.client(**give_rights(client)))
        client.config_set("maxmemory", "0")
        server.reset()
        for script in ALL:
            assert locker.script_load(script.text) == script.sha
        yield Node(client, locker)


def assert_lives(node: Node, key: str, ttl: int) -> None:
    """It was given this ttl not longer than a slow machine takes for a test ago."""
    assert ttl - 20_000 < node.left(key) <= ttl


# ---- without a script


def test_a_free_lock_is_reserved_without_a_token(node: Node) -> None:
    assert node.reserve("me") == Granted(0)
    assert (node.holder, node.floor) == ("me", None)
    assert_lives(node, LOCK, TTL)


def test_a_reservation_leaves_the_floor_as_it_is(node: Node) -> None:
    node.set_floor(T, 50_000)
    assert node.reserve("me") == Granted(0)
    assert node.release("me", 0) == Acknowledged()
    assert (node.holder, node.floor) == (None, str(T))
    assert node.left(FLOOR) <= 50_000


def test_a_busy_lock_is_not_reserved_and_nothing_is_changed(node: Node) -> None:
    node.set_holder("you", 20_000)
    reply = node.reserve("me")
    assert isinstance(reply, Busy)
    assert (reply.holder, reply.floor) == ("you", 0)
    assert 0 < reply.remaining_ms <= 20_000
    assert node.holder == "you"
    assert node.left(LOCK) <= reply.remaining_ms


def test_a_busy_lock_without_an_end_is_not_reserved(node: Node) -> None:
    node.client.set(LOCK, "somebody's shell")
    assert node.reserve("me") == Busy("somebody's shell", -1, 0)


def test_a_reservation_seen_twice_has_one_answer_and_one_effect(node: Node) -> None:
    assert node.reserve("me", ttl=20_000) == Granted(0)
    assert node.reserve("me", ttl=40_000) == Granted(0)
    assert node.left(LOCK) <= 20_000


def test_a_lease_from_a_reservation_has_the_largest_token(node: Node) -> None:
    node.set_floor(T)
    node.reserve("me")
    assert node.grant("you", supersedes="me") == Granted(T + 1, took_over=True)


def test_a_full_server_reserves_nothing_and_says_why(node: Node) -> None:
    node.client.config_set("maxmemory", "1")
    reply = node.reserve("me")
    assert isinstance(reply, Failed)
    assert "OOM" in reply.error or "used memory" in reply.error
    assert node.holder is None


def test_a_full_server_still_names_the_holder(node: Node) -> None:
    node.set_holder("you")
    node.client.config_set("maxmemory", "1")
    reply = node.reserve("me")
    assert isinstance(reply, Busy)
    assert reply.holder == "you"


def test_a_key_that_is_not_the_lock_s_is_not_reserved(node: Node) -> None:
    node.client.lpush(LOCK, "somebody's data")
    reply = node.reserve("me")
    assert isinstance(reply, Failed)
    assert "WRONGTYPE" in reply.error or "wrong kind" in reply.error


# ---- GRANT


def test_a_free_lock_is_granted_with_the_proposed_token(node: Node) -> None:
    assert node.grant("me", T) == Granted(T)
    assert node.holder == "me"
    assert node.floor == str(T)
    assert_lives(node, LOCK, TTL)


def test_a_floor_outlives_its_lock_by_the_floor_s_own_time(node: Node) -> None:
    node.grant(ttl=7_200_000)
    assert_lives(node, FLOOR, 7_200_000 + FLOOR_TTL)
    assert node.left(FLOOR) >= node.left(LOCK) + FLOOR_TTL


@pytest.mark.parametrize("token", [1, 10**15 + 1, 9 * 10**15 + 1, T, T + 1, 2**53 - 1])
def test_tokens_keep_all_their_digits(node: Node, token: int) -> None:
    node.set_floor(token - 1)
    assert node.grant("me", 0) == Granted(token)
    assert node.floor == str(token)
    refusal = node.grant("you")
    assert isinstance(refusal, Busy)
    assert refusal.floor == token
    node.set_floor(0)
    node.confirm("me", token)
    assert node.floor == str(token)
    node.set_floor(0)
    node.extend("me", token)
    assert node.floor == str(token)


def test_a_held_lock_is_refused_with_its_holder_and_unchanged(node: Node) -> None:
    node.set_holder("you", 20_000)
    node.set_floor(T + 5, 50_000)
    reply = node.grant("me", T + 9)
    assert isinstance(reply, Busy)
    assert (reply.holder, reply.floor) == ("you", T + 5)
    assert 0 < reply.remaining_ms <= 20_000
    assert (node.holder, node.floor) == ("you", str(T + 5))
    assert node.left(LOCK) <= reply.remaining_ms
    assert node.left(FLOOR) <= 50_000


def test_a_busy_lock_has_its_token_s_age_on_the_node_s_clock(node: Node) -> None:
    node.set_holder("you")
    before = node.now_us()
    node.set_floor(before - 90 * SECOND_US)
    reply = node.grant("me")
    after = node.now_us()
    assert isinstance(reply, Busy)
    assert reply.age_us is not None
    assert 0 <= reply.age_us - 90 * SECOND_US <= after - before


def test_a_token_ahead_of_the_node_s_clock_has_a_negative_age(node: Node) -> None:
    node.set_holder("you")
    node.set_floor(node.now_us() + 3600 * SECOND_US)
    reply = node.grant("me")
    assert isinstance(reply, Busy)
    assert reply.age_us is not None
    assert reply.age_us < 0


def test_a_busy_lock_without_a_floor_is_refused(node: Node) -> None:
    node.set_holder("you")
    reply = node.grant("me")
    assert isinstance(reply, Busy)
    assert (reply.floor, reply.age_us) == (0, None)
    assert node.floor is None


def test_a_busy_lock_without_an_end_is_refused(node: Node) -> None:
    node.client.set(LOCK, "somebody's shell")
    assert node.grant("me") == Busy("somebody's shell", -1, 0)


def test_a_repeated_request_has_the_same_answer_and_one_effect(node: Node) -> None:
    first = node.grant("me", T, ttl=20_000)
    assert node.grant("me", T + 1000, ttl=40_000) == first == Granted(T)
    assert node.floor == str(T)
    assert node.left(LOCK) <= 20_000, "not renewed: its validity counts from the first"


@pytest.mark.parametrize("floor", [T, T + 1, T + SECOND_US])
def test_a_token_is_larger_than_every_one_before(node: Node, floor: int) -> None:
    node.set_floor(floor)
    assert node.grant("me", T) == Granted(floor + 1)
    assert node.floor == str(floor + 1)


def test_tokens_grow_though_the_proposals_do_not(node: Node) -> None:
    tokens = []
    for number in range(10):
        reply = node.grant(f"owner-{number}", T)
        assert isinstance(reply, Granted)
        tokens.append(reply.token)
        node.client.delete(LOCK)  # expired
    assert tokens == list(range(T, T + 10))


@pytest.mark.parametrize("skew", [0, SECOND_US])
def test_a_proposal_from_the_past_is_raised_to_the_node_s_clock(node: Node, skew: int) -> None:
    before = node.now_us()
    reply = node.grant("me", 0, skew=skew)
    assert isinstance(reply, Granted)
    assert before - skew <= reply.token <= node.now_us() - skew


@pytest.mark.parametrize("skew", [0, SECOND_US])
def test_a_proposal_from_the_future_is_cut_to_the_nodes_clock(node: Node, skew: int) -> None:
    before = node.now_us()
    reply = node.grant("me", before + 3600 * SECOND_US, skew=skew)
    assert isinstance(reply, Granted)
    assert before + skew <= reply.token <= node.now_us() + skew


def test_a_proposal_that_differs_by_less_than_the_skew_is_taken(node: Node) -> None:
    proposed = node.now_us() + 1800 * SECOND_US
    assert node.grant("me", proposed, skew=3600 * SECOND_US) == Granted(proposed)


def test_the_floor_wins_over_the_clamp(node: Node) -> None:
    ahead = node.now_us() + 3600 * SECOND_US
    node.set_floor(ahead)
    assert node.grant("me", 0, skew=SECOND_US) == Granted(ahead + 1)


@pytest.mark.parametrize("floor", [2**53, 2**63 - 1])
def test_a_floor_that_can_not_be_raised_any_more_grants_nothing(node: Node, floor: int) -> None:
    node.set_floor(floor, 50_000)
    with pytest.raises(redis.ResponseError, match="floor is out of range"):
        node.grant("me")
    assert node.holder is None
    assert node.left(FLOOR) <= 50_000, "it ends some time"


def test_the_named_owner_is_superseded_in_one_step(node: Node) -> None:
    node.grant("reservation", T, ttl=3_000_000)
    assert node.grant("run", T, supersedes="reservation") == Granted(T + 1, took_over=True)
    assert (node.holder, node.floor) == ("run", str(T + 1))
    assert_lives(node, LOCK, TTL)


def test_another_owner_is_not_superseded(node: Node) -> None:
    node.grant("other", T)
    reply = node.grant("run", T, supersedes="reservation")
    assert isinstance(reply, Busy)
    assert reply.holder == "other"
    assert node.holder == "other"


def test_superseding_is_repeatable_by_the_same_owner_only(node: Node) -> None:
    node.grant("reservation", T)
    first = node.grant("run", T, supersedes="reservation")
    second = node.grant("run", T, supersedes="reservation")
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert first.token == second.token == T + 1
    assert isinstance(node.grant("copy", T, supersedes="reservation"), Busy)
    assert node.holder == "run"


def test_superseding_what_has_expired_is_an_ordinary_grant(node: Node) -> None:
    assert node.grant("run", T, supersedes="reservation") == Granted(T)


def test_nobody_is_superseded_without_being_named(node: Node) -> None:
    node.client.set(LOCK, "")
    assert node.grant("run", T, supersedes="") == Busy("", -1, 0)


def test_a_hand_over_is_granted_up_to_the_floor_that_it_names(node: Node) -> None:
    node.grant("run", T)
    reply = node.grant("retry", T, supersedes="run", highest_floor=T)
    assert reply == Granted(T + 1, took_over=True)
    assert (node.holder, node.floor) == ("retry", str(T + 1))


def test_a_hand_over_below_the_floor_is_refused_on_a_held_lock(
    node: Node,
) -> None:
    node.set_holder("run")
    node.set_floor(T + 1)
    reply = node.grant("retry", T, supersedes="run", highest_floor=T)
    assert isinstance(reply, Busy)
    assert (reply.holder, reply.floor) == ("run", T + 1)
    assert 0 < reply.remaining_ms <= TTL
    assert (node.holder, node.floor) == ("run", str(T + 1))


def test_a_hand_over_below_the_floor_is_refused_on_a_free_lock(
    node: Node,
) -> None:
    node.set_floor(T + 1)
    reply = node.grant("retry", T, supersedes="run", highest_floor=T)
    assert isinstance(reply, Busy)
    assert (reply.holder, reply.remaining_ms, reply.floor) == ("", 0, T + 1)
    assert (node.holder, node.floor) == (None, str(T + 1))


def test_a_granted_hand_over_stays_granted_whatever_the_floor(node: Node) -> None:
    node.set_holder("retry")
    node.set_floor(T + 1)
    assert node.grant("retry", T, supersedes="run", highest_floor=T) == Granted(T + 1)


@pytest.mark.parametrize("highest_floor", [None, 0])
def test_without_a_highest_floor_any_will_do(node: Node, highest_floor: int | None) -> None:
    node.set_floor(T + 1)
    assert node.grant("me", T, highest_floor=highest_floor) == Granted(T + 2)


def test_a_done_mark_ends_the_attempt_and_nothing_is_set(node: Node) -> None:
    node.client.set(DONE, "1", px=DONE_TTL)
    reply = node.grant("me", heeds_done=True)
    assert isinstance(reply, Done)
    assert 0 < reply.remaining_ms <= DONE_TTL
    assert (node.holder, node.floor) == (None, None)


def test_a_done_mark_is_heeded_though_the_lock_is_held(node: Node) -> None:
    node.set_holder("you")
    node.client.set(DONE, "1")
    assert isinstance(node.grant("me", heeds_done=True), Done)


def test_without_a_done_mark_the_lock_is_granted(node: Node) -> None:
    assert node.grant("me", heeds_done=True) == Granted(T)
    assert node.client.exists(DONE) == 0


def test_a_done_mark_is_nothing_to_who_does_not_ask(node: Node) -> None:
    node.client.set(DONE, "1")
    assert node.grant("me") == Granted(T)


# ---- CONFIRM


def test_confirming_raises_the_floor(node: Node) -> None:
    node.grant("me", T)
    assert isinstance(node.confirm("me", T + 5), Acknowledged)
    assert node.floor == str(T + 5)
    assert isinstance(node.confirm("me", T + 5), Acknowledged), "the same request seen twice"


def test_confirming_renews_the_floor_and_not_the_lock(node: Node) -> None:
    node.set_holder("me", 20_000)
    node.set_floor(T, 5000)
    assert isinstance(node.confirm("me", T), Acknowledged)
    assert_lives(node, FLOOR, TTL + FLOOR_TTL)
    assert node.left(LOCK) <= 20_000


def test_a_floor_that_was_forgotten_is_set_again(node: Node) -> None:
    node.set_holder("me")
    assert isinstance(node.confirm("me", T), Acknowledged)
    assert node.floor == str(T)


@pytest.mark.parametrize("holder", [None, "you", "m", "me2"])
def test_what_is_not_mine_is_not_confirmed(node: Node, holder: str | None) -> None:
    if holder:
        node.set_holder(holder)
    node.set_floor(T)
    assert isinstance(node.confirm("me", T + 5), Declined)
    assert (node.holder, node.floor) == (holder, str(T))


def test_a_higher_floor_is_not_confirmed_and_not_lowered(node: Node) -> None:
    node.set_holder("me")
    node.set_floor(T + 6)
    assert isinstance(node.confirm("me", T + 5), Declined)
    assert node.floor == str(T + 6)


# ---- EXTEND


def test_a_release_renews_the_floor_of_a_lock_that_is_gone(node: Node) -> None:
    node.set_floor(T, 5000)
    assert node.raw_release("me", T) == 0
    assert node.floor == str(T + 1)
    assert_lives(node, FLOOR, FLOOR_TTL)


def test_my_lock_is_extended(node: Node) -> None:
    node.set_holder("me", 5000)
    node.set_floor(T, 5000)
    assert isinstance(node.extend("me", T), Extended)
    assert node.holder == "me"
    assert_lives(node, LOCK, TTL)
    assert_lives(node, FLOOR, TTL + FLOOR_TTL)


def test_extending_a_lower_floor_raises_it(node: Node) -> None:
    node.set_holder("me")
    node.set_floor(T - 3)
    assert isinstance(node.extend("me", T), Extended)
    assert node.floor == str(T)


@pytest.mark.parametrize("floor", [None, T - 1, T])
def test_a_node_that_lost_the_lock_is_healed_then_extended(node: Node, floor: int | None) -> None:
    if floor:
        node.set_floor(floor)
    assert isinstance(node.extend("me", T), Healed)
    assert (node.holder, node.floor) == ("me", str(T))
    assert_lives(node, LOCK, TTL)
    assert_lives(node, FLOOR, TTL + FLOOR_TTL)
    assert isinstance(node.extend("me", T), Extended)


def test_another_s_lock_is_not_touched_by_my_extension(node: Node) -> None:
    node.set_holder("you", 5000)
    node.set_floor(T - 1, 50_000)
    assert isinstance(node.extend("me", T), Occupied)
    assert (node.holder, node.floor) == ("you", str(T - 1))
    assert node.left(LOCK) <= 5000
    assert node.left(FLOOR) <= 50_000


@pytest.mark.parametrize("holder", [None, "me", "you"])
def test_a_higher_floor_says_that_somebody_was_granted_since(
    node: Node, holder: str | None
) -> None:
    if holder:
        node.set_holder(holder, 5000)
    node.set_floor(T + 1)
    assert isinstance(node.extend("me", T), Superseded)
    assert (node.holder, node.floor) == (holder, str(T + 1))
    assert node.left(LOCK) <= 5000


@pytest.mark.parametrize("keep", [0, 5000])
def test_a_released_lock_is_neither_healed_nor_extended(node: Node, keep: int) -> None:
    node.grant("me", T)
    node.release("me", T, keep=keep)
    assert isinstance(node.extend("me", T), Superseded)
    assert node.holder == ("me" if keep else None)
    assert node.left(LOCK) <= keep


def test_an_extension_after_the_release_does_not_heal(node: Node) -> None:
    # A node that had lost the lock, too.
    node.release("me", T)
    assert isinstance(node.extend("me", T), Superseded)
    assert node.holder is None


# ---- RELEASE


def test_my_lock_is_released_and_its_floor_raised_above_it(node: Node) -> None:
    node.grant("me", T)
    assert node.raw_release("me", T) == 1
    assert (node.holder, node.floor) == (None, str(T + 1))
    assert_lives(node, FLOOR, TTL + FLOOR_TTL)


def test_releasing_again_changes_nothing(node: Node) -> None:
    node.grant("me", T)
    node.release("me", T)
    assert node.raw_release("me", T) == 0
    assert (node.holder, node.floor) == (None, str(T + 1))


def test_a_repeated_release_does_not_hit_the_next_holder(node: Node) -> None:
    node.grant("me", T)
    node.release("me", T)
    assert node.grant("you", T) == Granted(T + 2)
    assert node.raw_release("me", T) == 0
    assert (node.holder, node.floor) == ("you", str(T + 2))


@pytest.mark.parametrize("holder", ["you", "m", "me2"])
def test_another_s_lock_is_never_released(node: Node, holder: str) -> None:
    node.set_holder(holder, 20_000)
    for keep in (0, 900_000):
        assert node.raw_release("me", T, keep=keep) == 0
        assert node.holder == holder
        assert node.left(LOCK) <= 20_000


@pytest.mark.parametrize("keep", [0, 900_000])
def test_what_a_lease_superseded_is_released_with_it(node: Node, keep: int) -> None:
    # Its grant came late, after that of the lease: it was refused, or has expired since.
    node.set_holder("reservation")
    assert node.raw_release("me", T, keep=keep, superseded="reservation") == 0
    assert (node.holder, node.floor) == (None, str(T + 1))


@pytest.mark.parametrize("holder", [None, "", "you", "reservation-2"])
def test_only_what_was_superseded_is_released_with_a_lease(node: Node, holder: str | None) -> None:
    if holder is not None:
        node.set_holder(holder)
    for superseded in ("", "reservation"):
        assert node.raw_release("me", T, superseded=superseded) == 0
        assert node.holder == holder


def test_the_floor_is_raised_also_where_the_lock_was_lost(node: Node) -> None:
    assert node.raw_release("me", T) == 0
    assert node.floor == str(T + 1)


def test_a_higher_floor_is_not_lowered(node: Node) -> None:
    node.set_holder("me")
    node.set_floor(T + 7, 50_000)
    node.release("me", T)
    assert (node.holder, node.floor) == (None, str(T + 7))
    assert_lives(node, FLOOR, 50_000)


@pytest.mark.parametrize("keep", [5000, 300_000])
def test_a_release_may_keep_the_key_below_or_above_its_ttl(node: Node, keep: int) -> None:
    node.grant("me", T)
    assert node.raw_release("me", T, keep=keep) == 1
    assert node.holder == "me"
    assert keep - 4900 < node.left(LOCK) <= keep
    assert node.floor == str(T + 1)
    assert_lives(node, FLOOR, keep + FLOOR_TTL)


def test_a_kept_lock_is_still_busy_for_others(node: Node) -> None:
    node.grant("me", T)
    node.release("me", T, keep=60_000)
    assert isinstance(node.grant("you"), Busy)


def test_a_done_mark_is_left_for_its_time(node: Node) -> None:
    node.grant("me", T)
    assert isinstance(node.release("me", T, marks_done=True), Acknowledged)
    assert node.client.exists(DONE) == 1
    assert_lives(node, DONE, DONE_TTL)
    assert node.holder is None
    assert isinstance(node.grant("copy", heeds_done=True), Done)


def test_a_done_mark_is_not_cut_short_by_a_release_made_again(node: Node) -> None:
    node.client.set(DONE, "1", px=2 * DONE_TTL)
    node.release("me", T, marks_done=True)
    assert node.left(DONE) > DONE_TTL


def test_a_done_mark_is_left_by_a_run_that_had_lost_its_lock(node: Node) -> None:
    node.set_holder("you")
    assert node.raw_release("me", T, marks_done=True) == 0
    assert node.client.exists(DONE) == 1
    assert node.holder == "you"


def test_an_abandoned_attempt_is_released_and_the_floor_stays(node: Node) -> None:
    node.grant("me", T)
    assert node.raw_release("me", 0) == 1
    assert (node.holder, node.floor) == (None, str(T))
    assert node.raw_release("me", 0) == 0
    node.client.delete(FLOOR)
    node.raw_release("me", 0)
    assert node.floor is None


# ---- trouble


def test_nothing_is_left_without_an_end(node: Node) -> None:
    node.grant("me", T, heeds_done=True)
    node.confirm("me", T)
    node.extend("me", T)
    node.release("me", T, keep=5000, marks_done=True)
    keys = node.client.keys("*")
    assert isinstance(keys, list)
    assert len(keys) == 3
    assert all(node.left(key) > 0 for key in (LOCK, FLOOR, DONE))


@pytest.mark.parametrize("script", ALL, ids=lambda script: script.name)
def test_a_key_of_another_type_is_an_error_and_stays(node: Node, script: Script) -> None:
    node.client.lpush(LOCK, "not ours")
    with pytest.raises(redis.ResponseError) as caught:
        node._run(script, (LOCK, FLOOR), "me", T, TTL, FLOOR_TTL, 0, "")
    assert "WRONGTYPE" in str(caught.value)
    assert isinstance(as_grant(caught.value), Failed)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        node.client.get(LOCK)


def test_a_full_server_grants_nothing(node: Node) -> None:
    node.client.config_set("maxmemory", "1")
    with pytest.raises(redis.ResponseError, match=r"OOM|used memory"):
        node.grant("me")
    assert node.holder is None


def test_a_full_server_still_knows_who_has_the_lock(node: Node) -> None:
    node.grant("me", T)
    node.client.config_set("maxmemory", "1")
    assert node.grant("me", T) == Granted(T)
    refusal = node.grant("you", T)
    assert isinstance(refusal, Busy)
    assert (refusal.holder, refusal.floor) == ("me", T)


def test_a_full_server_still_releases(node: Node) -> None:
    node.grant("me", T)
    node.client.config_set("maxmemory", "1")
    node.release("me", T)
    assert node.holder is None


def test_a_full_server_confirms_a_release_made_again(node: Node) -> None:
    node.grant("me", T)
    node.client.config_set("maxmemory", "1")
    node.release("me", T)
    assert node.raw_release("me", T) == 0
    assert node.floor == str(T + 1)


def test_a_full_server_still_extends(node: Node) -> None:
    node.set_holder("me", 5000)
    node.set_floor(T, 5000)
    node.client.config_set("maxmemory", "1")
    assert isinstance(node.extend("me", T), Extended)
    assert_lives(node, LOCK, TTL)
    assert_lives(node, FLOOR, TTL + FLOOR_TTL)


def test_a_full_server_still_extends_where_the_floor_is_lower(node: Node) -> None:
    node.set_holder("me", 5000)
    node.set_floor(T - 1)
    node.client.config_set("maxmemory", "1")
    assert isinstance(node.extend("me", T), Extended)
    assert node.floor == str(T)


def test_a_full_server_heals_nothing(node: Node) -> None:
    node.set_floor(T)
    node.client.config_set("maxmemory", "1")
    with pytest.raises(redis.ResponseError, match=r"OOM|used memory"):
        node.extend("me", T)
    assert node.holder is None


@pytest.mark.parametrize("floor", [None, T - 1, T])
def test_a_full_server_still_releases_with_floor_and_done_mark(
    node: Node, floor: int | None
) -> None:
    node.set_holder("me")
    if floor:
        node.set_floor(floor)
    node.client.config_set("maxmemory", "1")
    assert node.raw_release("me", T, marks_done=True) == 1
    assert (node.holder, node.floor) == (None, str(T + 1))
    assert node.client.exists(DONE) == 1


# ---- floors ahead of the node's clock

HOUR, DAY = 3_600_000, 86_400_000
AHEAD = [(HOUR, HOUR), (1000 * DAY, DAY)]
"""By how much a floor is ahead of the node's clock, and how much longer it lasts, ms."""


@pytest.mark.parametrize(("ahead", "longer"), AHEAD)
def test_a_granted_floor_lasts_until_the_clock_is_past_it(
    node: Node, ahead: int, longer: int
) -> None:
    assert isinstance(node.grant("me", node.now_us() + ahead * 1000), Granted)
    assert_lives(node, FLOOR, TTL + FLOOR_TTL + longer)


@pytest.mark.parametrize(("ahead", "longer"), AHEAD)
def test_a_confirmed_floor_lasts_until_the_clock_is_past_it(
    node: Node, ahead: int, longer: int
) -> None:
    node.grant("me")
    assert node.confirm("me", node.now_us() + ahead * 1000) == Acknowledged()
    assert_lives(node, FLOOR, TTL + FLOOR_TTL + longer)


@pytest.mark.parametrize(("ahead", "longer"), AHEAD)
@pytest.mark.parametrize("has_lost_it", [False, True])
def test_extending_does_not_shorten_a_floor_that_is_ahead(
    node: Node, ahead: int, longer: int, has_lost_it: bool
) -> None:
    token = node.now_us() + ahead * 1000
    node.grant("me", token)
    if has_lost_it:
        node.client.delete(LOCK)
        node.client.delete(FLOOR)
    node.extend("me", token)
    assert_lives(node, FLOOR, TTL + FLOOR_TTL + longer)


@pytest.mark.parametrize(("ahead", "longer"), AHEAD)
@pytest.mark.parametrize("floor", ["token", "lower", "lost"])
def test_releasing_does_not_shorten_a_floor_that_is_ahead(
    node: Node, ahead: int, longer: int, floor: str
) -> None:
    token = node.now_us() + ahead * 1000
    node.grant("me", token)
    if floor != "token":
        node.client.delete(FLOOR)
    if floor == "lower":
        node.set_floor(T)
    node.release("me", token)
    assert node.floor == str(token + 1)
    assert_lives(node, FLOOR, (TTL if floor == "token" else 0) + FLOOR_TTL + longer)


def test_the_keys_of_a_lock_share_a_slot(node: Node) -> None:
    from redis.crc import key_slot  # noqa: PLC0415

    assert len({key_slot(key.encode()) for key in (LOCK, FLOOR, DONE)}) == 1


def test_a_floor_that_is_too_high_refuses_whoever_would_be_replaced(node: Node) -> None:
    node.set_floor(T + 2)
    reply = node.grant("me", T, highest_floor=T + 1)
    assert isinstance(reply, Busy)
    assert (node.holder, node.floor) == (None, str(T + 2))
    assert node.grant("me", T, highest_floor=T + 2) == Granted(T + 3)


def test_a_release_without_options_deletes_the_lock(node: Node) -> None:
    node.grant("me", T)
    assert node._run(RELEASE, (LOCK, FLOOR), "me", T, FLOOR_TTL) == 1
    assert (node.holder, node.floor) == (None, str(T + 1))


# ---- who hears of a release


@pytest.fixture
def heard(node: Node) -> Iterator[Callable[[], list[bytes]]]:
    """Listen to the lock; what is returned are the messages so far."""
    with node.client.pubsub() as listener:
        listener.subscribe(LOCK)
        assert listener.get_message(timeout=60.0) is not None

        def so_far() -> list[bytes]:
            # A message that is on its way comes before the answer.
            listener.subscribe("end")
            messages: list[bytes] = []
            while message := listener.get_message(timeout=60.0):
                if message["type"] == "subscribe":
                    return messages
                messages.append(message["data"])
            raise AssertionError("no answer")

        yield so_far


def test_a_release_tells_who_listens_its_token(
    node: Node, heard: Callable[[], list[bytes]]
) -> None:
    node.grant("me", T)
    assert node.release("me", T) == Acknowledged(True, 1)
    assert heard() == [b"%d 1" % T]


def test_a_shortened_lock_is_told_too(node: Node, heard: Callable[[], list[bytes]]) -> None:
    node.grant("me", T)
    assert node.release("me", T, keep=5000) == Acknowledged(True, 1)
    assert heard() == [b"%d 1" % T]


@pytest.mark.parametrize(("owner", "token"), [("you", T), ("me", 0)])
def test_nobody_is_told_of_what_frees_no_lease(
    node: Node, heard: Callable[[], list[bytes]], owner: str, token: int
) -> None:
    node.grant("me", T)
    assert node.release(owner, token) == Acknowledged(token == 0)
    assert heard() == []


@pytest.mark.parametrize("rights", ["resetchannels", "-publish", "-pubsub"])
def test_a_release_is_complete_without_the_right_to_tell(
    node: Node, heard: Callable[[], list[bytes]], rights: str, redis_binary: Path
) -> None:
    if redis_binary == IN_MEMORY:
        pytest.skip("an in-memory node has no users, and so no rights")
    node.grant("me", T)
    node.client.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", rights)
    try:
        options = node.client.connection_pool.connection_kwargs | {
            "username": "mute", "password": "pw",
        }  # fmt: skip
        pool = redis.ConnectionPool(node.client.connection_pool.connection_class, **options)
        with redis.Redis(connection_pool=pool) as client:
            ack = Node(client, client).release("me", T, marks_done=True)
        pool.disconnect()
        assert isinstance(ack, Acknowledged)
        assert ack.was_ours
    finally:
        node.client.execute_command("ACL", "DELUSER", "mute")
    assert (node.holder, node.floor) == (None, str(T + 1))
    assert_lives(node, DONE, DONE_TTL)
    assert heard() == []
