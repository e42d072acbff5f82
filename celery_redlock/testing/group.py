"""Several nodes of a test, started and stopped together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self


class Node(Protocol):
    """One node."""

    @property
    def url(self) -> str:
        """Its address."""

    def start(self) -> None:
        """Start it."""

    def reset(self) -> None:
        """Return it to running and empty."""

    def stop(self) -> None:
        """Stop it, also if it does not run."""


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
