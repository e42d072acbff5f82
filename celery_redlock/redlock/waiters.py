"""Waiters of this process: a queue for each lock, and the listener that wakes the oldest.

A release publishes on the lock's channel, on each node. When a majority of the nodes has published
the same release, the oldest waiter of the process asks again. Only speed rests on that: each waiter
also asks from time to time, more often if fewer nodes than a majority are listened to.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from .clock import Clock
from .threads import callbacks, dispatch
from .transport.subscriptions import Message, Subscriptions

logger = logging.getLogger(__name__)
SPREAD_S = 0.001
"""Delay after a release for each process that listens: two that ask at once split the nodes."""
MOST_PROCESSES = 16
"""Number of processes, on average, that ask at once after a release if more listen."""
LONGEST_SLEEP_S = 1.0
"""A thread learns of an exception that another one raises in it only after its sleep."""
_LINGER_S = 5.0
"""Time for which the listener stays subscribed to a lock that nobody waits for."""
_MOST_RELEASES = 16
"""Releases of one lock that may be on their way from slow nodes."""
_MOST_YIELDED = 1000
_AFTER_ERROR_S = 1.0
_STARTS_WITHIN_S = 1.0
_RUNNING = "running"


class QueuedWaiter:
    """One waiter, as far as the queue of its lock knows it.

    Args:
        channel: Channel of the lock.
        now: Time, seconds on the clock.

    Attributes:
        channel: Channel of the lock.
        asked_at: Time when its last attempt, or else its wait, began, seconds on the clock.
        wakeups: Has an entry for each time the waiter was woken.
        joined: Queues that it has joined; None: none.
        expected_by: Time by which it waits again unless it is gone, seconds on the clock.
        releases_before: Number of releases heard before it joined.
    """

    __slots__ = ("asked_at", "channel", "expected_by", "joined", "releases_before", "wakeups")

    expected_by: float
    releases_before: int

    def __init__(self, channel: str, now: float) -> None:
        self.channel = channel
        self.asked_at = now
        # In C: an interrupt inside an Event's or a Condition's wait raises RuntimeError instead.
        self.wakeups: SimpleQueue[None] = SimpleQueue()
        self.joined: object = None


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
        self.waiters: dict[QueuedWaiter, None] = {}
        self.is_heard = False
        self.releases = 0
        self.heard_at = -math.inf
        self.listeners = 1
        self.used_at = now
        self._published_by: dict[bytes, set[int]] = {}

    def count(self, message: Message) -> int:
        """Note a message; return how many nodes have published the same release."""
        token, _, listeners = message.payload.partition(b" ")
        self.listeners = max(1, int(listeners)) if listeners.isdigit() else 1
        nodes = self._published_by.setdefault(token, set())
        nodes.add(message.node)
        if len(self._published_by) > _MOST_RELEASES:
            del self._published_by[next(iter(self._published_by))]
        return len(nodes)

    def hear_release(self, now: float) -> None:
        """Wake the oldest waiter after a release."""
        self.releases += 1
        self.heard_at = now
        self.wake_oldest()

    def wake_oldest(self) -> None:
        """Wake the oldest waiter; if it is gone, `remove_gone` then wakes the next."""
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
            self.wake_oldest()


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
        self._starting_until = self._failed_until = -math.inf
        self.queues: dict[str, Queue] = {}
        self._changes: deque[Callable[[], None]] = deque()
        self._yields_until: dict[str, float] = {}
        self._lost = 0

    def close(self) -> None:
        """End the listener."""
        if subscriptions := self._listeners.pop(_RUNNING, None):
            subscriptions.wake()

    # ---- called by other threads

    def start(self) -> bool:
        """Start the listener unless it runs; return False if none can be started now."""
        if self._listeners:
            return True
        now = self.clock.now()
        if now < self._failed_until:
            return False
        if now < self._starting_until:
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
        if subscriptions := self._listeners.get(_RUNNING):
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
        """Return for how long other processes go first after this one's release, seconds.

        <= 0: they do not, or no longer.
        """
        return self._yields_until.pop(channel, -math.inf) - self.clock.now()

    # ---- called on the listener's thread

    def join(self, waiter: QueuedWaiter) -> None:
        """Add a waiter to its queue."""
        queue = self.queues.setdefault(waiter.channel, Queue(self.clock.now()))
        queue.waiters.setdefault(waiter)
        waiter.releases_before = queue.releases
        # Heard after the waiter had asked: nobody was in the queue, or only older ones.
        if queue.heard_at >= waiter.asked_at and next(iter(queue.waiters)) is waiter:
            waiter.wakeups.put(None)

    def leave(self, waiter: QueuedWaiter, *, owes_attempt: bool) -> None:
        """Remove a waiter; wake the next one if this one was woken and did not ask."""
        if queue := self.queues.get(waiter.channel):
            queue.waiters.pop(waiter, None)
            queue.used_at = self.clock.now()
            if owes_attempt:
                queue.wake_oldest()

    def _run(self) -> None:
        try:
            self._hear_while_needed()
        except Exception as error:  # noqa: BLE001  # it is logged
            self._failed_until = self.clock.now() + _AFTER_ERROR_S
            callbacks.tell(logger.error, "listener failed, polling", exc_info=error)

    def _hear_while_needed(self) -> None:
        subscriptions, listeners = self._subscribe(), self._listeners
        if listeners.setdefault(_RUNNING, subscriptions) is not subscriptions:
            return  # another one was faster
        # A new dict: waiters that have joined the earlier one join again.
        queues: dict[str, Queue] = {}
        self.queues = queues
        # Changes may have been made before anybody could wake this listener.
        subscriptions.wake()
        try:
            while listeners.get(_RUNNING) is subscriptions:
                self._listen(subscriptions, queues)
                if not queues and listeners.get(_RUNNING) is subscriptions:
                    # A waiter that came before this thread signs off still relies on it.
                    listeners.pop(_RUNNING, None)
                    if self._changes:
                        listeners.setdefault(_RUNNING, subscriptions)
        finally:
            if listeners.get(_RUNNING) is subscriptions:
                del listeners[_RUNNING]
            if self.queues is queues:
                self.queues = {}
            subscriptions.close()

    def _listen(self, subscriptions: Subscriptions, queues: dict[str, Queue]) -> None:
        """Hear what there is to hear, and wake those whose turn it is."""
        messages = subscriptions.hear(LONGEST_SLEEP_S)
        # The holder has left its queue before it released the lock.
        while self._changes:
            self._changes.popleft()()
        now = self.clock.now()
        for message in messages:
            queue = queues.get(message.channel)
            if queue and queue.count(message) == self._quorum:
                queue.hear_release(now)
        lost, self._lost = self._lost, subscriptions.lost
        for channel, queue in list(queues.items()):
            was_heard = queue.is_heard and lost == self._lost
            queue.is_heard = subscriptions.reaches_quorum(channel)
            if queue.is_heard and not was_heard:
                # The lock may have been released just before. Connections that are lost and made
                # again one after another reach a quorum all along, and may have missed it.
                queue.wake_oldest()
            queue.remove_gone(now)
            if queue.waiters:
                queue.used_at = now
            elif now - queue.used_at >= _LINGER_S:
                del queues[channel]
        subscriptions.follow(queues.keys())
