"""Steps that users take with `Redlock`, `Hold` and `Lease`, and what must be true after each.

The machine knows by itself who believes to hold a key: each lease that was granted, was not left,
and was not taken away by a step that does so. Such a lease must have a majority of the nodes, and
be the only one of its key; what is left on the nodes must belong to one.
"""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_redlock.redlock import LeaseLost, LockHeld, Redlock
from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.events import Event, Lost
from celery_redlock.redlock.hold import Hold
from celery_redlock.redlock.lease import Lease
from tests.support.calls import Misnamed
from tests.support.faults.strikes import Striker, Struck

from .stage import Stage, in_a_child

T = TypeVar("T")
Leave = Callable[[type[BaseException] | None], object]

KEYS = ("a", "b")
TTL = 20.0
SOON_S = 8.0
"""Time after which nothing is left of what was interrupted; shorter than a ttl."""
LATE_S = 0.01
"""Delay of a node that is in time, but later than the others."""

NAMES = st.sampled_from([*KEYS, *map(Misnamed, KEYS)])
"""Keys as users write them: a str enum, as other subclasses of str, is equal to its data."""
USERS = st.sampled_from(["ann", "bob", "eve"])
NUMBERS = st.integers(0, 30)
ERRORS: dict[str, type[BaseException]] = {
    "ValueError": ValueError,
    "MemoryError": MemoryError,
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
}
BY = st.sampled_from(["with", "with", "stack", "push", "hand", "pair", "pair"])
OBSERVES = st.sampled_from(["nothing", *ERRORS, "acquire", "close"])
CALLS = st.sampled_from(["release", "extend", "ensure"])
CALLS_BACK = st.sampled_from(["nothing", *ERRORS, "acquire", "close", "enter", "release", "extend"])


@dataclass(eq=False)
class Client:
    """A lock and what its callbacks do."""

    redlock: Redlock
    observes: str = "nothing"


@dataclass(eq=False)
class Kept:
    """A `Hold`, its client and its key.

    Attributes:
        pair: Its methods ``__enter__`` and ``__exit__``, as somebody has looked them up and kept.
    """

    hold: Hold
    client: Client
    key: str
    pair: tuple[Callable[[], Lease], Callable[..., object]] | None = None

    def methods(self) -> tuple[Callable[[], Lease], Callable[..., object]]:
        """Return the pair; look it up the first time."""
        self.pair = self.pair or (self.hold.__enter__, self.hold.__exit__)
        return self.pair


@dataclass(eq=False)
class Held:
    """A lease that somebody believes to hold.

    Attributes:
        lease: The lease.
        leave: Ends it; None: by its own methods.
        by: How it was entered: with, stack, push, hand, pair or acquire.
        kept: The `Hold` of its block.
        user: Thread that has entered it.
        has_own_exit: Whether its ``__exit__`` was looked up before: no other one leaves it.
        is_taken: Whether a step took it away, or lets it expire.
        is_renewed: Whether a keeper renews it.
        blocks: Blocks of the lease itself that are open.
    """

    lease: Lease
    by: str
    user: str
    client: Client
    leave: Leave | None = None
    kept: Kept | None = None
    has_own_exit: bool = False
    is_taken: bool = False
    is_renewed: bool = True
    blocks: list[Generator[None]] = field(default_factory=list)


class Hands(RuleBasedStateMachine):
    """Hands of users, from three threads."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.network = self.stage.network
        self.clients: list[Client] = []
        self.holds: list[Kept] = []
        self.held: list[Held] = []
        self.tokens = dict.fromkeys(KEYS, 0)
        self.may_stay_until = 0.0
        self.is_called_back = False
        self.released: list[Lease] = []
        """Leases that were released while they were held."""
        self.lost: list[Lease] = []
        """Those that observers were told of."""
        self.operator = self.stage.redlock()

    # ---- objects

    @initialize(observes=OBSERVES, on_lost=CALLS_BACK)
    def begin(self, observes: str, on_lost: str) -> None:
        self._new_client(observes)
        for key in KEYS:
            self._new_hold(self.clients[0], key, 0.0, on_lost)

    @rule(observes=OBSERVES)
    def new_client(self, observes: str) -> None:
        if len(self.clients) < 4:
            self._new_client(observes)

    def _new_client(self, observes: str) -> None:
        client = Client(self.stage.redlock(), observes)
        client.redlock.observers.append(Callback(self, client, observes))
        self.clients.append(client)

    @rule(number=NUMBERS, how=st.sampled_from(["copy", "deepcopy", "pickle"]))
    def copy_client(self, number: int, how: str) -> None:
        if len(self.clients) < 4:
            first = _one(self.clients, number)
            redlock = _again(how, first.redlock)
            assert type(redlock) is type(first.redlock)
            assert redlock.keeper.kept() == []
            redlock.observers.clear()
            self.clients.append(Client(redlock))

    @rule(
        number=NUMBERS,
        key=NAMES,
        wait=st.sampled_from([0.0, 2.0]),
        on_lost=CALLS_BACK,
    )
    def new_hold(self, number: int, key: str, wait: float, on_lost: str) -> None:
        if len(self.holds) < 6:
            self._new_hold(_one(self.clients, number), key, wait, on_lost)

    def _new_hold(self, client: Client, key: str, wait: float, on_lost: str) -> None:
        told = Callback(self, client, on_lost)
        hold = client.redlock.lock(key, TTL, wait=wait, on_lost=told)
        told.hold = hold
        self.holds.append(Kept(hold, client, str.__str__(key)))

    @rule(number=NUMBERS, how=st.sampled_from(["copy", "deepcopy", "pickle"]))
    def copy_hold(self, number: int, how: str) -> None:
        if len(self.holds) < 6:
            first = _one(self.holds, number)
            hold = _again(how, first.hold)
            client = first.client
            if how != "copy":
                hold._lock.observers.clear()
                client = Client(hold._lock)
            self.holds.append(Kept(hold, client, first.key))

    @precondition(lambda self: self.held)
    @rule(number=NUMBERS, how=st.sampled_from(["copy", "deepcopy", "pickle"]))
    def copy_lease(self, number: int, how: str) -> None:
        lease = _one(self.held, number).lease
        with suppress(TypeError):
            _again(how, lease)
            raise AssertionError("a lease was copied")

    # ---- blocks

    @rule(user=USERS, number=NUMBERS, by=BY)
    def enter(self, user: str, number: int, by: str) -> None:
        kept = _one(self.holds, number)
        has_own_exit = by in ("with", "stack") or (by == "pair" and not kept.pair)
        entered: list[tuple[Lease, Leave]] = []
        raised = self.stage.users[user].do(lambda: entered.append(ENTER[by](kept)))
        self._note_attempt(raised, kept.client)
        if entered:
            lease, leave = entered.pop()
            self._note(Held(lease, by, user, kept.client, leave, kept, has_own_exit))

    @rule(
        user=USERS,
        number=NUMBERS,
        at=st.integers(1, 700),
        by=st.sampled_from(["with", "with", "stack"]),
        then=st.sampled_from(["raise", "raise", "enter", "fork"]),
    )
    def enter_and_leave_struck(self, user: str, number: int, at: int, by: str, then: str) -> None:
        kept = _one(self.holds, number)

        def handle() -> None:
            if then == "raise":
                raise Struck
            if then == "enter":
                with suppress(RedlockError), kept.hold:
                    pass
            elif then == "fork":
                assert not in_a_child(lambda: None)

        striker = Striker(at, strike=handle)

        def call() -> None:
            entered = None
            with striker:
                entered = ENTER[by](kept)
                entered[1](None)

        raised = self.stage.users[user].do(call)
        if not isinstance(raised, Struck):
            self._note_attempt(raised, kept.client)
        elif by == "stack":
            gc.collect(1)  # the frame of a stack that raises refers to itself
        self._soon()

    @precondition(lambda self: any(one.leave for one in self.held))
    @rule(user=USERS, number=NUMBERS, error=st.sampled_from([None, *ERRORS]), is_own=st.booleans())
    def leave(self, user: str, number: int, error: str | None, is_own: bool) -> None:
        held = _one([one for one in self.held if one.leave], number)
        user = held.user if is_own else user
        self._leave(held, user, error)

    @rule(user=USERS, number=NUMBERS, by=st.sampled_from(["hand", "pair"]))
    def clean_up(self, user: str, number: int, by: str) -> None:
        """Call an ``__exit__``, whether anything was entered or not."""
        kept = _one(self.holds, number)
        by = by if kept.pair else "hand"  # one that has entered nothing is as good as a new one
        self._exit(self._left_by(kept, by, user), _exit_of(kept, by), user, None)

    def _left_by(self, kept: Kept, by: str, user: str) -> Held | None:
        """Return which block a call of ``__exit__`` leaves, as its docstring says."""
        same = [one for one in self.held if one.kept is kept]
        by_hand = [one for one in same if not one.has_own_exit]
        own = [one for one in reversed(by_hand) if one.user == user]
        if by == "pair":  # leaves its first block, and none of another thread
            first = [one for one in same if one.by == "pair" and one.has_own_exit]
            return next(iter([*first, *own]), None)
        return next(iter([*own, *by_hand]), None)

    def _leave(self, held: Held, user: str, error: str | None) -> None:
        assert held.leave
        left: Held | None = held
        if held.kept and held.by not in ("with", "stack"):
            left = self._left_by(held.kept, held.by, user)
        self._exit(left, held.leave, user, error)

    def _exit(self, left: Held | None, leave: Leave, user: str, error: str | None) -> None:
        kind = ERRORS[error] if error else None
        was_held = bool(left and self._is_held(left))
        if left:
            self.held.remove(left)
        raised = self.stage.users[user].do(lambda: leave(kind))
        if left and self._exits(left.client) and isinstance(raised, tuple(ERRORS.values())):
            return
        if kind:
            assert type(raised) is kind, repr(raised)
        elif left and left.is_taken and left.is_renewed:
            assert isinstance(raised, LeaseLost), repr(raised)
        elif was_held or not left:
            assert raised is None, repr(raised)
        if left and was_held:
            self.released.append(left.lease)
        assert not left or left.lease.is_released or left.lease.lost, "a block was not left"

    @precondition(lambda self: any(one.by == "stack" for one in self.held))
    @rule(number=NUMBERS)
    def forget_block(self, number: int) -> None:
        held = _one([one for one in self.held if one.by == "stack"], number)
        self.held.remove(held)
        held.leave = None
        self._soon()

    # ---- leases

    @rule(
        user=USERS,
        number=NUMBERS,
        key=NAMES,
        renew=st.booleans(),
        on_lost=CALLS_BACK,
        blocks=st.integers(0, 2),
    )
    def acquire(
        self, user: str, number: int, key: str, renew: bool, on_lost: str, blocks: int
    ) -> None:
        client = _one(self.clients, number)
        got: list[Lease] = []
        told = Callback(self, client, on_lost) if renew else None
        raised = self.stage.users[user].do(
            lambda: got.append(client.redlock.acquire(key, TTL, renew=renew, on_lost=told))
        )
        self._note_attempt(raised, client)
        if got:
            held = Held(got.pop(), "acquire", user, client, is_renewed=renew)
            self._note(held)
            self._enter_lease(held, user, blocks)

    @precondition(lambda self: self.held)
    @rule(user=USERS, number=NUMBERS, call=CALLS, times=st.integers(1, 2))
    def use(self, user: str, number: int, call: str, times: int) -> None:
        held = _one(self.held, number)
        was_held = self._is_held(held)
        for _ in range(times):
            raised = self.stage.users[user].do(getattr(held.lease, call))
            if self._exits(held.client) and isinstance(raised, tuple(ERRORS.values())):
                break
            if call == "release" or was_held:
                assert raised is None, repr(raised)
            else:
                assert isinstance(raised, RedlockError), repr(raised)
        if call == "release":
            self._note_release(held)

    @precondition(lambda self: self.held)
    @rule(users=st.permutations(["ann", "bob"]), number=NUMBERS, first=CALLS, second=CALLS,
          at=st.integers(1, 300))  # fmt: skip
    def use_at_once(
        self, users: Sequence[str], number: int, first: str, second: str, at: int
    ) -> None:
        """Have a second user call a method of a lease at any line of the first one's call."""
        held = _one(self.held, number)
        was_held = self._is_held(held)
        one, other = (self.stage.users[user] for user in users)
        raised: dict[str, BaseException | None] = {}

        def interrupt() -> None:
            raised["second"] = other.do(getattr(held.lease, second))

        def call() -> None:
            with Striker(at, strike=interrupt):
                getattr(held.lease, first)()

        raised["first"] = one.do(call)
        calls = {"first": first, "second": second}
        is_released = "release" in [calls[which] for which in raised]
        for which, error in raised.items():
            if self._exits(held.client) and isinstance(error, tuple(ERRORS.values())):
                continue
            if calls[which] == "release" or (was_held and not is_released):
                assert error is None, repr(error)
            assert error is None or isinstance(error, RedlockError), repr(error)
        if is_released:
            self._note_release(held)

    def _note_release(self, held: Held) -> None:
        if self._is_held(held):
            self.released.append(held.lease)
        held.is_taken = True
        held.is_renewed = False
        if held.by == "acquire" and not held.blocks:
            self.held.remove(held)

    @precondition(lambda self: any(one.by == "acquire" for one in self.held))
    @rule(user=USERS, number=NUMBERS)
    def enter_lease(self, user: str, number: int) -> None:
        held = _one([one for one in self.held if one.by == "acquire"], number)
        self._enter_lease(held, user, 1)

    def _enter_lease(self, held: Held, user: str, times: int) -> None:
        for _ in range(times):
            block = _lease_block(held.lease)
            raised = self.stage.users[user].do(block.__next__)
            if raised:
                assert isinstance(raised, LeaseLost), repr(raised)
                assert not self._is_held(held)
            else:
                held.blocks.append(block)

    @precondition(lambda self: any(one.blocks for one in self.held))
    @rule(user=USERS, number=NUMBERS, which=NUMBERS)
    def leave_lease(self, user: str, number: int, which: int) -> None:
        held = _one([one for one in self.held if one.blocks], number)
        block = _one(held.blocks, which)
        held.blocks.remove(block)
        if not held.blocks:
            self.held.remove(held)
        was_held = self._is_held(held)
        raised = self.stage.users[user].do(lambda: next(block, None))
        if was_held and not held.blocks:
            self.released.append(held.lease)
        if was_held and not self._exits(held.client):
            assert raised is None, repr(raised)

    # ---- others, time and trouble

    @rule(key=NAMES, seconds=st.sampled_from([0.0, 15.0, 45.0]))
    def drop(self, key: str, seconds: float) -> None:
        self.operator.drop(key)
        self._take([one for one in self.held if one.lease.key == key])
        self.stage.pass_(seconds)

    @rule(key=NAMES, missed=st.integers(0, 2), late=st.integers(0, 2))
    def drop_on_two_nodes(self, key: str, missed: int, late: int) -> None:
        """Release a lock on all nodes but one; from then on, one answers late."""
        nodes = self.network.nodes
        nodes[missed].is_up = False
        self.operator.drop(key)
        nodes[missed].is_up = True
        for node in nodes:
            node.delay = LATE_S if node is nodes[late] else 0.0
        self._take([one for one in self.held if one.lease.key == key])

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 15.0, 45.0]))
    def pass_time(self, seconds: float) -> None:
        self.stage.pass_(seconds)

    @rule(seconds=st.sampled_from([1.0, 8.0, 30.0]))
    def lose_quorum(self, seconds: float) -> None:
        for node in self.network.nodes[:2]:
            node.is_up = False
        self.stage.pass_(seconds)
        for node in self.network.nodes[:2]:
            node.is_up = True
        self._take([one for one in self.held if one.lease.deadline <= self.network.now()])

    @rule(
        user=USERS,
        leaves=st.lists(NUMBERS, max_size=3),
        enters=st.lists(NUMBERS, max_size=3),
        releases=st.lists(NUMBERS, max_size=3),
        by=BY,
    )
    def fork(
        self, user: str, leaves: list[int], enters: list[int], releases: list[int], by: str
    ) -> None:
        def child() -> None:
            self.stage.keepers = []
            blocks = [one for one in self.held if one.leave]
            for number in leaves:
                if blocks:
                    one = _one(blocks, number)
                    blocks.remove(one)
                    assert one.leave
                    one.leave(None)
            for number in releases:
                if self.held:
                    lease = _one(self.held, number).lease
                    with suppress(LeaseLost), lease:  # a block of the child's own
                        pass
                    lease.release()
            for number in enters:
                kept = _one(self.holds, number)
                kept.client.redlock.observers.clear()
                with suppress(LockHeld):
                    lease, leave = ENTER[by](kept)
                    assert self.network.holders(kept.key).count(lease.owner) > 1
                    assert not self._believers(kept.key)
                    leave(None)
                    assert lease.is_released
            self.check()

        told = self.stage.fork(user, child)
        assert not told, told

    @rule(number=NUMBERS)
    def close(self, number: int) -> None:
        self._close(_one(self.clients, number))

    def _close(self, client: Client) -> None:
        client.redlock.close()
        # Leases end with their ttl, and what a keeper was to release, too.
        self.may_stay_until = self.network.now() + 1.5 * TTL
        for one in self.held:
            if one.client.redlock is client.redlock:
                one.is_renewed = False

    # ---- what must be true

    @invariant()
    def check(self) -> None:
        """Assert that nobody else's lock was touched, and that nobody shares one."""
        self.stage.pass_(0.0)
        for lease in self.lost:
            assert lease not in self.released, f"a loss of {lease.key}, which was released"
        for key in KEYS:
            owners = self.network.holders(key)
            believers = self._believers(key)
            assert len(believers) <= 1, f"{key} is held {len(believers)} times"
            for one in believers:
                lease = one.lease
                assert not lease.lost, f"the lease on {key} is lost"
                assert not lease.is_released, f"the lease on {key} was released"
                assert owners.count(lease.owner) > 1, f"the lock {key} of another is gone"

    def _believers(self, key: str) -> list[Held]:
        return [one for one in self.held if one.lease.key == key and self._is_held(one)]

    def _is_held(self, one: Held) -> bool:
        is_over = not one.is_renewed and one.lease.deadline <= self.network.now()
        return not one.is_taken and not is_over

    def _soon(self) -> None:
        """Assert that nothing is left of what nobody holds, after a short while."""
        self.pass_time(SOON_S)
        if self.network.now() < self.may_stay_until:
            return
        for key in KEYS:
            left = {*self.network.holders(key)} - {None}
            left -= {one.lease.owner for one in self.held}
            assert not left, f"{key} is left locked by {left}"

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self._leave_all()
        finally:
            for one in self.held:
                # The traceback of an error refers to it: it would be left on the next stage.
                one.leave, one.blocks = None, []
            del self.held[:]
            self.stage.close()
            Callback.made.clear()

    def _leave_all(self) -> None:
        while blocks := [one for one in self.held if one.leave]:
            self._leave(blocks[0], blocks[0].user, None)
        for held in self.held:
            self.stage.users[held.user].do(held.lease.release)
            for block in held.blocks:
                block.close()
        del self.held[:]
        self.stage.pass_(max(0.0, self.may_stay_until - self.network.now()))
        self._soon()
        for client in self.clients:
            assert client.redlock.keeper.kept() == []

    # ---- notes

    def _note(self, held: Held) -> None:
        key = held.lease.key
        assert held.lease.token > self.tokens[key], "tokens rise"
        self.tokens[key] = held.lease.token
        self.held.append(held)

    def _note_attempt(self, raised: BaseException | None, client: Client) -> None:
        """Judge what an attempt raised."""
        if self._exits(client) and isinstance(raised, tuple(ERRORS.values())):
            self._soon()
        else:
            assert raised is None or isinstance(raised, LockHeld), repr(raised)

    def _exits(self, client: Client) -> bool:
        return client.observes in ERRORS

    def _take(self, taken: list[Held]) -> None:
        for one in taken:
            one.is_taken = True

    def call_back(self, what: str, client: Client, lease: Lease | None, hold: Hold | None) -> None:
        """Do in a callback what a user may do there."""
        if what in ERRORS:
            raise ERRORS[what]
        if what == "acquire":
            with suppress(RedlockError), client.redlock.lock("callback's"):
                pass
        elif what == "enter" and hold:
            with suppress(RedlockError), hold:
                pass
        elif what == "release" and lease:
            lease.release()
        elif what == "extend" and lease:
            with suppress(RedlockError):
                lease.extend()
        elif what == "close":
            self._close(client)


class Callback:
    """Observer or `on_lost` that does something, once at a time."""

    made: ClassVar[list[Callback]] = []

    def __init__(self, hands: Hands, client: Client, does: str) -> None:
        self.hands = hands
        self.client = client
        self.does = does
        self.hold: Hold | None = None
        self.made.append(self)

    def __reduce__(self) -> tuple[Callable[[int], Callback], tuple[int]]:
        return _made, (self.made.index(self),)

    def __call__(self, told: Event | Lease) -> None:
        hands = self.hands
        if isinstance(told, Lost):
            hands.lost.append(told.lease)
        if hands.is_called_back:
            return
        hands.is_called_back = True
        try:
            lease = told if isinstance(told, Lease) else None
            hands.call_back(self.does, self.client, lease, self.hold)
        finally:
            hands.is_called_back = False


def _made(number: int) -> Callback:
    return Callback.made[number]


# ---- how blocks are entered


def _with_block(hold: Hold) -> Generator[Lease]:
    with hold as lease:
        yield lease


def _by_with(kept: Kept) -> tuple[Lease, Leave]:
    block = _with_block(kept.hold)

    def leave(kind: type[BaseException] | None) -> None:
        if kind:
            block.throw(kind)
        else:
            next(block, None)

    return next(block), leave


def _by_stack(kept: Kept) -> tuple[Lease, Leave]:
    stack = ExitStack()
    return stack.enter_context(kept.hold), partial(_call, stack.__exit__)


def _by_push(kept: Kept) -> tuple[Lease, Leave]:
    stack = ExitStack()
    lease = kept.hold.__enter__()
    stack.push(kept.hold)
    return lease, partial(_call, stack.__exit__)


def _by_hand(kept: Kept) -> tuple[Lease, Leave]:
    return kept.hold.__enter__(), _exit_of(kept, "hand")


def _by_pair(kept: Kept) -> tuple[Lease, Leave]:
    return kept.methods()[0](), _exit_of(kept, "pair")


def _exit_of(kept: Kept, by: str) -> Leave:
    return lambda kind: _call(kept.methods()[1] if by == "pair" else kept.hold.__exit__, kind)


def _call(exit_: Callable[..., object], kind: type[BaseException] | None) -> None:
    exit_(kind, kind() if kind else None, None)
    if kind:
        raise kind


ENTER: dict[str, Callable[[Kept], tuple[Lease, Leave]]] = {
    "with": _by_with,
    "stack": _by_stack,
    "push": _by_push,
    "hand": _by_hand,
    "pair": _by_pair,
}


def _lease_block(lease: Lease) -> Generator[None]:
    with lease:
        yield


def _again(how: str, one: Any) -> Any:
    if how == "pickle":
        return pickle.loads(pickle.dumps(one))  # noqa: S301  # made here
    return copy.copy(one) if how == "copy" else copy.deepcopy(one)


def _one(among: Sequence[T], number: int) -> T:
    return among[number % len(among)]
