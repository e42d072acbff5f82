"""A simulated broker: one queue, messages that come again, refusals and lost confirmations."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kombu.exceptions import OperationalError
from kombu.utils import json

from tests.simulation.poller import Poller
from tests.simulation.process import Process
from tests.simulation.world import World
from tests.support.fakes.simulated_node import EPOCH_US

_ANSWERS_S = 0.002
_SEES_DEATH_AFTER_S = 0.05
_MOST_BEFORE_GIVING_UP = 3
"""Attempts of Celery's own policy. Source: task_publish_retry_policy."""


@dataclass(slots=True, eq=False)
class Copy:
    """One copy of a message at the broker: what a worker's request reads of it.

    Attributes:
        headers, properties, body: As published.
        tag: Of its delivery. As with Redis, a message that comes again keeps it.
        delivery_info: What the broker tells of the delivery.
    """

    headers: dict[str, Any]
    properties: dict[str, Any]
    body: list[Any]
    tag: int
    delivery_info: dict[str, Any] = field(
        default_factory=lambda: {"exchange": "", "routing_key": "celery", "redelivered": False}
    )

    @property
    def task_id(self) -> str:
        """Return the id of the message's task."""
        return str(self.headers["id"])

    @property
    def due_at(self) -> float:
        """Return when it is due, seconds."""
        return self._time("eta", 0.0)

    @property
    def expires_at(self) -> float:
        """Return when it expires, seconds."""
        return self._time("expires", math.inf)

    def _time(self, name: str, default: float) -> float:
        moment = self.headers.get(name)
        if not moment:
            return default
        return dt.datetime.fromisoformat(moment).timestamp() - EPOCH_US / 1e6


class Channel:
    """A process's connection to the broker, which the kernel closes when the process dies."""

    poller: Poller | None = None

    def __init__(self, broker: Broker, process: Process, on_death: Callable[[], None]) -> None:
        self.process = process
        self.is_lost = False
        self._broker = broker
        self._on_death = on_death
        self._fd = process.new_fd(self)

    def is_readable(self) -> bool:
        return False

    def is_writable(self) -> bool:
        return True

    def close(self) -> None:
        """Be closed with its process."""
        self.reset()
        self._on_death()

    def reset(self) -> None:
        """Break."""
        self.process.ends.pop(self._fd, None)
        self.is_lost = True
        self._broker.lose(self)


@dataclass(slots=True, eq=False)
class _Unacked:
    copy: Copy
    channel: Channel


class Broker:
    """The broker.

    Args:
        world: Time.
        visibility: Time after which an unacknowledged message comes again, seconds, as with Redis;
            0.0: when its connection is lost, as with RabbitMQ.
        chance: Of delays.
        struck: Counts what struck, by kind.

    Attributes:
        on_gone: Called with a task's id when a message has left the broker.
        on_arrived: Called when there is something to take.
        arrived: When the first message of each task arrived, by its id.
    """

    def __init__(
        self, world: World, visibility: float, chance: random.Random, struck: Counter[str]
    ) -> None:
        self.on_gone: Callable[[str], None] = lambda _: None
        self.on_arrived: Callable[[], None] = lambda: None
        self.arrived: dict[str, float] = {}
        self._world = world
        self._visibility = visibility
        self._chance = chance
        self._struck = struck
        self._queue: deque[Copy] = deque()
        self._unacked: dict[int, _Unacked] = {}
        self._tags = 0
        self._refuses_until = 0.0
        self._swallows_until: dict[Process, float] = {}

    # ---- publishing

    def publish(self, process: Process, message: Any, how: dict[str, Any]) -> None:
        """Publish a message, again and again if `how` wants that.

        Raises:
            OperationalError: The broker has not confirmed it, though it may have it.
        """
        policy = how.get("retry_policy") or {}
        tries = 1 + int(policy.get("max_retries", _MOST_BEFORE_GIVING_UP))
        for number in range(tries):
            try:
                return self._publish_once(process, message)
            except OperationalError:
                if number + 1 == tries:
                    raise
            pause = policy.get("interval_step", 0.2) * number
            process.sleep(min(pause, policy.get("interval_max", 0.2)))
        return None

    def _publish_once(self, process: Process, message: Any) -> None:
        headers, properties, body, _ = message
        written = json.dumps([headers, properties, body])
        world = self._world
        process.step()
        arrives_at = world.time + self._delay()
        # Also if the process is dead by then.
        answer: list[str] = []
        world.at(arrives_at, lambda _: answer.append(self._arrive(process, written)))
        world.wait(arrives_at + self._delay())
        process.step()
        if not answer or answer[0]:
            raise OperationalError(answer[0] if answer else "not written yet")

    def _arrive(self, process: Process, written: str) -> str:
        if self._world.time < self._refuses_until:
            return "the broker refuses"
        headers, properties, body = json.loads(written)
        self._tags += 1
        copy = Copy(headers, properties, body, self._tags)
        self.arrived.setdefault(copy.task_id, self._world.time)
        self._note("has", copy)
        self._put(copy)
        is_swallowed = self._world.time < self._swallows_until.get(process, 0.0)
        return "no confirmation" if is_swallowed else ""

    def _put(self, copy: Copy) -> None:
        self._queue.append(copy)
        self.on_arrived()

    # ---- delivering

    def take(self, channel: Channel) -> Copy | None:
        """Deliver the oldest message, if there is one; until it is acknowledged, it stays here."""
        if not self._queue:
            return None
        copy = self._queue.popleft()
        self._unacked[copy.tag] = unacked = _Unacked(copy, channel)
        self._note(f"delivers to {channel.process.name}", copy)
        if self._visibility:
            self._world.at(self._world.time + self._visibility, self._bring_back, unacked)
        return copy

    def acknowledge(self, channel: Channel, copy: Copy) -> None:
        """Forget a message."""
        if not self._is_deliverys(channel, copy):
            return
        del self._unacked[copy.tag]
        self._note("forgets", copy)
        self.on_gone(copy.task_id)

    def reject(self, channel: Channel, copy: Copy, *, requeue: bool) -> None:
        """Forget a message, or queue it again."""
        if not self._is_deliverys(channel, copy):
            return
        if requeue:
            self._bring_back(self._unacked[copy.tag])
        else:
            self.acknowledge(channel, copy)

    def has(self, task_id: str) -> bool:
        """Return whether the broker has a message of this task."""
        return any(one.task_id == task_id for one in self._copies())

    def is_empty(self) -> bool:
        """Return whether every message is acknowledged."""
        return not self._queue and not self._unacked

    def left(self) -> list[str]:
        """Return the ids of the tasks whose messages are here."""
        return [copy.task_id for copy in self._copies()]

    def _copies(self) -> list[Copy]:
        return [*self._queue, *(one.copy for one in self._unacked.values())]

    def _is_deliverys(self, channel: Channel, copy: Copy) -> bool:
        unacked = self._unacked.get(copy.tag)
        if unacked is None or channel.is_lost:
            return False
        # With Redis, all copies of a message have one tag: any of them answers for all.
        return bool(self._visibility) or unacked.channel is channel

    def _bring_back(self, unacked: _Unacked) -> None:
        copy = unacked.copy
        if self._unacked.get(copy.tag) is not unacked:
            return
        del self._unacked[copy.tag]
        tag = copy.tag
        if not self._visibility:
            self._tags = tag = self._tags + 1
        again = Copy(
            copy.headers, copy.properties, copy.body, tag,
            {**copy.delivery_info, "redelivered": True},
        )  # fmt: skip
        self._struck["redelivery"] += 1
        self._note("brings back", again)
        self._put(again)

    # ---- what strikes it

    def refuse(self, seconds: float) -> None:
        """Refuse all messages for a while."""
        self._refuses_until = max(self._refuses_until, self._world.time + seconds)

    def swallow(self, process: Process, seconds: float) -> None:
        """Confirm nothing to a process for a while, though its messages arrive."""
        self._swallows_until[process] = self._world.time + seconds

    def lose(self, channel: Channel) -> None:
        """Notice, a little later, that a connection is gone."""
        if not self._visibility:
            self._world.at(self._world.time + _SEES_DEATH_AFTER_S, self._give_up, channel)

    def _give_up(self, channel: Channel) -> None:
        for unacked in [one for one in self._unacked.values() if one.channel is channel]:
            self._bring_back(unacked)

    def _delay(self) -> float:
        return 0.0001 + _ANSWERS_S * self._chance.random()

    def _note(self, what: str, copy: Copy) -> None:
        if self._world.trace is not None:
            self._world.note(f"broker {what} {copy.task_id} #{copy.tag} {_marks(copy)}")


def _marks(copy: Copy) -> str:
    marks = ["redelivered"] if copy.delivery_info["redelivered"] else []
    if copy.headers.get("redlock_copy"):
        marks.append("copy")
    if copy.headers.get("eta"):
        marks.append("later")
    return " ".join(marks)
