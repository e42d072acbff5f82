"""Peers of a worker: other processes of its installation, and whether they lock on its nodes.

Two processes with other nodes, or another key prefix, do not exclude each other, and nothing else
shows that. What they share is the broker: a worker tells the others its placement when it starts,
as an event that Celery's gossip carries, and publishers write theirs into messages.
"""

from __future__ import annotations

import hashlib
import logging
import math
import weakref
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_redlock.config.task_config import is_singleton
from celery_redlock.messages.headers import placement_in
from celery_redlock.redlock.errors import shown
from celery_redlock.redlock.placement import Placement
from celery_redlock.redlock.task_lock import TaskLock

logger = logging.getLogger(__name__)
EVENT = "worker-redlock-placed"
ROUTING_KEY = EVENT.replace("-", ".")
"""Key by which gossip finds the handler of the event."""
ANSWERS = "redlock_answers"
"""Field of an event with the name of the worker that it answers."""
_PLACEMENT = "redlock_placement"
_TASKS = "redlock_tasks"
_ASK_AGAIN_S = 10.0
"""Shortest time between two questions to the nodes for the sake of a message."""
_MOST = 256
_DIGITS = 8

peers_of: weakref.WeakKeyDictionary[Celery, Peers] = weakref.WeakKeyDictionary()
"""Peers of the workers in this process, by app."""


class Peers:
    """Peers of one worker; each that locks elsewhere is logged once.

    Args:
        app: App of the worker.
        redlock: Lock of the app.
        hostname: Name of the worker.
    """

    def __init__(self, app: Celery, redlock: TaskLock, hostname: str) -> None:
        # Not the app: the registry of peers must not keep it.
        self._tasks = {
            hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
            for name, task in app.tasks.items()
            if is_singleton(task)
        }
        self._redlock = redlock
        self._hostname = hostname
        self._same = ""
        self._told: set[tuple[str, str]] = set()
        self._since_s = redlock.clock.wall_us() / 1e6
        self._asked_at = -math.inf

    def ask_nodes(self) -> None:
        """Ask every node which server it is: only known servers can be compared."""
        self._redlock.judge()
        self._asked_at = self._redlock.clock.now()

    def ask_nodes_once(self) -> None:
        """Ask the nodes unless they were asked: hanging ones hold up the worker."""
        if self._asked_at == -math.inf:
            self.ask_nodes()

    @property
    def placement(self) -> Placement:
        """Placement of the worker's locks."""
        return self._redlock.placement

    def introduction(self) -> dict[str, Any]:
        """Return what the worker tells the others: its placement, and digests of its tasks."""
        return {_PLACEMENT: str(self.placement), _TASKS: sorted(self._tasks)}

    # ---- what is heard

    def is_own_introduction(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event is this worker's introduction to all."""
        return event.get("hostname") == self._hostname and ANSWERS not in event

    def heard(self, event: Mapping[str, Any]) -> bool:
        """Compare the introduction of another worker; return whether it is to be answered.

        Workers without a common singleton task are none of one installation: their apps only share
        a broker.
        """
        name, given, answers = event.get("hostname"), event.get(_TASKS), event.get(ANSWERS)
        tasks = set(map(str, given)) if isinstance(given, list) else set()
        there = Placement.read(event.get(_PLACEMENT))
        is_for_others = answers not in (None, self._hostname)
        if there is None or is_for_others or self._tasks.isdisjoint(tasks):
            return False
        peer = f"worker {name}"
        if self._differs(there, is_fresh=True):
            self.ask_nodes()
        why = self._differs(there, is_fresh=True)
        if why:
            self._tell(peer, there, why)
        else:
            # It may come to differ again.
            self._told = {(told, at) for told, at in self._told if told != peer}
        return bool(why) and answers is None

    def received(self, headers: Mapping[str, Any]) -> None:
        """Compare the placement in a message's headers, if there is one.

        A message from before this worker's start may name a server that was restarted since.
        """
        at_s, text = placement_in(headers)
        if text == self._same or at_s <= self._since_s:
            return
        there = Placement.read(text)
        if there is None:
            return
        publisher = f"publisher on {str(headers.get('origin') or '?').rpartition('@')[2]}"
        if (publisher, there.name) in self._told:
            return
        if self._differs(there, is_fresh=False):
            if self._redlock.clock.now() < self._asked_at + _ASK_AGAIN_S:
                return  # a later message shows it
            self.ask_nodes()
        why = self._differs(there, is_fresh=False)
        if why:
            self._tell(publisher, there, why)
        elif all(node.servers for node in self.placement.nodes):
            self._same = text

    def _differs(self, there: Placement, *, is_fresh: bool) -> str:
        return self.placement.difference(there, is_fresh=is_fresh)

    def _tell(self, peer: str, there: Placement, why: str) -> None:
        if (peer, there.name) in self._told:
            return
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told.add((peer, there.name))
        logger.error(
            "peer locks elsewhere, its tasks and those of this worker do not exclude each other "
            "peer=%s differs=%s here=%s there=%s",
            shown(peer), why, self.placement, there,
        )  # fmt: skip
