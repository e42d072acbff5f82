"""Replies: each answer a node can give to a request."""

from __future__ import annotations

import re
from typing import NamedTuple

_DENIES = "NOPERM|ACL failure|can't run this command"
"""A right that is missing inside a script is reported in other words than NOPERM."""
says_denied = re.compile(_DENIES).search
"""Search an error for a right that the user does not have."""
says_refused = re.compile(f"OOM|NOREPLICAS|MISCONF|{_DENIES}").search
"""Search an error for the reason of a healthy server that refuses to write."""
says_replica = re.compile("READONLY").search
"""Search an error for a server that is a replica."""


class Granted(NamedTuple):
    """The node set the lock key for us; its floor is now `token`.

    `took_over`: the key had the owner that this attempt supersedes.
    """

    token: int
    took_over: bool = False


class Busy(NamedTuple):
    """The node has another owner's lock key.

    Or it has granted the lock to another owner since, which ends a hand-over, or the lock was
    released during the request; `holder` may be '' then: nobody.

    `age_us`: time since the floor, on the node's clock. The floor of a node that has the holder's
    token is the time at which the lease began. None: there is no floor, or it was not asked for.
    """

    holder: str
    remaining_ms: int
    floor: int
    age_us: int | None = None


class Done(NamedTuple):
    """The node has a done mark for this task: the task has run to its end before."""

    remaining_ms: int


class Failed(NamedTuple):
    """The node did not answer in time, or answered with an error, or may not vote.

    `is_guarded`: it is up, and waits for its restart guard. `is_reply`: it is what the node said.
    """

    error: str
    is_guarded: bool = False
    is_reply: bool = False


class Extended(NamedTuple):
    """The node held our key and renewed it."""


class Healed(NamedTuple):
    """The node had lost the lock key and set it again: it counts from the next extension on."""


class Superseded(NamedTuple):
    """The node has granted a higher token since: it will never extend this lease again."""


class Occupied(NamedTuple):
    """The node has another owner's lock key without a higher token: a late grant. It may expire."""


GrantReply = Granted | Busy | Done | Failed
ExtendReply = Extended | Healed | Superseded | Occupied | Failed


class Acknowledged(NamedTuple):
    """The node did as requested.

    Attributes:
        was_ours: Whether it had our lock key until a release.
        listeners: Number of processes that it told of the release.
    """

    was_ours: bool = True
    listeners: int = 0


class Declined(NamedTuple):
    """The node's lock key was not ours any more."""


AckReply = Acknowledged | Declined | Failed
