"""What faults of the network and of nodes do, and how they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from celery_redlock.redlock.protocol.scripts import CONFIRM

from .link import Link, Sidecar
from .schedule import (
    ALL_NODES,
    BLACK_HOLE,
    CLOSINGS,
    LOSE_CONFIRM,
    ON_IDLE,
    ON_LINKS,
    ON_STATES,
    ON_STREAMS,
    SLOW_CONNECT,
    STEP,
    TEARS,
    Fault,
)
from .servers import HANGS_UP, LOCKED_OUT, REPLACED, REPLICA, Server
from .world import World

_IDLE_OPTION = {"silent": "silent_after", "closing": "closes_after"}


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
        self._struck[fault.kind] += 1
        where = "all" if fault.node == ALL_NODES else self._servers[fault.node].name
        self._world.note(f"fault {fault.kind} {fault.lasts:g} s on {where} of c{fault.client}")
        ends_at = self._world.time + fault.lasts
        if fault.kind in CLOSINGS:
            links = self._links[fault.client]
            chosen = links if fault.node == ALL_NODES else [links[fault.node]]
            self._strike_client(fault, chosen, ends_at)
        elif fault.kind in ON_LINKS or fault.kind in ON_STREAMS or fault.kind == LOSE_CONFIRM:
            of_clients = self._links if fault.client < 0 else [self._links[fault.client]]
            chosen = [
                link
                for links in of_clients
                for link in (links if fault.node == ALL_NODES else [links[fault.node]])
            ]
            if fault.kind in ON_STREAMS:
                self._strike_streams(fault, chosen, ends_at)
            else:
                self._strike_links(fault, chosen, ends_at)
        else:
            self._strike_node(fault, self._servers[fault.node], ends_at)

    def _strike_client(self, fault: Fault, links: Sequence[Link], ends_at: float) -> None:
        sidecar = Sidecar(links, int(fault.size), is_executed=fault.kind == "close_reply")
        for link in links:
            link.sidecar = sidecar
        self._world.at(ends_at, self._end_sidecar, (sidecar, links))

    def _end_sidecar(self, ended: tuple[Sidecar, Sequence[Link]]) -> None:
        sidecar, links = ended
        for link in links:
            if link.sidecar is sidecar:
                link.sidecar = None

    def _strike_streams(self, fault: Fault, links: list[Link], ends_at: float) -> None:
        for link in links:
            if fault.kind in TEARS:
                link.tear(
                    int(fault.size),
                    is_reply=fault.kind == "tear_reply", is_silent=fault.kind == "vanish",
                )  # fmt: skip
            elif fault.kind == BLACK_HOLE:
                link.dead_addresses = 1
            elif fault.kind == SLOW_CONNECT:
                link.connects_in = fault.size
            elif fault.kind in ON_IDLE:
                link.end_idle(**{f"{_IDLE_OPTION[fault.kind]}": fault.size})
        self._world.at(ends_at, self._mend_streams, (fault, links))

    def _mend_streams(self, mended: tuple[Fault, list[Link]]) -> None:
        fault, links = mended
        for link in links:
            if fault.kind == BLACK_HOLE:
                link.dead_addresses = 0
            elif fault.kind == SLOW_CONNECT:
                link.connects_in = 0.0
            else:
                link.be_whole()

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
        elif fault.kind in ON_STATES or fault.kind == REPLACED:
            server.enter(fault.kind)
            if fault.kind in (HANGS_UP, LOCKED_OUT):
                # Else it strikes only those that connect anew for another reason.
                self._reset(fault.node)
            self._change_role(fault)
            self._world.at(ends_at, lambda _: server.leave(fault.kind))
            self._world.at(ends_at, lambda _: self._change_role(fault))
        elif fault.kind == STEP:
            server.stepped += fault.size
            self._world.at(ends_at, lambda _: server.step_back(fault.size))
        elif server.is_up:
            server.stop()
            for links in self._links:
                links[fault.node].reset(is_heard=fault.kind != "power_loss")
            forgets = fault.kind != "restart"
            self._world.at(ends_at, lambda _: server.start(forgets=forgets))

    def _change_role(self, fault: Fault) -> None:
        """Break all connections to a node that has become a replica, or a master, as Sentinel does.

        A connection that lives through both does not hear of them.
        """
        if fault.kind in (REPLICA, REPLACED):
            self._reset(fault.node)

    def _reset(self, node: int) -> None:
        for links in self._links:
            links[node].reset(is_heard=True)

    def _hasten(self, links: list[Link]) -> None:
        for link in links:
            link.slowness = self._slowness

    def _lose_nothing(self, links: list[Link]) -> None:
        for link in links:
            link.loses = b""
