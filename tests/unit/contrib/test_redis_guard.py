"""The guard for data in Redis: only what a server has answered counts."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
import redis
from redis.asyncio import Redis as AsyncRedis

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
    with pytest.raises(TypeError, match=r"does not wait for the reply; give redis\.Redis"):
        call(client, "balance:fence", 1)
    with suppress(AttributeError):
        one: Coroutine[Any, Any, Any] = begun[0]
        one.close()


@pytest.mark.parametrize("token", [True, "7", 7.0])
def test_a_token_that_is_no_number_is_refused(token: Any) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        guard.claim(redis.Redis(port=1), "balance:fence", token)
