"""What kombu keeps in brokers, and what workers tell of the messages that they have."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound

if TYPE_CHECKING:
    from typing_extensions import Self


class Broker:
    """Connection to a broker, as kombu has it."""

    driver_type = ""
    connection_errors = (ConnectionError,)
    channel_errors = (PermissionError, NotFound)

    def __init__(self, uri: str) -> None:
        self.uri, self.alt, self.is_up = uri, [uri], True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def as_uri(self) -> str:
        return self.uri

    def get_transport_cls(self) -> Any:
        return SimpleNamespace(driver_type=self.driver_type)

    def connect(self) -> None:
        if not self.is_up:
            raise ConnectionRefusedError("Connection refused")


class RedisBroker(Broker):
    """What kombu keeps in Redis: a list for each queue and priority, and what is unacknowledged.

    Attributes:
        lists: Elements of each list, by its key.
        hashes: Fields of each hash, by its key.
        denied: Keys that the user may not read.
    """

    driver_type = "redis"
    ack_emulation = True
    priority_steps = (0, 3)
    sep = "\x06\x16"
    unacked_key = "unacked"
    global_keyprefix = ""

    def __init__(self, uri: str = "redis://") -> None:
        super().__init__(uri)
        self.lists: dict[str, list[str]] = {}
        self.hashes: dict[str, dict[str, str]] = {}
        self.denied: set[str] = set()
        self.default_channel = self.connection = self.client = self

    def _q_for_pri(self, queue: str, step: int) -> str:
        return f"{queue}{self.sep}{step}" if step else queue

    # Kombu adds the prefix to these

    def llen(self, name: str) -> int:
        return len(self.lists.get(self.global_keyprefix + name, []))

    def hlen(self, name: str) -> int:
        return len(self.hashes.get(self.global_keyprefix + name, {}))

    # and not to these.

    def lrange(self, name: str | bytes, start: int, end: int) -> list[str]:
        assert end + 1 - start == 500
        return self.lists.get(self._readable(name), [])[start : end + 1]

    def hscan_iter(self, name: str | bytes, count: int) -> Iterator[tuple[str, str]]:
        assert count == 500
        yield from self.hashes.get(self._readable(name), {}).items()

    def scan_iter(self, pattern: str, count: int, _type: str) -> Iterator[bytes]:
        assert count == 500
        keys = {"list": [*self.lists], "hash": [*self.hashes]}[_type]
        yield from (key.encode() for key in keys if fnmatch.fnmatchcase(key, pattern))

    def _readable(self, name: str | bytes) -> str:
        text = name.decode() if isinstance(name, bytes) else name
        if text in self.denied:
            raise PermissionError("NOPERM")
        return text

    # For tests

    def queue(self, key: str, *messages: Mapping[str, Any]) -> None:
        """Put messages into a list."""
        self.lists[key] = [json.dumps(message) for message in messages]

    def deliver(self, key: str, message: Mapping[str, Any]) -> None:
        """Put a message into a hash of those that are not acknowledged."""
        self.hashes[key] = {"tag": json.dumps([message, "exchange", "routing-key"])}


class RabbitMQ(Broker):
    """What RabbitMQ tells of a queue: the numbers of messages that wait, and of consumers.

    Attributes:
        queues: Both numbers, by the name of the queue.
    """

    driver_type = "amqp"

    def __init__(self, uri: str = "amqp://") -> None:
        super().__init__(uri)
        self.queues: dict[str, tuple[int, int]] = {}

    @contextmanager
    def channel(self) -> Iterator[Self]:
        yield self

    def queue_declare(self, *, queue: str, passive: bool) -> Any:
        assert passive
        if queue not in self.queues:
            raise NotFound
        message_count, consumer_count = self.queues[queue]
        return SimpleNamespace(message_count=message_count, consumer_count=consumer_count)


@dataclass
class Workers:
    """Remote control of workers.

    Attributes:
        consumed: Queues of each worker.
        answers: Answers of each worker to other questions, by the question; [] by default.
        silent: Workers that answer the first question only.
        asked: Questions, in order.
    """

    consumed: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def inspect(
        self, destination: list[str] | None = None, timeout: float = 1.0, limit: int = 0
    ) -> Any:
        assert timeout == 3.0
        assert limit == len(destination or ())
        return self

    def active_queues(self) -> Any:
        self.asked.append("active_queues")
        given = self.answers.get("active_queues", {})
        queues = {
            name: [{"name": queue} for queue in queues] for name, queues in self.consumed.items()
        }
        return queues | given or None

    def active(self) -> Any:
        return self._answers("active")

    def reserved(self) -> Any:
        return self._answers("reserved")

    def scheduled(self) -> Any:
        return self._answers("scheduled")

    def registered(self, field: str) -> Any:
        assert field == "rate_limit"
        return self._answers("registered")

    def _answers(self, question: str) -> Any:
        self.asked.append(question)
        given = self.answers.get(question, {})
        return {name: given.get(name, []) for name in self.consumed.keys() - self.silent} or None
