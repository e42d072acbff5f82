"""Waiters of this process: which of them asks next, and the listener that wakes them.

A release publishes on the lock's channel, on each node. When a majority of the nodes has published
the same release, the oldest waiter of the process asks again. Only speed rests on that: each waiter
also asks from time to time, more often if fewer nodes than a majority are listened to.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from .clock import Clock
from .threads import dispatch
from .transport.subscriptions import Message, Subscriptions

logger = logging.getLogger(__name__)
POLL_S = 1.0
"""Longest pause of the oldest waiter of a process; the second oldest pauses twice as long, etc."""
SPREAD_S = 0.001
"""Delay after a release for each process that listens: two that ask at once split the nodes."""
MOST_PROCESSES = 16
"""Number of processes, on average, that ask at once after a release if more listen."""
LATE_S = 0.004
"""Longest delay of the other processes, for each one that listens: together 250 ask a second."""
_FEWEST_PROCESSES = 4
_LONGEST_SLEEP_S = 1.0
"""A thread learns of an exception that another one raises in it only after its sleep."""
_LINGER_S = 5.0
"""Time for which the listener stays subscribed to a lock that nobody waits for."""
_GONE_S = 5.0
"""A waiter this late was interrupted before it could leave its queue."""
_MOST_RELEASES = 16
"""Releases of one lock that may be on their way from slow nodes."""
_MOST_YIELDED = 1000
_AFTER_ERROR_S = 1.0
_STARTS_WITHIN_S = 1.0
_HERE = "here"
OnWait = Callable[[], object]
"""Called about once a second during a wait; an exception that it raises ends the wait."""


class Queue:
    """Waiters of this process for one lock, the oldest first. Only the listener changes it.

    Attributes:
        waiters: The waiters, as the keys of a dict.
        is_heard: Whether a majority of the nodes has confirmed the subscription.
        releases: Number of releases heard.
        heard_at: Time of the last of them, seconds on the clock.
        listeners: Number of processes that listened at the last release, this one included.
        used_at: Time when there was a waiter, seconds on the clock.
    """

    def __init__(self, now: float) -> None:
        self.waiters: dict[Waiter, None] = {}
        self.is_heard = False
        self.releases = 0
        self.heard_at = -math.inf
        self.listeners = 1
        self.used_at = now
        self._published_by: dict[bytes, set[int]] = {}

    def count(self, message: Message) -> int:
        """Note a message; return how many nodes have published the same release."""
        token, _, listeners = message.payload.partition(b" ")
        self.listeners = int(listeners) if listeners.isdigit() else 1
        nodes = self._published_by.setdefault(token, set())
        nodes.add(message.node)
        if len(self._published_by) > _MOST_RELEASES:
            del self._published_by[next(iter(self._published_by))]
        return len(nodes)

    def hear_release(self, now: float) -> None:
        """Wake the oldest waiter after a release."""
        self.releases += 1
        self.heard_at = now
        self.wake_oldest(now)

    def wake_oldest(self, now: float) -> None:
        """Wake the oldest waiter that is not gone."""
        self.remove_gone(now)
        if self.waiters:
            next(iter(self.waiters)).wakeups.put(None)

    def remove_gone(self, now: float) -> None:
        """Remove the oldest waiters if they are gone; wake the next if one of them was woken."""
        is_turn_left = False
        while self.waiters and (waiter := next(iter(self.waiters))).expected_by < now:
            del self.waiters[waiter]
            waiter.joined = None
            is_turn_left |= not waiter.wakeups.empty()
        if is_turn_left:
            self.wake_oldest(now)


class Waiters:
    """All waiters of this process.

    No mutex guards them: a signal handler may wait for a lock, too, at any line. Other threads send
    their changes to the listener.

    Args:
        clock: Time.
        quorum: Majority of the nodes.
        subscribe: Makes the subscriptions of a new listener.

    Attributes:
        clock: Time.
        queues: Queue of each lock, by channel.
    """

    def __init__(self, clock: Clock, quorum: int, subscribe: Callable[[], Subscriptions]) -> None:
        self.clock = clock
        self._quorum = quorum
        self._subscribe = subscribe
        self._listeners: dict[str, Subscriptions] = {}
        self.forget()

    def forget(self) -> None:
        """Forget the parent's waiters and its listener, in a forked child."""
        for subscriptions in self._listeners.values():
            subscriptions.disown()
        # The listener adds itself, so that one which never began to run is not relied on.
        self._listeners = {}
        self._starting_until = 0.0
        self.queues: dict[str, Queue] = {}
        self._changes: deque[Callable[[], None]] = deque()
        self._yields_until: dict[str, float] = {}

    def close(self) -> None:
        """End the listener."""
        if subscriptions := self._listeners.pop(_HERE, None):
            subscriptions.wake()

    # ---- called by other threads

    def start(self) -> bool:
        """Start the listener unless it runs; return False if no thread can be started now."""
        now = self.clock.now()
        if self._listeners or now < self._starting_until:
            return True
        self._starting_until = now + _STARTS_WITHIN_S
        try:
            dispatch.start_beside(self._run, "redlock-listener")
        except RuntimeError:
            return False
        return True

    def change(self, change: Callable[[], None]) -> None:
        """Have the listener make a change."""
        self._changes.append(change)
        if subscriptions := self._listeners.get(_HERE):
            subscriptions.wake()

    def note_release(self, channel: str, listeners: int) -> None:
        """Note that this process has released a lock, and how many processes were told of it."""
        others = listeners - (channel in self.queues)
        if others > 0:
            if len(self._yields_until) >= _MOST_YIELDED:
                self._yields_until.clear()
            spread = (1 + min(others, MOST_PROCESSES)) * SPREAD_S
            self._yields_until[channel] = self.clock.now() + spread

    def yields_for(self, channel: str) -> float:
        """Return for how long other processes go first after this one's release, seconds."""
        until = self._yields_until.pop(channel, None)
        return max(0.0, until - self.clock.now()) if until else 0.0

    # ---- called on the listener's thread

    def join(self, waiter: Waiter) -> None:
        """Add a waiter to its queue."""
        queue = self.queues.setdefault(waiter.channel, Queue(self.clock.now()))
        queue.waiters[waiter] = None
        waiter.releases_before = queue.releases
        # Heard after the waiter had asked: nobody was in the queue, or only older ones.
        if queue.heard_at >= waiter.asked_at and next(iter(queue.waiters)) is waiter:
            waiter.wakeups.put(None)

    def leave(self, waiter: Waiter, *, owes_attempt: bool) -> None:
        """Remove a waiter; wake the next one if this one was woken and did not ask."""
        if queue := self.queues.get(waiter.channel):
            queue.waiters.pop(waiter, None)
            queue.used_at = now = self.clock.now()
            if owes_attempt:
                queue.wake_oldest(now)

    def _run(self) -> None:
        subscriptions, listeners = self._subscribe(), self._listeners
        if listeners.setdefault(_HERE, subscriptions) is not subscriptions:
            return  # another one was faster
        # A new dict: waiters that have joined the earlier one join again.
        queues: dict[str, Queue] = {}
        self.queues = queues
        # Changes may have been made before anybody could wake this listener.
        subscriptions.wake()
        try:
            while listeners.get(_HERE) is subscriptions:
                self._listen(subscriptions, queues)
                if not queues and not self._is_needed(listeners, subscriptions):
                    break
        except Exception as error:  # noqa: BLE001  # it is logged
            self._starting_until = self.clock.now() + _AFTER_ERROR_S
            dispatch.run_in_origin_thread(logger.error, "listener failed, polling", exc_info=error)
        finally:
            if listeners.get(_HERE) is subscriptions:
                del listeners[_HERE]
            if self.queues is queues:
                self.queues = {}
            subscriptions.close()

    def _is_needed(self, listeners: dict[str, Subscriptions], mine: Subscriptions) -> bool:
        """Sign off; return whether a waiter came before that, which still relies on this thread."""
        listeners.pop(_HERE, None)
        return bool(self._changes) and listeners.setdefault(_HERE, mine) is mine

    def _listen(self, subscriptions: Subscriptions, queues: dict[str, Queue]) -> None:
        """Hear what there is to hear, and wake those whose turn it is."""
        messages = subscriptions.hear(_LONGEST_SLEEP_S)
        # First: the holder has left its queue before it released the lock.
        while self._changes:
            self._changes.popleft()()
        now = self.clock.now()
        for message in messages:
            queue = queues.get(message.channel)
            if queue and queue.count(message) == self._quorum:
                queue.hear_release(now)
        for channel, queue in list(queues.items()):
            was_heard, queue.is_heard = queue.is_heard, subscriptions.reaches_quorum(channel)
            if queue.is_heard and not was_heard:
                # The lock may have been released just before.
                queue.wake_oldest(now)
            queue.remove_gone(now)
            if queue.waiters:
                queue.used_at = now
            elif now - queue.used_at >= _LINGER_S:
                del queues[channel]
        subscriptions.follow(queues.keys())


class Waiter:
    """One caller that waits for a lock.

    Args:
        waiters: All waiters of the process.
        channel: Channel of the lock.
        on_wait: See `OnWait`; None: nothing is called.

    Attributes:
        channel: Channel of the lock.
        asked_at: Time when its last attempt, or else its wait, began, seconds on the clock.
        wakeups: Has an entry for each time the waiter was woken.
        joined: Queues that it has joined; None: none.
        expected_by: Time by which it waits again unless it is gone, seconds on the clock.
        releases_before: Number of releases heard before it joined.
    """

    __slots__ = (
        "_on_wait",
        "_owes_attempt",
        "_waiters",
        "asked_at",
        "channel",
        "expected_by",
        "joined",
        "releases_before",
        "wakeups",
    )

    def __init__(self, waiters: Waiters, channel: str, on_wait: OnWait | None = None) -> None:
        self.channel = channel
        # In C: an interrupt inside an Event's or a Condition's wait raises RuntimeError instead.
        self.wakeups: SimpleQueue[None] = SimpleQueue()
        self.joined: object = None
        self.asked_at = waiters.clock.now()
        self.expected_by = 0.0
        self.releases_before = 0
        self._waiters = waiters
        self._on_wait = on_wait
        self._owes_attempt = False

    @property
    def place(self) -> int:
        """Place in the queue, 1 for the oldest; 0: releases of the lock are not heard."""
        queue = self._waiters.queues.get(self.channel)
        if queue is None or not queue.is_heard:
            return 0
        waiters = list(queue.waiters)
        return 1 + (waiters.index(self) if self in waiters else len(waiters))

    @property
    def polls_s(self) -> float:
        """Longest pause between two attempts, seconds; 0.0: releases of the lock are not heard."""
        return POLL_S * self.place

    def wait_for_first_turn(self, seconds: float) -> None:
        """Return when this waiter may ask for the first time, in `seconds` at most.

        Older waiters of this process go first; after a release in this process, those of others.
        """
        yields_for = self._waiters.yields_for(self.channel)
        if self.place > 1:
            self.wait(seconds)
        elif yields_for:
            self._waiters.clock.sleep(min(seconds, yields_for))

    def wait(self, seconds: float) -> None:
        """Return after `seconds`; sooner when it is this waiter's turn to ask."""
        clock = self._waiters.clock
        now = clock.now()
        self._owes_attempt = False
        self._join(now)
        if not self.place:
            # A caller that counted on a wakeup may have come with a long pause, or with none.
            clock.sleep(min(seconds, _LONGEST_SLEEP_S))
            return
        ends_at, asks_at = now + seconds, math.inf
        # The waiters in front may leave meanwhile, or the listener may end.
        while (ends_at := min(ends_at, now + self.polls_s)) > now < asks_at:
            self.expected_by = now + _GONE_S
            if self._is_woken(min(ends_at, asks_at) - now):
                if (delay := self._delay()) is not None:
                    clock.sleep(delay)
                    return
                # Put off again by each further release: others have had the lock in between.
                asks_at = clock.now() + self._late_delay()
            if self._on_wait:
                self._on_wait()
            now = clock.now()

    def has_asked(self, began: float) -> None:
        """Note an attempt that began at this time, seconds on the clock."""
        self._owes_attempt = False
        self.asked_at = began

    def leave(self) -> None:
        """Leave the queue; one that was woken and has not asked passes its turn on."""
        if self.joined is not None:
            self.joined = None
            owes_attempt = self._owes_attempt or not self.wakeups.empty()
            self._waiters.change(partial(self._waiters.leave, self, owes_attempt=owes_attempt))

    def _join(self, now: float) -> None:
        self.expected_by = now + _GONE_S
        if self.joined is not self._waiters.queues and self._waiters.start():
            self.joined = self._waiters.queues
            self._waiters.change(partial(self._waiters.join, self))

    def _is_woken(self, within: float) -> bool:
        """Return whether a wakeup has come `within` so many seconds; take all that have."""
        try:
            self.wakeups.get(timeout=min(within, _LONGEST_SLEEP_S))
        except Empty:
            return False
        self._owes_attempt = True
        while not self.wakeups.empty():
            self.wakeups.get()
        return True

    def _delay(self) -> float | None:
        """Return how long to let other processes go first, seconds; None: it was not drawn.

        The more other holders the lock has had meanwhile, the sooner and the more surely this one
        asks.
        """
        queue = self._waiters.queues.get(self.channel)
        if queue is None or queue.listeners <= 1:
            return 0.0
        passed_over = queue.releases - self.releases_before
        asking = min(max(_FEWEST_PROCESSES, passed_over), MOST_PROCESSES)
        if random.random() * queue.listeners > asking:
            return None
        share = max(0.5, 1 - passed_over / queue.listeners)
        return random.uniform(0.0, SPREAD_S * (min(queue.listeners, MOST_PROCESSES) - 1) * share)

    def _late_delay(self) -> float:
        """Return how long to let the processes ask that were drawn, seconds.

        Perhaps none was: a node also counts processes that have stopped waiting, for a while.
        """
        queue = self._waiters.queues.get(self.channel)
        listeners = queue.listeners if queue else 0
        return random.uniform(min(listeners, MOST_PROCESSES) * SPREAD_S, listeners * LATE_S)
