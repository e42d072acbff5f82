"""What a worker has open and running: what it must have as much of after a day's work as before."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Inventory:
    """Counts of one process, and of those it has started.

    Attributes:
        descriptors: Open ones of its own, but for connections to the broker: those come and go with
            Celery's greenlets.
        threads: Its own.
        processes: Its children.
        most_of_a_child: The most such descriptors that a child has.
    """

    descriptors: int
    threads: int
    processes: int
    most_of_a_child: int


def inventory_of(pid: int, broker_port: int) -> Inventory:
    """Return what process `pid` has at this moment."""
    process = psutil.Process(pid)
    children = process.children()
    return Inventory(
        _descriptors(process, broker_port),
        process.num_threads(),
        len(children),
        max((_descriptors(child, broker_port) for child in children), default=0),
    )


def _descriptors(process: psutil.Process, broker_port: int) -> int:
    connections = process.net_connections("tcp")
    to_broker = [one for one in connections if getattr(one.raddr, "port", None) == broker_port]
    return process.num_fds() - len(to_broker)
