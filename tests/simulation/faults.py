"""What faults of the network and of nodes do, and how they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from celery_redlock.redlock.protocol.scripts import CONFIRM

from .schedule import LOSE_CONFIRM, ON_LINKS, STEP, Fault
from .servers import Server
from .wire import Link
from .world import World


class Faults:
    """Faults, as a schedule has them.

    Args:
        world: Time.
        servers: The nodes.
        links: Links of each client, one to each node.
        slowness: Longest ordinary delay, seconds.
        struck: Counts what struck, by kind.
    """

    def __init__(
        self, world: World, servers: Sequence[Server], links: Sequence[Sequence[Link]],
        slowness: float, struck: Counter[str],
    ) -> None:  # fmt: skip
        self._world = world
        self._servers = servers
        self._links = links
        self._slowness = slowness
        self._struck = struck

    def strike(self, fault: Fault) -> None:
        """Begin a fault, and see to its end."""
        server = self._servers[fault.node]
        self._struck[fault.kind] += 1
        self._world.note(
            f"fault {fault.kind} {fault.lasts:g} s on {server.name} of c{fault.client}"
        )
        ends_at = self._world.time + fault.lasts
        if fault.kind in ON_LINKS or fault.kind == LOSE_CONFIRM:
            chosen = self._links if fault.client < 0 else [self._links[fault.client]]
            self._strike_links(fault, [links[fault.node] for links in chosen], ends_at)
        else:
            self._strike_node(fault, server, ends_at)

    def _strike_links(self, fault: Fault, links: list[Link], ends_at: float) -> None:
        match fault.kind:
            case "slow":
                for link in links:
                    link.slowness = fault.size
                self._world.at(ends_at, self._hasten, links)
            case "cut" | "deaf" | "mute":
                for link in links:
                    link.cut(
                        out_until=0.0 if fault.kind == "mute" else ends_at,
                        in_until=0.0 if fault.kind == "deaf" else ends_at,
                    )
            case "lose_confirm":
                for link in links:
                    link.loses = CONFIRM.sha.encode()
                self._world.at(ends_at, self._lose_nothing, links)
            case _:
                for link in links:
                    link.reset(is_heard=fault.kind == "reset")

    def _strike_node(self, fault: Fault, server: Server, ends_at: float) -> None:
        if fault.kind == "hang":
            server.hang()
            self._world.at(ends_at, lambda _: server.go_on())
        elif fault.kind == STEP:
            server.stepped += fault.size
            self._world.at(ends_at, lambda _: server.step_back(fault.size))
        elif server.is_up:
            server.stop()
            for links in self._links:
                links[fault.node].reset(is_heard=fault.kind != "power_loss")
            forgets = fault.kind != "restart"
            self._world.at(ends_at, lambda _: server.start(forgets=forgets))

    def _hasten(self, links: list[Link]) -> None:
        for link in links:
            link.slowness = self._slowness

    def _lose_nothing(self, links: list[Link]) -> None:
        for link in links:
            link.loses = b""
