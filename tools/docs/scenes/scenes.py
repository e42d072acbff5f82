"""The scenes of the page, each with its variants."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.integration.ladder.rungs import RUNGS
from tests.simulation.schedule import Fault


class Variant(NamedTuple):
    """One recorded run: its label, and the options of its stage."""

    label: str
    options: dict[str, Any]


class Scene(NamedTuple):
    """A scene: its name in addresses, its title, what to look at, and its variants."""

    name: str
    title: str
    text: str
    variants: tuple[Variant, ...]


def _down(*nodes: int, at: float = 0.01, lasts: float = 3.9, kind: str = "forget") -> list[Fault]:
    return [Fault(at, lasts, kind, node - 1) for node in nodes]


def _cut(*nodes: int, kind: str = "cut") -> list[Fault]:
    return [Fault(0.3, 1.5, kind, node - 1, 0) for node in nodes]


def _restarted() -> list[Fault]:
    return [Fault(0.3, 0.1, "forget", node) for node in (2, 3, 4)]


_TWO = {"begins": (0.02, 0.1)}
_FROZEN = {"frozen": ("A", 0.4, 2.0), "begins": (0.02, 0.2)}
_THREE = (0.02, 0.2, 0.25)
_ONE_NODE: dict[str, Any] = {"nodes": 1}
_LATE = {"frozen": ("A", 0.3, 0.9), "begins": _THREE, **_ONE_NODE}
_ACCIDENTS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("killed in between", {"killed": 0.15, "begins": (0.02, 0.3), **_ONE_NODE}, {}),
    ("killed", {"killed": 0.4, "begins": (0.02, 0.3), **_ONE_NODE}, {}),
    ("B's date is ahead", {"ahead": 300.0, "begins": (0.02, 0.2), **_ONE_NODE}, {}),
    ("A is late", _LATE, {}),
    (
        "A is late, in one second",
        {**_LATE, "frozen": ("A", 0.1, 0.5), "ttl": 0.4, "writes": 1},
        {},
    ),
    ("a replica that lags takes over", {"faults": _down(1, at=0.3, lasts=0.1), **_TWO}, _ONE_NODE),
    ("A freezes, and writes", _FROZEN, {}),
    ("three nodes forget", {"faults": _restarted(), **_TWO}, {}),
)
"""What happens to each rung of the ladder, as a stage, and what is different for its own lock."""
SCENES = (
    Scene(
        "acquire",
        "Acquire, renew, release",
        "A asks five nodes, holds the lock with the token that a quorum has confirmed, "
        "and releases it.",
        (
            Variant("all nodes are well", {}),
            Variant("the holder works longer than the ttl", {"writes": 7}),
        ),
    ),
    Scene(
        "node-down",
        "Nodes are down",
        "Three of five nodes are enough. With two, nobody holds the lock.",
        (
            Variant("one node is down", {"faults": _down(5)}),
            Variant("two nodes are down", {"faults": _down(4, 5)}),
            Variant("three nodes are down", {"faults": _down(3, 4, 5)}),
        ),
    ),
    Scene(
        "contention",
        "Two clients, one lock",
        "B waits while A holds the lock, and gets a higher token when A has released it.",
        (
            Variant("B waits for A", _TWO),
            Variant("both ask at once", {"begins": (0.02, 0.02)}),
        ),
    ),
    Scene(
        "frozen",
        "The holder freezes",
        "A stops in the middle of its work, its lease expires, and B gets the lock. "
        "When A runs again, it writes with its old token.",
        (
            Variant("freeze A for two seconds", _FROZEN),
            Variant("freeze A for 0.3 seconds", {"frozen": ("A", 0.4, 0.3), "begins": (0.02, 0.2)}),
            Variant("freeze nobody", {"begins": (0.02, 0.2)}),
        ),
    ),
    Scene(
        "partition",
        "The network is cut",
        "Between A and some of the nodes nothing gets through for 1.5 s.",
        (
            Variant("cut A from two nodes", {"faults": _cut(4, 5), **_TWO, "writes": 5}),
            Variant("cut A from three nodes", {"faults": _cut(3, 4, 5), **_TWO, "writes": 5}),
        ),
    ),
    Scene(
        "late-replies",
        "Replies come late",
        "Requests arrive and are carried out, but their replies are held up.",
        (
            Variant(
                "from two nodes", {"faults": [Fault(0.0, 0.5, "mute", node, 0) for node in (3, 4)]}
            ),
            Variant(
                "from three nodes",
                {"faults": [Fault(0.0, 0.5, "mute", node, 0) for node in (2, 3, 4)]},
            ),
        ),
    ),
    Scene(
        "clock",
        "A node's clock is stepped",
        "A clock that is ahead lets a lease expire early on its node. One such node has no quorum.",
        (
            Variant(
                "one clock, 5 s ahead",
                {"faults": [Fault(0.4, 2.0, "clock_step", 4, -1, 5.0)], **_TWO},
            ),
            Variant(
                "three clocks, 5 s ahead, and A freezes: more than is promised",
                {
                    "faults": [Fault(0.4, 2.0, "clock_step", node, -1, 5.0) for node in (2, 3, 4)],
                    **_FROZEN,
                },
            ),
        ),
    ),
    Scene(
        "ladder",
        "Eight wrong locks beside ours",
        "The same accident happens to a lock of the ladder, and to this one.",
        tuple(
            variant
            for rung, (accident, options, theirs) in zip(RUNGS, _ACCIDENTS, strict=True)
            for lock, own in ((rung.name, {**theirs, "foil": rung.foil}), ("This lock", {}))
            for variant in (Variant(f"{lock}: {accident}", {**options, **own, "claims": True}),)
        ),
    ),
)
