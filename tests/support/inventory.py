"""What a worker has open and running: what it must have as much of after a day's work as before."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Inventory:
    """Counts of one process, and of those it has started.

    Attributes:
        descriptors: Open ones of its own.
        threads: Its own.
        processes: Its children.
        most_of_a_child: The most descriptors that a child has.
    """

    descriptors: int
    threads: int
    processes: int
    most_of_a_child: int


def inventory_of(pid: int) -> Inventory:
    """Return what process `pid` has at this moment."""
    process = psutil.Process(pid)
    children = process.children()
    return Inventory(
        process.num_fds(),
        process.num_threads(),
        len(children),
        max((child.num_fds() for child in children), default=0),
    )
