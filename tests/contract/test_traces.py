"""Real clients on real servers and the model are one: what they do, the model allows."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import redis

from celery_redlock.testing import Server, Servers
from tests.model.replay import Seen, Told, differences
from tests.support.eventually import eventually
from tests.support.evidence import record
from tests.support.judges.wiretap import Wiretap

from .taped_fighters import NODE_BUGS, fight_taped, seen_in

PROCESSES = 8
ROUND_S = 2.0
ENOUGH = 30
ROUNDS = 15
"""A bug shows when messages cross, perhaps not in the first. A busy machine does less in one."""


def trace(five: Servers, folder: Path, bug: str = "") -> list[Seen]:
    """Let processes fight while one node stands still and another dies; return what was seen."""
    ports = [server.port for server in five]
    folder.mkdir()
    with Wiretap(five.urls) as tap:
        asked = partial(tap.commands, '"EVALSHA"')
        with fight_taped(folder, five.urls, seconds=ROUND_S, processes=PROCESSES, bug=bug) as fight:
            eventually(lambda: len(asked()) > 100 or fight.poll() is not None)
            five[1].pause()
            dies_heard(five[2])
            enough = len(asked()) + 50
            eventually(lambda: len(asked()) > enough or fight.poll() is not None)
            five[1].resume()
        assert bug or fight.returncode == 0
        living = [five[0], five[1], *five[3:]]
        for server in living:
            with closing(redis.Redis.from_url(server.url)) as client:
                client.echo("the end")
        eventually(lambda: len(tap.commands('"the end"')) == len(living))
        return seen_in(folder, tap.commands(), ports, bug)


def dies_heard(server: Server) -> None:
    """Kill a node that does nothing any more: whatever it has done was heard."""
    with closing(redis.Redis.from_url(server.url)) as client:
        client.client_pause(60_000)
    server.kill()


def test_the_model_allows_what_real_clients_and_servers_do(five: Servers, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for number in range(ROUNDS):
        five.reset()
        seen = trace(five, tmp_path / str(number))
        assert differences(len(five), seen) == []
        counts.update(type(one).__name__ for one in seen)
        counts.update(one.what for one in seen if isinstance(one, Told))
        if counts["acquired"] >= ENOUGH:
            break
    assert counts["acquired"] >= ENOUGH
    record("replay_on_servers", sent=counts["Sent"], carried_out=counts["Taken"],
           leases=counts["acquired"], extensions=counts["extended"], processes=PROCESSES,
           violations=0)  # fmt: skip


@pytest.mark.parametrize(
    "bug",
    [
        "no_confirm",
        *(
            pytest.param(bug, marks=pytest.mark.long)
            for bug in ("minority_is_enough", "same_owner_again", *NODE_BUGS)
        ),
    ],
)
def test_a_real_client_or_server_with_a_bug_differs(
    five: Servers, tmp_path: Path, bug: str
) -> None:
    found: list[str] = []
    for number in range(ROUNDS):
        five.reset()
        found = differences(len(five), trace(five, tmp_path / str(number), bug))
        if found:
            break
    assert found, "the bug was not found"
