"""`celery-redlock status` on real servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from celery_redlock.testing import Server, Servers
from tests.conftest import ProxyFor, StartServers
from tests.support.eventually import eventually
from tests.support.faults.clock_shim import WallClock
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


def test_a_restarted_node_is_guarded(servers: StartServers, run: Run) -> None:
    three = servers(3)
    shown = run(three.urls, "status", "--json", options=["--restart-guard"])
    assert {node["state"] for node in shown.json["nodes"]} == {"guarded"}
    assert all(0 < node["votes_in"] <= 63.6 for node in shown.json["nodes"])
    assert shown.exit_code == 1


def test_a_replica_and_a_second_address_are_unfit(servers: StartServers, run: Run) -> None:
    three = servers(3)
    with three[1].client() as client:
        client.replicaof("127.0.0.1", three[0].port)
    urls = [three[0].url, three[1].url, three[0].unix_url]
    shown = run(urls, "status", "--json")
    assert [node["state"] for node in shown.json["nodes"]] == ["unfit"] * 3
    assert "is a slave" in shown.json["nodes"][1]["why"]
    assert "are the same server" in shown.json["nodes"][2]["why"]
    assert (shown.json["votes"], shown.exit_code) == (0, 1)


def test_a_cluster_node_is_unfit(servers: StartServers, run: Run) -> None:
    [node] = servers(1, "--cluster-enabled", "yes")
    shown = run([node.url], "status", "--json")
    assert "is in cluster mode" in shown.json["nodes"][0]["why"]
    assert shown.exit_code == 1


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


def test_a_clock_that_is_ahead_is_measured(
    new_wall_clock: Callable[[], WallClock], run: Run
) -> None:
    clock = new_wall_clock()
    # Before the start, since Valkey 9.1 looks at its clock some times a second only.
    clock.step(60.0)
    with Server(env=clock.env) as node:
        shown = run([node.url], "status", "--json")
    assert shown.json["nodes"][0]["clock_offset"] == pytest.approx(60.0, abs=2.0)


def test_a_slow_path_shows_in_the_round_trip(
    servers: StartServers, proxy_for: ProxyFor, run: Run
) -> None:
    proxy = proxy_for(servers(1)[0])
    proxy.replies.delay = 0.1
    shown = run([proxy.url], "status", "--json", options=["--node-timeout", "0.05"])
    [node] = shown.json["nodes"]
    assert 0.1 <= node["latency"] < 60
    assert (node["state"], shown.exit_code) == ("slow", 1)
    assert "redlock_node_timeout is 50 ms" in node["why"]


def test_nodes_that_are_full_or_deny_their_user_do_not_vote(
    servers: StartServers, run: Run
) -> None:
    three = servers(3)
    with three[0].client() as full, three[1].client() as denying:
        full.config_set("maxmemory", "1")
        denying.execute_command("ACL", "SETUSER", "default", "-set")
    shown = run(three.urls, "status", "--json")
    assert [node["state"] for node in shown.json["nodes"]] == ["refuses", "refuses", "votes"]
    assert "OOM" in shown.json["nodes"][0]["why"]
    assert (shown.json["votes"], shown.exit_code) == (1, 1)
    assert "no quorum: 1 of 3 nodes vote" in run(three.urls, "show", "k").output
    found = run(three.urls, "doctor", "--json").json["findings"]
    assert "RL101" in [finding["code"] for finding in found]


@redis_versions
def test_every_server_tells_all_that_is_shown(
    redis_binary: Path, servers: StartServers, run: Run
) -> None:
    [node] = servers(1, "--maxmemory", "100mb", binary=redis_binary)
    [shown] = run([node.url], "status", "--json").json["nodes"]
    assert {name for name, value in shown.items() if value is None} <= {"why"}
    assert shown["max_memory"] == 100 * 2**20
    assert shown["policy"] == "noeviction"


def test_an_invalid_url_is_an_error_without_its_password(run: Run) -> None:
    shown = run(["redis://:s3/cret@host"], "status")
    assert shown.exit_code == 1
    assert "Error: a node's URL can't be read" in shown.output
    assert "cret" not in shown.output
