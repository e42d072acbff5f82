"""What a broker does with a message that it takes for lost, at a moment that the test chooses.

For Redis as broker. A copy is what Celery's own transport makes of a message when the visibility
timeout has passed or a connection was lost: the same bytes and delivery tag, marked as redelivered.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis

from tests.support.eventually import eventually
from tests.support.judges.queues import is_taking
from tests.support.processes.project import Project
from tests.support.versions import LOOKS_FOR_LOST_MESSAGES_WHEN_TOLD

if TYPE_CHECKING:
    from typing_extensions import Self

_PRIORITIES = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""What kombu adds to a queue's name for each of its priority steps."""


_HELD_MS = 600_000  # until it is told otherwise


@dataclass(frozen=True, slots=True)
class Message:
    """A message in the broker.

    Attributes:
        task_id: Of its task.
        retries: Which of the task's tries it is.
        tag: What it is acknowledged by; the same for all copies.
        is_delivered: Whether a worker has it, instead of the queue.
        raw: The message itself.
    """

    task_id: str
    retries: int
    tag: str
    is_delivered: bool
    raw: dict[str, Any]


def messages(project: Project, task_id: str | None = None) -> list[Message]:
    """Return what the broker has, delivered or not; of one task, or of all."""
    return _look(project, task_id)[0]


def _look(project: Project, task_id: str | None = None) -> tuple[list[Message], bool]:
    """Return the broker's messages, and whether a worker may have another, at one moment."""
    with _broker(project) as broker:
        pipe = broker.pipeline()
        for priority in _PRIORITIES:
            pipe.lrange(project.queue + priority, 0, -1)
        pipe.hvals("unacked")
        pipe.client_list()
        *queued, delivered, clients = pipe.execute()
    found = [_message(json.loads(raw), is_delivered=False) for raws in queued for raw in raws]
    found += [_message(json.loads(entry)[0], is_delivered=True) for entry in delivered]
    return [one for one in found if task_id in (None, one.task_id)], is_taking(clients)


def capture(project: Project, task: Any, *args: Any, **options: Any) -> Message:
    """Publish a message of `task` to a queue that nobody reads, and return it."""
    nowhere = f"nowhere-{secrets.token_hex(4)}"
    task.apply_async(args, queue=nowhere, **options)
    with _broker(project) as broker:
        raw = json.loads(str(broker.rpop(nowhere)))
    raw["properties"]["delivery_info"] = {"exchange": "", "routing_key": project.queue}
    return _message(raw, is_delivered=False)


def deliver(project: Project, message: Message) -> None:
    """Put `message` into the queue, for the first time."""
    with _broker(project) as broker:
        broker.lpush(project.queue, json.dumps(message.raw))


def deliver_copy(project: Project, message: Message) -> None:
    """Put a copy of `message` into the queue."""
    raw = json.loads(json.dumps(message.raw))
    # As kombu.transport.redis.Channel._do_restore_message.
    raw["headers"]["redelivered"] = True
    raw["properties"]["delivery_info"]["redelivered"] = True
    with _broker(project) as broker:
        broker.lpush(project.queue, json.dumps(raw))


def redeliver(project: Project, task_id: str) -> None:
    """Let the visibility timeout of a task's delivered message pass at once."""

    def delivered() -> list[Message]:
        return [message for message in messages(project, task_id) if message.is_delivered]

    # A run that has just sent the next message of its task is about to acknowledge its own.
    eventually(lambda: len(delivered()) == 1, f"one message is delivered, not {delivered()}")
    with project.app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        channel.qos.restore_by_tag(delivered()[0].tag)


@contextmanager
def restoring_often(project: Project) -> Iterator[None]:
    """Put messages back each second when their visibility timeout has passed, as a worker does."""
    if LOOKS_FOR_LOST_MESSAGES_WHEN_TOLD:
        yield
        return
    is_over = threading.Event()

    def restore() -> None:
        with project.app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            while not is_over.wait(1.0):
                channel.qos.restore_visible(interval=1)

    thread = _thread(restore)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def wait_until_settled(project: Project, task_id: str | None = None) -> None:
    """Return when no message is left, neither in the queue nor with a worker."""
    eventually(
        lambda: _look(project, task_id) == ([], False),
        f"no message is left of {messages(project, task_id)}",
    )


@contextmanager
def each_noted(project: Project, *task_ids: str) -> Iterator[None]:
    """Hold the broker while it has a message of each task: who is killed now takes none along.

    A Redis broker forgets a message as it gives it away, and a worker that is killed before it has
    noted the message loses it. While the broker is held, nothing is given away.
    """
    with _broker(project) as broker:

        def are_noted() -> bool:
            broker.client_pause(_HELD_MS, all=False)
            if all(messages(project, task_id) for task_id in task_ids):
                return True
            broker.client_unpause()
            return False

        eventually(are_noted, f"the broker has a message of each of {task_ids}")
        try:
            yield
        finally:
            broker.client_unpause()


class Watch:
    """Records what happens to one task's messages and stored states, while it is entered.

    Attributes:
        most: How many messages of the task the broker had at a time, at most; 0 if it is not Redis.
        states: Every state that was stored, in order.
    """

    def __init__(self, project: Project, task_id: str) -> None:
        self.most = 0
        self.states: list[str] = []
        self._project = project
        self._task_id = task_id
        self._is_over = threading.Event()
        self._is_listening = threading.Event()
        self._threads = [_thread(self._listen)]
        if str(project.conf["broker_url"]).startswith("redis"):
            self._threads.append(_thread(self._count))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self._is_listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _count(self) -> None:
        while not self._is_over.wait(0.05):
            self.most = max(self.most, len(messages(self._project, self._task_id)))

    def _listen(self) -> None:
        # A Redis result backend announces each state that it stores to those who wait for it.
        url = str(self._project.conf["result_backend"])
        with redis.Redis.from_url(url) as client, client.pubsub() as announcements:
            announcements.subscribe(f"celery-task-meta-{self._task_id}")
            while (said := announcements.get_message(timeout=0.1)) or not self._is_over.is_set():
                if said and said["type"] == "subscribe":
                    self._is_listening.set()
                elif said:
                    self.states.append(json.loads(said["data"])["status"])


def _thread(target: Callable[[], None]) -> threading.Thread:
    return threading.Thread(target=target, daemon=True)


def _message(raw: dict[str, Any], *, is_delivered: bool) -> Message:
    headers, properties = raw["headers"], raw["properties"]
    return Message(headers["id"], headers["retries"], properties["delivery_tag"], is_delivered, raw)


@contextmanager
def _broker(project: Project) -> Iterator[redis.Redis]:
    url = str(project.conf["broker_url"])
    with redis.Redis.from_url(url, decode_responses=True) as client:
        yield client
