"""`celery-redlock status` on real servers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import redis

from celery_redlock.testing import Servers
from tests.conftest import StartServers
from tests.support.eventually import eventually
from tests.support.processes.ran import Ran, Run
from tests.support.requirements import redis_versions


def test_each_node_is_a_row_and_the_last_line_is_the_verdict(five: Servers, run: Run) -> None:
    shown = run(five.urls, "status")
    table, verdict = shown.output.strip().split("\n\n")
    header, *rows = table.splitlines()
    assert header.startswith("NODE ")
    assert [row.split()[:2] for row in rows] == [[f"127.0.0.1:{one.port}", "votes"] for one in five]
    assert verdict == "Locks work: 5 of 5 nodes vote, and 2 may fail."
    assert shown.exit_code == 0


def test_nodes_that_are_down_or_hung_are_shown_with_the_reason(five: Servers, run: Run) -> None:
    five[0].kill()
    five[1].pause()
    shown: Ran | None = None

    def are_told_apart() -> bool:
        nonlocal shown
        shown = run(five.urls, "status", "--json", options=["--node-timeout", "0.2"])
        states = [node["state"] for node in shown.json["nodes"]]
        return states == ["down", "down", "votes", "votes", "votes"]

    # On a busy machine a node may be slow.
    eventually(are_told_apart)
    assert shown
    assert "refused" in shown.json["nodes"][0]["why"]
    assert "did not answer within 1 s" in shown.json["nodes"][1]["why"]
    assert (shown.json["votes"], shown.json["needed"], shown.exit_code) == (3, 3, 0)


def test_a_full_list_of_clients_is_told_in_the_server_s_words(
    servers: StartServers, run: Run
) -> None:
    [node] = servers(1, "--maxclients", "1")
    with node.client() as client:

        def is_connected() -> bool:
            # The probe of the server's start may not be gone yet.
            with suppress(redis.ConnectionError):
                return bool(client.ping())
            return False

        eventually(is_connected)
        shown = run([node.url], "status", "--json")
    assert "max number of clients" in shown.json["nodes"][0]["why"]


@redis_versions
def test_every_server_tells_all_that_is_shown(
    redis_binary: Path, servers: StartServers, run: Run
) -> None:
    [node] = servers(1, "--maxmemory", "100mb", binary=redis_binary)
    [shown] = run([node.url], "status", "--json").json["nodes"]
    assert {name for name, value in shown.items() if value is None} <= {"why"}
    assert shown["max_memory"] == 100 * 2**20
    assert shown["policy"] == "noeviction"
