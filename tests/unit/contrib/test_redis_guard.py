"""The guard for data in Redis: only what a server has answered counts."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
import redis
from redis.asyncio import Redis as AsyncRedis

from celery_redlock.contrib.guards import StaleToken
from celery_redlock.contrib.guards import redis as guard

CLIENTS: dict[str, Any] = {
    "pipeline": lambda: redis.Redis(port=1).pipeline(),
    "asyncio": lambda: AsyncRedis(port=1),
}
"""What looks like a client, but does not wait for the reply."""


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("call", [guard.claim, guard.write])
def test_a_client_that_does_not_wait_for_the_reply_is_refused(kind: str, call: Any) -> None:
    client: Any = CLIENTS[kind]()
    begun: list[Any] = []
    send = client.eval

    def eval_(*words: Any) -> Any:
        begun.append(send(*words))
        return begun[0]

    client.eval = eval_
    with pytest.raises(TypeError, match=r"(Pipeline|Redis) does not wait for the reply; give"):
        call(client, "balance:fence", 1)
    with suppress(AttributeError):
        one: Coroutine[Any, Any, Any] = begun[0]
        one.close()


@pytest.mark.parametrize("token", [True, "7", 7.0])
def test_a_token_that_is_no_number_is_refused(token: Any) -> None:
    with pytest.raises(TypeError, match="'balance:fence' must be an int"):
        guard.claim(redis.Redis(port=1), "balance:fence", token)


class Answering:
    """A client whose server answers a script with `reply`."""

    def __init__(self, reply: object) -> None:
        self.reply = reply
        self.asked: list[tuple[Any, ...]] = []

    def eval(self, script: str, *words: Any) -> object:
        assert script.count("redis.call(") == 2
        self.asked.append(words)
        return self.reply


@pytest.mark.parametrize(
    ("answer", "reply"), [([1, b"OK"], b"OK"), ([1, 0], 0), ([1], None)], ids=repr
)
def test_a_write_returns_the_reply_of_its_command(answer: object, reply: object) -> None:
    client = Answering(answer)
    assert guard.write(client, "fence", 7, "SET", "balance:1", 1010) == reply
    assert client.asked == [(1, "fence", 7, "SET", "balance:1", 1010)]


def test_a_claim_is_made_with_the_token() -> None:
    client = Answering(1)
    guard.claim(client, "fence", 7)
    assert client.asked == [(1, "fence", 7)]


@pytest.mark.parametrize(("call", "answer"), [(guard.claim, 0), (guard.write, [0])])
def test_what_the_server_refuses_is_stale(call: Any, answer: object) -> None:
    with pytest.raises(StaleToken) as caught:
        call(Answering(answer), "fence", 7)
    assert (caught.value.resource, caught.value.token) == ("fence", 7)
    assert str(caught.value) == "not written: 'fence' was claimed by a newer run than that of 7"
