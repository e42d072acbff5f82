"""A step of the protocol as a sentence, for the counter-examples."""

from __future__ import annotations

from collections.abc import Sequence

from .explorer import Step
from .state import FREE, State


def sentence(step: Step, after: State, names: Sequence[str]) -> str:
    """Return who did what, and what it left behind: `n0 grants B: owner B, floor 2, B GRANTING`."""
    verb, attempt, number = step
    name = names[attempt] if attempt >= 0 else ""
    subject = f"n{number} {verb} {name}" if number >= 0 else f"{name} {verb}"
    facts = []
    if number >= 0:
        node = after.nodes[number]
        owner = "nobody" if node.owner == FREE else names[node.owner]
        facts += [f"owner {owner}", f"floor {node.floor}"]
    if attempt >= 0:
        client = after.clients[attempt]
        facts.append(f"{name} {client.phase.name}")
        if client.token:
            facts.append(f"T={client.token}")
    return subject.strip() + (": " + ", ".join(facts) if facts else "")
