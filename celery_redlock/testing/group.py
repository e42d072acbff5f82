"""A node of a test, and several that are started and stopped together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from typing_extensions import Self


class Node(ABC):
    """One node on 127.0.0.1; started and stopped by `with`."""

    port: int
    _client_options: ClassVar[Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The node's address, for `redlock_nodes`, and as redis-py and Celery take it."""
        return f"redis://127.0.0.1:{self.port}"

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it, also if it does not run."""

    @abstractmethod
    def reset(self) -> None:
        """Return it to running and empty."""

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client that never retries; close it, or use it in `with`.

        Args:
            options: More arguments of `redis.Redis`; `socket_timeout` is 10 s by default.
        """
        defaults: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 10.0}
        return redis.Redis.from_url(self.url, **defaults | {**self._client_options} | options)


NodeT = TypeVar("NodeT", bound=Node)


class Group(tuple[NodeT, ...], Generic[NodeT]):
    """Nodes that are independent of each other; started and stopped by `with`."""

    __slots__ = ()

    def __enter__(self) -> Self:
        try:
            for node in self:
                node.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def urls(self) -> list[str]:
        """The address of each node, in order, for `redlock_nodes`."""
        return [node.url for node in self]

    def reset(self) -> None:
        """Return each node to running and empty, whatever was done to it."""
        for node in self:
            node.reset()

    def stop(self) -> None:
        """Stop all nodes."""
        for node in self:
            node.stop()
