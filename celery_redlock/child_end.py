"""A prefork pool process's way to the keeper in the worker's main process."""

from __future__ import annotations

import json
import os
from collections import deque
from typing import Any

from .board import LEASES_A_CHILD, SLOTS, Board
from .redlock import Lease, Redlock

_PIPE_BUF = 4096


class ChildEnd:
    """What a pool process tells the main process.

    Args:
        fd: The writing end of the pipe.
        board: The shared page.
        index: This process's place in the pool; no two that live share one.
        redlock: The lock whose leases the main process renews: that of the worker's app.
    """

    def __init__(self, fd: int, board: Board, index: int, redlock: Redlock) -> None:
        self.redlock = redlock
        self._fd = fd
        self._board = board
        first = index * LEASES_A_CHILD
        self._free = [slot for slot in range(first, first + LEASES_A_CHILD) if slot < SLOTS]
        self._slots: dict[Lease, int] = {}
        # What was given back while the pipe was full; until it is told, its slot says so.
        self._untold: deque[tuple[int, dict[str, Any]]] = deque()

    def take(
        self, lease: Lease, min_hold_until: float, done: str | None, *, comes_again: bool
    ) -> bool:
        """Hand `lease` to the main process, to be renewed and, should we die, released.

        Args:
            lease: The lease.
            min_hold_until: Until when its key stays in any case, seconds on the boot-time clock.
            done: The mark for other copies of its message, should it end with our death; None when
                there are none.
            comes_again: Whether its message comes again if this process is killed.

        Returns:
            False when it can't be told now: the pipe is full, or there are too many leases.
        """
        self._tell_the_rest()
        if not self._free:
            return False
        slot = self._free.pop()
        message = {
            "take": lease.owner, "pid": os.getpid(), "slot": slot, "key": lease.key,
            "superseded": lease.superseded,
            "token": lease.token, "ttl_ms": lease.ttl_ms, "deadline": lease.deadline,
            "acquired_at": lease.acquired_at, "hold_until": lease.hold_until,
            "min_hold_until": min_hold_until, "done": done,
            # Otherwise it is for Celery to say.
            "comes_again": comes_again or None,
        }  # fmt: skip
        # Before it is told: whatever strikes in between, it will be given back.
        self._slots[lease] = slot
        if not self._tell(message):
            del self._slots[lease]
            self._free.append(slot)
            return False
        lease.refresh = self._refresh
        return True

    def begin_to_give_back(self, lease: Lease) -> None:
        """Say that `lease` is being given back: it is no loss that it can't be renewed any more."""
        slot = self._slots.get(lease)
        if slot is not None:
            self._board.give_back(slot, lease, is_done=False)

    def give_back(self, lease: Lease) -> None:
        """Say that `lease` is over."""
        slot = self._slots.pop(lease, None)
        if slot is not None:
            lease.refresh = None
            self._board.give_back(slot, lease, is_done=True)
            self._untold.append((slot, {"give": lease.owner, "pid": os.getpid()}))
            self._tell_the_rest()

    def _tell_the_rest(self) -> None:
        while self._untold and self._tell(self._untold[0][1]):
            slot, _ = self._untold.popleft()
            self._free.append(slot)

    def _refresh(self, lease: Lease) -> None:
        slot = self._slots.get(lease)
        if slot is not None:
            self._board.read(slot, lease)

    def _tell(self, message: dict[str, Any]) -> bool:
        line = json.dumps(message).encode() + b"\n"
        # Longer ones could be mixed with those of other children.
        if len(line) > _PIPE_BUF:
            return False
        try:
            os.write(self._fd, line)
        except OSError:
            return False
        return True
