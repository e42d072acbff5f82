"""What a client concludes from the replies to a round: by the package's own functions.

A copy of a rule may differ from the rule that is shipped, and what is proved of it is then proved
of something else. Of a reply the state keeps only what decides: a verdict must be the same whatever
else a node may have said. Each conclusion is drawn once for all states.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import combinations, product
from typing import NamedTuple, TypeVar

from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    chosen_token,
    confirm_verdict,
    extend_verdict,
    floor_under,
    grant_verdict,
    unconfirmed,
)
from celery_redlock.redlock.protocol.replies import (
    Acknowledged,
    AckReply,
    Busy,
    Declined,
    Extended,
    ExtendReply,
    Failed,
    Granted,
    Healed,
    Occupied,
    Superseded,
)

from .state import FREE

T = TypeVar("T")
_FAILED = Failed("it did not answer in time")
_NO_CONFIRMATION: tuple[AckReply | None, ...] = (Declined(), _FAILED, None)
_NO_VOTE: tuple[ExtendReply | None, ...] = (Healed(), Occupied(), _FAILED, None)


class Decision(NamedTuple):
    """A token that was chosen from the grants that were read.

    Attributes:
        token: T; 0: a grant gives none.
        already: How many nodes have it.
        confirmed: The nodes that have it.
        behind: The nodes that are asked to confirm it.
    """

    token: int
    already: int
    confirmed: tuple[int, ...]
    behind: tuple[int, ...]


@cache
def decisions(granted: tuple[int, ...]) -> tuple[Decision, ...]:
    """Return what follows from the grants, whichever were read: a token for each node, or 0."""
    found = []
    granting = [number for number, token in enumerate(granted) if token]
    for size in range(1, len(granting) + 1):
        for counted in combinations(granting, size):
            grants = [
                Granted(max(0, token)) if number in counted else None
                for number, token in enumerate(granted)
            ]
            if grant_verdict(grants) is Verdict.REACHED:
                token, already = chosen_token(grants)
                behind = unconfirmed(grants, token)
                confirmed = tuple(number for number in counted if number not in behind)
                found.append(Decision(token, already, confirmed, tuple(behind)))
    return tuple(found)


@cache
def is_confirmed(nodes: int, confirmed: int) -> bool:
    """Return whether so many nodes are enough, however many of them were not asked to confirm."""
    return _one_of(
        confirm_verdict(
            (*[_FAILED] * already, *[Acknowledged()] * (confirmed - already), *others), already
        )
        is Verdict.REACHED
        for already in range(confirmed + 1)
        for others in product(_NO_CONFIRMATION, repeat=nodes - confirmed)
    )


@cache
def extension(nodes: int, extended: int, superseded: int) -> Verdict:
    """Return REACHED or LOST, or PENDING for an extension that is neither."""
    said: list[ExtendReply] = [*[Extended()] * extended, *[Superseded()] * superseded]
    verdicts = (
        extend_verdict((*said, *others))
        for others in product(_NO_VOTE, repeat=nodes - extended - superseded)
    )
    ends = (Verdict.REACHED, Verdict.LOST)
    return _one_of(verdict if verdict in ends else Verdict.PENDING for verdict in verdicts)


@cache
def token_of_drop(stored: tuple[tuple[int, int] | None, ...], owner: int) -> int:
    """Return T of a release by others: of each node its owner and floor, None if not heard."""
    replies = [
        _FAILED if one is None else Busy("" if one[0] == FREE else str(one[0]), 1, one[1])
        for one in stored
    ]
    return floor_under(replies, str(owner))


def _one_of(verdicts: Iterable[T]) -> T:
    """Return the verdict that all are."""
    [verdict] = {*verdicts}
    return verdict
