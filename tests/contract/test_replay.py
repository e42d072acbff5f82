"""The client and the model are one: what the real one does, the model allows, step by step."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_redlock.redlock.protocol.scripts import ALL
from tests.model.replay import Seen, Stored, Taken, Told, differences
from tests.simulation import run as simulation
from tests.simulation.bugs import with_bug
from tests.simulation.installation import installed
from tests.simulation.servers import Server
from tests.simulation.shapes import schedule_of
from tests.simulation.world import World
from tests.support.evidence import record

from .tape import message_of, taped

SEEDS = range(1, 61)


@contextmanager
def taped_servers(seen: list[Seen]) -> Iterator[None]:
    """Let the simulated servers that are made meanwhile add to `seen`."""

    class TapedServer(Server):
        def __init__(self, world: World, name: str, *args: Any) -> None:
            super().__init__(world, name, *args)
            self._number = int(name.removeprefix("n"))
            for script in ALL:
                self._scripts[script.sha] = self._noted(script.sha, self._scripts[script.sha])

        def _noted(self, sha: str, carry_out: Any) -> Any:
            def noted(keys: list[str], argv: list[str]) -> object:
                message = message_of(["EVALSHA", sha, len(keys), *keys, *argv])
                assert message
                before = self._stored(message.key)
                reply = carry_out(keys, argv)
                after = self._stored(message.key)
                seen.append(Taken(message, self._number, before, after))
                return reply

            return noted

        def _do_set(self, key: str, value: str, *options: str) -> bytes | None:
            message = message_of(["SET", key, value, *options])
            assert message
            before = self._stored(message.key)
            reply = super()._do_set(key, value, *options)
            seen.append(Taken(message, self._number, before, self._stored(message.key)))
            return reply

        def _stored(self, key: str) -> Stored:
            return Stored(self._get(key) or "", int(self._get(f"{key}:floor") or 0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "Server", TapedServer)
        yield


def taped_run(seed: int, bug: str | None = None) -> tuple[list[Seen], int]:
    """Return what was seen in one schedule, and the number of its nodes."""
    seen: list[Seen] = []
    schedule = schedule_of(seed)
    gc.disable()
    try:
        with installed() as simulated, with_bug(bug), taped(seen), taped_servers(seen):
            simulation.run(simulated, schedule)
    finally:
        gc.enable()
    return seen, len(schedule.nodes)


def differences_in(seed: int, bug: str | None = None) -> list[str]:
    """Return what the model does not allow of one schedule."""
    seen, nodes = taped_run(seed, bug)
    return differences(nodes, seen)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def test_the_model_allows_all_that_clients_and_nodes_do() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        seen, nodes = taped_run(seed)
        assert differences(nodes, seen) == [], f"seed {seed}"
        counts.update(type(one).__name__ for one in seen)
        counts.update(one.what for one in seen if isinstance(one, Told))
    assert counts["acquired"] > 100
    assert counts["extended"] > 100
    record("replay", schedules=len(SEEDS), sent=counts["Sent"], carried_out=counts["Taken"],
           leases=counts["acquired"], extensions=counts["extended"], violations=0)  # fmt: skip


@pytest.mark.parametrize(
    ("bug", "difference"),
    [
        ("no_confirm", "no majority has confirmed it"),
        ("minority_is_enough", "no majority has confirmed it"),
        ("same_owner_again", "an owner is used again"),
        ("healing_above_the_floor", "the model has no such step"),
        ("release_without_a_floor", "the model has"),
        ("release_of_any_owner", "the model has"),
    ],
)
def test_a_client_or_a_node_with_a_bug_differs(bug: str, difference: str) -> None:
    found = next(found for seed in SEEDS if (found := differences_in(seed, bug)))
    assert difference in found[0]
