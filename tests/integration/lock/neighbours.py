"""Redlock clients of other packages and languages, each as one client of one lock."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol
from urllib.parse import urlsplit

import redis

from tools.benchmarks.node_peers import installed
from tools.benchmarks.peers import package


class Neighbour(Protocol):
    """A client of one lock."""

    def acquire(self, ttl: float) -> bool:
        """Try once to acquire the lock for `ttl` seconds; return whether it is held."""

    def release(self) -> None:
        """Release the lock that was acquired."""


class RedlockPy:
    """redlock-py: the name is the key."""

    def __init__(self, urls: Sequence[str], name: str, stack: ExitStack) -> None:
        places = [urlsplit(url) for url in urls]
        nodes = [{"host": place.hostname, "port": place.port, "db": 0} for place in places]
        self._lock = package("redlock").Redlock(nodes, retry_count=1)
        for server in self._lock.servers:
            stack.callback(server.close)
        self._name = name
        self._held: Any = None

    def acquire(self, ttl: float) -> bool:
        """Try once to acquire the lock."""
        self._held = self._lock.lock(self._name, round(ttl * 1000))
        return bool(self._held)

    def release(self) -> None:
        """Release the lock."""
        self._lock.unlock(self._held)


class Pottery:
    """pottery: puts `redlock:` before its key."""

    def __init__(self, urls: Sequence[str], name: str, stack: ExitStack) -> None:
        self._module = package("pottery")
        self._masters = {redis.Redis.from_url(url) for url in urls}
        for master in self._masters:
            stack.callback(master.close)
        self._key = name.removeprefix("redlock:")
        self._lock: Any = None

    def acquire(self, ttl: float) -> bool:
        """Try once to acquire the lock."""
        self._lock = self._module.Redlock(
            key=self._key, masters=self._masters, auto_release_time=ttl
        )
        return bool(self._lock.acquire(blocking=False))

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


class InNode:
    """A package for Node.js, on ioredis, in a process of its own."""

    def __init__(self, peer: str, urls: Sequence[str], name: str, stack: ExitStack) -> None:
        folder = installed()
        self._process = stack.enter_context(
            subprocess.Popen(
                [folder / "node_modules" / ".bin" / "node", "neighbour.mjs"],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._process.kill)
        self._ask(peer=peer, urls=list(urls), key=name)

    def _ask(self, **question: object) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client ended: exit status {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def acquire(self, ttl: float) -> bool:
        """Try once to acquire the lock."""
        return bool(self._ask(acquire=round(ttl * 1000))["held"])

    def release(self) -> None:
        """Release the lock."""
        self._ask(release=True)


def _in_node(peer: str) -> Callable[[Sequence[str], str, ExitStack], Neighbour]:
    return lambda urls, name, stack: InNode(peer, urls, name, stack)


NEIGHBOURS: dict[str, Callable[[Sequence[str], str, ExitStack], Neighbour]] = {
    "redlock-py": RedlockPy,
    "pottery": Pottery,
    "redlock (Node.js)": _in_node("redlock"),
    "redlock-universal (Node.js)": _in_node("redlock-universal"),
}
"""Given the nodes' addresses and the name of the lock key on them."""
