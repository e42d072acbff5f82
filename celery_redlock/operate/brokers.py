"""Messages in the app's brokers, as kombu stores them there, without consuming any."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from amqp.exceptions import NotFound
from kombu.exceptions import OperationalError
from kombu.transport.native_delayed_delivery import MAX_LEVEL, level_name

from celery_redlock.messages.reservation import reservation_in
from celery_redlock.redlock.errors import RedlockError, shown, visible
from celery_redlock.units import count

from .locks import escaped

MOST_MESSAGES = 1_000_000
"""Messages that are read in one look, in some 20 s; with more of them the look is given up."""
_BATCH = 500
Consumed = Mapping[str, Collection[str]]
"""Queues that each worker consumes, by its name."""


class MessagesUnknown(RedlockError):
    """Messages may be left that can't be seen: any reservation may have its message among them."""

    def __str__(self) -> str:
        return f"it can't be told which messages are left: {self.args[0]}. Nothing was released"


def reason_in(error: BaseException) -> str:
    """Return why a broker's client failed: the kind of its error, and what the system said.

    Without its text, which may quote parts of the broker's URL, and so of its password.
    """
    cause = error.__cause__ or error  # kombu's own errors come from the client's
    for one in (cause, cause.__context__):
        if isinstance(one, OSError) and one.strerror:
            return f"{type(cause).__name__}: {visible(one.strerror)}"
    return type(cause).__name__


class Brokers:
    """Brokers that the app's messages are published to and consumed from: mostly one.

    Args:
        app: The app.

    Attributes:
        keep_delivered: Whether they show the messages, also those that a worker has and has not
            acknowledged. False: only whether there are any, and only those in the queues.

    Raises:
        MessagesUnknown: A broker shows neither.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.keep_delivered = True
        for connection in self._connections():
            driver_type = connection.get_transport_cls().driver_type
            if driver_type not in _LOOKS:
                raise MessagesUnknown(
                    f"the broker is {driver_type}, not Redis or RabbitMQ; "
                    "release a reservation by its key"
                )
            self.keep_delivered &= driver_type == "redis"

    def owners_in_messages(self, queues: Collection[str], consumed: Consumed) -> set[str]:
        """Return the owners of the reservations in all messages that wait or are delivered.

        Args:
            queues: Queues that messages may be in.
            consumed: Queues that each worker consumes.

        Raises:
            MessagesUnknown: Messages may be left that can't be read.
        """
        owners: set[str] = set()
        for connection in self._connections():
            look = _LOOKS[connection.get_transport_cls().driver_type]
            with connection:
                connection.connect()
                owners.update(look(connection, queues, consumed))
        return owners

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Turn the errors of the brokers, for instance that one is down, into a `MessagesUnknown`.

        Raises:
            MessagesUnknown: A broker failed.
        """
        errors = {OperationalError}
        for connection in self._connections():
            errors.update(connection.connection_errors, connection.channel_errors)
        try:
            yield
        except tuple(errors) as error:
            raise MessagesUnknown(f"the broker can't be asked ({reason_in(error)})") from error

    def _connections(self) -> Iterable[Any]:
        both = (self._app.connection_for_read(), self._app.connection_for_write())
        return {one.as_uri(): one for one in both}.values()


# ---- Redis


def _owners_in_redis(connection: Any, queues: Collection[str], _: Consumed) -> Iterator[str]:
    if len(connection.alt) > 1 and not connection.alt[0].startswith("sentinel:"):
        raise MessagesUnknown("there are several brokers, and each may have some")
    channel = connection.default_channel
    if not channel.ack_emulation:
        raise MessagesUnknown("with ack_emulation=False, Redis keeps none that was delivered")
    return _RedisLook(channel).owners(queues)


class _RedisLook:
    """One look at the messages of a Redis server: queued, and not acknowledged.

    Kombu puts `global_keyprefix` before the keys of the commands that it uses itself, and of no
    others; here those are HLEN and LLEN.

    Everything that looks like a queue is read, by whatever name. A process with another `sep` or
    other priorities may have filled it, and it need not be declared. And what has another prefix
    belongs to an app that, with the same nodes, has the same locks.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._client = channel.client
        self._denials = tuple(channel.connection.channel_errors)
        self._prefix = str(channel.global_keyprefix)
        self._read = 0

    def owners(self, queues: Collection[str]) -> Iterator[str]:
        """Yield the owners of the reservations in all messages."""
        client, channel, prefix = self._client, self._channel, self._prefix
        named = {
            channel._q_for_pri(queue, step)  # noqa: SLF001  # kombu has no other way
            for queue in queues
            for step in channel.priority_steps
        }
        for name in named:
            messages = self._in_list(prefix + name)
            yield from _owners_in(self._checked(messages, partial(client.llen, name)))
        # What is not there during the whole scan may be missed: all in it is new.
        yield from _owners_in(self._scanned("list", "*", self._in_list))
        unacked = channel.unacked_key
        delivered = self._checked(self._in_hash(prefix + unacked), partial(client.hlen, unacked))
        yield from _owners_in(delivered)
        yield from _owners_in(self._scanned("hash", f"*{escaped(unacked)}", self._in_hash))

    def _scanned(
        self, kind: str, pattern: str, read: Callable[[Any], Iterator[Any]]
    ) -> Iterator[Any]:
        """Yield the messages in all keys of a type whose names match, as far as they are its own.

        The user need not have the right to read what has another prefix.
        """
        start = self._prefix.encode()
        for name in self._client.scan_iter(pattern, count=_BATCH, _type=kind):
            with suppress(*(() if name.startswith(start) else self._denials)):
                yield from read(name)

    def _in_list(self, name: str | bytes) -> Iterator[Any]:
        # New messages come in at the front, and move those that were read to the back: read twice,
        # none is missed.
        start = 0
        while raws := self._client.lrange(name, start, start + _BATCH - 1):
            messages = [_parsed(raw) for raw in raws]
            if not any(map(_is_message, messages)):
                return  # a list of something else
            for message in messages:
                yield self._counted(message)
            start += len(raws)

    def _in_hash(self, name: str | bytes) -> Iterator[Any]:
        for _, raw in self._client.hscan_iter(name, count=_BATCH):
            delivered = _parsed(raw)
            yield self._counted(delivered[0] if isinstance(delivered, list) else None)

    def _counted(self, message: Any) -> Any:
        self._read += 1
        if self._read > MOST_MESSAGES:
            raise MessagesUnknown(f"there are more than {MOST_MESSAGES}, too many to read")
        return message

    def _checked(self, messages: Iterable[Any], size: Callable[[], int]) -> Iterator[Any]:
        """Yield messages; if there is none, make sure that kombu finds none, either."""
        is_empty = True
        for message in messages:
            is_empty = False
            yield message
        if is_empty and size():
            raise MessagesUnknown("kombu finds some where there seem to be none; try again")


def _parsed(raw: Any) -> Any:
    with suppress(ValueError):
        return json.loads(raw)
    return None


def _is_message(parsed: Any) -> bool:
    return isinstance(parsed, dict) and "headers" in parsed


def _owners_in(messages: Iterable[Any]) -> Iterator[str]:
    for message in messages:
        reservation = reservation_in(message["headers"]) if _is_message(message) else None
        if reservation:
            yield reservation.owner


# ---- RabbitMQ


def _owners_in_amqp(connection: Any, queues: Collection[str], consumed: Consumed) -> Iterable[str]:
    """Return no owner if no queue has a message: it would not be shown.

    Nor are messages that were delivered: every consumer has to be a worker, which tells of them.
    """
    delaying = map(level_name, range(MAX_LEVEL + 1))
    for queue in (*sorted(queues), *delaying):
        with connection.channel() as channel:
            try:
                declared = channel.queue_declare(queue=queue, passive=True)
            except NotFound:
                continue
        if declared.message_count:
            found = count(declared.message_count, "message")
            raise MessagesUnknown(f"RabbitMQ does not show the {found} in queue {shown(queue)}")
        known = sum(queue in its for its in consumed.values())
        if declared.consumer_count > known:
            raise MessagesUnknown(
                f"queue {shown(queue)} has {count(declared.consumer_count, 'consumer')}, of which "
                f"{known} tell what they have"
            )
    return ()


_LOOKS: dict[str, Callable[[Any, Collection[str], Consumed], Iterable[str]]] = {
    "redis": _owners_in_redis,
    "amqp": _owners_in_amqp,
}
