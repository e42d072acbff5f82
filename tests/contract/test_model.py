"""The model's nodes and the real ones do the same, in every state of a node.

Each step of tests/model/scripts.py is taken on a real server: the same reply, the same lock key,
the same floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from celery_redlock.redlock.protocol.replies import Granted
from celery_redlock.redlock.protocol.scripts import (
    CONFIRM,
    EXTEND,
    GRANT,
    RELEASE,
    Argument,
    Script,
    as_grant,
    as_reserved,
    lock_keys,
    reserving,
)
from celery_redlock.testing import Server, Servers
from tests.model import scripts, state
from tests.model.state import FREE, GONE, NO_TOKEN, Client, Node, Phase
from tests.model.variants import Confirm, Heal, Lost, Rules, Scope, Supersede, Vote
from tests.support.requirements import redis_versions

LOCK, FLOOR = lock_keys("redlock", "k")
TTL_MS, FLOOR_TTL_MS, NO_CLAMP_US = 60_000, 3_600_000, 10**16
BASE = 1_695_123_456_789_000
"""Real tokens are the model's, and so much more."""

OWNERS = (FREE, 0, 1, 2)
HIGHEST = 4
"""Floors and tokens are up to this: more than any test in the scripts tells apart."""
SUPERSEDED = 0
ME = 1


class Request(NamedTuple):
    """One message, and the state of the node that takes it.

    Attributes:
        message: Which.
        holder: Whose the node's lock key is.
        floor: The node's.
        token: T; 0: it has none.
        gets_token: Whether a grant gets one.
        superseded: Whom it supersedes.
        highest_floor: Up to which floor it may be granted.
        is_lease: Whether it is a lease that is released, no failed attempt.
    """

    message: int
    holder: int
    floor: int
    token: int = 0
    gets_token: bool = True
    superseded: int | None = None
    highest_floor: int | None = None
    is_lease: bool = True


def requests() -> Iterator[Request]:
    """Yield every message in every state of a node."""
    for holder, floor in product(OWNERS, range(HIGHEST + 1)):
        yield Request(state.GRANT, holder, floor)
        yield Request(state.GRANT, holder, floor, gets_token=False)
        for highest in (None, *range(1, HIGHEST + 1)):
            yield Request(state.GRANT, holder, floor, superseded=SUPERSEDED, highest_floor=highest)
        for token in range(1, HIGHEST + 1):
            yield Request(state.CONFIRM, holder, floor, token)
            yield Request(state.EXTEND, holder, floor, token)
        for token, superseded in product(range(HIGHEST + 1), (None, SUPERSEDED)):
            yield Request(state.RELEASE, holder, floor, token, superseded=superseded)
            yield Request(
                state.RELEASE, holder, floor, token, superseded=superseded, is_lease=False
            )


def answers(request: Request, rules: Rules) -> Iterable[scripts.Answer]:
    """Return what the model's node may do."""
    node = Node(request.holder, request.floor, (), (), 0, 0)
    phase = Phase.RELEASING if request.is_lease else Phase.FAILED
    client = Client(phase, request.token, 0, 0)
    match request.message:
        case state.GRANT:
            tokens = scripts.proposed_tokens(node, client, 0, Scope(leap=2))
            return scripts.grant(
                node,
                ME,
                request.superseded,
                request.highest_floor if rules.hand_over_heeds_floor else None,
                rules,
                tokens if request.gets_token else (NO_TOKEN,),
            )
        case state.CONFIRM:
            return (scripts.confirm(node, ME, request.token, rules),)
        case state.EXTEND:
            return (scripts.extend(node, ME, request.token, rules),)
    return (scripts.release(node, ME, request.superseded, client, rules),)


Taken = tuple[int, int, int]
"""The owner, the floor and the reply, in the model's numbers."""


class RealNode:
    """A server that is put into states, and asked one thing in each.

    Args:
        client: Of the server.
        changed: Texts to run in place of a script's.
    """

    def __init__(self, client: redis.Redis, changed: Mapping[Script, str] | None = None) -> None:
        self.client = client
        self.changed = changed or {}

    def takes(self, steps: Sequence[tuple[Request, int]]) -> list[Taken]:
        """Return what became of each request, which has a token to propose, in one round trip."""
        pipeline = self.client.pipeline(transaction=False)
        counts = []
        for request, proposed in steps:
            pipeline.delete(LOCK, FLOOR)
            if request.holder != FREE:
                pipeline.set(LOCK, _owner(request.holder), px=TTL_MS)
            if request.floor:
                pipeline.set(FLOOR, BASE + request.floor, px=FLOOR_TTL_MS)
            before, commands = len(pipeline), self._commands(request, proposed)
            for command in commands:
                pipeline.execute_command(*command)
            pipeline.get(LOCK)
            pipeline.get(FLOOR)
            counts.append((before, len(commands)))
        raws = pipeline.execute(raise_on_error=False)
        return [
            _taken(request, raws[before : before + count], *raws[before + count :][:2])
            for (request, _), (before, count) in zip(steps, counts, strict=True)
        ]

    def _commands(self, request: Request, proposed: int) -> list[tuple[Argument, ...]]:
        # A failed attempt's release has no token, nor does it free whom it would have superseded.
        token = BASE + request.token if request.token and request.is_lease else 0
        is_named = request.superseded is not None and request.is_lease
        owner, superseded = _owner(ME), _owner(SUPERSEDED) if is_named else ""
        match request.message:
            case state.GRANT if not request.gets_token:
                return reserving(LOCK, owner, TTL_MS)
            case state.GRANT:
                highest = BASE + request.highest_floor if request.highest_floor is not None else 0
                argv = (owner, TTL_MS, BASE + proposed, NO_CLAMP_US, FLOOR_TTL_MS)
                return [self._run(GRANT, *argv, superseded, highest)]
            case state.CONFIRM:
                return [self._run(CONFIRM, owner, token, TTL_MS, FLOOR_TTL_MS)]
            case state.EXTEND:
                return [self._run(EXTEND, owner, token, TTL_MS, FLOOR_TTL_MS)]
        return [self._run(RELEASE, owner, token, FLOOR_TTL_MS, 0, 0, superseded)]

    def _run(self, script: Script, *argv: str | int) -> tuple[Argument, ...]:
        return ("EVAL", self.changed.get(script, script.text), 2, LOCK, FLOOR, *argv)


def _taken(request: Request, raws: list[Any], holder: bytes | None, floor: bytes | None) -> Taken:
    reply = 0
    match request.message:
        case state.GRANT if not request.gets_token:
            raws[0] = b"OK" if raws[0] else None  # as it was before redis-py read it
            if isinstance(as_reserved(_owner(ME).encode(), raws), Granted):
                reply = NO_TOKEN
        case state.GRANT:
            granted = as_grant(raws[0])
            reply = granted.token - BASE if isinstance(granted, Granted) else 0
        case state.CONFIRM:
            reply = {1: request.token, 0: 0}[raws[0]]
        case state.EXTEND:
            reply = {0: GONE, 1: request.token, 2: 0, 3: 0}[raws[0]]
    owner = FREE if holder is None else int(holder.removeprefix(b"owner-"))
    return owner, 0 if floor is None else int(floor) - BASE, reply


def _owner(number: int) -> str:
    return f"owner-{number}"


def differences(node: RealNode, rules: Rules) -> list[str]:
    """Return each step of the model that the node does not take in the same way."""
    steps, expected = [], []
    for request in requests():
        for verb, owner, floor, reply in answers(request, rules):
            # The token next to a floor is that of a proposal that is too low.
            is_too_low = request.floor and reply <= request.floor + 1
            steps.append((request, request.floor if is_too_low else max(1, reply)))
            expected.append((verb, (owner, floor, reply)))
    return [
        f"{request}: model {verb} {wanted}, server {real}"
        for (request, _), (verb, wanted), real in zip(
            steps, expected, node.takes(steps), strict=True
        )
        if real != wanted
    ]


@pytest.fixture
def client(redis_binary: Path) -> Iterator[redis.Redis]:
    with Server(binary=redis_binary) as server, redis.Redis.from_url(server.url) as client:
        yield client


@redis_versions
def test_a_server_takes_every_step_as_the_model_does(client: redis.Redis) -> None:
    assert differences(RealNode(client), Rules()) == []


def test_the_steps_are_of_every_kind() -> None:
    verbs = {verb for request in requests() for verb, *_ in answers(request, Rules())}
    assert verbs == {
        "grants", "grants again", "is busy for", "is past", "confirms", "does not confirm",
        "extends", "heals", "does not extend", "releases",
    }  # fmt: skip


# ---- each rule broken once, on either side


@pytest.fixture
def a_node(five: Servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(five[0].url) as client:
        yield client


@pytest.mark.parametrize(
    "rules",
    [
        Rules(confirm=Confirm.UNCONDITIONALLY),
        Rules(confirm=Confirm.IF_OWNER),
        Rules(heal=Heal.IF_ABSENT),
        Rules(vote=Vote.IF_OWNER),
        Rules(lost=Lost.MAJORITY_OF_RAISED_FLOORS_OR_OTHERS),
        Rules(release_raises_floor=False),
        Rules(supersede=Supersede.ANYONE),
        Rules(hand_over_heeds_floor=False),
    ],
    ids=repr,
)
def test_a_model_with_another_rule_differs(a_node: redis.Redis, rules: Rules) -> None:
    assert differences(RealNode(a_node), rules)


@pytest.mark.parametrize(
    ("script", "rule", "broken"),
    [
        (GRANT, "holder == owner", "false"),
        (GRANT, "token <= floor", "false"),
        (GRANT, "holder ~= supersedes", "false"),
        (GRANT, "highest_floor > 0 and floor > highest_floor", "false"),
        (CONFIRM, "redis.call('GET', KEYS[1]) ~= owner", "false"),
        (CONFIRM, "tonumber(redis.call('GET', KEYS[2]) or '0') > token", "false"),
        (EXTEND, "floor > token", "false"),
        (EXTEND, "holder == owner", "holder"),
        (RELEASE, "holder == owner, token == 0", "holder, token == 0"),
        (RELEASE, "if not is_raised and", "if false and"),
        (RELEASE, "holder == ARGV[6] and", "false and"),
    ],
)
def test_a_server_with_another_rule_differs(
    a_node: redis.Redis, script: Script, rule: str, broken: str
) -> None:
    assert script.text.count(rule) == 1
    changed = {script: script.text.replace(rule, broken)}
    assert differences(RealNode(a_node, changed), Rules())
