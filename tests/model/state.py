"""What the protocol model's states are made of: plain, hashable, ordered values."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

FREE: Final = -1
"""Owner of a lock key that is absent."""

GRANT: Final = 1
CONFIRM: Final = 2
EXTEND: Final = 4
RELEASE: Final = 8
MESSAGES: Final = (GRANT, CONFIRM, EXTEND, RELEASE)
"""Messages in flight from one attempt to one node are the bits of one number."""

GONE: Final = -1
"""Reply to EXTEND: this node can't be yours again."""

NO_TOKEN: Final = -2
"""Reply to a GRANT that gives no token."""


class Phase(IntEnum):
    """How far an attempt is. From HELD on it has completed, and has its token."""

    IDLE = 0
    GRANTING = 1
    CONFIRMING = 2
    FAILED = 3
    HELD = 4
    EXTENDING = 5
    EXTENDED = 6
    LOST = 7
    RELEASING = 8


class Client(NamedTuple):
    """One attempt.

    Attributes:
        phase: How far it is.
        token: T once it is decided, else 0; 0 for good if it gets none.
        bar: The highest token completed before its present round began: it must have more.
        proposal: P, where clocks are modelled.
    """

    phase: Phase
    token: int
    bar: int
    proposal: int


class Node(NamedTuple):
    """One node, and the lines between it and every attempt.

    Attributes:
        owner: Whose the lock key is, or FREE.
        floor: The highest token granted or confirmed, or above that of a released lease.
        wire: For each attempt, the messages that are on their way to this node.
        replies: For each attempt, this node's answer in its present round: a token, NO_TOKEN,
            GONE, or 0.
        offset: How far this node's clock is ahead.
        opens: When it votes again after it forgot; above all instants: when it is admitted.
    """

    owner: int
    floor: int
    wire: tuple[int, ...]
    replies: tuple[int, ...]
    offset: int
    opens: int


class Luck(NamedTuple):
    """What may still go wrong, and the true time.

    Attributes:
        expiries: Locks that may still expire; negative: any number.
        duplicates: Grants that may still be duplicated.
        forgetting: Nodes that may still lose their memory.
        now: Ticks since the start.
    """

    expiries: int
    duplicates: int
    forgetting: int
    now: int


class State(NamedTuple):
    """Everything at one instant."""

    luck: Luck
    clients: tuple[Client, ...]
    nodes: tuple[Node, ...]


def put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    """Return the tuple with one element replaced."""
    return (*values[:index], value, *values[index + 1 :])


def with_node(state: State, number: int, node: Node) -> State:
    """Return the state with one node changed."""
    nodes = state.nodes
    return State(state.luck, state.clients, (*nodes[:number], node, *nodes[number + 1 :]))


def with_client(state: State, attempt: int, client: Client) -> State:
    """Return the state with one client changed."""
    clients = state.clients
    return State(state.luck, (*clients[:attempt], client, *clients[attempt + 1 :]), state.nodes)


def new_round(state: State, attempt: int, client: Client, message: int = 0) -> State:
    """Return the state after a client forgot its replies and sent a message to all nodes."""
    nodes = tuple(
        Node(
            node.owner,
            node.floor,
            put(node.wire, attempt, node.wire[attempt] | message),
            put(node.replies, attempt, 0),
            node.offset,
            node.opens,
        )
        for node in state.nodes
    )
    return with_client(State(state.luck, state.clients, nodes), attempt, client)
