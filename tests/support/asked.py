"""Clients that stay connected, for questions that tests ask a server again and again."""

from __future__ import annotations

import os
from weakref import WeakKeyDictionary, finalize

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from celery_redlock.testing import Server

_clients: WeakKeyDictionary[Server, tuple[int, str, redis.Redis]] = WeakKeyDictionary()


def asked(server: Server) -> redis.Redis:
    """Return this process's client of a server; to connect takes twenty times as long as to ask."""
    about = os.getpid(), server.url
    if server not in _clients or _clients[server][:2] != about:
        # Once more: the server may have been restarted since.
        again = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
        client = server.client(retry=again)
        _clients[server] = (*about, client)
        finalize(server, client.close)
    return _clients[server][2]
