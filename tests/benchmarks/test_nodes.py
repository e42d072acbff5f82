"""What locks cost a node: its time per script, its CPU time per lock, its memory."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import hiredis
import pytest
import redis

from celery_redlock.redlock.protocol.scripts import (
    GRANT,
    RELEASE,
    Argument,
    done_key,
    lock_keys,
    reserving,
)
from celery_redlock.testing import Server
from tests.conftest import StartServers
from tools.benchmarks.bare import grant, release
from tools.benchmarks.names import EMPTY
from tools.benchmarks.page import Page

pytestmark = pytest.mark.benchmark

Command = tuple[Argument, ...]
_PREFIX, _LONG_MS = "bench", 3_600_000
_OWNER = "0123456789abcdef0123456789abcdef:00000000-0000-0000-0000-000000000000@celery@worker-1"
_BATCH = 500
_CLIENTS = 50
_pack: Any = hiredis.pack_command


_GRANT_ALONE = """
redis.call('GET', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
redis.call('TIME')
redis.call('SET', KEYS[2], ARGV[3], 'PX', '3600000')
return ARGV[3]
"""
_RELEASE_ALONE = """
redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('INCR', KEYS[2])
redis.call('PUBSUB', 'NUMSUB', KEYS[1])
return 1
"""
"""The fewest commands that do what a lock needs, without any decision: the least time."""


def _now_us() -> int:
    # As clients propose tokens. One that is far from the node's clock is cut, which takes longer.
    return time.time_ns() // 1000


def _send(client: redis.Redis, commands: list[Command]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    replies: list[Any] = pipeline.execute()
    return replies


def test_the_time_a_node_spends_in_a_script(
    servers: StartServers, seconds: float, page: Page
) -> None:
    [server] = servers(1)
    with server.client() as client:
        for script in (GRANT, RELEASE):
            client.script_load(script.text)
        empty = client.script_load("return 1")
        alone = [client.script_load(text) for text in (_GRANT_ALONE, _RELEASE_ALONE)]
        set_nx = client.script_load("return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 5000)")
        pairs = [lock_keys(_PREFIX, str(number)) for number in range(_BATCH)]
        tokens: list[int] = []

        def granting() -> list[Command]:
            return [grant(keys, _OWNER, _now_us()) for keys in pairs]

        def releasing() -> list[Command]:
            return [release(keys, _OWNER, t) for keys, t in zip(pairs, tokens, strict=True)]

        batches: dict[str, Callable[[], list[Command]]] = {
            "GRANT": granting,
            "RELEASE": releasing,
            "the commands of GRANT alone": lambda: [
                ("EVALSHA", alone[0], 2, *keys, _OWNER, _LONG_MS, _now_us()) for keys in pairs
            ],
            "the commands of RELEASE alone": lambda: [
                ("EVALSHA", alone[1], 2, *keys) for keys in pairs
            ],
            "a script with SET NX": lambda: [
                ("EVALSHA", set_nx, 1, lock, _OWNER) for lock, _ in pairs
            ],
            EMPTY: lambda: [("EVALSHA", empty, 1, lock, _OWNER) for lock, _ in pairs],
        }
        figures: dict[str, list[float]] = {name: [] for name in batches}
        ends_at = time.perf_counter() + seconds / 2
        while time.perf_counter() < ends_at:
            for name, batch in batches.items():
                commands = batch()
                client.config_resetstat()
                replies = _send(client, commands)
                stats = client.info("commandstats")["cmdstat_evalsha"]
                figures[name].append(stats["usec"] / stats["calls"])
                if name == "GRANT":
                    tokens = [int(reply) for reply in replies]
                elif "SET NX" in name:
                    client.delete(*(lock for lock, _ in pairs))
    rows = [{"name": name, "us": median(times)} for name, times in figures.items()]
    page.add("scripts", "Time that a node spends in a script", rows)


class _Crowd:
    """Connections that each send a command, so that the node serves many at a time."""

    def __init__(self, server: Server) -> None:
        self._sockets = [
            socket.create_connection(("127.0.0.1", server.port)) for _ in range(_CLIENTS)
        ]
        self._readers = [hiredis.Reader() for _ in self._sockets]

    def ask(self, commands: list[Command]) -> list[Any]:
        """Return the reply to each: one command on each connection."""
        for sock, command in zip(self._sockets, commands, strict=True):
            sock.sendall(_pack(command))
        return [self._read(index) for index in range(len(commands))]

    def _read(self, index: int) -> Any:
        while (reply := self._readers[index].gets()) is False:
            self._readers[index].feed(self._sockets[index].recv(65536))
        return reply

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@contextmanager
def _crowd(server: Server) -> Iterator[_Crowd]:
    crowd = _Crowd(server)
    try:
        yield crowd
    finally:
        crowd.close()


def _computed(client: redis.Redis) -> float:
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def test_locks_that_one_core_of_a_node_carries(
    servers: StartServers, seconds: float, page: Page
) -> None:
    [server] = servers(1)
    with server.client() as client, _crowd(server) as crowd:
        for script in (GRANT, RELEASE):
            client.script_load(script.text)
        pairs = [lock_keys(_PREFIX, str(number)) for number in range(_CLIENTS)]

        def with_scripts() -> None:
            granted = crowd.ask([grant(keys, _OWNER, _now_us()) for keys in pairs])
            crowd.ask(
                [
                    release(keys, _OWNER, int(reply))
                    for keys, reply in zip(pairs, granted, strict=True)
                ]
            )

        def with_commands() -> None:
            crowd.ask([("SET", lock, _OWNER, "NX", "PX", 5000) for lock, _ in pairs])
            crowd.ask([("DEL", lock) for lock, _ in pairs])

        ways = {"GRANT + RELEASE": with_scripts, "SET NX + DEL": with_commands}
        spent = dict.fromkeys(ways, 0.0)
        rounds = 0
        ends_at = time.perf_counter() + seconds / 2
        while time.perf_counter() < ends_at:
            for name, way in ways.items():
                before = _computed(client)
                for _ in range(100):
                    way()
                spent[name] += _computed(client) - before
            rounds += 100
    locks = rounds * _CLIENTS
    rows = [
        {"name": name, "locks_per_core_s": locks / cpu, "cpu_us": cpu / locks * 1e6}
        for name, cpu in spent.items()
    ]
    page.add("node_core", f"Locks that one core of a node carries, {_CLIENTS} clients", rows)


def test_memory_of_a_node(servers: StartServers, seconds: float, page: Page) -> None:
    [server] = servers(1)
    keys = min(1_000_000, int(seconds * 10_000))
    pairs = [lock_keys("celery-redlock", f"app.tasks.task-{number:08}") for number in range(keys)]
    now = time.time_ns() // 1000
    ways: dict[str, Callable[[tuple[str, str]], list[Command]]] = {
        "held: lock and floor": lambda pair: [grant(pair, _OWNER, now, ttl_ms=_LONG_MS)],
        "released: floor, for an hour": lambda pair: [release(pair, _OWNER, now)],
        "reserved": lambda pair: reserving(pair[0], _OWNER, _LONG_MS)[:1],
        "done mark": lambda pair: [
            ("SET", done_key("celery-redlock", pair[0], _OWNER[33:69]), "1", "PX", _LONG_MS)
        ],
    }
    rows = []
    with server.client() as client:
        for script in (GRANT, RELEASE):
            client.script_load(script.text)
        empty = 0
        for name, way in ways.items():
            if not name.startswith("released"):
                client.flushall()
                empty = client.info("memory")["used_memory"]
            for start in range(0, keys, 10_000):
                _send(client, [c for pair in pairs[start : start + 10_000] for c in way(pair)])
            each = (client.info("memory")["used_memory"] - empty) / keys
            rows.append({"name": name, "bytes_per_key": each, "mb_per_million": each})
    page.add("memory", "Memory of a node", rows, f"measured with {keys:,} keys")
