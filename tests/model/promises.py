"""The safety properties, each a predicate of one state. Its name is the claim."""

from __future__ import annotations

from typing import Protocol

from .state import RELEASE, Client, Phase, State


class Promise(Protocol):
    """A predicate that must be true of every reachable state."""

    __name__: str

    def __call__(self, state: State, quorum: int) -> bool:
        """Return whether the promise is kept in this state."""


def _is_backed(state: State, attempt: int, client: Client, quorum: int) -> bool:
    """Return whether a majority has the lease's owner as lock key, and no floor above its token."""
    return (
        sum(node.owner == attempt and node.floor <= client.token for node in state.nodes) >= quorum
    )


def completed_acquisitions_have_distinct_tokens(state: State, quorum: int) -> bool:
    """No two attempts that ever completed share a token."""
    tokens = [each.token for each in state.clients if each.phase >= Phase.HELD and each.token]
    return len(tokens) == len(set(tokens))


def tokens_follow_real_time(state: State, quorum: int) -> bool:
    """Whoever started after another completed has the higher token, if it has one."""
    return not any(
        0 < client.token <= client.bar for client in state.clients if client.phase is Phase.HELD
    )


def no_extension_succeeds_once_overtaken(state: State, quorum: int) -> bool:
    """An extension that began after a higher token had completed does not succeed."""
    return all(
        client.token > client.bar for client in state.clients if client.phase is Phase.EXTENDED
    )


def an_overtaken_lease_never_regains_a_majority(state: State, quorum: int) -> bool:
    """Once a higher token has completed, no majority backs the older lease, now or later."""
    newest = max(client.token if client.phase >= Phase.HELD else 0 for client in state.clients)
    return not any(
        client.phase >= Phase.HELD
        and 0 < client.token < newest
        and _is_backed(state, attempt, client, quorum)
        for attempt, client in enumerate(state.clients)
    )


def only_a_lost_lease_is_told_so(state: State, quorum: int) -> bool:
    """No majority backs a lease whose holder was told that it is lost, now or later."""
    return not any(
        client.phase is Phase.LOST and _is_backed(state, attempt, client, quorum)
        for attempt, client in enumerate(state.clients)
    )


def a_released_lock_never_regains_a_majority(state: State, quorum: int) -> bool:
    """A release that a majority has seen is final, whoever looks only at the lock key."""
    for attempt, client in enumerate(state.clients):
        if client.phase is Phase.RELEASING:
            released = sum(not node.wire[attempt] & RELEASE for node in state.nodes)
            held = sum(node.owner == attempt for node in state.nodes)
            if released >= quorum and held >= quorum:
                return False
    return True


def a_dropped_lease_is_never_backed_again(state: State, quorum: int) -> bool:
    """Once a majority has seen the last attempt's drop of lease 0, no majority backs that lease."""
    dropping = len(state.clients) - 1
    released = sum(not node.wire[dropping] & RELEASE for node in state.nodes)
    is_dropped = state.clients[dropping].phase is Phase.RELEASING and released >= quorum
    return not is_dropped or not _is_backed(state, 0, state.clients[0], quorum)


def a_drop_ends_no_lease_that_came_after(state: State, quorum: int) -> bool:
    """Lease 1, if later than 0 and backed by a majority, is above the token of the drop of 0.

    Else the floors that the drop is about to raise would be above that lease.
    """
    first, second, drop = state.clients
    return not (
        second.phase >= Phase.HELD
        and first.token < second.token <= drop.token
        and _is_backed(state, 1, second, quorum)
    )


def no_grant_outlives_its_release(state: State, quorum: int) -> bool:
    """A node that has seen an attempt's release does not hold its lock."""
    for attempt, client in enumerate(state.clients):
        if client.phase in (Phase.FAILED, Phase.RELEASING):
            for node in state.nodes:
                if node.owner == attempt and not node.wire[attempt] & RELEASE:
                    return False
    return True


def no_hand_over_outlives_the_run_that_took_it_up(state: State, quorum: int) -> bool:
    """A node that has seen attempt 2's release does not hold the lock for 1, which it took up."""
    return state.clients[2].phase is not Phase.RELEASING or not any(
        node.owner == 1 and not node.wire[2] & RELEASE for node in state.nodes
    )


def a_holder_keeps_its_majority(state: State, quorum: int) -> bool:
    """Where no lock expires, nothing but its own release ends a lease: one holder at a time."""
    return all(
        _is_backed(state, attempt, client, quorum)
        for attempt, client in enumerate(state.clients)
        if Phase.HELD <= client.phase <= Phase.EXTENDED
    )


def one_holder_at_a_time(state: State, quorum: int) -> bool:
    """Where no lock expires, at most one attempt holds the lock."""
    return sum(Phase.HELD <= client.phase <= Phase.EXTENDED for client in state.clients) <= 1


def one_holder_besides_the_reservation(state: State, quorum: int) -> bool:
    """At most one attempt holds the lock, not counting attempt 0, whose hold is taken up."""
    return sum(Phase.HELD <= client.phase <= Phase.EXTENDED for client in state.clients[1:]) <= 1
