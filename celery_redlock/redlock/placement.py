"""Placement of a process's locks: key prefix and nodes. Two that differ exclude nothing.

Nodes are compared by the servers behind them: a process may know one by a name and another by its
IP address, and `localhost` is another server on each host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from typing_extensions import Self

_LONGEST = 4000
_TEXT = re.compile(r"[!-~]+( [!-~]+/\d{1,9}=[0-9A-Za-z]{0,8}){1,64}")
_SERVER_DIGITS = 8
_SAFE = ":/[]"


class PlacedNode(NamedTuple):
    """One of the nodes, as a process sees it.

    Attributes:
        address: Host and port, or socket, in ASCII.
        database: Number of its database.
        servers: Short run ids of the servers that were seen there, the newest last; empty: none.
    """

    address: str
    database: int
    servers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}={self.servers[-1] if self.servers else ''}"

    @property
    def name(self) -> str:
        """Address and database."""
        return f"{self.address}/{self.database}"

    def is_same(self, other: PlacedNode) -> bool:
        """Return whether both have seen the same server, and use the same of its databases."""
        return self._has_server_of(other) and self.database == other.database

    def is_named(self, other: PlacedNode) -> bool:
        """Return whether both have the same address and database."""
        return self.name == other.name

    def is_beside(self, other: PlacedNode) -> bool:
        """Return whether both use databases of one server."""
        return self.address == other.address or self._has_server_of(other)

    def _has_server_of(self, other: PlacedNode) -> bool:
        return not set(self.servers).isdisjoint(other.servers)


class Placement(NamedTuple):
    """Placement of the locks of one process. No password is part of it.

    Attributes:
        key_prefix: Start of every key, in ASCII.
        nodes: The nodes, in any order.
    """

    key_prefix: str
    nodes: tuple[PlacedNode, ...]

    def __str__(self) -> str:
        return " ".join((self.key_prefix, *sorted(map(str, self.nodes))))

    @classmethod
    def of(cls, key_prefix: str, nodes: Iterable[tuple[str, int, Sequence[str]]]) -> Self:
        """Return the placement of a lock.

        Args:
            key_prefix: Start of every key.
            nodes: Address, database and run ids of each node; the newest run id is the last.
        """
        placed = (
            PlacedNode(quote(address, _SAFE), database, tuple(one[:_SERVER_DIGITS] for one in seen))
            for address, database, seen in nodes
        )
        return cls(quote(key_prefix, _SAFE), tuple(placed))

    @classmethod
    def read(cls, text: object) -> Self | None:
        """Return the placement that another process has written as text; None: it is not one."""
        if not isinstance(text, str) or len(text) > _LONGEST or not _TEXT.fullmatch(text):
            return None
        prefix, *nodes = text.split()
        return cls(prefix, tuple(map(_node_in, nodes)))

    @property
    def name(self) -> str:
        """Prefix and addresses: the same as long as the settings are."""
        return " ".join((self.key_prefix, *sorted(node.name for node in self.nodes)))

    def difference(self, there: Placement, *, is_fresh: bool) -> str:
        """Return how the placement of another process differs; '': it does not, or may not.

        A node that one of the two has not seen yet may be any of the other's.

        Args:
            there: The other placement.
            is_fresh: Whether both have just looked at their nodes. If not, a node of the same
                address may have been restarted in between, as long as another node is common.
        """
        if self.key_prefix != there.key_prefix:
            return "redlock_key_prefix"
        here, others = _unpaired(self.nodes, there.nodes, PlacedNode.is_same)
        unnamed, theirs = _unpaired(here, others, PlacedNode.is_named)
        if not _may_be_same(unnamed, theirs):
            if len(unnamed) == len(theirs) and all(
                any(one.is_beside(two) for two in theirs) for one in unnamed
            ):
                return "databases of the nodes"
            common = len(self.nodes) - len(unnamed)
            return (
                f"redlock_nodes, of {len(self.nodes)} here and {len(there.nodes)} there {common} "
                "are the same"
            )
        is_common = len(here) < len(self.nodes)
        if (is_fresh or not is_common) and not _may_be_same(here, others):
            return "servers at the same addresses"
        return ""


def _unpaired(
    here: Sequence[PlacedNode],
    there: Sequence[PlacedNode],
    is_pair: Callable[[PlacedNode, PlacedNode], bool],
) -> tuple[list[PlacedNode], list[PlacedNode]]:
    """Return the nodes of both sides that are left when each pair is taken away."""
    left, right = [], list(there)
    for one in here:
        pair = next((other for other in right if is_pair(one, other)), None)
        if pair is None:
            left.append(one)
        else:
            right.remove(pair)
    return left, right


def _may_be_same(here: Sequence[PlacedNode], there: Sequence[PlacedNode]) -> bool:
    """Return whether unpaired nodes may be the same: a node may be one that no server is known of.

    Two whose servers are known are not.
    """
    known = sum(bool(one.servers) for one in here)
    return len(here) == len(there) and known <= sum(not one.servers for one in there)


def _node_in(text: str) -> PlacedNode:
    name, _, server = text.rpartition("=")
    address, _, database = name.rpartition("/")
    return PlacedNode(address, int(database), (server,) if server else ())
