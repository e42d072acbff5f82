"""One attempt to acquire a lock: what it asks of each node."""

from __future__ import annotations

from typing import NamedTuple


class Attempt(NamedTuple):
    """One attempt to acquire a lock, under an owner that is never used again.

    Attributes:
        key: Key of the lock.
        owner: Owner of the attempt.
        ttl_ms: Time from the attempt to the deadline, ms, with the allowance for drift.
        supersedes: Owner that may be replaced; '': nobody.
        unless_done: Labels of which any done mark ends the attempt.
        highest_floor: A node with a higher floor refuses; 0: no node refuses.
        is_reservation: Whether the attempt is for a reservation.
        is_period: Whether the attempt is for the period of a throttle.
        publication: Distinguishes owners with the same label: see `new_owner`.
        looks_first: Whether the lock may be in the middle of being handed over to `supersedes`.
        lock_delay_ms: Time for which the lock stays on the nodes after that, ms.
    """

    key: str
    owner: str
    ttl_ms: int
    supersedes: str = ""
    unless_done: tuple[str, ...] = ()
    highest_floor: int = 0
    is_reservation: bool = False
    is_period: bool = False
    publication: str = ""
    looks_first: bool = False
    lock_delay_ms: int = 0

    @property
    def expiry_ms(self) -> int:
        """Expiry to set on every node, ms."""
        return self.ttl_ms + self.lock_delay_ms

    def gets_token(self) -> bool:
        """Return whether a grant gives a token: a reservation, which runs nothing, needs none."""
        # Only the script can replace another owner.
        return not self.is_reservation or self.supersedes != "" or self.highest_floor > 0
