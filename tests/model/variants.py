"""The switches of the protocol model: the rules in force, and the world they are tried in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Confirm(Enum):
    """When a node accepts CONFIRM(owner, T)."""

    NEVER_ASKED = auto()
    UNCONDITIONALLY = auto()
    IF_OWNER = auto()
    IF_OWNER_AND_FLOOR = auto()


class Heal(Enum):
    """When a node that lost its lock key takes it back from an extension."""

    IF_ABSENT = auto()
    IF_ABSENT_AND_FLOOR = auto()


class Vote(Enum):
    """When a node counts towards an extension."""

    IF_OWNER = auto()
    IF_OWNER_AND_FLOOR = auto()


class Lost(Enum):
    """What an extension has to meet before its holder is told at once that the lease is lost."""

    ONE_RAISED_FLOOR = auto()
    MAJORITY_OF_RAISED_FLOORS_OR_OTHERS = auto()
    MAJORITY_OF_RAISED_FLOORS = auto()


class Supersede(Enum):
    """Whom a grant may replace if it supersedes."""

    THE_NAMED_OWNER = auto()
    ANYONE = auto()


class Drop(Enum):
    """Which token a release by others has: of which floors it is the highest.

    A majority reports its floors and names the owner, unless the release is WITHOUT_MAJORITY. A
    clock that is behind gives a token below every floor.
    """

    BY_CLOCK = auto()
    ALL_FLOORS = auto()
    WITHOUT_MAJORITY = auto()
    FLOORS_UNDER_THE_LOCK = auto()


class Admit(Enum):
    """When an operator's word lets a node vote that does not know what it may have forgotten."""

    AT_ANY_TIME = auto()
    WITHOUT_LOCKS = auto()
    WITHOUT_LOCKS_AND_ATTEMPTS = auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's rules. The defaults are sound, every other value is a mistake one could make.

    Attributes:
        confirm: The test in CONFIRM.
        confirmed_by_majority: Whether q confirmations are needed, or one less will do.
        heal: The test before an extension sets an absent lock key.
        vote: The test before a node counts towards an extension.
        lost: When an extension says that its lease is lost.
        release_raises_floor: Whether releasing a lease leaves floor > T behind.
        release_follows_grant: Whether a release travels on its grant's connection, behind it.
        supersede: Whom a superseding grant replaces.
        hand_over_heeds_floor: Whether a node refuses a hand-over when its floor is higher than the
            token of the lease that hands over.
        drop: The token of a release by others.
        admit: What has to be true of the nodes before those that wait are admitted.
    """

    confirm: Confirm = Confirm.IF_OWNER_AND_FLOOR
    confirmed_by_majority: bool = True
    heal: Heal = Heal.IF_ABSENT_AND_FLOOR
    vote: Vote = Vote.IF_OWNER_AND_FLOOR
    lost: Lost = Lost.MAJORITY_OF_RAISED_FLOORS
    release_raises_floor: bool = True
    release_follows_grant: bool = True
    supersede: Supersede = Supersede.THE_NAMED_OWNER
    hand_over_heeds_floor: bool = True
    drop: Drop = Drop.FLOORS_UNDER_THE_LOCK
    admit: Admit = Admit.WITHOUT_LOCKS_AND_ATTEMPTS


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to acquire.

    Attributes:
        name: One letter, for people.
        retry_of: The attempt (its index) that must have failed before this one starts, or None.
        same_owner_as: The attempt (its index) whose owner it uses again; None: it has a fresh one.
        supersedes: The reservation (its index) to replace once that has completed, or None.
        is_handed_over: Whether that is no reservation but a lease, whose holder sends this grant.
        extends: Whether it sends an extension, once, at any time while it holds the lock.
        gets_token: Whether a grant gives it a token; one without leaves the floor as it is.
        drops: The attempt (its index) whose lock it releases as others do, once, at any time, and
            does nothing else; None: it acquires.
    """

    name: str
    retry_of: int | None = None
    same_owner_as: int | None = None
    supersedes: int | None = None
    is_handed_over: bool = False
    extends: bool = False
    gets_token: bool = True
    drops: int | None = None


@dataclass(frozen=True, slots=True)
class Clocks:
    """Wall clocks, in ticks. A token is a time, and one tick has room for all grants there are.

    Attributes:
        max_skew: S of PROTOCOL, the clamp's half-width.
        offsets: How far each node's clock is ahead of true time.
        guard: How long a node that forgot does not vote.
        instants: The true times at which things happen, ascending; no clock may be below zero.
    """

    max_skew: int
    offsets: tuple[int, ...]
    guard: int
    instants: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """The world to explore. Messages always reorder freely and need never arrive.

    Attributes:
        attempts: Who competes.
        nodes: How many nodes.
        expiries: How many locks may expire, each at any instant; None: any number.
        duplicates: How many grants are delivered once more.
        releases: Whether failed attempts and leases send RELEASE (else expiries stand for that).
        leap: A grant's token is at most floor + leap, whatever the clocks say.
        forgetting: How many times a node loses its memory.
        clocks: Wall clocks to propose tokens from; None: tokens come from floors and `leap` alone.
        admissions: Whether a node that forgot waits until an operator admits it. Without clocks.
    """

    attempts: tuple[Attempt, ...] = (Attempt("A"), Attempt("B"))
    nodes: int = 3
    expiries: int | None = None
    duplicates: int = 0
    releases: bool = False
    leap: int = 1
    forgetting: int = 0
    clocks: Clocks | None = None
    admissions: bool = False

    @property
    def owners(self) -> list[int]:
        """Return each attempt's owner, named by the attempt that had it first."""
        firsts = [
            attempt.drops if attempt.same_owner_as is None else attempt.same_owner_as
            for attempt in self.attempts
        ]
        return [index if first is None else first for index, first in enumerate(firsts)]

    @property
    def quorum(self) -> int:
        """Return how many nodes make a majority."""
        return self.nodes // 2 + 1
