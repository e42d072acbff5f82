"""Direct connections to all nodes, for the length of one command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import Argument
from celery_redlock.redlock.transport.direct import DirectConnection, ErrorReply, packed

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
Command = tuple[Argument, ...]
Replies = list[object] | Failed


def refusal_in(replies: Replies) -> str | None:
    """Return the first error among the replies of a node; None: it did all that it was asked."""
    if isinstance(replies, Failed):
        return replies.error
    return next((str(one) for one in replies if isinstance(one, ErrorReply)), None)


class NodeSet:
    """Connections to `urls`, opened and closed by ``with``. Nodes that fail are not asked again.

    Args:
        urls: URLs of the nodes.
        timeout: Longest wait for a node, seconds.

    Raises:
        ConfigurationError: A URL is not valid.
    """

    def __init__(self, urls: Sequence[str], timeout: float) -> None:
        self.connections = [DirectConnection(url, SystemClock(), timeout) for url in urls]

    def __enter__(self) -> Self:
        self.on_each(DirectConnection.connect)
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.close()

    def __len__(self) -> int:
        return len(self.connections)

    @property
    def names(self) -> list[str]:
        """Addresses of the nodes."""
        return [connection.name for connection in self.connections]

    @property
    def errors(self) -> dict[str, str]:
        """Reasons of the nodes that can't be asked, by address."""
        return {one.name: one.error for one in self.connections if one.error is not None}

    @property
    def doubt(self) -> str | None:
        """How many nodes can be asked, and why others can't, if that is no quorum; None: it is."""
        errors, total = self.errors, len(self)
        answers, needed = total - len(errors), majority(total)
        if answers >= needed:
            return None
        be = "is" if needed == 1 else "are"
        reasons = "; ".join(f"{node}: {why}" for node, why in errors.items())
        return f"{answers} of {total} nodes answered, {needed} {be} needed ({reasons})"

    def on_each(self, question: Callable[..., T], *more: Sequence[object]) -> list[T]:
        """Return what `question` returns for each node; all are asked at the same time.

        Args:
            question: Called with the connection to the node.
            more: More arguments of it, one for each node.
        """
        with ThreadPoolExecutor(len(self.connections)) as threads:
            return list(threads.map(question, self.connections, *more))

    def ask(self, commands: Sequence[Command]) -> list[Replies]:
        """Send the same commands to all nodes; return the replies of each."""
        self.send(commands)
        return self.receive(len(commands))

    def send(self, commands: Sequence[Command]) -> None:
        """Send the same commands to all nodes, without a wait for their replies."""
        payload = packed(commands)
        for connection in self.connections:
            connection.send(payload, len(commands))

    def send_to(self, at: int, commands: Sequence[Command]) -> None:
        """Send commands to one node, without a wait for their replies."""
        self.connections[at].send(packed(commands), len(commands))

    def receive(self, count: int) -> list[Replies]:
        """Return the next `count` replies of each node."""
        return [connection.receive(count) for connection in self.connections]
