"""What a node tells of its server's run: whether an operator admitted it.

Under each key prefix there may be a note: the run id of a server that an operator has declared new,
and what that was found for. Losing it only makes the restart guard longer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .scripts import Argument

Command = tuple[Argument, ...]
_MOST_DIGITS = 15


class Admission(NamedTuple):
    """Note by which the server at one address is admitted, for locks of one kind.

    The operator's command has asked these nodes, at these addresses, for locks that a node may have
    forgotten within this guard. Of other nodes, and of longer leases, it knows nothing.

    Attributes:
        prefix: Start of every key.
        nodes: Addresses of all nodes.
        address: The server's address.
        guard_s: Restart guard, seconds.
    """

    prefix: str
    nodes: tuple[str, ...]
    address: str
    guard_s: float

    @property
    def key(self) -> str:
        """Key of the note. No lock has one like it: theirs have braces."""
        return f"{self.prefix}:admitted"

    @property
    def reading(self) -> Command:
        """Command that reads the note; `run_id_in` takes the reply."""
        return ("GET", self.key)

    def admitting(self, run_id: str) -> Command:
        """Return the command that admits the server `run_id`, until its guard is over at most."""
        guard_ms = math.ceil(self.guard_s * 1000)
        return ("SET", self.key, f"{run_id} {guard_ms} {self._place}", "PX", max(1, guard_ms))

    def run_id_in(self, raw: object) -> str:
        """Return the run id of the admitted server.

        '': there is no note, the user may not read it, or it is about other nodes or a shorter
        guard.
        """
        if not isinstance(raw, bytes):
            return ""
        run_id, _, rest = raw.decode(errors="replace").partition(" ")
        guard_ms, _, place = rest.partition(" ")
        is_covered = guard_ms.isdecimal() and len(guard_ms) <= _MOST_DIGITS
        if place != self._place or not is_covered or int(guard_ms) < self.guard_s * 1000:
            return ""
        return run_id

    @property
    def _place(self) -> str:
        return f"{self.address} of {' '.join(sorted(self.nodes))}"
